import json

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pipeline import offsets
from stormkeeper.pipeline.offsets import Position, Span

A, B = "a:6699", "b:6699"


def test_an_offset_is_the_instance_and_revision_of_each_server_and_a_tick():
    end = offsets.advance(offsets.initial(), {A: Position("x", 7), B: None})
    assert json.loads(json.dumps(end)) == {"tick": ["reader", 1], "a:6699": ["x", 7]}


def test_every_trigger_has_a_new_offset_even_in_silence():
    first = offsets.advance(offsets.initial(), {A: Position("x", 7)})
    second = offsets.advance(first, {A: Position("x", 7)})
    assert first != second
    assert offsets.span(first, second, A) == Span("x", 7, 7)
    assert offsets.span(first, second, A).is_empty


def test_a_server_that_is_down_keeps_its_place():
    first = offsets.advance(offsets.initial(), {A: Position("x", 7), B: Position("y", 3)})
    down = offsets.advance(first, {A: None, B: Position("y", 9)})
    back = offsets.advance(down, {A: Position("x", 8), B: Position("y", 9)})
    assert offsets.span(first, down, A).is_empty
    assert offsets.span(first, down, B) == Span("y", 3, 9)
    assert offsets.span(down, back, A) == Span("x", 7, 8)


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
        st.dictionaries(
            st.sampled_from([A, B]),
            st.none() | st.tuples(st.sampled_from("xy"), st.integers(0, 9)),
        ),
        max_size=12,
    )
)
def test_spans_of_one_instance_join_without_gap_or_overlap(triggers):
    """Whatever servers come and go, what is read of one instance is one unbroken history.

    A place is forgotten only with the server itself (left out of the options) or its instance.
    """
    newest = {}  # revisions never shrink within an instance
    offset = offsets.initial()
    read = {}  # (server, instance) -> revision read so far
    for trigger in triggers:
        found = {}
        for server, position in trigger.items():
            if position is None:
                found[server] = None
                continue
            instance, revision = position
            newest[server, instance] = max(revision, newest.get((server, instance), 0))
            found[server] = Position(instance, newest[server, instance])
        end = offsets.advance(offset, found)
        read = {key: value for key, value in read.items() if key[0] in trigger}
        for server in trigger:
            span = offsets.span(offset, end, server)
            if span is None:
                continue
            key = (server, span.instance)
            assert span.after == read.get(key, 0)
            read = {k: v for k, v in read.items() if k[0] != server}
            read[key] = max(span.after, span.until)
        offset = end
