"""What is put back after a reconnection, at servers that a test scripts."""

import logging
import struct
import threading
import time

import pytest

from stormkeeper.errors import AccessDeniedError, StateAuthenticationError
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.zookeeper import recovery
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.scripted_zookeeper import CLOSE, CREATE, ScriptedZooKeeper
from support.stores import limit_calls
from support.waiting import DEADLINE_SECS, until

EXISTS, GET, LIST = 3, 4, 8
NO_NODE, NO_AUTH, NO_CHILDREN, INVALID_ACL, AUTH_FAILED = -101, -102, -108, -114, -115
UNIMPLEMENTED = -6

STAT = struct.pack("!qqqqiiiqiiq", 7, 8, 0, 0, 3, 0, 0, 0, 0, 0, 9)


def text(value):
    return struct.pack("!i", len(value)) + value.encode()


def serve(peer, *, there=("/",), denied=(), refusals=None, refusal=AUTH_FAILED, secs=0.0):
    """Answer requests of a tree in which nothing changes but the asker's own."""
    while True:
        asked = peer.next().alone()
        time.sleep(secs)
        if asked.type == CLOSE:
            peer.send(peer.answer(asked))
            return
        if asked.path in denied:
            peer.send(peer.answer(asked, error=NO_AUTH))
        elif asked.type == CREATE and refusals and refusals.get(asked.path):
            refusals[asked.path] -= 1
            peer.send(peer.results(asked, refusal))
        elif asked.type == CREATE:
            peer.send(peer.results(asked, made=asked.path))
        elif asked.path not in there:
            peer.send(peer.answer(asked, error=NO_NODE))
        else:
            body = {EXISTS: b"", GET: text("x"), LIST: struct.pack("!i", 0)}[asked.type]
            peer.send(peer.answer(asked, body + STAT))


def created_by(peer):
    """The paths of nodes that a client wanted made."""
    return [asked.alone().path for asked in peer.asked if asked.alone().type == CREATE]


@pytest.fixture
def connect():
    """Opens sessions."""
    opened = []

    def connect(server, **changes):
        times = {"call_timeout_secs": 10.0, "retry_interval_secs": 0.05, **changes}
        opened.append(ZooKeeperState(EnsembleSettings(servers=(server.address,), **times)))
        return opened[-1]

    yield connect
    for state in opened:
        state.close()


def test_registrations_may_take_longer_together_than_one_call(connect):
    registered = [f"/{number}" for number in range(8)]

    def first(peer):
        peer.greet(session=1)
        serve(peer)

    def expired(peer):
        peer.greet(session=0, timeout_ms=0)

    def slow(peer):
        peer.greet(session=2)
        serve(peer, secs=0.15)

    with ScriptedZooKeeper(first, expired, slow) as server:
        state = connect(server)
        for path in registered:
            state.set_ephemeral_node(path, b"mine")
        limit_calls(state, 2.0)
        server.peers[0].hang_up()
        until(lambda: state._registrations.made_in == 2)
        made = created_by(server.peers[2])
        assert made == registered


class TestRegistrationsThatCannotBeMade:
    """They are refused, or in the way of a defect, when the next session makes them again."""

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        monkeypatch.setattr(recovery, "FIRST_PAUSE_SECS", 0.02)
        monkeypatch.setattr(recovery, "LONGEST_PAUSE_SECS", 0.04)

    def refusing(self, times, error=AUTH_FAILED):
        """Scripts of two sessions; in the second the node /b is refused so often."""

        def first(peer):
            peer.greet(session=1)
            serve(peer)

        def expired(peer):
            peer.greet(session=0, timeout_ms=0)

        def refuse(peer):
            peer.greet(session=2)
            serve(peer, refusals={"/b": times}, refusal=error)

        return first, expired, refuse

    def made(self, server):
        return created_by(server.peers[2])

    @pytest.mark.parametrize(
        "error", [AUTH_FAILED, NO_AUTH, INVALID_ACL, NO_CHILDREN, UNIMPLEMENTED]
    )
    def test_it_is_tried_again_and_keeps_nobody_waiting(self, connect, error):
        with ScriptedZooKeeper(*self.refusing(3, error)) as server:
            state, told = connect(server), []
            state.register(lambda event, _path: told.append(event))
            for path in ("/a", "/b", "/c"):
                state.set_ephemeral_node(path, b"mine")
            server.peers[0].hang_up()
            until(lambda: state._registrations.made_in == 2 and not state.unregistered)
            assert self.made(server) == ["/a", "/b", "/c", "/b", "/b", "/b"]
            until(lambda: told == [EventType.EVENTS_MISSED])
            assert state.recovery_defects == 0

    def test_it_is_never_given_up_and_logged_less_and_less(self, connect, caplog):
        caplog.set_level(logging.INFO)
        with ScriptedZooKeeper(*self.refusing(40)) as server:
            state = connect(server)
            state.set_ephemeral_node("/b", b"mine")
            server.peers[0].hang_up()
            until(lambda: state._registrations.made_in == 2)
            assert state.unregistered == ["/b"]
            until(lambda: not state.unregistered)
            assert self.made(server) == ["/b"] * 41
            until(lambda: "registered again: /b" in caplog.text)
            said = [record.getMessage() for record in caplog.records]
            # The first, second, fourth, eighth, sixteenth and thirty-second time.
            assert len([line for line in said if "not registered yet" in line]) == 6

    def test_many_are_one_line(self, connect, caplog):
        registered = [f"/b/{number}" for number in range(8)]

        def refuse(path, _data, _deadline):
            refused.append(path)
            raise AccessDeniedError(f"cannot create {path}")

        refused = []
        with ScriptedZooKeeper(*self.refusing(0)) as server:
            state = connect(server)
            for path in registered:
                state.set_ephemeral_node(path, b"mine")
            state._tree.recreate_ephemeral = refuse
            server.peers[0].hang_up()
            until(lambda: len(refused) >= 8)
            until(lambda: "not registered yet" in caplog.text)
            assert state.unregistered == registered
            assert (
                "not registered yet, and tried again: /b/0, /b/1, /b/2 and 5 more: cannot create"
                " /b/0"
            ) in caplog.text

    def test_one_that_is_deleted_meanwhile_is_not_tried_again(self, connect):
        with ScriptedZooKeeper(*self.refusing(10_000)) as server:
            state = connect(server)
            state.set_ephemeral_node("/b", b"mine")
            server.peers[0].hang_up()
            until(lambda: state._registrations.made_in == 2)
            state.delete_node("/b")
            assert state.unregistered == []
            assert state._recovery._idle_secs() is None

    def test_what_waits_to_be_tried_again_ends_with_the_session(self, connect, monkeypatch):
        monkeypatch.setattr(recovery, "FIRST_PAUSE_SECS", 3600.0)
        monkeypatch.setattr(recovery, "LONGEST_PAUSE_SECS", 3600.0)
        with ScriptedZooKeeper(*self.refusing(10_000)) as server:
            state = connect(server)
            state.set_ephemeral_node("/b", b"mine")
            server.peers[0].hang_up()
            until(lambda: state.unregistered == ["/b"])
            # Missing from the first moment on, and put off when it was refused.
            until(lambda: (state._recovery._idle_secs() or 0.0) > 1000.0)
            state.close()
            assert not state._recovery._thread.is_running

    def test_a_defect_with_one_keeps_the_others_from_nothing(self, connect, caplog):
        def fail(path, data, deadline):
            if path == "/b" and not failed:
                failed.append(path)
                raise ValueError("on purpose")
            recreate(path, data, deadline)

        failed = []
        with ScriptedZooKeeper(*self.refusing(0)) as server:
            state = connect(server)
            recreate, state._tree.recreate_ephemeral = state._tree.recreate_ephemeral, fail
            for path in ("/a", "/b", "/c"):
                state.set_ephemeral_node(path, b"mine")
            server.peers[0].hang_up()
            until(lambda: state._registrations.made_in == 2 and not state.unregistered)
            assert self.made(server) == ["/a", "/c", "/b"]
            assert "on purpose" in [str(r.exc_info[1]) for r in caplog.records if r.exc_info]

    def test_a_whole_session_that_is_refused_is_followed_by_another(self, connect):
        def later(peer):
            peer.greet(session=2)
            serve(peer)

        def refuse(path, data, deadline):
            if len(server.peers) == 3:
                server.peers[2].hang_up()
                until(lambda: state._connection.state is not ConnectionState.CONNECTED)
                raise StateAuthenticationError("not you")
            recreate(path, data, deadline)

        first, expired, _ = self.refusing(0)
        with ScriptedZooKeeper(first, expired, later) as server:
            state = connect(server)
            recreate = state._tree.recreate_ephemeral
            state._tree.recreate_ephemeral = refuse
            state.set_ephemeral_node("/b", b"mine")
            server.peers[0].hang_up()
            until(lambda: state._registrations.made_in == 2)
            assert created_by(server.peers[3]) == ["/b"]
            assert state.unregistered == []


class TestADefect:
    """The thread comes upon an error that nobody has foreseen."""

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        monkeypatch.setattr(recovery, "FIRST_PAUSE_SECS", 0.02)
        monkeypatch.setattr(recovery, "LONGEST_PAUSE_SECS", 0.04)

    def test_it_does_not_end_what_heals(self, connect, caplog):
        def serves(session):
            def script(peer):
                peer.greet(session=session)
                serve(peer, there=("/", "/node"))

            return script

        def expired(peer):
            peer.greet(session=0, timeout_ms=0)

        def fail():
            if state._connection.session_id == 2 and len(failed) < 10:
                failed.append(None)
                raise RuntimeError("on purpose")
            make_again()

        failed = []
        with ScriptedZooKeeper(serves(1), expired, serves(2), expired, serves(3)) as server:
            state, told = connect(server), []
            make_again = state._registrations.make_again
            state._registrations.make_again = fail
            state.register(lambda event, path: told.append((event, path)))
            state.set_ephemeral_node("/a", b"mine")
            server.peers[0].hang_up()
            until(lambda: state.recovery_defects == 10)
            until(lambda: not state._recovery._thread._streak.count)
            server.peers[2].hang_up()
            until(lambda: state._registrations.made_in == 3)
            until(lambda: told == [(EventType.EVENTS_MISSED, "/")] * 2)
            made = created_by(server.peers[4])
            assert made == ["/a"]
            said = [record for record in caplog.records if record.exc_info]
            assert [str(record.exc_info[1]) for record in said] == ["on purpose"] * 4
            assert "what the ZooKeeper session had is not back yet" in said[0].getMessage()

    def test_it_is_followed_by_a_pause_each_time(self, connect):
        def serves(peer):
            peer.greet()
            serve(peer)

        def fail():
            raise RuntimeError("on purpose")

        def recorded():
            pauses.append(record())
            return pauses[-1]

        pauses = []
        with ScriptedZooKeeper(serves) as server:
            state = connect(server)
            streak = state._recovery._thread._streak
            record, streak.record = streak.record, recorded
            state._registrations.make_again = fail
            server.peers[0].hang_up()
            until(lambda: state.recovery_defects >= 5)
            state.close()
        assert len(pauses) in (state.recovery_defects, state.recovery_defects - 1)
        assert all(0.01 <= pause <= 0.04 for pause in pauses)


def test_missed_events_are_reported_after_each_connection(connect):
    def script(peer):
        peer.greet()
        serve(peer)

    with ScriptedZooKeeper(script) as server:
        state, told = connect(server), []
        state.register(lambda *event: told.append(event))
        for number in (1, 2, 3):
            server.peers[-1].hang_up()
            until(lambda number=number: told == [(EventType.EVENTS_MISSED, "/")] * number)
            assert len(server.peers) == number + 1


def test_connection_made_at_the_end_of_the_wait_is_seen(connect):
    def script(peer):
        peer.greet()
        serve(peer, there=("/", "/a"))

    def later(peer):
        assert waiting.wait(DEADLINE_SECS)
        script(peer)

    def wait_in_vain(secs):
        if secs is None or waiting.is_set():
            return wait(secs)
        waiting.set()
        # It comes after the time was up, and before anything else is done.
        until(news.is_set)
        return False

    waiting = threading.Event()
    with ScriptedZooKeeper(script, later) as server:
        state, told = connect(server), []
        state.register(lambda *event: told.append(event))
        news = state._recovery._thread._woken
        wait, news.wait = news.wait, wait_in_vain
        server.peers[0].hang_up()
        until(lambda: len(server.peers) == 2)
        until(lambda: told == [(EventType.EVENTS_MISSED, "/")])


def test_a_client_that_cannot_be_started_again_is_started_later(connect, caplog, monkeypatch):
    def refuse():
        refused.append(None)
        if len(refused) < 5:
            raise RuntimeError("can't start new thread")
        return start()

    monkeypatch.setattr(recovery, "LOOK_SECS", 0.02)
    monkeypatch.setattr(recovery, "FIRST_PAUSE_SECS", 0.02)
    monkeypatch.setattr(recovery, "LONGEST_PAUSE_SECS", 0.04)
    refused = []
    with ScriptedZooKeeper(lambda peer: (peer.greet(), serve(peer))) as server:
        state = connect(server)
        client = state._connection._client
        start, client.start_async = client.start_async, refuse
        client.stop()
        until(lambda: len(server.peers) == 2 and state.connection is ConnectionState.CONNECTED)
        # It is said by the thread that has started it, which may come to that later.
        until(lambda: "is started again" in caplog.text)
        said = [record.getMessage() for record in caplog.records]
        assert (
            len([line for line in said if "cannot be started again yet: RuntimeErr" in line]) == 3
        )
        assert len([line for line in said if "is started again" in line]) == 1
        assert state.recovery_defects == 0
