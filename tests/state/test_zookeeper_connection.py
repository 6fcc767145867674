"""A connection that is made, ended, and made again, with servers that are scripted."""

import logging
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.protocol.serialization import GetData

from stormkeeper.conf import Address
from stormkeeper.errors import OutcomeUnknownError, StateUnavailableError
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper_connection import WINDOW, Connection
from stormkeeper.state.zookeeper_security import Security
from support.certificates import certificates
from support.scripted_zookeeper import ScriptedPeer, ScriptedZooKeeper
from support.waiting import until
from support.zookeeper_requests import paths, reads, values

CONNECTED, SUSPENDED, LOST = ConnectionState


class TestManyRequests:
    def test_a_window_is_not_exceeded_and_slides(self, connection_to):
        handed_over = []

        def script(peer):
            peer.greet()
            asked = [peer.next() for _ in range(WINDOW)]
            handed_over.append(len(client._pending) + len(client._queue))
            for one in asked[: WINDOW // 2]:
                peer.send(peer.value(one))
            # More comes though the rest has no answer.
            asked.append(peer.next())
            handed_over.append(len(client._pending) + len(client._queue))
            for one in asked[WINDOW // 2 :]:
                peer.send(peer.value(one))
            peer.serve()

        with ScriptedZooKeeper(script) as server:
            connection = connection_to(server.address)
            client = connection._client
            nodes = paths(2 * WINDOW)
            assert values(connection.gather("read", reads(nodes), connection.deadline())) == nodes
            assert max(handed_over) <= WINDOW

    def test_what_is_not_answered_ends_at_the_deadline(self, connection_to):
        def silent(peer):
            peer.greet()
            while True:
                peer.next()

        with ScriptedZooKeeper(silent) as server:
            connection = connection_to(server.address, call_timeout_secs=1.0)
            with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
                connection.gather("read", reads(paths(10)), connection.deadline())

    def test_what_was_never_sent_is_not_unknown(self, connection_to):
        def short(peer):
            peer.greet()
            peer.next()

        def refuse(peer):
            peer.next()

        with ScriptedZooKeeper(short, refuse) as server:
            connection = connection_to(server.address, call_timeout_secs=1.0)
            with pytest.raises(OutcomeUnknownError):
                connection.gather("read", reads(["/a"]), connection.deadline())
            with pytest.raises(StateUnavailableError, match="SUSPENDED") as failure:
                connection.gather("read", reads(["/a"]), connection.deadline())
            assert not isinstance(failure.value, OutcomeUnknownError)


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_sent_after_the_deadline(connection_to, count):
    def ask(deadline):
        if count == 1:
            return [connection.call("read", "/0", GetData("/0", None), deadline)]
        return connection.gather("read", reads(paths(count)), deadline)

    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        with pytest.raises(StateUnavailableError, match="time was up before") as failure:
            ask(time.monotonic())
        assert not isinstance(failure.value, OutcomeUnknownError)
        assert values(ask(connection.deadline())) == paths(count)
        assert len(server.peers[0].asked) == count


def test_a_connection_that_was_made_and_is_lost_again_was_made(connection_to, monkeypatch):
    class Condition(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            made = super().wait_for(predicate, timeout)
            if not lost.is_set():
                lost.set()
                server.peers[0].hang_up()
                super().wait_for(lambda: connections[0].state is SUSPENDED, 20)
            return made

    def make(self, *arguments):
        init(self, *arguments)
        connections.append(self)
        self._changed = Condition()

    connections, lost, init = [], threading.Event(), Connection.__init__
    monkeypatch.setattr(Connection, "__init__", make)
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        assert lost.is_set()
        assert connection.call("read", "/a", GetData("/a", None), connection.deadline())


def test_a_server_that_forgets_who_it_let_in_leaves_time_for_another_attempt(
    connection_to,
):
    def forget(peer):
        peer.next_frame()
        peer.next_frame()

    with ScriptedZooKeeper(ScriptedPeer.serve, forget, ScriptedPeer.serve) as server:
        connection = connection_to(server.address, session_timeout_secs=1.0)
        wire, waits = connection._wire, []
        submit = wire._submit
        wire._submit = lambda request, secs, xid: (waits.append(secs), submit(request, secs, xid))
        server.peers[0].hang_up()
        until(lambda: len(server.peers) == 3 and connection.state is CONNECTED)
        assert waits == [0.5, 0.5]


def test_who_was_refused_does_not_try_again_at_once(connection_to):
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address, retry_ceiling_secs=60.0)
        connection._client.stop()
        until(lambda: not connection._handler.loop.is_alive())
        assert connection.dead
        connection._on_refused("a reason")
        assert not connection.dead
        connection._retry_at -= 60.0
        assert connection.dead


def test_what_is_closed_while_it_is_started_again_stays_closed(connection_to):
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        client = connection._client
        client.stop()
        begun, go_on = threading.Event(), threading.Event()
        start = client.start_async

        def start_late():
            begun.set()
            assert go_on.wait(20)
            return start()

        client.start_async = start_late
        with ThreadPoolExecutor(2) as pool:
            restarted = pool.submit(connection.restart)
            assert begun.wait(20)
            closed = pool.submit(connection.close)
            until(lambda: connection.closed)
            # Time enough to close what has not begun yet.
            time.sleep(0.2)
            go_on.set()
            restarted.result(30)
            closed.result(30)
        assert not connection._handler.loop.is_alive()
        assert client._connection._write_sock is None


def test_why_the_last_attempt_failed_is_said(connection_to):
    def unreadable(peer):
        peer.next()

    with (
        ScriptedZooKeeper(unreadable) as server,
        pytest.raises(
            StateUnavailableError,
            match=r"last attempt: the server hung up .*\(set storm\.zookeeper\.ssl\.enable\)",
        ),
    ):
        connection_to(server.address, call_timeout_secs=1.0)


def test_with_tls_its_absence_is_not_why_a_server_hangs_up(connection_to):
    mine = certificates().server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(mine.file, mine.key)
    ours = ssl.create_default_context(cafile=mine.authority)
    with (
        ScriptedZooKeeper(ScriptedPeer.next_frame, context=context) as server,
        pytest.raises(StateUnavailableError, match="last attempt: the server hung up") as failure,
    ):
        connection_to(
            server.address, call_timeout_secs=1.0, security=Security(contexts=lambda: ours)
        )
    assert "ssl.enable" not in str(failure.value)


def test_a_name_that_does_not_resolve_is_named(connection_to, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(
        StateUnavailableError,
        match=(
            r"^no session with ZooKeeper at zk\.invalid:2181 within 0\.5 s: the name zk\.invalid"
            r" does not resolve \(Name or service not known\): check storm\.zookeeper\.servers"
        ),
    ):
        connection_to(Address("zk.invalid", 2181), call_timeout_secs=0.5)


def test_a_name_that_no_name_server_can_be_asked_for_ends_nothing(connection_to):
    with pytest.raises(StateUnavailableError, match=f"the name {'a' * 70} does not resolve"):
        connection_to(Address("a" * 70, 2181), call_timeout_secs=0.5)


def test_servers_that_are_not_reached_are_logged_once_until_one_is(connection_to, caplog):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = Address("127.0.0.1", nobody.getsockname()[1])
    with pytest.raises(
        StateUnavailableError,
        match=r"answered at .* \(the last attempt: Connection refused\): check",
    ):
        connection_to(address, call_timeout_secs=1.0)
    [said] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.getMessage() == (
        f"no ZooKeeper server is reached, and it is tried again: {address}: Connection refused"
    )
