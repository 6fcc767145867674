import json

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.pipeline import source
from stormkeeper.pipeline.source import Span

A, B = "a:6699", "b:6699"


def test_offset_has_instance_and_revision_by_server_and_a_tick():
    end = source.next_offset(source.INITIAL_OFFSET, {A: Position("x", 7), B: None})
    assert json.loads(json.dumps(end)) == {
        "tick": ["reader", 1],
        "a:6699": ["x", 7],
        "before a:6699": ["x", 0],
    }


def test_every_trigger_has_a_new_offset_even_in_silence():
    first = source.next_offset(source.INITIAL_OFFSET, {A: Position("x", 7)})
    second = source.next_offset(first, {A: Position("x", 7)})
    third = source.next_offset(second, {A: Position("x", 7)})
    assert first != second != third
    assert source.batch_span(first, second, A) == Span(
        "x", 0, 7
    )  # again, as the first may have failed
    assert source.batch_span(second, third, A) == Span("x", 7, 7)
    assert source.batch_span(second, third, A).is_empty


def test_a_server_that_is_down_keeps_its_place():
    first = source.next_offset(source.INITIAL_OFFSET, {A: Position("x", 7), B: Position("y", 3)})
    down = source.next_offset(first, {A: None, B: Position("y", 9)})
    back = source.next_offset(down, {A: Position("x", 8), B: Position("y", 9)})
    assert down[A] == first[A]
    assert source.batch_span(first, down, B) == Span("y", 0, 9)
    assert source.batch_span(down, back, A) == Span("x", 0, 8)
    assert source.batch_span(down, back, B) == Span("y", 3, 9)


def test_a_server_that_started_anew_is_read_from_the_beginning():
    first = source.next_offset(source.INITIAL_OFFSET, {A: Position("x", 700)})
    second = source.next_offset(first, {A: Position("z", 4)})
    assert source.batch_span(first, second, A) == Span("z", 0, 4, reset=True)


def test_new_server_is_read_from_the_beginning():
    first = source.next_offset(source.INITIAL_OFFSET, {A: Position("x", 7)})
    second = source.next_offset(first, {A: Position("x", 7), B: Position("y", 5)})
    assert source.batch_span(first, second, B) == Span("y", 0, 5)


def test_a_server_never_heard_of_has_no_span():
    end = source.next_offset(source.INITIAL_OFFSET, {A: None})
    assert A not in end
    assert source.batch_span(source.INITIAL_OFFSET, end, A) is None


def test_the_place_of_a_server_no_longer_read_is_dropped():
    first = source.next_offset(source.INITIAL_OFFSET, {A: Position("x", 7), B: Position("y", 5)})
    second = source.next_offset(first, {A: Position("x", 7)})
    assert B not in second


def test_a_server_without_revisions_is_read_at_every_trigger():
    java = Position(source.WITHOUT_REVISIONS, 0)
    first = source.next_offset(source.INITIAL_OFFSET, {A: java})
    second = source.next_offset(first, {A: java})
    assert not source.batch_span(first, second, A).is_empty


@given(
    st.lists(
        st.tuples(st.sampled_from("xy"), st.integers(0, 3), st.sampled_from(["", "down", "fails"])),
        max_size=20,
    )
)
def test_next_batch_reads_what_failed_in_the_one_before(triggers):
    """Whatever a server does, what is read of an instance leaves no gap behind.

    It may be down when a batch is planned, or fail under the read, though not under two in a row.
    """
    newest = {"x": 0, "y": 0}  # revisions never shrink within an instance
    offset, failed, at, read = source.INITIAL_OFFSET, False, None, 0
    for instance, stored, event in triggers:
        newest[instance] += stored
        position = None if event == "down" else Position(instance, newest[instance])
        end = source.next_offset(offset, {A: position})
        span = source.batch_span(offset, end, A)
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


SERVER = "a:1"


def test_what_two_failed_reads_missed_is_read_by_the_third(tmp_path):
    """A batch begins where the last one that could read has ended, and not where others began."""
    folder, before = str(tmp_path), source.INITIAL_OFFSET

    def begins(revision, instance="i"):
        nonlocal before
        after = source.next_offset(before, {SERVER: Position(instance, revision)})
        span, before = source.batch_span(before, after, SERVER), after
        return source.resume_span(folder, SERVER, None, span).after

    assert begins(100) == 0
    source.record_position(folder, SERVER, None, Position("i", 103))
    assert begins(200) == 103
    assert begins(300) == 103
    assert begins(400) == 103
    source.record_position(folder, SERVER, None, Position("i", 410))
    assert begins(500) == 410
    assert begins(7, "restarted") == 0
