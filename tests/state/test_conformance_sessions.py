"""What `ClusterState` promises of watches, callbacks and sessions, asked of every store."""

import threading

import pytest

from stormkeeper.errors import StateClosedError
from stormkeeper.state.storage import ConnectionState
from support.events import CHANGED, CHILDREN, CREATED, DELETED
from support.hearing import Hearing
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS, until


class TestWatches:
    def test_creation(self, state):
        heard = Hearing(state)
        assert state.get_data("/a", watch=True) is None
        state.set_data("/a", b"x")
        assert heard.events() == [(CREATED, "/a")]

    @pytest.mark.parametrize(
        "look",
        [
            lambda state: state.get_data("/a", watch=True),
            lambda state: state.get_data_with_version("/a", watch=True),
            lambda state: state.get_version("/a", watch=True),
            lambda state: state.node_exists("/a", watch=True),
        ],
    )
    def test_every_look_at_a_node_leaves_the_same_watch(self, state, look):
        heard = Hearing(state)
        look(state)
        state.set_data("/a", b"1")
        look(state)
        state.set_data("/a", b"2")
        look(state)
        state.delete_node("/a")
        assert heard.events() == [(CREATED, "/a"), (CHANGED, "/a"), (DELETED, "/a")]

    def test_a_watch_fires_once(self, state):
        heard = Hearing(state)
        state.set_data("/a", b"0")
        state.get_data("/a", watch=True)
        for value in (b"1", b"2", b"3"):
            state.set_data("/a", value)
        assert heard.events() == [(CHANGED, "/a")]

    def test_two_watches_for_the_same_are_one(self, state):
        heard = Hearing(state)
        state.set_data("/a", b"0")
        state.get_data("/a", watch=True)
        state.node_exists("/a", watch=True)
        state.set_data("/a", b"1")
        state.set_data("/a", b"2")
        assert heard.events() == [(CHANGED, "/a")]

    def test_without_a_watch_nothing_is_told(self, state):
        heard = Hearing(state)
        state.set_data("/a", b"0")
        state.get_data("/a")
        state.get_children("/a")
        state.set_data("/a", b"1")
        state.set_data("/a/b", b"1")
        state.delete_node("/a")
        assert heard.events() == []

    def test_children(self, state):
        heard = Hearing(state)
        state.mkdirs("/top")
        state.get_children("/top", watch=True)
        state.set_data("/top", b"a value is not a child")
        state.set_data("/top/a/b", b"")
        assert heard.events() == [(CHILDREN, "/top")]
        heard.forget()
        state.get_children("/top", watch=True)
        state.set_data("/top/a", b"a child's value is no child")
        state.set_data("/top/a/c", b"nor is a grandchild")
        state.delete_node("/top/a")
        assert heard.events() == [(CHILDREN, "/top")]

    def test_the_deletion_of_a_node_whose_children_are_watched(self, state):
        heard = Hearing(state)
        state.mkdirs("/top")
        state.get_children("/top", watch=True)
        state.delete_node("/top")
        assert heard.events() == [(DELETED, "/top")]

    def test_two_reasons_for_one_change_are_told_once(self, state):
        heard = Hearing(state)
        state.mkdirs("/top")
        state.get_data("/top", watch=True)
        state.get_children("/top", watch=True)
        state.delete_node("/top")
        state.mkdirs("/top")
        assert heard.events() == [(DELETED, "/top")]

    def test_the_root_can_be_watched(self, state):
        heard = Hearing(state)
        state.get_children("/", watch=True)
        state.mkdirs("/new")
        assert heard.events() == [(CHILDREN, "/")]

    def test_what_another_session_does(self, store, state):
        heard = Hearing(state)
        other = store.open()
        state.get_data("/a", watch=True)
        other.set_data("/a", b"x")
        until(lambda: state.get_data("/a") == b"x")
        assert heard.events() == [(CREATED, "/a")]

    def test_what_another_session_watches_is_its_own_affair(self, store, state):
        heard = Hearing(state)
        other = store.open()
        other.get_data("/a", watch=True)
        state.set_data("/a", b"x")
        assert heard.events() == []

    def test_the_end_of_a_session_is_seen(self, store, state):
        other = store.open()
        other.set_ephemeral_node("/nimbuses/n:1:0", b"")
        heard = Hearing(state)
        state.get_children("/nimbuses", watch=True)
        other.close()
        until(lambda: state.get_children("/nimbuses") == [])
        assert heard.events() == [(CHILDREN, "/nimbuses")]

    def test_a_replaced_node_is_deleted_and_created(self, store, state):
        former = store.open()
        former.set_ephemeral_node("/s", b"former")
        heard, former_heard = Hearing(state), Hearing(former)
        state.get_data("/s", watch=True)
        former.get_data("/s", watch=True)
        state.set_ephemeral_node("/s", b"now")
        assert heard.events() == [(DELETED, "/s")]
        assert former_heard.events() == [(DELETED, "/s")]


class TestCallbacks:
    def test_every_registered_callback_is_told(self, state):
        first, second = Hearing(state), Hearing(state)
        state.get_data("/a", watch=True)
        state.set_data("/a", b"")
        assert (CREATED, "/a") in first.events()
        assert (CREATED, "/a") in second.events()

    def test_an_unregistered_one_is_not(self, state):
        told = []
        registration = state.register(lambda *event: told.append(event))
        heard = Hearing(state)
        state.unregister(registration)
        state.unregister(registration)
        state.get_data("/a", watch=True)
        state.set_data("/a", b"")
        heard.everything()
        assert told == []

    def test_one_that_raises_ends_nothing(self, state, caplog):
        def fail(_event, path):
            if path == "/a":
                raise RuntimeError("of the callback")

        state.register(fail)
        heard = Hearing(state)
        state.get_data("/a", watch=True)
        state.set_data("/a", b"")
        assert heard.events() == [(CREATED, "/a")]
        assert "of the callback" in caplog.text

    def test_one_may_use_the_store_and_watch_again(self, state):
        values = []
        state.register(lambda _event, path: values.append(state.get_data(path, watch=True)))
        state.get_data("/a", watch=True)
        for number in range(5):
            state.set_data("/a", str(number).encode())
            until(lambda number=number: values[-1:] == [str(number).encode()])
        assert values[-1] == b"4"

    def test_they_run_one_at_a_time_on_one_thread_in_order(self, state):
        running = threading.Lock()
        threads, told = set(), []

        def callback(_event, path):
            assert running.acquire(blocking=False)
            threads.add(threading.current_thread())
            told.append(path)
            running.release()

        state.register(callback)
        paths = [f"/n/{number}" for number in range(50)]
        for path in paths:
            state.get_data(path, watch=True)
        for path in paths:
            state.set_data(path, b"")
        until(lambda: len(told) == len(paths))
        assert told == paths
        assert len(threads) == 1
        assert threads.pop().daemon

    def test_a_slow_one_does_not_hold_up_calls(self, state):
        entered, leave = threading.Event(), threading.Event()

        def callback(_event, _path):
            entered.set()
            leave.wait(DEADLINE_SECS)

        state.register(callback)
        state.get_data("/a", watch=True)
        state.set_data("/a", b"1")
        assert entered.wait(DEADLINE_SECS)
        state.set_data("/a", b"2")
        assert state.get_data("/a") == b"2"
        leave.set()

    def test_one_may_close_the_session(self, store, state):
        closed = threading.Event()

        def callback(_event, _path):
            state.close()
            closed.set()

        state.register(callback)
        state.get_data("/a", watch=True)
        store.open().set_data("/a", b"")
        assert closed.wait(DEADLINE_SECS)


class TestSessions:
    def test_a_new_session_is_connected(self, state):
        assert state.session_timeout_secs > 0
        assert state.connection is ConnectionState.CONNECTED

    def test_a_lost_session_is_told_and_followed_by_a_new_one(self, store, state):
        heard = Hearing(state)
        store.expire(state)
        assert state.connection is ConnectionState.CONNECTED
        told = heard.everything()
        assert told[-2:] == [ConnectionState.LOST, ConnectionState.CONNECTED]
        state.set_data("/a", b"in the new session")
        assert state.get_data("/a") == b"in the new session"

    def test_a_removed_listener_is_not_told(self, store, state):
        told = []
        state.add_listener(told.append)
        state.remove_listener(told.append)
        state.remove_listener(told.append)
        heard = Hearing(state)
        store.expire(state)
        heard.everything()
        assert told == []

    def test_registrations_are_made_again(self, store, state):
        state.set_ephemeral_node("/supervisors/s-1", b"1")
        state.set_ephemeral_node("/supervisors/s-1", b"2")
        other = store.open()
        store.expire(state)
        until(lambda: other.get_data("/supervisors/s-1") == b"2")
        until(lambda: other.get_version("/supervisors/s-1") == 0)
        store.expire(state)
        until(lambda: other.get_data("/supervisors/s-1") == b"2")
        state.close()
        until(lambda: not other.node_exists("/supervisors/s-1"))

    def test_sequential_nodes_are_not_made_again(self, store, state):
        path = state.create_sequential("/lock/e", b"")
        state.set_ephemeral_node("/registration", b"")
        store.expire(state)
        until(lambda: state.node_exists("/registration"))
        assert not state.node_exists(path)

    def test_a_deleted_registration_is_given_up(self, store, state):
        state.set_ephemeral_node("/supervisors/s-1", b"")
        state.set_ephemeral_node("/supervisors/s-2", b"")
        state.set_ephemeral_node("/supervisors-3", b"")
        state.delete_node("/supervisors")
        store.expire(state)
        until(lambda: state.node_exists("/supervisors-3"))
        assert not state.node_exists("/supervisors/s-1")
        assert not state.node_exists("/supervisors")

    def test_registration_taken_by_another_is_left_until_it_goes(self, store, state):
        other = store.open()
        state.set_ephemeral_node("/s", b"mine")
        state.set_ephemeral_node("/t", b"mine")
        other.set_ephemeral_node("/s", b"other")
        store.expire(state)
        until(lambda: state.get_data("/t") == b"mine" and state.unregistered == ["/s"])
        assert state.get_data("/s") == b"other"
        other.close()
        store.expire(state)
        until(lambda: state.get_data("/s") == b"mine")
        assert state.unregistered == []

    @pytest.mark.parametrize(
        "withdraw",
        [
            lambda state: state.delete_node("/top"),
            lambda state: Transaction(state.commit).delete("/top/s").commit(),
            lambda state: state.withdraw_registration("/top/s"),
        ],
        ids=["deletion", "transaction", "neither"],
    )
    def test_failed_registration_can_be_withdrawn(self, store, state, withdraw):
        other = store.open()
        state.set_ephemeral_node("/top/s", b"mine")
        other.set_ephemeral_node("/top/s", b"other")
        store.expire(state)
        until(lambda: state.unregistered == ["/top/s"])
        withdraw(state)
        assert state.unregistered == []
        other.close()
        state.set_ephemeral_node("/t", b"")
        store.expire(state)
        until(lambda: state.node_exists("/t"))
        assert not state.node_exists("/top/s")

    def test_registration_below_an_ephemeral_node_waits(self, store, state):
        other = store.open()
        state.set_ephemeral_node("/top/s", b"mine")
        other.delete_node("/top")
        other.set_ephemeral_node("/top", b"other")
        store.expire(state)
        until(lambda: state.unregistered == ["/top/s"])
        other.close()
        store.expire(state)
        until(lambda: state.get_data("/top/s") == b"mine")

    def test_failed_registration_can_be_made_anew(self, store, state):
        other = store.open()
        state.set_ephemeral_node("/s", b"mine")
        other.set_ephemeral_node("/s", b"other")
        store.expire(state)
        until(lambda: state.unregistered == ["/s"])
        state.set_ephemeral_node("/s", b"anew")
        assert state.unregistered == []
        assert other.get_data("/s") == b"anew"
        assert state.recovery_defects == 0

    def test_watches_end_with_the_session(self, store, state):
        heard = Hearing(state)
        other = store.open()
        state.set_data("/a", b"0")
        state.mkdirs("/top")

        def watch():
            state.get_data("/a", watch=True)
            state.read_many(["/absent"], watch=True)
            state.get_children("/top", watch=True)

        watch()
        store.expire(state)
        assert heard.missed
        other.set_data("/a", b"1")
        other.set_data("/top/child", b"")
        until(lambda: state.get_children("/top") == ["child"])
        assert heard.events() == []
        watch()
        other.set_data("/a", b"2")
        other.set_data("/absent", b"")
        other.set_data("/top/second", b"")
        until(lambda: len(heard.events()) == 3)
        assert heard.events() == [(CHANGED, "/a"), (CREATED, "/absent"), (CHILDREN, "/top")]

    def test_a_closed_session_does_nothing_more(self, store, state):
        told = []
        state.register(lambda *event: told.append(event))
        state.add_listener(told.append)
        state.get_data("/a", watch=True)
        state.close()
        state.close()
        other = store.open()
        other.set_data("/a", b"")
        for call in (
            lambda: state.get_data("/a"),
            lambda: state.set_data("/a", b""),
            lambda: state.read_many(["/a"]),
            lambda: state.create_sequential("/a", b""),
            lambda: state.delete_node("/a"),
        ):
            with pytest.raises(StateClosedError, match="closed"):
                call()
        assert state.connection is ConnectionState.LOST
        assert told == []
