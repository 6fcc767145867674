"""A subscription in front of every store, with watches of whole trees and without."""

import time

import pytest

from stormkeeper.errors import StateClosedError, StateUnavailableError
from stormkeeper.state.storage import Create, Delete, EventType, SetData
from stormkeeper.state.subscription import Subscription
from stormkeeper.state.subtrees import Snapshot, Subtree
from stormkeeper.state.zookeeper.tree import Tree
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.memory_state import MemoryEnsemble
from support.waiting import DEADLINE_SECS, until

SUBTREES = (Subtree("/a", 1, lambda _path, data: data), Subtree("/names", 2))


@pytest.fixture(params=["tree watches", "a watch per node"])
def subscribed(request, store, state, monkeypatch):
    if request.param == "a watch per node":
        monkeypatch.setattr(Tree, "watch_tree", lambda *_: False)
        if hasattr(store, "ensemble"):
            store.ensemble.has_tree_watches = False
    state.set_data("/a/first", b"1")
    state.mkdirs("/names")
    with Subscription(state, SUBTREES) as subscription:
        yield subscription


def values(snapshot):
    nodes = snapshot.trees["/a"]
    return {path: node.value for path, node in nodes.items() if path != "/a"}


def test_first_snapshot_has_what_is_there(subscribed):
    snapshot = subscribed.caught_up()
    assert values(snapshot) == {"/a/first": b"1"}
    assert snapshot.revision == 1
    assert subscribed.age_secs == 0.0


def test_own_writes_are_in_the_next_snapshot(subscribed, state):
    for number in range(20):
        state.set_data("/a/first", str(number).encode())
        state.set_data(f"/a/{number}", b"")
        assert values(subscribed.caught_up())["/a/first"] == str(number).encode()
        assert f"/a/{number}" in values(subscribed.caught_up())
    state.delete_node("/a/7")
    assert "/a/7" not in values(subscribed.caught_up())


def test_writes_of_others_are_in_a_snapshot_of_now(subscribed, store):
    other = store.open()
    for number in range(20):
        other.set_data("/a/first", str(number).encode())
        assert values(subscribed.now())["/a/first"] == str(number).encode()


def test_names_below_names_are_followed(subscribed, state):
    state.set_data("/names/x/p", b"1")
    state.set_data("/names/x/q", b"2")
    nodes = subscribed.caught_up().trees["/names"]
    assert set(nodes) == {"/names", "/names/x", "/names/x/p", "/names/x/q"}
    assert {node.value for node in nodes.values()} == {None}
    state.delete_node("/names/x")
    assert set(subscribed.caught_up().trees["/names"]) == {"/names"}


def test_what_did_not_change_is_the_same_object(subscribed, state):
    before = subscribed.caught_up()
    state.set_data("/a/second", b"2")
    after = subscribed.caught_up()
    assert after.revision == before.revision + 1
    assert after.trees["/names"] is before.trees["/names"]
    assert after.trees["/a"]["/a/first"] is before.trees["/a"]["/a/first"]
    assert [change.path for change in after.changes_since(before)] == ["/a/second"]
    assert subscribed.caught_up() is after


def test_node_made_again_is_a_change(subscribed, state):
    before = subscribed.caught_up()
    state.commit([Delete("/a/first"), Create("/a/first", b"1")])
    after = subscribed.caught_up()
    (change,) = [one for one in after.changes_since(before) if one.path == "/a/first"]
    assert change.before.stat.created < change.after.stat.created


def test_listener_gets_what_changed(subscribed, state):
    known = [subscribed.caught_up()]
    told = []
    subscribed.add_listener(lambda changes: told.append((changes, subscribed.snapshot)))
    for number in range(5):
        state.set_data(f"/a/{number}", b"")
        state.set_data("/a/first", str(number).encode())
        state.set_data(f"/names/{number}/p", b"")
    state.delete_node("/a/3")
    state.delete_node("/names/2")
    newest = subscribed.caught_up()
    until(lambda: told and told[-1][1] is newest)
    for changes, snapshot in told:
        found = snapshot.changes_since(known[-1])
        assert {one.path: one for one in changes} == {one.path: one for one in found}
        assert len(changes) == len(found)
        known.append(snapshot)


def test_changes_come_in_the_order_of_the_store(subscribed, state):
    state.set_data("/names/x/p", b"")
    before = subscribed.caught_up()
    state.commit(
        [
            *(Create("/a/3", b""), Create("/a/1", b""), SetData("/a/first", b"2")),
            *(Create("/a/2", b""), Delete("/names/x/p"), Delete("/names/x")),
        ]
    )
    state.set_data("/a/1", b"again")
    changes = subscribed.caught_up().changes_since(before)
    gone = [one.path for one in changes if one.after is None]
    assert gone == ["/names/x/p", "/names/x"]
    assert [one.path for one in changes if one.path.startswith("/a/")][-1] == "/a/1"
    zxids = [one.after.stat.modified for one in changes if one.after is not None]
    assert zxids == sorted(zxids)


def test_session_that_ends_is_made_up_for(subscribed, store, state):
    subscribed.caught_up()
    other = store.open()
    store.expire(state)
    other.delete_node("/a/first")
    other.set_data("/a/second", b"2")
    until(lambda: values(subscribed.snapshot) == {"/a/second": b"2"})
    other.set_data("/a/third", b"3")
    until(lambda: "/a/third" in values(subscribed.snapshot))


def test_listener_is_called_after_each_snapshot(subscribed, state):
    subscribed.caught_up()
    revisions = []
    subscribed.add_listener(lambda _: revisions.append(subscribed.snapshot.revision))
    subscribed.add_listener(lambda _: 1 / 0)
    for number in range(5):
        state.set_data(f"/a/{number}", b"")
        subscribed.caught_up()
    until(lambda: revisions and revisions[-1] == subscribed.snapshot.revision)
    assert revisions == sorted(set(revisions))


def test_unreadable_value_is_what_decode_makes_of_it(state):
    state.set_data("/a/x", b"\xff")
    subtree = Subtree("/a", 1, lambda path, data: f"{path} has {len(data)} bytes")
    with Subscription(state, [subtree]) as subscription:
        nodes = subscription.caught_up().trees["/a"]
        assert nodes["/a/x"].value == "/a/x has 1 bytes"


def test_cut_off_view_says_how_old_it_is():
    ensemble = MemoryEnsemble()
    state = ensemble.session()
    state.set_data("/a/x", b"")
    with Subscription(state, [Subtree("/a", 1, lambda _path, data: data)]) as subscription:
        subscription.caught_up()
        ensemble.suspend(state)
        time.sleep(0.01)
        assert subscription.age_secs > 0
        assert "/a/x" in subscription.snapshot.trees["/a"]
        with pytest.raises(StateUnavailableError, match=r"/a is 0\.\d s old, and the store has"):
            subscription.caught_up(0.05)
        ensemble.resume(state)
        until(lambda: subscription.age_secs == 0.0)


def test_age_counts_from_the_loss_of_the_connection():
    now = [1000.0]
    ensemble = MemoryEnsemble()
    state = ensemble.session()
    state.mkdirs("/a")
    with Subscription(state, [Subtree("/a")], clock=lambda: now[0]) as subscription:
        subscription.caught_up()
        now[0] += 100
        assert subscription.age_secs == 0.0
        ensemble.suspend(state)
        now[0] += 5
        assert subscription.age_secs == 5.0


def test_age_counts_from_the_first_unread_change():
    now = [1000.0]
    ensemble = MemoryEnsemble(inline=True)
    state = ensemble.session()
    state.mkdirs("/a")
    subscription = Subscription(state, [Subtree("/a")], clock=lambda: now[0])
    subscription._step()
    now[0] += 3600
    state.set_data("/a/new", b"")
    now[0] += 1
    state.set_data("/a/newer", b"")
    assert subscription.age_secs == 1.0
    subscription._step()
    assert subscription.age_secs == 0.0


def test_readers_learn_that_the_session_ended_during_a_read():
    state = MemoryEnsemble(inline=True).session()
    state.mkdirs("/a")
    subscription = Subscription(state, [Subtree("/a")])
    subscription._step()
    state.set_data("/a/new", b"")
    state.close()
    subscription._has_missed = False  # as if the session ended between two reads
    with pytest.raises(StateClosedError):
        subscription._step()
    began = time.monotonic()
    with pytest.raises(StateClosedError):
        subscription.caught_up(DEADLINE_SECS)
    assert time.monotonic() - began < DEADLINE_SECS


def test_watches_come_back_on_a_server_without_tree_watches():
    ensemble = MemoryEnsemble(inline=True)
    state, other = ensemble.session(), ensemble.session()
    other.mkdirs("/a/below")
    subscription = Subscription(state, [Subtree("/a", 2)])
    subscription._step()
    ensemble.suspend(state)
    ensemble.has_tree_watches = False
    ensemble.resume(state)
    subscription._step()
    other.set_data("/a/below/new", b"")
    other.set_data("/a", b"1")
    other.set_data("/a/newer", b"")
    for _ in range(3):
        subscription._step()
    assert {"/a/below/new", "/a/newer"} <= subscription.snapshot.trees["/a"].keys()


def test_first_node_is_seen_again_without_tree_watches():
    ensemble = MemoryEnsemble(inline=True, has_tree_watches=False)
    state, other = ensemble.session(), ensemble.session()
    other.mkdirs("/a/old")
    subscription = Subscription(state, [Subtree("/a")])
    subscription._step()
    other.set_data("/a", b"uses the watch up")
    subscription._step()
    other.delete_node("/a")
    subscription._step()
    other.mkdirs("/a/new")
    for _ in range(3):
        subscription._step()
    assert "/a/new" in subscription.snapshot.trees["/a"]


def test_closed_subscription_refuses(state):
    state.mkdirs("/a")
    subscription = Subscription(state, [Subtree("/a")]).start()
    subscription.caught_up()
    subscription.close()
    with pytest.raises(StateClosedError):
        subscription.caught_up()
    subscription.close()


class TestBusySubtree:
    """A subscription that is stepped by hand, with a clock that the test moves."""

    @pytest.fixture
    def stepped(self):
        ensemble = MemoryEnsemble(inline=True)
        self.now, self.state, self.reads = 0.0, ensemble.session(), []
        for number in range(250):
            self.state.set_data(f"/calm/{number}", b"first")
        subtree = Subtree("/calm", 1, lambda path, _data: self.reads.append(path), is_busy=True)
        subscription = Subscription(self.state, [subtree], clock=lambda: self.now)
        subscription._step()
        self.reads.clear()
        return subscription

    def change_all(self):
        for number in range(250):
            self.state.set_data(f"/calm/{number}", b"second")

    def test_changed_values_are_read_in_turn(self, stepped):
        self.change_all()
        assert stepped._step() == 1.0
        assert self.reads == [f"/calm/{number}" for number in range(100)]
        for passed in (0.25, 0.25, 0.5, 0.5):
            # What comes meanwhile waits behind.
            self.state.set_data("/calm/7", b"third")
            self.now += passed
            stepped._step()
        assert self.reads[100:] == [f"/calm/{number}" for number in range(100, 250)]
        self.now += 0.01
        assert stepped._step() is None
        assert self.reads[250:] == ["/calm/7"]

    def test_few_changed_values_do_not_wait(self, stepped):
        for count in range(1, 300):
            self.now += 0.02
            self.state.set_data("/calm/7", str(count).encode())
            assert not stepped._mirror.waiting
            with pytest.raises(StateUnavailableError):
                stepped.caught_up(0.0)
            assert stepped._step() is None
            assert len(self.reads) == count

    def test_many_changes_of_a_value_are_one(self, stepped):
        self.change_all()
        stepped._step()
        for _ in range(100):
            self.state.set_data("/calm/200", b"third")
        while stepped._step() is not None:
            self.now += 1.0
        assert self.reads.count("/calm/200") == 1

    def test_nodes_that_come_and_go_do_not_wait(self, stepped):
        self.change_all()
        stepped._step()
        self.state.delete_node("/calm/200")
        self.state.set_data("/calm/new", b"")
        self.state.commit([Delete("/calm/201"), Create("/calm/201", b"again")])
        stepped._step()
        nodes = stepped.snapshot.trees["/calm"]
        assert "/calm/200" not in nodes
        assert sorted(self.reads[100:]) == ["/calm/201", "/calm/new"]

    def test_hurried_values_do_not_wait(self, stepped):
        self.change_all()
        stepped._step()
        stepped.hurry(["/calm/200", "/calm/201"])
        stepped._step()
        assert sorted(self.reads[100:]) == ["/calm/200", "/calm/201"]
        self.state.set_data("/calm/201", b"third")
        stepped._step()
        assert self.reads[102:] == ["/calm/201"]

    def test_caught_up_reader_does_not_read_what_waits(self, stepped):
        self.change_all()
        stepped._step()
        before = stepped.snapshot
        self.now += 0.1
        assert stepped.caught_up(0.0) is before
        assert stepped.age_secs == 0.0


def test_reader_of_now_gets_all_values(state, store):
    other = store.open()
    for number in range(150):
        other.set_data(f"/calm/{number}", b"first")
    subtree = Subtree("/calm", 1, lambda _path, data: data, is_busy=True)
    with Subscription(state, [subtree]) as subscription:
        subscription.caught_up()
        for value in (b"second", b"third"):
            for number in range(150):
                other.set_data(f"/calm/{number}", value)
            nodes = subscription.now().trees["/calm"]
            assert {node.value for path, node in nodes.items() if path != "/calm"} == {value}


def test_end_of_the_session_ends_waiting(subscribed, state):
    subscribed.caught_up()
    state.close()
    for read in (subscribed.caught_up, subscribed.now):
        # A reader that waits for the store gets `StateUnavailableError`.
        with pytest.raises(StateClosedError):
            read()
    until(lambda: not subscribed.is_running)


def test_reader_waits_as_long_as_a_call(monkeypatch):
    ensemble = MemoryEnsemble()
    state = ensemble.session()
    state.mkdirs("/a")
    monkeypatch.setattr(type(state), "call_timeout_secs", 0.05)
    with Subscription(state, [Subtree("/a")]) as subscription:
        subscription.caught_up()
        ensemble.suspend(state)
        with pytest.raises(StateUnavailableError, match=r"within 0\.05 s"):
            subscription.caught_up()
        ensemble.resume(state)


def test_deleted_nodes_leave_no_watches(subscribed, store, state):
    other = store.open()

    def watches():
        subscribed.now()
        if not isinstance(state, ZooKeeperState):
            return set(state._armed)
        kazoo = state._connection._client
        return {*kazoo._data_watchers} | {f"{path}/*" for path in kazoo._child_watchers}

    at_rest = watches()
    for number in range(30):
        paths = [f"/a/{number}", f"/names/{number}", f"/names/{number}/p"]
        for path in paths:
            other.set_data(path, b"1")
            other.set_data(path, b"2")
        if number % 2:
            subscribed.now()
        other.set_data(paths[0], b"3")
        for path in reversed(paths):
            other.delete_node(path)
        if number % 3:
            other.set_data(paths[0], b"4")
            assert values(subscribed.now())[paths[0]] == b"4"
            other.delete_node(paths[0])
    assert watches() == at_rest


def test_defect_of_decode_hides_no_change(state):
    failures = [ZeroDivisionError, ZeroDivisionError]

    def decode(_path, data):
        if data == b"2" and failures:
            raise failures.pop()
        return data

    for number in range(3):
        state.set_data(f"/a/{number}", b"1")
    with Subscription(state, [Subtree("/a", 1, decode)]) as subscription:
        subscription.caught_up()
        state.commit([SetData(f"/a/{number}", b"2") for number in range(3)])
        nodes = subscription.caught_up().trees["/a"]
        assert [nodes[f"/a/{number}"].value for number in range(3)] == [b"2"] * 3
    assert not failures


def test_absent_subtree_is_empty_until_made(state):
    with Subscription(state, [Subtree("/later", 1)]) as subscription:
        assert subscription.caught_up().trees == {"/later": {}}
        state.set_data("/later/x", b"")
        assert set(subscription.caught_up().trees["/later"]) == {"/later", "/later/x"}


class TestTreeWatch:
    def test_observer_gets_each_change_below(self, state):
        seen = []
        state.mkdirs("/top")
        assert state.watch_tree("/top", lambda event, path: seen.append((event, path)))
        state.set_data("/top/x", b"1")
        state.set_data("/top/x", b"2")
        state.set_data("/top/x/y", b"")
        state.delete_node("/top/x")
        state.set_data("/other", b"")
        assert seen == [
            (EventType.NODE_CREATED, "/top/x"),
            (EventType.NODE_DATA_CHANGED, "/top/x"),
            (EventType.NODE_CREATED, "/top/x/y"),
            (EventType.NODE_DELETED, "/top/x/y"),
            (EventType.NODE_DELETED, "/top/x"),
        ]

    def test_lost_session_is_reported_once_per_watch(self, store, state):
        seen = []
        state.mkdirs("/top")
        state.watch_tree("/top", lambda event, path: seen.append((event, path)))
        store.expire(state)
        assert set(seen) == {(EventType.EVENTS_MISSED, "/top")}

    def test_removed_observer_gets_no_more(self, state):
        seen = []

        def observer(event, path):
            seen.append((event, path))

        state.mkdirs("/top")
        state.watch_tree("/top", observer)
        state.unwatch_tree("/top", observer)
        state.set_data("/top/x", b"1")
        state.node_exists("/top/x")
        assert seen == []

    def test_metadata_of_many_nodes_is_read_at_once(self, state):
        state.set_data("/top/x", b"1")
        found = state.stat_many(["/top/x", "/absent"])
        assert found == [state.get_stat("/top/x"), None]


def test_empty_snapshot_has_no_changes():
    assert Snapshot().changes_since(Snapshot()) == []
