"""Fences: who gets one, on every store."""

import pytest

from stormkeeper import paths
from stormkeeper.errors import NotLeaderError
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Fence, Lock
from stormkeeper.state.storage import DIRECTORY
from support.interposed import Interposed
from support.leaders import obtain_fence


def named(lock):
    return Fence(lock.path, lock.created)


class TestObtaining:
    def test_the_first_gets_one_with_its_epoch(self, state):
        lock = leader_lock.take(state)
        fence = obtain_fence(state, lock)
        assert fence == Fence(lock.path, state.get_stat(lock.path).created)
        leader_lock.verify_fence(state, fence)

    def test_the_second_gets_none_until_the_first_is_gone(self, store, state):
        first, second = (
            leader_lock.take(store.open(), b"nimbus1.example:6627:0"),
            leader_lock.take(state),
        )
        for attempt in (
            lambda: obtain_fence(state, second),
            lambda: leader_lock.verify_fence(state, named(second)),
        ):
            with pytest.raises(
                NotLeaderError,
                match=rf"{first.path} \('nimbus1.example:6627:0'\) is before it; wait",
            ):
                attempt()
        leader_lock.give_up(state, first)
        assert obtain_fence(state, second) == named(second)

    def test_a_session_has_one_of_its_first_lock_only(self, state):
        first, second = leader_lock.take(state), leader_lock.take(state)
        assert obtain_fence(state, first) == named(first)
        with pytest.raises(NotLeaderError, match="is before it"):
            obtain_fence(state, second)

    def test_the_first_stays_it_whoever_comes(self, store, state):
        lock = leader_lock.take(state)
        fence = obtain_fence(state, lock)
        for _ in range(3):
            leader_lock.take(store.open())
            leader_lock.verify_fence(state, fence)

    def test_epochs_grow_with_each_leadership(self, store):
        """Whoever leads next, and also where the directory of the locks was deleted meanwhile."""
        sessions = [store.open() for _ in range(4)]
        waiting = [(each, leader_lock.take(each)) for each in sessions]
        epochs = []
        leader_lock.give_up(*waiting.pop(1))
        while waiting:
            session, lock = waiting.pop(0)
            epochs.append(obtain_fence(session, lock).epoch)
            leader_lock.give_up(session, lock)
        sessions[0].delete_node(paths.LEADER_LOCK)
        again = leader_lock.take(sessions[0])
        assert again.path.endswith("0000000000")
        epochs.append(obtain_fence(sessions[0], again).epoch)
        assert len(epochs) == 4
        assert epochs == sorted(set(epochs))

    def test_a_lock_behind_one_of_storm_s_nimbuses_waits(self, store, state):
        theirs = store.open()
        path = theirs.create_sequential(f"{paths.LEADER_LOCK}/_c_java-latch-", b"java:6627:0")
        lock = leader_lock.take(state)
        with pytest.raises(NotLeaderError, match="'java:6627:0'"):
            obtain_fence(state, lock)
        theirs.delete_node(path)
        assert obtain_fence(state, lock) == named(lock)

    def test_a_revoked_lock_gets_none_and_gives_its_place_to_none(self, store, state):
        first, second = leader_lock.take(store.open()), leader_lock.take(state)
        state.set_data(first.path, b"not you")
        with pytest.raises(NotLeaderError, match="is before it"):
            obtain_fence(state, second)
        leader_lock.give_up(state, first)
        state.set_data(second.path, b"nor you")
        with pytest.raises(NotLeaderError, match="it was revoked: its value was set; take a lock"):
            obtain_fence(state, second)


def test_whoever_asks_is_told_how_it_is_now(session):
    """The server that is asked may lag behind: it has to catch up before it is read."""
    asked = []

    def sync_path(path):
        asked.append(("sync", path))

    def children_data(path):
        asked.append(("read", path))
        return session.children_data(path)

    lock = leader_lock.take(session)
    obtain_fence(Interposed(session, sync_path=sync_path, children_data=children_data), lock)
    assert asked == [("sync", paths.LEADER_LOCK), ("read", paths.LEADER_LOCK)]


class TestVerifying:
    """On every store."""

    def test_a_lock_that_was_taken_is_one_until_it_is_given_up(self, state):
        lock = leader_lock.take(state)
        leader_lock.verify_fence(state, named(lock))
        leader_lock.give_up(state, lock)
        with pytest.raises(NotLeaderError, match="it is gone, or never was there; take a lock"):
            leader_lock.verify_fence(state, named(lock))

    def test_a_lock_of_another_session_is_none(self, store, state):
        with pytest.raises(NotLeaderError, match="another session made it"):
            obtain_fence(state, leader_lock.take(store.open()))

    def test_a_lock_of_a_session_that_ended_is_none(self, store, state):
        lock = leader_lock.take(state)
        store.expire(state)
        with pytest.raises(NotLeaderError, match="it is gone"):
            obtain_fence(state, lock)

    def test_a_lock_with_another_epoch_is_none(self, state):
        fence = named(leader_lock.take(state))
        for epoch in (fence.epoch + 1, fence.epoch - 1, 0):
            wrong = f"its epoch is {fence.epoch}, not {epoch};"
            with pytest.raises(NotLeaderError, match=wrong):
                leader_lock.verify_fence(state, Fence(fence.path, epoch))

    def test_a_persistent_node_is_none(self, state):
        path = f"{paths.LEADER_LOCK}/_c_0-latch-0000000000"
        state.set_data(path, b"")
        with pytest.raises(NotLeaderError, match="it is persistent"):
            leader_lock.verify_fence(state, Fence(path, state.get_stat(path).created))

    def test_a_node_with_another_name_is_none(self, state):
        path = f"{paths.LEADER_LOCK}/me"
        state.set_ephemeral_node(path, b"")
        with pytest.raises(NotLeaderError, match="its name is none of a lock"):
            leader_lock.verify_fence(state, Fence(path, state.get_stat(path).created))

    def test_a_node_elsewhere_is_none(self, state):
        elsewhere = (
            "/supervisors/a",
            paths.LEADER_LOCK,
            f"{leader_lock.take(state).path}/below",
        )
        state.set_ephemeral_node("/supervisors/a", b"")
        for path in elsewhere:
            with pytest.raises(NotLeaderError, match=f"^{path} is no lock"):
                leader_lock.verify_fence(state, Fence(path, 1))

    def test_without_any_lock_there_is_none(self, state):
        state.set_data("/storms/a", DIRECTORY)
        with pytest.raises(NotLeaderError, match="it is gone, or never was there"):
            obtain_fence(state, Lock(f"{paths.LEADER_LOCK}/latch-0000000000", 1, 1, b""))

    @pytest.mark.parametrize("fence", [None, "/leader-lock/a", ("/leader-lock/a", 1)])
    def test_what_is_no_fence_is_none(self, state, fence):
        with pytest.raises(TypeError, match="writes by a Fence, not by a "):
            leader_lock.verify_fence(state, fence)


def test_a_fence_is_a_value():
    assert Fence("/leader-lock/a", 7) == Fence("/leader-lock/a", 7)
    assert len({Fence("/leader-lock/a", 7), Fence("/leader-lock/a", 7)}) == 1
