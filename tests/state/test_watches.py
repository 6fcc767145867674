import pytest

from stormkeeper.state.storage import EventType
from stormkeeper.state.watches import ArmedWatches, NodeChanges, NodeWatch, WatchKind, missed

CREATED = EventType.NODE_CREATED
DELETED = EventType.NODE_DELETED
CHANGED = EventType.NODE_DATA_CHANGED
CHILDREN = EventType.NODE_CHILDREN_CHANGED

A = NodeChanges(created=1, modified=1, children_modified=1)
SET = A._replace(modified=2)
CHILD_ADDED = A._replace(children_modified=2)
MADE_AGAIN = NodeChanges(created=3, modified=3, children_modified=3)

NODE = NodeWatch(WatchKind.NODE, "/a")
NAMES = NodeWatch(WatchKind.CHILDREN, "/a")


@pytest.mark.parametrize(
    ("before", "now", "of_node", "of_children"),
    [
        (A, A, None, None),
        (A, SET, CHANGED, None),
        (A, CHILD_ADDED, None, CHILDREN),
        (A, MADE_AGAIN, CHANGED, CHILDREN),
        (A, None, DELETED, DELETED),
        (None, A, CREATED, CREATED),
        (None, None, None, None),
    ],
)
def test_what_a_watch_missed(before, now, of_node, of_children):
    assert missed(WatchKind.NODE, before, now) is of_node
    assert missed(WatchKind.CHILDREN, before, now) is of_children


@pytest.mark.parametrize(
    ("event", "left"),
    [(CREATED, [NAMES]), (CHANGED, [NAMES]), (CHILDREN, [NODE]), (DELETED, [])],
)
def test_an_event_uses_up_the_watches_that_it_answers(event, left):
    armed = ArmedWatches()
    armed.arm(NODE, A)
    armed.arm(NAMES, A)
    armed.arm(NodeWatch(WatchKind.NODE, "/b"), A)
    assert armed.fire(event, "/a")
    assert armed.all() == [*left, NodeWatch(WatchKind.NODE, "/b")]


def test_an_event_that_no_watch_waits_for():
    armed = ArmedWatches()
    armed.arm(NAMES, A)
    assert not armed.fire(CHANGED, "/a")
    assert not armed.fire(CHILDREN, "/b")
    assert armed.all() == [NAMES]


def test_that_events_may_be_missed_uses_up_no_watch():
    armed = ArmedWatches()
    top = NodeWatch(WatchKind.NODE, "/")
    armed.arm(top, A)
    assert not armed.fire(EventType.EVENTS_MISSED, "/")
    assert armed.all() == [top]


def test_only_an_armed_watch_misses_anything():
    armed = ArmedWatches()
    armed.arm(NODE, A)
    assert armed.missed(NODE, SET) is CHANGED
    assert armed.missed(NODE, A) is None
    assert armed.missed(NAMES, CHILD_ADDED) is None
    armed.fire(CHANGED, "/a")
    assert armed.missed(NODE, SET) is None


def test_a_newer_look_counts():
    armed = ArmedWatches()
    armed.arm(NODE, A)
    armed.arm(NODE, SET)
    assert armed.missed(NODE, SET) is None
    assert armed.all() == [NODE]


def test_only_watches_of_earlier_connections_are_left_again():
    armed = ArmedWatches()
    armed.arm(NODE, A, connection=1)
    armed.arm(NAMES, A, connection=2)
    assert armed.left_before(1) == []
    assert armed.left_before(2) == [NODE]
    armed.left_again(NODE, 2)
    assert armed.left_before(2) == []
    assert armed.left_before(3) == [NODE, NAMES]
    armed.arm(NODE, SET, connection=3)
    assert armed.left_before(3) == [NAMES]
    armed.fire(CHILDREN, "/a")
    armed.left_again(NAMES, 3)
    assert armed.left_before(4) == [NODE]
