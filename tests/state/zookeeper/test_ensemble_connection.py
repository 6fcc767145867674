"""A connection that is made, ended, and made again, with servers that are scripted."""

import logging
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import OutcomeUnknownError, StateClosedError, StateUnavailableError
from stormkeeper.state.storage import Check, ConnectionState, Create
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.ensemble_connection import WINDOW, EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import Security
from stormkeeper.state.zookeeper.requests import ConnectionLostError
from support.certificates import certificates
from support.pacemaker import nobody
from support.scripted_zookeeper import ScriptedPeer, ScriptedZooKeeper
from support.stores import limit_calls
from support.waiting import DEADLINE_SECS, until
from support.zookeeper_requests import paths, reads, values

CONNECTED, SUSPENDED, LOST = ConnectionState


def nobody_else(_node):
    """Who may use a node that is made: everyone."""


def nothing_will_be_sent(connection):
    """Whether all that kazoo has queued was withdrawn, but the first if it is being sent."""
    first, *others = [call for _, call in list(connection._client._queue)] or [None]
    is_sent = first is None or first._decision.locked()
    return is_sent and all(call._is_withdrawn for call in others)


def lose_after_the_look(connection, server):
    """Have the connection lost between the next look at it and what follows."""

    def look_and_lose(*arguments):
        connection._await_connection = look
        look(*arguments)
        server.peers[0].hang_up()
        until(lambda: connection.state is SUSPENDED)

    look, connection._await_connection = connection._await_connection, look_and_lose


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
            assert values(connection.gather(reads(nodes), connection.deadline())) == nodes
            assert max(handed_over) <= WINDOW

    def test_what_is_not_answered_ends_at_the_deadline(self, connection_to):
        def silent(peer):
            peer.greet()
            while True:
                peer.next()

        with ScriptedZooKeeper(silent) as server:
            connection = connection_to(server.address)
            limit_calls(connection, 2.0)
            with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
                connection.gather(reads(paths(10)), connection.deadline())

    def test_what_was_never_sent_is_not_unknown(self, connection_to):
        def short(peer):
            peer.greet()
            peer.next()

        def refuse(peer):
            peer.next()

        with ScriptedZooKeeper(short, refuse) as server:
            connection = connection_to(server.address)
            limit_calls(connection, 2.0)
            with pytest.raises(OutcomeUnknownError):
                connection.gather(reads(["/a"]), connection.deadline())
            with pytest.raises(StateUnavailableError, match="SUSPENDED") as failure:
                connection.gather(reads(["/a"]), connection.deadline())
            assert not isinstance(failure.value, OutcomeUnknownError)


class TestWhatWasNotSentInTime:
    """It does not happen later, and who asked is told that it never will."""

    @pytest.mark.parametrize(
        "ask",
        [
            lambda c, end: c.call(requests.set_data("/late", b""), end),
            lambda c, end: c.call(requests.get("/late"), end),
            lambda c, end: c.call(requests.transaction([Check("/late", 0)], nobody_else), end),
            lambda c, end: c.call(requests.create(Create("/late", b""), nobody_else), end),
            lambda c, end: c.gather([requests.delete("/late")] * 3, end),
        ],
        ids=["write", "read", "transaction", "create", "many"],
    )
    def test_behind_the_last_connection(self, connection_to, ask):
        """The connection is lost between the look at it and what follows."""
        go_on = threading.Event()

        def later(peer):
            go_on.wait(DEADLINE_SECS)
            peer.serve()

        with ScriptedZooKeeper(ScriptedPeer.serve, later) as server:
            connection = connection_to(server.address)
            lose_after_the_look(connection, server)
            with pytest.raises(StateUnavailableError, match="SUSPENDED") as failure:
                ask(connection, time.monotonic() + 1.5)
            assert not isinstance(failure.value, OutcomeUnknownError)
            assert nothing_will_be_sent(connection)
            go_on.set()
            deadline = connection.deadline()
            assert connection.call(requests.get("/a"), deadline)[0] == b"/a"
            assert [asked.path for asked in server.peers[1].asked] == ["/a"]

    def test_what_is_queued_when_ctrl_c_comes(self, connection_to):
        go_on = threading.Event()

        def later(peer):
            go_on.wait(DEADLINE_SECS)
            peer.serve()

        def interrupt(_client):
            raise KeyboardInterrupt

        with ScriptedZooKeeper(ScriptedPeer.serve, later) as server:
            connection = connection_to(server.address)
            lose_after_the_look(connection, server)
            asked = [requests.delete("/late"), requests.Request("delete", "/ctrl-c", interrupt)]
            with pytest.raises(KeyboardInterrupt):
                connection.gather(asked, connection.deadline())
            assert nothing_will_be_sent(connection)
            go_on.set()
            assert connection.call(requests.get("/a"), connection.deadline())
            assert [asked.path for asked in server.peers[1].asked] == ["/a"]

    def test_it_is_sent_in_the_next_connection_if_that_comes_in_time(self, connection_to):
        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            lose_after_the_look(connection, server)
            connection.call(requests.set_data("/a", b""), connection.deadline())
            assert [[asked.path for asked in peer.asked] for peer in server.peers] == [[], ["/a"]]

    def test_behind_what_the_server_does_not_read(self, connection_to):
        """kazoo's thread waits for room in the socket; what comes behind waits in its queue."""
        go_on = threading.Event()

        def busy(peer):
            peer.greet(timeout_ms=120_000)
            go_on.wait(DEADLINE_SECS)
            peer.serve()

        def fill():
            large = [requests.set_data(f"/full/{number}", bytes(1_000_000)) for number in range(40)]
            connection.gather(large, connection.deadline())

        with ScriptedZooKeeper(busy) as server, ThreadPoolExecutor(1) as pool:
            connection = connection_to(server.address)
            limit_calls(connection, 3.0)
            client = connection._client
            filling = pool.submit(fill)
            until(lambda: client._pending and client._queue)
            for request in (requests.set_data("/late", b""), requests.get("/late")):
                with pytest.raises(StateUnavailableError, match="could be asked") as failure:
                    connection.call(request, time.monotonic() + 0.1)
                assert not isinstance(failure.value, OutcomeUnknownError)
            # Of many, a part may have been sent.
            with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
                filling.result(DEADLINE_SECS)
            assert nothing_will_be_sent(connection)
            go_on.set()
            deadline = time.monotonic() + DEADLINE_SECS
            assert connection.call(requests.get("/a"), deadline)[0] == b"/a"
            (peer,) = server.peers
            assert peer.asked[-1].path == "/a"
            assert 0 < len(peer.asked) - 1 < 40
            assert "/late" not in [asked.path for asked in peer.asked]

    def test_the_rest_of_many_when_one_of_them_is_not_served(self, connection_to):
        """A server that throttles answers a request, and keeps the connection."""
        go_on = threading.Event()

        def throttle(peer):
            peer.greet(timeout_ms=120_000)
            peer.send(peer.answer(peer.next(), error=-127))
            go_on.wait(DEADLINE_SECS)
            peer.serve()

        with ScriptedZooKeeper(throttle) as server:
            connection = connection_to(server.address)
            limit_calls(connection, 2.0)
            large = [requests.set_data(f"/{number}", bytes(1_000_000)) for number in range(40)]
            with pytest.raises(OutcomeUnknownError, match="ThrottledOpError"):
                connection.gather(large, connection.deadline())
            assert nothing_will_be_sent(connection)
            go_on.set()


def test_a_sync_that_is_not_answered_is_not_said_to_be_unsent(connection_to):
    def silent(peer):
        peer.greet()
        while True:
            peer.next()

    with ScriptedZooKeeper(silent) as server:
        connection = connection_to(server.address)
        limit_calls(connection, 2.0)
        with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
            connection.call(requests.sync("/a"), connection.deadline())


class TestCloseMeanwhile:
    """Of what was sent nobody knows, and that is said."""

    def test_what_is_under_way(self, connection_to):
        def silent(peer):
            peer.greet()
            peer.next()
            asked.set()
            go_on.wait(DEADLINE_SECS)

        asked, go_on = threading.Event(), threading.Event()
        with ScriptedZooKeeper(silent) as server, ThreadPoolExecutor(2) as pool:
            connection = connection_to(server.address)
            write, deadline = requests.set_data("/a", b""), connection.deadline()
            writing = pool.submit(connection.call, write, deadline)
            assert asked.wait(DEADLINE_SECS)
            closing = pool.submit(connection.close)
            until(lambda: connection.closed)
            go_on.set()
            with pytest.raises(OutcomeUnknownError, match="was closed meanwhile; it may have"):
                writing.result(DEADLINE_SECS)
            closing.result(DEADLINE_SECS)

    def test_what_waits_to_be_repeated(self, connection_to):
        def write():
            raise failures.pop(0)

        failures = [ConnectionLostError("was lost"), StateClosedError("was closed")]
        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            with pytest.raises(OutcomeUnknownError, match="closed; an earlier attempt: was lost"):
                connection.repeated(write, connection.deadline())


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_sent_after_the_deadline(connection_to, count):
    def ask(deadline):
        if count == 1:
            return [connection.call(requests.get("/0"), deadline)]
        return connection.gather(reads(paths(count)), deadline)

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

    connections, lost, init = [], threading.Event(), EnsembleConnection.__init__
    monkeypatch.setattr(EnsembleConnection, "__init__", make)
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        assert lost.is_set()
        assert connection.call(requests.get("/a"), connection.deadline())


def test_server_that_never_answers_leaves_time_to_try_again(
    connection_to,
):
    def forget(peer):
        peer.next_frame()
        peer.next_frame()

    with ScriptedZooKeeper(ScriptedPeer.serve, forget, ScriptedPeer.serve) as server:
        connection = connection_to(server.address, session_timeout_secs=6.0)
        handler, waits = connection._handler, []
        select = handler.select

        def waiting(reading, *others):
            if handler.longest_wait_secs is not None:
                waits.append(handler.longest_wait_secs)
            return select(reading, *others)

        handler.select = waiting
        server.peers[0].hang_up()
        until(lambda: len(server.peers) == 3 and connection.state is CONNECTED)
        assert set(waits) == {3.0}
        assert handler.longest_wait_secs is None


def test_who_was_refused_does_not_try_again_at_once(connection_to):
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address, retry_ceiling_secs=60.0)
        connection._client.stop()
        until(lambda: not connection._handler.loop.is_alive())
        assert connection.needs_restart
        connection._on_refused("a reason")
        assert not connection.needs_restart
        connection._retry_at -= 60.0
        assert connection.needs_restart


def test_what_is_closed_while_it_is_started_again_stays_closed(connection_to):
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        client = connection._client
        client.stop()
        begun, go_on = threading.Event(), threading.Event()
        start = client.start_async

        def start_late():
            begun.set()
            assert go_on.wait(DEADLINE_SECS)
            return start()

        client.start_async = start_late
        with ThreadPoolExecutor(2) as pool:
            restarted = pool.submit(connection.restart)
            assert begun.wait(DEADLINE_SECS)
            closed = pool.submit(connection.close)
            until(lambda: connection.closed)
            # Time enough to close what has not begun yet.
            time.sleep(0.2)
            go_on.set()
            restarted.result(DEADLINE_SECS)
            closed.result(DEADLINE_SECS)
        assert not connection._handler.loop.is_alive()
        assert client._connection._write_sock is None


def test_why_the_last_attempt_failed_is_said(connection_to):
    def unreadable(peer):
        peer.next()

    with (
        ScriptedZooKeeper(unreadable) as server,
        pytest.raises(
            StateUnavailableError,
            match=r"last attempt: the server hung up .* is no ZooKeeper, that has TLS on this port"
            r" \(set storm\.zookeeper\.ssl\.enable\)",
        ),
    ):
        connection_to(server.address, call_timeout_secs=2.0)


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
            server.address, call_timeout_secs=2.0, security=Security(contexts=lambda: ours)
        )
    assert "ssl.enable" not in str(failure.value)


def test_a_name_that_does_not_resolve_is_named(connection_to, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(
        StateUnavailableError,
        match=(
            r"^no session with ZooKeeper at zk\.invalid:2181 within 2 s: the name zk\.invalid"
            r" does not resolve \(Name or service not known\): check storm\.zookeeper\.servers"
        ),
    ):
        connection_to(Address("zk.invalid", 2181), call_timeout_secs=2.0)


def test_host_name_that_cannot_be_asked_for_ends_nothing(connection_to):
    with pytest.raises(StateUnavailableError, match=f"the name {'a' * 70} does not resolve"):
        connection_to(Address("a" * 70, 2181), call_timeout_secs=2.0)


def test_unreachable_servers_are_logged_once(connection_to, caplog):
    address = nobody()
    with pytest.raises(
        StateUnavailableError,
        match=r"answered at .* \(the last attempt: Connection refused\): check",
    ):
        connection_to(address, call_timeout_secs=2.0)
    [said] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.getMessage() == (
        f"no ZooKeeper server is reached, and it is tried again: {address}: Connection refused"
    )
