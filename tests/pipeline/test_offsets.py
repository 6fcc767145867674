import json

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.heartbeats.following import Position
from stormkeeper.pipeline import offsets
from stormkeeper.pipeline.offsets import Span

A, B = "a:6699", "b:6699"


def test_an_offset_is_the_instance_and_revision_of_each_server_and_a_tick():
    end = offsets.advance(offsets.initial(), {A: Position("x", 7), B: None})
    assert json.loads(json.dumps(end)) == {
        "tick": ["reader", 1],
        "a:6699": ["x", 7],
        "before a:6699": ["x", 0],
    }


def test_every_trigger_has_a_new_offset_even_in_silence():
    first = offsets.advance(offsets.initial(), {A: Position("x", 7)})
    second = offsets.advance(first, {A: Position("x", 7)})
    third = offsets.advance(second, {A: Position("x", 7)})
    assert first != second != third
    assert offsets.span(first, second, A) == Span("x", 0, 7)  # again, as the first may have failed
    assert offsets.span(second, third, A) == Span("x", 7, 7)
    assert offsets.span(second, third, A).is_empty


def test_a_server_that_is_down_keeps_its_place():
    first = offsets.advance(offsets.initial(), {A: Position("x", 7), B: Position("y", 3)})
    down = offsets.advance(first, {A: None, B: Position("y", 9)})
    back = offsets.advance(down, {A: Position("x", 8), B: Position("y", 9)})
    assert down[A] == first[A]
    assert offsets.span(first, down, B) == Span("y", 0, 9)
    assert offsets.span(down, back, A) == Span("x", 0, 8)
    assert offsets.span(down, back, B) == Span("y", 3, 9)


def test_a_server_that_started_anew_is_read_from_the_beginning():
    first = offsets.advance(offsets.initial(), {A: Position("x", 700)})
    second = offsets.advance(first, {A: Position("z", 4)})
    assert offsets.span(first, second, A) == Span("z", 0, 4, reset=True)


def test_a_server_read_for_the_first_time_is_read_from_the_beginning():
    first = offsets.advance(offsets.initial(), {A: Position("x", 7)})
    second = offsets.advance(first, {A: Position("x", 7), B: Position("y", 5)})
    assert offsets.span(first, second, B) == Span("y", 0, 5)


def test_a_server_never_heard_of_has_no_span():
    end = offsets.advance(offsets.initial(), {A: None})
    assert A not in end
    assert offsets.span(offsets.initial(), end, A) is None


def test_the_place_of_a_server_no_longer_read_is_dropped():
    first = offsets.advance(offsets.initial(), {A: Position("x", 7), B: Position("y", 5)})
    second = offsets.advance(first, {A: Position("x", 7)})
    assert B not in second


def test_a_server_without_revisions_is_read_at_every_trigger():
    java = Position(offsets.WITHOUT_REVISIONS, 0)
    first = offsets.advance(offsets.initial(), {A: java})
    second = offsets.advance(first, {A: java})
    assert not offsets.span(first, second, A).is_empty


@given(
    st.lists(
        st.tuples(st.sampled_from("xy"), st.integers(0, 3), st.sampled_from(["", "down", "fails"])),
        max_size=20,
    )
)
def test_what_one_batch_failed_to_read_is_read_by_the_next_that_is_planned(triggers):
    """Whatever a server does, what is read of an instance leaves no gap behind.

    It may be down when a batch is planned, or fail under the read, though not under two in a row.
    """
    newest = {"x": 0, "y": 0}  # revisions never shrink within an instance
    offset, failed, at, read = offsets.initial(), False, None, 0
    for instance, stored, event in triggers:
        newest[instance] += stored
        position = None if event == "down" else Position(instance, newest[instance])
        end = offsets.advance(offset, {A: position})
        span = offsets.span(offset, end, A)
        offset = end
        if position is None:
            continue
        if at != instance:
            at, read, failed = instance, 0, False
        if event == "fails" and not failed:
            failed = True
            continue
        assert span.after <= read
        assert span.until == newest[instance]
        read, failed = span.until, False
