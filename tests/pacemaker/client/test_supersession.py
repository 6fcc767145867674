from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.client.calls import Call
from stormkeeper.pacemaker.client.supersession import (
    NewerWrites,
    at_or_below,
    covers,
    is_write,
    without_superseded,
)
from stormkeeper.pacemaker.wire import MessageType

SEND, DELETE, DELETE_PULSE = (
    MessageType.SEND_PULSE,
    MessageType.DELETE_PATH,
    MessageType.DELETE_PULSE_ID,
)
PATHS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/b"]
KINDS = [SEND, DELETE, DELETE_PULSE, MessageType.CREATE_PATH, MessageType.GET_PULSE]
requests = st.tuples(st.sampled_from(KINDS), st.sampled_from(PATHS))


def apply(store, request, value):
    """What a Pacemaker does."""
    kind, path = request
    if kind == SEND:
        store[path] = value
    elif kind == DELETE_PULSE:
        store.pop(path, None)
    elif kind == DELETE:
        for held in [held for held in store if at_or_below(held, path)]:
            del store[held]


def is_traceless(newer, older):
    """Whether, left out or done before `newer`, `older` makes no difference to any store."""
    for before in [{}, dict.fromkeys([*PATHS, *(f"{path}/z" for path in PATHS)], "before")]:
        with_older, without = dict(before), dict(before)
        apply(with_older, older, "older")
        apply(with_older, newer, "newer")
        apply(without, newer, "newer")
        if with_older != without:
            return False
    return True


def test_exactly_the_writes_that_leave_no_trace_are_covered():
    for newer, older in product(product(KINDS, PATHS), repeat=2):
        if is_write(newer[0]) and is_write(older[0]):
            assert covers(newer, older) == is_traceless(newer, older), (newer, older)
        else:
            assert not covers(newer, older)


@given(st.lists(requests, max_size=8), requests)
def test_the_table_agrees_with_the_rule(newest_first, older):
    table = NewerWrites()
    for place, (kind, path) in enumerate(newest_first):
        table.add(kind, path, place)
    owner = table.owner_covering(*older)
    if owner is None:
        assert not any(covers(newer, older) for newer in newest_first)
    else:
        assert covers(newest_first[owner], older)


def test_a_subtree_ends_at_a_segment():
    assert at_or_below("/wc-1/x", "/wc-1")
    assert at_or_below("/wc-1", "/wc-1")
    assert at_or_below("/wc-1", "/")
    assert not at_or_below("/wc-10", "/wc-1")
    assert not at_or_below("/", "/wc-1")


def test_only_what_may_have_been_done_follows_a_newer_write():
    def write(*, was_sent, kind=MessageType.SEND_PULSE, path="/a/b"):
        return Call(kind, path, b"", 1.0, 0, 0.0, was_sent=was_sent)

    done, new, other = write(was_sent=True), write(was_sent=False), write(was_sent=True, path="/c")
    delete = write(was_sent=False, kind=MessageType.DELETE_PATH, path="/a")
    below = write(was_sent=True, path="/a/d")
    assert list(without_superseded([done, below, new, other, delete])) == [new, other, delete]
    assert new.followers == [done], "of those that undo it, one is enough"
    assert delete.followers == [below]
