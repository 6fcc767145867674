"""What happens to a session when servers, networks and sessions fail."""

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from stormkeeper.errors import OutcomeUnknownError, StateError, StateUnavailableError
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.zookeeper import ensemble_connection
from stormkeeper.state.zookeeper.ensemble_connection import WINDOW
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from stormkeeper.thrift.records import NimbusSummary, SupervisorInfo
from stormkeeper.thrift.serialization import Codec
from support.events import CHANGED, CREATED
from support.hearing import Hearing
from support.stores import limit_calls, settings_for
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS, until
from support.zookeeper import expire_behind_cut, expire_session

pytestmark = pytest.mark.zookeeper

CONNECTED, SUSPENDED, LOST = ConnectionState


def nothing_will_be_sent(client):
    """Whether all that kazoo has queued was withdrawn, but the first if it is being sent."""
    first, *others = [call for _, call in list(client._queue)] or [None]
    is_sent = first is None or first._decision.locked()
    return is_sent and all(call._is_withdrawn for call in others)


def is_read_as(state, path, value):
    """Whether a node is read, and its value is `value`; not while a server is slow to come back."""
    try:
        return state.get_data(path) == value
    except StateUnavailableError:
        return False


def suspend(server):
    """Stop a server's process without ending it, and wait until its last thread stands."""
    os.kill(server.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{server.pid}/task")
    until(lambda: all("\nState:\tT" in (t / "status").read_text() for t in tasks.iterdir()))


@pytest.fixture
def own_server(tmp_path):
    """A server of the test's own, to be stopped and started."""
    with DevZooKeeper(tmp_path / "zookeeper") as server:
        yield server


class TestServerAway:
    """The server is stopped, and started again before the session is over."""

    @pytest.fixture
    def state(self, own_server):
        state = ZooKeeperState(settings_for(own_server, "/storm", session_timeout_secs=20.0))
        yield state
        state.close()

    def test_calls_fail_by_their_deadline_and_work_again_afterwards(self, own_server, state):
        heard = Hearing(state)
        state.set_data("/a", b"0")
        state.set_ephemeral_node("/s", b"mine")
        state.get_data("/a", watch=True)
        state.get_data("/absent", watch=True)
        heard.forget()
        own_server.stop()
        until(lambda: state.connection is SUSPENDED)
        limit_calls(state, 1.5)
        calls = [
            lambda: state.get_data("/a"),
            lambda: state.get_data("/a", watch=True),
            lambda: state.get_children("/"),
            lambda: state.mkdirs("/b"),
            lambda: state.set_data("/a", b"lost"),
            lambda: state.create_sequential("/e", b""),
            lambda: state.get_stat("/a"),
            lambda: state.read_many(["/a", "/absent"], watch=True),
            lambda: state.children_many(["/", "/a"]),
            lambda: state.children_data("/"),
            lambda: Transaction(state.commit).set_data("/a", b"lost").commit(),
        ]
        began = time.monotonic()
        with ThreadPoolExecutor(len(calls)) as pool:
            for failure in [f.exception() for f in [pool.submit(call) for call in calls]]:
                assert isinstance(failure, StateUnavailableError)
                assert not isinstance(failure, OutcomeUnknownError)
                assert "SUSPENDED" in str(failure)
        for call in (
            lambda: state.set_ephemeral_node("/s", b"lost"),
            lambda: state.delete_node("/a"),
        ):
            with pytest.raises(StateUnavailableError, match="SUSPENDED"):
                call()
        assert time.monotonic() - began < DEADLINE_SECS
        limit_calls(state, 10.0)
        own_server.start()
        until(lambda: state.connection is CONNECTED)
        # What failed for want of a connection does not happen later; the session lived on.
        assert state.get_data("/a") == b"0"
        assert state.get_version("/s") == 0
        assert heard.everything() == [SUSPENDED, CONNECTED]
        until(lambda: heard.missed == 1)
        state.read_many(["/a", "/absent"], watch=True)
        state.set_data("/a", b"1")
        state.set_data("/absent", b"1")
        assert heard.events() == [(CHANGED, "/a"), (CREATED, "/absent")]

    def test_a_call_that_waits_is_served_when_the_server_is_back(self, own_server):
        state = ZooKeeperState(settings_for(own_server, "/storm", call_timeout_secs=30.0))
        state.set_data("/a", b"0")
        own_server.stop()
        until(lambda: state.connection is SUSPENDED)
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(state.get_data("/a")))
        waiting.start()
        own_server.start()
        waiting.join(DEADLINE_SECS)
        assert answers == [b"0"]
        state.close()

    def test_a_session_that_no_server_can_end_is_left_soon(self, own_server, state, monkeypatch):
        monkeypatch.setattr(ensemble_connection, "CLOSE_SECS", 10 * DEADLINE_SECS)
        own_server.stop()
        until(lambda: state.connection is SUSPENDED)
        over, client = threading.Event(), state._connection._client
        stop = client.stop
        monkeypatch.setattr(client, "stop", lambda: (over.wait(), stop()))
        state.close()
        assert not over.is_set()
        over.set()

    def test_a_server_that_does_not_answer(self, own_server, state):
        state.set_data("/a", b"0")
        suspend(own_server)
        limit_calls(state, 2.0)
        try:
            for call in (
                lambda: state.get_data("/a"),
                lambda: state.set_data("/b", b"x"),
                lambda: state.read_many(["/a"] * 3),
                lambda: Transaction(state.commit).delete("/a").commit(),
            ):
                with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
                    call()
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        limit_calls(state, 10.0)
        # What was asked while it could not answer is done now.
        until(lambda: is_read_as(state, "/a", None))

    def test_what_a_server_had_no_room_for_does_not_happen_later(self, own_server):
        """It stands still; what it has not taken by a call's deadline is not sent when it goes on.

        What the system has taken for it, may be.
        """
        state = ZooKeeperState(settings_for(own_server, "/storm", session_timeout_secs=60.0))
        client, ended = state._connection._client, {}

        def write(number):
            try:
                state.set_data(f"/w/{number}", bytes(900_000))
            except StateUnavailableError as error:
                ended[number] = type(error)

        state.mkdirs("/w")
        suspend(own_server)
        limit_calls(state, 2.0)
        try:
            with ThreadPoolExecutor(40) as pool:
                list(pool.map(write, range(40)))
            # Nothing waits for a time that nobody waits for any more.
            assert nothing_will_be_sent(client)
            with pytest.raises(StateUnavailableError, match="could be asked"):
                Transaction(state.commit).delete("/w").commit()
            with pytest.raises(StateUnavailableError, match="could be asked"):
                state.get_data("/w")
            assert nothing_will_be_sent(client)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        limit_calls(state, 10.0)
        assert len(ended) == 40
        assert set(ended.values()) == {OutcomeUnknownError, StateUnavailableError}
        until(lambda: is_read_as(state, "/w", b"\x07"))
        other = ZooKeeperState(settings_for(own_server, "/storm"))
        other.sync_path("/w")
        never = {str(n) for n, error in ended.items() if error is StateUnavailableError}
        assert not never & set(other.get_children("/w"))
        other.close()
        state.close()

    def test_a_connection_lost_in_the_middle_of_calls(self, own_server):
        state = ZooKeeperState(settings_for(own_server, "/storm", call_timeout_secs=30.0))
        state.set_data("/a", b"0")
        outcomes = {}

        def attempt(name, call):
            try:
                outcomes[name] = call()
            except StateError as error:
                outcomes[name] = error

        suspend(own_server)
        threads = [
            threading.Thread(target=attempt, args=(name, call))
            for name, call in {
                "read": lambda: state.get_data("/a"),
                "list": lambda: state.get_children("/"),
                "many": lambda: state.read_many(["/a", "/absent"] * WINDOW),
                "mkdirs": lambda: state.mkdirs("/b/c"),
                "register": lambda: state.set_ephemeral_node("/s", b"mine"),
                "delete": lambda: state.delete_node("/b"),
                "write": lambda: state.set_data("/x", b"x"),
                "create": lambda: state.create_sequential("/e", b"x"),
            }.items()
        ]
        for thread in threads:
            thread.start()
        # All of them have been sent when the server dies, but that the deletion may wait for the
        # registration.
        until(lambda: len(state._connection._client._pending) >= WINDOW + 6)
        os.kill(own_server.pid, signal.SIGKILL)
        until(lambda: state.connection is SUSPENDED and not own_server.running)
        own_server.start()
        for thread in threads:
            thread.join(DEADLINE_SECS)
        assert len(outcomes) == len(threads)
        # Safe to repeat, so they were.
        assert outcomes["read"] == b"0"
        assert "a" in outcomes["list"]
        assert [one and one.data for one in outcomes["many"]] == [b"0", None] * WINDOW
        assert outcomes["mkdirs"] is outcomes["register"] is outcomes["delete"] is None
        assert state.get_data("/s") == b"mine"
        # Not safe to repeat: the caller is told that nobody knows.
        for name in ("write", "create"):
            assert isinstance(outcomes[name], OutcomeUnknownError)
            assert "may have been done or not" in str(outcomes[name])
        state.close()

    def test_close_does_not_wait_for_a_server_that_is_away(self, own_server):
        state = ZooKeeperState(settings_for(own_server, "/storm", call_timeout_secs=120.0))
        own_server.stop()
        until(lambda: state.connection is SUSPENDED)
        outcome = []

        def read():
            try:
                state.get_data("/a")
            except StateError as error:
                outcome.append(str(error))

        reading = threading.Thread(target=read)
        reading.start()
        began = time.monotonic()
        state.close()
        assert time.monotonic() - began < DEADLINE_SECS
        reading.join(DEADLINE_SECS)
        assert "was closed" in outcome[0]


class TestNetworkCut:
    """The client is cut off, while others go on."""

    def test_watches_end_with_the_connection(self, connect, proxy):
        state, other = connect(proxy.address), connect()
        heard = Hearing(state)
        state.set_data("/a", b"0")
        state.get_data("/a", watch=True)
        heard.forget()
        session = state.session_id
        proxy.cut()
        until(lambda: state.connection is SUSPENDED)
        other.set_data("/a", b"1")
        proxy.mend()
        until(lambda: state.connection is CONNECTED)
        until(lambda: heard.missed == 1)
        assert state.session_id == session
        other.set_data("/a", b"2")
        until(lambda: state.get_data("/a") == b"2")
        assert heard.everything() == [SUSPENDED, CONNECTED]
        state.get_data("/a", watch=True)
        other.set_data("/a", b"3")
        assert heard.events() == [(CHANGED, "/a")]

    def test_no_change_of_many_is_lost(self, connect, proxy):
        def note(event, path):
            if event is not EventType.EVENTS_MISSED:
                told.add(path)
                return
            with contextlib.suppress(StateUnavailableError):
                nodes = state.read_many(everyone, watch=True)
                told.update(p for p, node in zip(everyone, nodes, strict=True) if is_new(node))

        def is_new(node):
            return node is not None and node.data == b"1"

        state, other = connect(proxy.address), connect()
        told = set()
        everyone = [f"/many/{number}" for number in range(1200)]
        state.register(note)
        for path in everyone[::2]:
            other.set_data(path, b"0")
        state.read_many(everyone, watch=True)
        for _ in range(3):
            proxy.cut()
            until(lambda: state.connection is SUSPENDED)
            proxy.mend()
            until(lambda: state.connection is CONNECTED)
        for path in everyone:
            other.set_data(path, b"1")
        until(lambda: told == set(everyone))

    def test_a_session_that_expires_meanwhile(self, connect, proxy, zookeeper_server):
        state, other = connect(proxy.address), connect()
        state.set_ephemeral_node("/supervisors/s-1", b"mine")
        state.set_data("/a", b"0")
        heard = Hearing(state)
        state.get_data("/a", watch=True)
        heard.forget()
        former = state.session_id
        proxy.cut()
        expire_behind_cut(state, zookeeper_server)
        until(lambda: other.get_children("/supervisors") == [])
        assert state.connection is SUSPENDED
        other.set_data("/a", b"1")
        proxy.mend()
        until(lambda: other.get_children("/supervisors") == ["s-1"])
        assert other.get_data("/supervisors/s-1") == b"mine"
        assert state.session_id != former
        until(lambda: len(heard.everything()) == 3)
        assert heard.everything() == [SUSPENDED, LOST, CONNECTED]
        assert heard.missed == 1

    def test_a_first_attempt_that_is_lost_leaves_the_outcome_unknown(self, connect, proxy):
        """Though the last one was never sent."""
        state = connect(proxy.address, call_timeout_secs=1.0)
        state.mkdirs("/a")
        proxy.hold_answers()
        with ThreadPoolExecutor(1) as pool:
            deletion = pool.submit(state.delete_node, "/a")
            until(lambda: state._connection._client._pending)
            proxy.cut()
            with pytest.raises(OutcomeUnknownError, match=r"SUSPENDED.*earlier attempt"):
                deletion.result(DEADLINE_SECS)
        proxy.flow()

    def test_an_outage_leaves_nothing_to_be_done_after_it(self, connect, proxy):
        """Cut and mended while many call: what was never sent is never done, and nothing piles up.

        Each write makes a node of its own, alone or in a transaction.
        """
        state, other = connect(proxy.address), connect()
        state.mkdirs("/w")
        client, stop = state._connection._client, threading.Event()
        never, waiting = [], []

        def call(worker):
            number = 0
            while not stop.is_set():
                number += 1
                path = f"/w/{worker}-{number}"
                try:
                    if number % 3:
                        Transaction(state.commit).create(path, b"").commit()
                    else:
                        state.set_data(path, b"")
                        state.get_data("/w")
                except OutcomeUnknownError:
                    pass
                except StateUnavailableError:
                    # Of two calls nobody knows here which it was.
                    if number % 3:
                        never.append(path)
                waiting.append(len(client._queue))

        with ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as ending:
            ending.callback(stop.set)
            for worker in range(8):
                pool.submit(call, worker)
            for _ in range(6):
                limit_calls(state, 0.3)
                proxy.cut()
                until(lambda: state.connection is not CONNECTED)
                most = len(never) + 8
                until(lambda most=most: len(never) >= most)
                assert nothing_will_be_sent(client)
                assert not client._pending
                limit_calls(state, 10.0)
                proxy.mend()
                until(lambda: is_read_as(state, "/none", None))
        # One of each who calls, and one that each has withdrawn since the last connection.
        assert max(waiting) <= 17
        other.sync_path("/w")
        assert not {path.removeprefix("/w/") for path in never} & set(other.get_children("/w"))

    def test_a_registration_that_another_process_took_over(
        self, connect, proxy, zookeeper_server, caplog
    ):
        state, other = connect(proxy.address), connect()
        state.set_ephemeral_node("/s", b"mine")
        proxy.cut()
        expire_behind_cut(state, zookeeper_server)
        until(lambda: not other.node_exists("/s"))
        other.set_ephemeral_node("/s", b"theirs")
        proxy.mend()
        until(lambda: f"session {other.session_id:#x} made it meanwhile, and has it" in caplog.text)
        assert state.unregistered == ["/s"]
        assert state.get_data("/s") == b"theirs"
        other.close()
        until(lambda: state.get_data("/s") == b"mine")
        until(lambda: state.unregistered == [])

    def test_failed_registration_does_not_block_the_others(
        self, connect, proxy, zookeeper_server, caplog
    ):
        state, other = connect(proxy.address), connect()
        for path in ("/a", "/b", "/c"):
            state.set_ephemeral_node(path, b"mine")
        heard = Hearing(state)
        proxy.cut()
        expire_behind_cut(state, zookeeper_server)
        until(lambda: not any(other.node_exists(path) for path in ("/a", "/b", "/c")))
        other.set_data("/b/child", b"in the way")
        proxy.mend()
        until(lambda: heard.missed == 1)
        assert "not registered yet, and tried again: /b: cannot create" in caplog.text
        assert "others made it meanwhile" in caplog.text
        assert state.get_data("/a") == state.get_data("/c") == b"mine"
        assert state.get_children("/b") == ["child"]
        other.delete_node("/b")
        until(lambda: state.get_data("/b") == b"mine")

    def test_registrations_return_once_the_servers_allow_it(self, connect, raw, zookeeper_root):
        """Their directories are closed to it while its session ends, and opened again later."""
        state, other = connect(), connect()
        storm = StormClusterState(state, Codec())
        storm.supervisor_heartbeat("sup-1", SupervisorInfo(1_700_000_000, "h1.example"))
        storm.add_nimbus_host(NimbusSummary("h1.example", 6627, 0, False, "2.8.0"))
        storm.setup_blob("wc-1-1-stormcode.ser", "h1.example:6627", 1)
        registered = [
            "/blobstore/wc-1-1-stormcode.ser/h1.example:6627-1",
            "/nimbuses/h1.example",
            "/supervisors/sup-1",
        ]
        assert all(other.node_exists(path) for path in registered)
        directories = [f"{zookeeper_root}{path.rpartition('/')[0]}" for path in registered]
        closed = make_acl("world", "anyone", read=True, admin=True)
        for directory in directories:
            raw.set_acls(directory, [closed])
        expire_session(state)
        assert state.unregistered == registered
        assert not any(other.node_exists(path) for path in registered)
        for directory in directories:
            raw.set_acls(directory, OPEN_ACL_UNSAFE)
        until(lambda: not state.unregistered)
        assert all(other.node_exists(path) for path in registered)

    def test_a_silent_network_is_noticed(self, connect, proxy):
        state = connect(proxy.address, session_timeout_secs=1.0, call_timeout_secs=1.0)
        proxy.stall()
        with pytest.raises(StateUnavailableError):
            state.get_data("/a")
        until(lambda: state.connection is SUSPENDED)
        limit_calls(state, 10.0)
        proxy.flow()
        until(lambda: state.connection is CONNECTED)
        until(lambda: is_read_as(state, "/a", None))

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_unreadable_answer_costs_the_connection_only(self, connect, proxy, caplog):
        state = connect(proxy.address)
        state.set_ephemeral_node("/s", b"mine")
        state.set_data("/a", b"0")
        heard = Hearing(state)
        former = state.session_id
        # An answer too short to have a head; by itself, kazoo's thread does not survive it.
        proxy.inject((2).to_bytes(4) + bytes(2))
        until(lambda: "cannot be read" in caplog.text and state.connection is CONNECTED)
        until(lambda: state._connection.times_made == 2)
        assert state.session_id == former
        assert state.get_data("/s") == b"mine"
        assert state.get_data("/a") == b"0"
        until(lambda: heard.missed == 1)


def test_registrations_and_expiry_at_once(connect):
    """Whatever the timing, a registration that succeeded last is there in the end."""
    state, other = connect(), connect()
    stop = threading.Event()
    last = []

    def register():
        number = 0
        while not stop.is_set():
            number += 1
            try:
                state.set_ephemeral_node("/s", str(number).encode())
            except StateUnavailableError:
                continue
            last.append(number)

    registering = threading.Thread(target=register)
    registering.start()
    for _ in range(3):
        before = len(last)
        until(lambda before=before: len(last) > before + 20)
        expire_session(state)
    stop.set()
    registering.join(DEADLINE_SECS)
    until(lambda: other.get_data("/s") == str(last[-1]).encode())
    until(lambda: state._registrations.made_in == state.session_id)
    assert other.get_data("/s") == str(last[-1]).encode()
