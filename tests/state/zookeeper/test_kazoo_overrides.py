"""What is overridden of kazoo's connection, against servers that are scripted and a real one."""

import contextlib
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo import exceptions as kazoo_errors
from kazoo.protocol.states import KeeperState

from stormkeeper.errors import (
    NoNodeError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import Check, ConnectionState, SetData
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.ensemble_connection import WINDOW
from stormkeeper.state.zookeeper.ensemble_settings import Security
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.certificates import certificates
from support.scripted_zookeeper import ScriptedPeer, ScriptedZooKeeper
from support.stores import settings_for
from support.waiting import DEADLINE_SECS, until
from support.zookeeper_requests import TIMES, paths, reads, values

CONNECTED, SUSPENDED, LOST = ConnectionState


def read(connection, node):
    value, _ = connection.call(requests.get(node), connection.deadline())
    return value.decode()


class TestOddAnswers:
    """Each costs the connection, and kazoo's thread goes on."""

    def unknown(self, *scripts, connection_to):
        """The first read has such an answer; then the next connection serves."""
        with ScriptedZooKeeper(*scripts, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            loop = connection._handler.loop
            with pytest.raises(OutcomeUnknownError):
                read(connection, "/a")
            until(lambda: len(server.peers) == len(scripts) + 1 and connection.state is CONNECTED)
            assert read(connection, "/b") == "/b"
            assert connection._handler.loop is loop
            assert loop.is_alive()
            assert not connection.needs_restart

    @pytest.mark.parametrize("number", [2, 7])
    def test_to_another_request(self, connection_to, number):
        def confused(peer):
            peer.greet()
            asked = peer.next()
            peer.send(peer.value(asked._replace(xid=number)))
            with contextlib.suppress(ConnectionError):
                peer.next()

        self.unknown(confused, connection_to=connection_to)

    def test_of_a_length_that_is_none(self, connection_to):
        def negative(peer):
            peer.greet()
            peer.next()
            peer.send((-5).to_bytes(4, signed=True))
            with contextlib.suppress(ConnectionError):
                peer.next()

        self.unknown(negative, connection_to=connection_to)

    def test_of_an_error_that_is_none(self, connection_to):
        """Whoever asked is told at once, and not when the time is up."""

        def confused(peer):
            peer.greet()
            peer.send(peer.answer(peer.next(), error=-4321))
            with contextlib.suppress(ConnectionError):
                peer.next()

        with ScriptedZooKeeper(confused, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            with pytest.raises(OutcomeUnknownError, match=r"cannot be read .*Invalid error code"):
                read(connection, "/a")
            assert read(connection, "/b") == "/b"
            assert len(server.peers) == 2

    def test_where_nothing_was_asked(self, connection_to):
        def chatty(peer):
            peer.greet()
            asked = peer.next()
            peer.send(peer.value(asked) * 2)
            with contextlib.suppress(ConnectionError):
                peer.next()

        with ScriptedZooKeeper(chatty, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            loop = connection._handler.loop
            assert read(connection, "/a") == "/a"
            until(lambda: len(server.peers) == 2 and connection.state is CONNECTED)
            assert read(connection, "/b") == "/b"
            assert connection._handler.loop is loop

    def test_while_it_authenticates(self, connection_to):
        """To something else, too short to have a head, or of an error that is none."""

        def confused(answer):
            def script(peer):
                peer.greet()
                peer.send(answer(peer, peer.next()))
                with contextlib.suppress(ConnectionError):
                    peer.next()

            return script

        def served(peer):
            peer.greet()
            peer.send(peer.answer(peer.next()))
            peer.serve()

        scripts = [
            confused(lambda peer, asked: peer.answer(asked._replace(xid=77))),
            confused(lambda peer, _: peer.frame(bytes(2))),
            confused(lambda peer, asked: peer.answer(asked, error=-4321)),
        ]
        security = Security(digests=(("digest", "u:p"),))
        with ScriptedZooKeeper(*scripts, served) as server:
            connection = connection_to(server.address, security=security)
            assert len(server.peers) == 4
            assert read(connection, "/b") == "/b"
            assert not connection.needs_restart


def test_what_is_queued_while_a_session_ends_is_sent_in_the_next(connection_to):
    """By a caller that looked at kazoo's state before, and comes when its queue was emptied."""

    def expired(peer):
        peer.greet(session=0, timeout_ms=0)

    def empty_and_add(state):
        empty(state)
        if state == KeeperState.EXPIRED_SESSION:
            client._state = KeeperState.CONNECTED
            calls.append(requests.get("/a").send(client))
            client._state = state

    calls = []
    with ScriptedZooKeeper(ScriptedPeer.serve, expired, ScriptedPeer.serve) as server:
        client = connection_to(server.address)._client
        empty, client._notify_pending = client._notify_pending, empty_and_add
        server.peers[0].hang_up()
        until(lambda: calls and calls[0].ready())
        assert values([calls[0].value]) == ["/a"]
        assert [asked.path for asked in server.peers[2].asked] == ["/a"]


@pytest.mark.parametrize("odd", [Check("/odd", 2**40), SetData("/odd", b"", -(2**31) - 1)])
def test_what_does_not_fit_into_the_protocol_fails_alone(connection_to, odd):
    with ScriptedZooKeeper(ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        odd = requests.transaction([odd], lambda _node: None)
        asked = [requests.get("/a"), odd, requests.get("/b")]
        answers = connection.gather(asked, connection.deadline())
        assert values(answers[::2]) == ["/a", "/b"]
        assert type(answers[1]) is StateError
        assert "/odd: a value is not bytes, or is not what ZooKeeper's protocol" in str(answers[1])
        assert len(server.peers) == 1


def test_answers_that_only_tls_knows_of(connection_to):
    """Many frames in one record: once it is decrypted, no socket announces the rest of it."""
    count = 100

    def script(peer):
        peer.greet(timeout_ms=120_000)
        peer.send(b"".join(peer.value(peer.next()) for _ in range(count)))
        peer.next()

    mine = certificates().server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(mine.file, mine.key)
    ours = ssl.create_default_context(cafile=mine.authority)
    with ScriptedZooKeeper(script, context=context) as server:
        connection = connection_to(server.address, security=Security(contexts=lambda: ours))
        nodes = paths(count)
        assert values(connection.gather(reads(nodes), connection.deadline())) == nodes


def test_silent_server_is_noticed_while_requests_keep_coming(connection_to):
    """They come more often than kazoo pings, so that it never does."""

    def silent(peer):
        peer.greet(timeout_ms=1500)
        while True:
            peer.next_frame()

    def ask():
        calls.append(requests.get("/a").send(connection._client))
        return connection.state is SUSPENDED or len(server.peers) == 2

    calls = []
    with ScriptedZooKeeper(silent, ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        until(ask)
        assert isinstance(calls[0].exception, kazoo_errors.ConnectionLoss)


def test_a_server_that_answers_slowly_is_not_silent(connection_to):
    """It is always behind, by more than what kazoo waits for one answer."""
    behind = 40

    def slow(peer):
        peer.greet(timeout_ms=1500)
        owed = [peer.next() for _ in range(behind)]
        while not done.is_set():
            peer.send(peer.value(owed.pop(0)))
            owed.append(peer.next())
        for one in owed:
            peer.send(peer.value(one))
        peer.serve()

    done = threading.Event()
    with ScriptedZooKeeper(slow) as server:
        connection = connection_to(server.address)
        calls = [requests.get("/a").send(connection._client) for _ in range(behind)]

        def ask():
            """Ask once more for each answer, until the silence would have been too long twice."""
            answered = sum(call.ready() for call in calls)
            if len(calls) - answered < behind:
                pause.wait(0.05)
                calls.append(requests.get("/a").send(connection._client))
            return answered >= 45

        pause = threading.Event()
        until(ask)
        done.set()
        calls.append(requests.get("/a").send(connection._client))
        assert calls[-1].is_answered_by(connection.deadline())
        assert [call.exception for call in calls] == [None] * len(calls)
        assert len(server.peers) == 1


def test_what_the_server_grants_is_the_sessions_timeout(connection_to):
    """It may be another than was asked for: a leader has to know."""
    with ScriptedZooKeeper(
        lambda peer: (peer.greet(timeout_ms=4_000), peer.serve()),
        lambda peer: (peer.greet(timeout_ms=6_000), peer.serve()),
    ) as server:
        connection = connection_to(server.address, session_timeout_secs=120.0)
        assert connection.session_timeout_secs == pytest.approx(4.0, abs=0.001)
        server.peers[0].hang_up()
        until(lambda: connection.times_made == 2)
        assert connection.session_timeout_secs == pytest.approx(6.0, abs=0.001)


def test_a_refusal_is_one_requests_own(connection_to):
    def script(peer):
        peer.greet()
        for _ in range(2):
            peer.send(peer.value(peer.next()))
            peer.send(peer.answer(peer.next(), error=-101))
        peer.serve()

    with ScriptedZooKeeper(script) as server:
        connection = connection_to(server.address)
        answers = connection.gather(reads(paths(5)), connection.deadline())
        assert [type(answer) for answer in answers] == [tuple, NoNodeError] * 2 + [tuple]
        assert "/1" in str(answers[1])


def test_marshalling_error_of_the_server_is_an_unknown_outcome(connection_to):
    """A server answers so when it fails in the middle of a request, as while a session ends."""

    def script(peer):
        peer.greet()
        peer.send(peer.answer(peer.next(), error=-5))
        peer.serve()

    with ScriptedZooKeeper(script) as server:
        connection = connection_to(server.address)
        with pytest.raises(OutcomeUnknownError, match="failed in the middle"):
            connection.call(requests.set_data("/a", b""), connection.deadline())
        assert read(connection, "/b") == "/b"


def test_what_was_sent_and_what_was_not_fails_together(connection_to):
    """The server reads a part, answers ten, and hangs up: each request has one answer."""

    def script(peer):
        peer.greet()
        asked = [peer.next() for _ in range(30)]
        peer.send(b"".join(map(peer.value, asked[:10])))
        # To hang up before they are read would take them back.
        until(lambda: len(calls) == WINDOW and calls[9].ready())

    calls = []
    with ScriptedZooKeeper(script, ScriptedPeer.serve) as server:
        connection = connection_to(server.address)
        calls += [request.send(connection._client) for request in reads(paths(WINDOW))]
        until(lambda: all(call.ready() for call in calls))
        assert values(call.value for call in calls[:10]) == paths(10)
        for call in calls[10:]:
            assert isinstance(call.exception, kazoo_errors.ConnectionLoss)
        until(lambda: connection.state is CONNECTED)
        # None of them is sent in the next connection.
        assert read(connection, "/x") == "/x"
        assert [asked.path for asked in server.peers[1].asked] == ["/x"]


def test_what_is_withdrawn_leaves_the_others_in_their_order(connection_to):
    """The server reads nothing before all is queued and a part withdrawn."""

    def script(peer):
        peer.greet(timeout_ms=120_000)
        go_on.wait(DEADLINE_SECS)
        peer.serve()

    go_on = threading.Event()
    with ScriptedZooKeeper(script) as server:
        connection = connection_to(server.address)
        client = connection._client
        # More than the sockets take, so that what comes behind waits in kazoo's queue.
        full = [
            requests.set_data(f"/full/{number}", bytes(1_000_000)).send(client)
            for number in range(40)
        ]
        until(lambda: full[0].withdraw() or full[1]._decision.locked())
        calls = [request.send(client) for request in reads(paths(6))]
        assert [call.withdraw() for call in calls[::2]] == [True] * 3
        # Again it says the same.
        assert [call.withdraw() for call in calls[::2]] == [True] * 3
        go_on.set()
        until(lambda: all(call.ready() for call in calls[1::2]))
        assert values(call.value for call in calls[1::2]) == ["/1", "/3", "/5"]
        asked = [one.path for one in server.peers[0].asked if not one.path.startswith("/full")]
        assert asked == ["/1", "/3", "/5"]


def test_nobody_waits_for_kazoos_thread(connection_to):
    """It stands still, and far more callers want to wake it than a pipe has room for."""

    def busy(peer):
        peer.greet(timeout_ms=120_000)
        go_on.wait(DEADLINE_SECS)
        peer.serve()

    def stand_still(*arguments, **options):
        standing.set()
        go_on.wait(DEADLINE_SECS)
        return select(*arguments, **options)

    go_on, standing = threading.Event(), threading.Event()
    with ScriptedZooKeeper(busy) as server:
        connection = connection_to(server.address)
        select = connection._handler.select
        connection._handler.select = stand_still
        first = requests.get("/first").send(connection._client)
        assert standing.wait(DEADLINE_SECS)
        with ThreadPoolExecutor(1) as pool:
            # kazoo's own pipe takes fewer than 300.
            sending = pool.submit(
                lambda: [request.send(connection._client) for request in reads(paths(5_000))]
            )
            try:
                calls = sending.result(DEADLINE_SECS)
                with pytest.raises(StateUnavailableError, match="could be asked"):
                    connection.call(requests.get("/late"), connection.deadline() - 19.5)
            finally:
                go_on.set()
        assert calls[-1].is_answered_by(connection.deadline())
        assert first.ready()
        assert values(call.value for call in calls) == paths(5_000)


@pytest.mark.zookeeper
class TestARealServer:
    @pytest.fixture
    def state(self, zookeeper_server, zookeeper_root):
        state = ZooKeeperState(settings_for(zookeeper_server, zookeeper_root, **TIMES))
        yield state
        state.close()

    def test_nobody_is_forgotten_in_a_crowd(self, state):
        """Single calls and many at once, from many threads; a lost wake-up would not be made up."""
        state.set_data("/a/b", b"x" * 100)
        connection, node = state._connection, state._node("/a/b")

        def single(_):
            return [state.get_data("/a/b") for _ in range(150)]

        def many(_):
            asked = [
                requests.get(node),
                requests.exists(node),
                requests.children(state._node("/a")),
            ]
            answers = connection.gather(asked * 400, connection.deadline())
            return answers[0::3], answers[1::3], answers[2::3]

        with ThreadPoolExecutor(8) as pool:
            singles = [pool.submit(single, number) for number in range(4)]
            crowds = [pool.submit(many, number) for number in range(4)]
            for one in singles:
                assert set(one.result(60)) == {b"x" * 100}
            for one in crowds:
                data, stats, children = one.result(60)
                assert {value for value, _ in data} == {b"x" * 100}
                assert {stat.dataLength for stat in stats} == {100}
                assert children == [["b"]] * 400

    def test_what_was_asked_before_the_end_is_answered(self, connection_to, zookeeper_server):
        client = connection_to(zookeeper_server.address)._client
        asked = [client.exists_async("/zookeeper") for _ in range(1500)]
        client.stop()
        for answer in asked:
            assert answer.get(timeout=DEADLINE_SECS) is not None

    def test_the_sessions_timeout_is_the_servers(self, zookeeper_server, zookeeper_root):
        """It keeps none for longer than 20 of its ticks."""
        settings = settings_for(zookeeper_server, zookeeper_root, session_timeout_secs=3600.0)
        state = ZooKeeperState(settings)
        granted = state.session_timeout_secs
        state.close()
        assert granted is not None
        assert 0 < granted < 3600
