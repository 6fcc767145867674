"""What happens to a session when servers, networks and sessions fail."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from stormkeeper import conf as configuration
from stormkeeper.errors import ConfigError, InvalidPathError, StateError, StateUnavailableError
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state import paths, zookeeper
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.zookeeper import ZooKeeperState
from stormkeeper.state.zookeeper_connection import Settings
from support.hearing import Hearing
from support.proxy import Proxy
from support.stores import settings_for
from support.waiting import until
from support.zookeeper import expire_session

pytestmark = pytest.mark.zookeeper

VECTORS = Path(__file__).parent.parent / "vectors"

CREATED = EventType.NODE_CREATED
DELETED = EventType.NODE_DELETED
CHANGED = EventType.NODE_DATA_CHANGED
CHILDREN = EventType.NODE_CHILDREN_CHANGED
CONNECTED, SUSPENDED, LOST = ConnectionState


def children_watched(state, path):
    return bool(state._connection._client._child_watchers.get(state._node(path)))


def suspend(server):
    """Stop a server's process without ending it, and wait until its last thread stands."""
    os.kill(server.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{server.pid}/task")
    until(lambda: all("\nState:\tT" in (t / "status").read_text() for t in tasks.iterdir()))


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def connect(zookeeper_server, zookeeper_root):
    """Opens sessions with the shared server, or with another at `address`."""
    sessions = []

    def connect(address=None, **times):
        settings = settings_for(zookeeper_server, zookeeper_root, **times)
        if address is not None:
            settings = replace(settings, servers=(address,))
        sessions.append(ZooKeeperState(settings))
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


@pytest.fixture
def own_server(tmp_path):
    """A server of the test's own, to be stopped and started."""
    with DevZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def proxy(zookeeper_server):
    with Proxy(zookeeper_server.address) as proxy:
        yield proxy


@pytest.fixture
def raw(zookeeper_server):
    """kazoo itself, to look at what we wrote."""
    client = KazooClient(str(zookeeper_server.address))
    client.start()
    yield client
    client.stop()
    client.close()


class TestConnecting:
    def test_from_configuration(self, zookeeper_settings, zookeeper_root, raw):
        conf = configuration.defaults().with_values(zookeeper_settings())
        state = zookeeper.connect(conf)
        state.set_data("/a", b"x")
        state.close()
        assert raw.get(f"{zookeeper_root}/a")[0] == b"x"
        assert raw.get(zookeeper_root)[0] == b"\x07"

    def test_times_and_servers_are_read_from_configuration(self):
        conf = configuration.defaults().with_values(
            {
                "storm.zookeeper.servers": ["a", "b:2182"],
                "storm.zookeeper.port": 2000,
                "storm.zookeeper.root": "/r",
                "storm.zookeeper.session.timeout": 1500,
                "storm.zookeeper.connection.timeout": 2500,
                "storm.zookeeper.retry.times": 7,
                "storm.zookeeper.retry.interval": 250,
                "storm.zookeeper.retry.intervalceiling.millis": 3500,
            }
        )
        settings = Settings.from_conf(conf)
        assert [str(server) for server in settings.servers] == ["a:2000", "b:2182"]
        assert settings == Settings(settings.servers, "/r", 1.5, 2.5, 7, 0.25, 3.5)

    def test_a_server_without_a_port(self):
        conf = configuration.defaults().with_values({"storm.zookeeper.port": 0})
        with pytest.raises(ConfigError, match=r"storm\.zookeeper\.port is 0"):
            zookeeper.connect(conf)

    def test_the_root_may_be_deep_or_none(self, zookeeper_server, zookeeper_root, raw):
        deep = f"{zookeeper_root}/a/b"
        state = ZooKeeperState(settings_for(zookeeper_server, deep))
        state.set_data("/x", b"1")
        state.close()
        assert raw.get(deep)[0] == b"\x07"
        assert raw.get(f"{zookeeper_root}/a")[0] == b""
        state = ZooKeeperState(settings_for(zookeeper_server, "/"))
        heard = Hearing(state)
        assert state.get_data(f"{deep}/x", watch=True) == b"1"
        state.set_data(f"{deep}/x", b"2")
        assert heard.events() == [(CHANGED, f"{deep}/x")]
        assert "zookeeper" in state.get_children("/")
        state.close()

    def test_a_root_that_is_no_path(self, zookeeper_server):
        with pytest.raises(InvalidPathError):
            ZooKeeperState(settings_for(zookeeper_server, "storm"))

    def test_nobody_there(self, tmp_path):
        threads = set(threading.enumerate())
        absent = DevZooKeeper(tmp_path, port=1)
        settings = settings_for(absent, "/storm", call_timeout_secs=0.5)
        began = time.monotonic()
        with pytest.raises(StateUnavailableError, match=r"127\.0\.0\.1:1 within 0\.5 s"):
            ZooKeeperState(settings)
        assert time.monotonic() - began < 10
        until(lambda: set(threading.enumerate()) <= threads)

    def test_the_first_server_may_be_away(self, zookeeper_server, zookeeper_root, tmp_path):
        absent = DevZooKeeper(tmp_path, port=1).address
        settings = settings_for(zookeeper_server, zookeeper_root)
        for _ in range(4):
            servers = (absent, *settings.servers, absent)
            state = ZooKeeperState(replace(settings, servers=servers))
            state.mkdirs("/a")
            state.close()

    def test_a_closed_session_leaves_nothing(self, connect):
        threads = set(threading.enumerate())
        descriptors = open_files()
        state = connect()
        mine = set(threading.enumerate()) - threads
        assert {thread.name.split()[0] for thread in mine} == {"state", "zookeeper"}
        assert all(thread.daemon for thread in mine)
        state.close()
        until(lambda: not mine & set(threading.enumerate()))
        until(lambda: open_files() <= descriptors)


def test_what_is_written_is_what_storm_writes(connect, raw, zookeeper_root):
    wrote = [json.loads(line) for line in (VECTORS / "znodes-gzip.jsonl").read_text().splitlines()]
    values = {
        node["path"].removeprefix("/stormgz"): bytes.fromhex(node["hex"] or "") for node in wrote
    }
    state = connect()
    for directory in paths.DIRECTORIES:
        state.mkdirs(directory)
    for node in wrote:
        path = node["path"].removeprefix("/stormgz")
        data = values[path]
        if path.endswith("/e0000000000"):
            state.mkdirs(paths.parent(path))
            assert state.create_sequential(path.removesuffix("0000000000"), data) == path
        elif node["ephemeral"]:
            state.set_ephemeral_node(path, data)
        elif any(other.startswith(f"{path}/") for other in values) or data == b"\x07":
            # Storm makes these on the way to others, or at its start.
            if data == b"\x07" and path:
                state.mkdirs(path)
        else:
            state.set_data(path, data)
    for node in wrote:
        path = node["path"].removeprefix("/stormgz")
        data, stat = raw.get(zookeeper_root + path)
        assert data == values[path], path
        assert (stat.ephemeralOwner != 0) is node["ephemeral"], path
        assert stat.version == node["version"], path
        (acl,) = raw.get_acls(zookeeper_root + path)[0]
        assert (acl.id.scheme, acl.id.id, acl.perms) == ("world", "anyone", 31), path


class TestServerAway:
    """The server is stopped, and started again before the session is over."""

    @pytest.fixture
    def state(self, own_server):
        state = ZooKeeperState(settings_for(own_server, "/storm", call_timeout_secs=1.0))
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
        calls = [
            lambda: state.get_data("/a"),
            lambda: state.get_data("/a", watch=True),
            lambda: state.get_children("/"),
            lambda: state.mkdirs("/b"),
            lambda: state.set_data("/a", b"lost"),
            lambda: state.create_sequential("/e", b""),
            lambda: state.get_worker_hb("/a"),
        ]
        began = time.monotonic()
        with ThreadPoolExecutor(len(calls)) as pool:
            for failure in [f.exception() for f in [pool.submit(call) for call in calls]]:
                assert isinstance(failure, StateUnavailableError)
                assert "SUSPENDED" in str(failure)
        for call in (
            lambda: state.set_ephemeral_node("/s", b"lost"),
            lambda: state.delete_node("/a"),
        ):
            with pytest.raises(StateUnavailableError, match="SUSPENDED"):
                call()
        assert time.monotonic() - began < 10 * 3 * 1.0
        own_server.start()
        until(lambda: state.connection is CONNECTED)
        # What failed for want of a connection does not happen later; the session lived on.
        assert state.get_data("/a") == b"0"
        assert state.get_version("/s") == 0
        assert heard.everything() == [SUSPENDED, CONNECTED]
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
        waiting.join(30)
        assert answers == [b"0"]
        state.close()

    def test_a_server_that_does_not_answer(self, own_server, state):
        state.set_data("/a", b"0")
        suspend(own_server)
        try:
            for call in (lambda: state.get_data("/a"), lambda: state.set_data("/b", b"x")):
                with pytest.raises(StateUnavailableError, match="did not answer in time"):
                    call()
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert state.get_data("/a") == b"0"

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
        until(lambda: len(state._connection._client._pending) >= 6)
        os.kill(own_server.pid, signal.SIGKILL)
        until(lambda: state.connection is SUSPENDED)
        own_server.start()
        for thread in threads:
            thread.join(30)
        assert len(outcomes) == len(threads)
        # Safe to repeat, so they were.
        assert outcomes["read"] == b"0"
        assert "a" in outcomes["list"]
        assert outcomes["mkdirs"] is outcomes["register"] is outcomes["delete"] is None
        assert state.get_data("/s") == b"mine"
        # Not safe to repeat: the caller is told that nobody knows.
        for name in ("write", "create"):
            assert isinstance(outcomes[name], StateUnavailableError)
            assert "may have been done or not" in str(outcomes[name])
        state.close()

    def test_close_does_not_wait_for_a_server_that_is_away(self, own_server):
        state = ZooKeeperState(settings_for(own_server, "/storm", call_timeout_secs=30.0))
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
        assert time.monotonic() - began < 15
        reading.join(5)
        assert "was closed" in outcome[0]


class TestNetworkCut:
    """The client is cut off, while others go on."""

    def test_what_was_missed_is_told(self, connect, proxy):
        state, other = connect(proxy.address), connect()
        heard = Hearing(state)
        for path in ("/set", "/deleted", "/made-again", "/untouched"):
            state.set_data(path, b"0")
            state.get_data(path, watch=True)
        state.get_data("/created", watch=True)
        state.get_data("/come-and-gone", watch=True)
        state.mkdirs("/top")
        state.mkdirs("/gone")
        for path in ("/top", "/gone"):
            state.get_children(path, watch=True)
        heard.forget()
        proxy.cut()
        until(lambda: state.connection is SUSPENDED)
        other.set_data("/set", b"1")
        other.set_data("/set", b"2")
        other.delete_node("/deleted")
        other.delete_node("/made-again")
        other.set_data("/made-again", b"0")
        other.set_data("/created", b"")
        other.set_data("/come-and-gone", b"")
        other.delete_node("/come-and-gone")
        other.set_data("/top/child", b"")
        other.delete_node("/gone")
        proxy.mend()
        until(lambda: state.connection is CONNECTED)
        until(lambda: len(heard.everything()) == 8)
        assert heard.everything() == [
            SUSPENDED,
            CONNECTED,
            (CHANGED, "/set"),
            (DELETED, "/deleted"),
            (CHANGED, "/made-again"),
            (CREATED, "/created"),
            (CHILDREN, "/top"),
            (DELETED, "/gone"),
        ]
        heard.forget()
        # What was told is used up; what missed nothing is armed still.
        for path in ("/set", "/created", "/made-again", "/untouched", "/come-and-gone"):
            other.set_data(path, b"3")
        other.set_data("/top/child-2", b"")
        until(lambda: len(heard.events()) == 2)
        assert heard.events() == [(CHANGED, "/untouched"), (CREATED, "/come-and-gone")]

    def test_no_watch_of_many_is_lost(self, connect, proxy):
        state, other = connect(proxy.address), connect()
        told = set()
        state.register(lambda _event, path: told.add(path))
        everyone = [f"/many/{number}" for number in range(1200)]
        for path in everyone[::2]:
            other.set_data(path, b"0")
        for path in everyone:
            state.get_data(path, watch=True)
        for _ in range(3):
            proxy.cut()
            until(lambda: state.connection is SUSPENDED)
            proxy.mend()
            until(lambda: state.connection is CONNECTED)
        for path in everyone:
            other.set_data(path, b"1")
        until(lambda: told == set(everyone))

    def test_a_session_that_expires_meanwhile(self, connect, proxy):
        state = connect(proxy.address, session_timeout_secs=1.0)
        other = connect()
        state.set_ephemeral_node("/supervisors/s-1", b"mine")
        state.set_data("/a", b"0")
        heard = Hearing(state)
        state.get_data("/a", watch=True)
        heard.forget()
        former = state.session_id
        proxy.cut()
        until(lambda: other.get_children("/supervisors") == [])
        assert state.connection is SUSPENDED
        other.set_data("/a", b"1")
        proxy.mend()
        until(lambda: other.get_children("/supervisors") == ["s-1"])
        assert other.get_data("/supervisors/s-1") == b"mine"
        assert state.session_id != former
        until(lambda: len(heard.everything()) == 4)
        assert heard.everything() == [SUSPENDED, LOST, CONNECTED, (CHANGED, "/a")]

    def test_a_registration_that_another_process_took_over(self, connect, proxy, caplog):
        state = connect(proxy.address, session_timeout_secs=1.0)
        other = connect()
        state.set_ephemeral_node("/s", b"mine")
        proxy.cut()
        until(lambda: not other.node_exists("/s"))
        other.set_ephemeral_node("/s", b"theirs")
        proxy.mend()
        until(lambda: "another session took it" in caplog.text)
        assert state.get_data("/s") == b"theirs"

    def test_one_registration_that_cannot_be_made_again_does_not_keep_the_others(
        self, connect, proxy, caplog
    ):
        state = connect(proxy.address, session_timeout_secs=1.0)
        other = connect()
        for path in ("/a", "/b", "/c"):
            state.set_ephemeral_node(path, b"mine")
        heard = Hearing(state)
        state.get_data("/watched", watch=True)
        proxy.cut()
        until(lambda: not any(other.node_exists(path) for path in ("/a", "/b", "/c")))
        other.set_data("/b/child", b"in the way")
        other.set_data("/watched", b"")
        proxy.mend()
        until(lambda: (CREATED, "/watched") in heard.events())
        assert "/b is not registered any more" in caplog.text
        assert state.get_data("/a") == state.get_data("/c") == b"mine"
        assert state.get_children("/b") == ["child"]

    def test_a_watch_that_is_not_allowed_any_more_is_told(
        self, connect, proxy, raw, zookeeper_root
    ):
        state = connect(proxy.address)
        heard = Hearing(state)
        for path in ("/a", "/b"):
            state.mkdirs(path)
            state.get_children(path, watch=True)
        proxy.cut()
        until(lambda: state.connection is SUSPENDED)
        raw.set_acls(f"{zookeeper_root}/a", [make_digest_acl("u", "p", all=True)])
        proxy.mend()
        until(lambda: state.connection is CONNECTED)
        until(lambda: (CHILDREN, "/a") in heard.events())
        with pytest.raises(StateError, match="ACL"):
            state.get_children("/a")
        until(lambda: children_watched(state, "/b"))
        state.set_data("/b/child", b"")
        assert heard.events() == [(CHILDREN, "/a"), (CHILDREN, "/b")]

    def test_a_silent_network_is_noticed(self, connect, proxy):
        state = connect(proxy.address, session_timeout_secs=1.0, call_timeout_secs=0.5)
        proxy.stall()
        with pytest.raises(StateUnavailableError):
            state.get_data("/a")
        until(lambda: state.connection is SUSPENDED)
        proxy.flow()
        until(lambda: state.connection is CONNECTED)
        until(lambda: state.get_data("/a") is None)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_client_that_gave_up_is_started_again(self, connect, proxy, caplog):
        state = connect(proxy.address)
        state.set_ephemeral_node("/s", b"mine")
        state.set_data("/a", b"0")
        heard = Hearing(state)
        state.get_data("/a", watch=True)
        former = state.session_id
        # An answer to a question that was not asked yet; kazoo's thread does not survive it.
        state._connection._client.get_async("/")
        proxy.inject((16).to_bytes(4) + (99).to_bytes(4) + bytes(12))
        until(lambda: state.session_id != former and state.connection is CONNECTED)
        assert "ended on its own" in caplog.text
        until(lambda: state.get_data("/s") == b"mine")
        state.set_data("/a", b"1")
        until(lambda: (CHANGED, "/a") in heard.events())


class TestRefusals:
    def test_a_value_above_the_servers_limit(self, connect):
        state = connect(retry_times=2)
        for write in (state.set_data, state.set_ephemeral_node, state.create_sequential):
            with pytest.raises(StateUnavailableError, match=r"2000000 bytes.*jute\.maxbuffer"):
                write("/large", bytes(2_000_000))
        state.set_data("/small", b"x")

    def test_an_acl(self, connect, raw, zookeeper_root):
        state = connect()
        raw.create(f"{zookeeper_root}/secret", b"", acl=[make_digest_acl("u", "p", all=True)])
        for call in (lambda: state.get_data("/secret"), lambda: state.set_data("/secret", b"")):
            with pytest.raises(StateError, match=f"{zookeeper_root}/secret: the node's ACL"):
                call()

    def test_a_value_that_was_never_set_is_empty(self, connect, raw, zookeeper_root):
        state = connect()
        raw.create(f"{zookeeper_root}/null", None)
        assert state.get_data("/null") == b""


def test_events_are_queued_before_what_they_announce_is_read(connect):
    state, other = connect(), connect()
    order = []
    state.register(lambda *_: order.append("told"))
    for number in range(50):
        order.clear()
        value = str(number).encode()
        state.get_data("/a", watch=True)
        other.set_data("/a", value)
        # The callbacks' thread runs what is queued in order: what is queued now comes later.
        until(lambda value=value: state.get_data("/a") == value)
        state._callbacks._queue.put(lambda: order.append("read"))
        until(lambda: len(order) == 2)
        assert order == ["told", "read"]


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
    registering.join(20)
    until(lambda: other.get_data("/s") == str(last[-1]).encode())
    until(lambda: state._registered_in == state.session_id)
    assert other.get_data("/s") == str(last[-1]).encode()
