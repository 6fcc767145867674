"""Many requests and answers at a time, in kazoo's own connection."""

import contextlib
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.connection import _CONNECTION_DROP, _SESSION_EXPIRED
from kazoo.protocol.serialization import Auth, CloseInstance, Exists, GetChildren, GetData, SetData
from kazoo.protocol.states import KeeperState

from stormkeeper.errors import (
    NoNodeError,
    OutcomeUnknownError,
    StateError,
)
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper import wire
from stormkeeper.state.zookeeper.answers import Answers
from stormkeeper.state.zookeeper.connection import WINDOW
from stormkeeper.state.zookeeper.errors import NotSentError
from stormkeeper.state.zookeeper.security import Security
from stormkeeper.state.zookeeper.state import ZooKeeperState
from stormkeeper.state.zookeeper.wire import Wire
from support.certificates import certificates
from support.scripted_zookeeper import AUTH, CLOSE, ScriptedPeer, ScriptedZooKeeper
from support.stores import settings_for
from support.waiting import DEADLINE_SECS, until
from support.zookeeper_requests import TIMES, paths, reads, values

CONNECTED, SUSPENDED, LOST = ConnectionState

NOT_CONNECTED = {
    KeeperState.AUTH_FAILED,
    KeeperState.CLOSED,
    KeeperState.CONNECTING,
    KeeperState.EXPIRED_SESSION,
}


class TestReading:
    @pytest.mark.parametrize("size", [1, 3, 7, 4099, 10**9])
    def test_frames_arrive_in_any_pieces(self, connection_to, size):
        count = 200 if size > 7 else 20

        def script(peer):
            peer.greet()
            frames = b"".join(peer.value(peer.next()) for _ in range(count))
            for begin in range(0, len(frames), size):
                peer.send(frames[begin : begin + size])
            peer.serve()

        with ScriptedZooKeeper(script) as server:
            connection = connection_to(server.address)
            answers = connection.gather("read", reads(paths(count)), connection.deadline())
            assert values(answers) == paths(count)
            assert connection.gather("read", reads(["/x"]), connection.deadline())[0][0] == b"/x"

    def test_a_frame_larger_than_a_read(self, connection_to):
        nodes = [f"/{letter * 300_000}" for letter in "abc"]
        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            assert values(connection.gather("read", reads(nodes), connection.deadline())) == nodes

    @pytest.mark.parametrize("at_once", [wire.READ_BYTES, 1000])
    def test_answers_that_only_tls_knows_of(self, connection_to, monkeypatch, at_once):
        """All at once: many frames in each record, which no socket announces."""
        monkeypatch.setattr(wire, "READ_BYTES", at_once)

        def script(peer):
            peer.greet()
            peer.send(b"".join(peer.value(peer.next()) for _ in range(WINDOW)))
            peer.serve()

        mine = certificates().server
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(mine.file, mine.key)
        ours = ssl.create_default_context(cafile=mine.authority)
        with ScriptedZooKeeper(script, context=context) as server:
            connection = connection_to(server.address, security=Security(contexts=lambda: ours))
            nodes = paths(2 * WINDOW)
            assert values(connection.gather("read", reads(nodes), connection.deadline())) == nodes

    def test_nothing_of_a_broken_connection_is_read_in_the_next(self, connection_to):
        def broken(peer):
            peer.greet()
            peer.send(peer.value(peer.next()) + peer.frame(bytes(100))[:50])

        with ScriptedZooKeeper(broken, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            deadline = connection.deadline()
            assert connection.call("read", "/a", GetData("/a", None), deadline)[0] == b"/a"
            until(lambda: len(server.peers) == 2 and connection.state is CONNECTED)
            assert connection.call("read", "/b", GetData("/b", None), deadline)[0] == b"/b"

    @pytest.mark.parametrize("number", [2, 7])
    def test_an_answer_to_something_else_breaks_the_connection(self, connection_to, number):
        def confused(peer):
            peer.greet()
            asked = peer.next()
            peer.send(peer.value(asked._replace(xid=number)))
            with contextlib.suppress(ConnectionError):
                peer.next()

        def chatty(peer):
            peer.greet()
            asked = peer.next()
            peer.send(peer.value(asked) * 2)
            with contextlib.suppress(ConnectionError):
                peer.next()

        with ScriptedZooKeeper(confused, chatty, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            with pytest.raises(OutcomeUnknownError):
                connection.call("read", "/a", GetData("/a", None), connection.deadline())
            until(lambda: len(server.peers) == 2 and connection.state is CONNECTED)
            deadline = connection.deadline()
            assert connection.call("read", "/b", GetData("/b", None), deadline)[0] == b"/b"
            until(lambda: len(server.peers) == 3 and connection.state is CONNECTED)
            assert connection.call("read", "/c", GetData("/c", None), deadline)[0] == b"/c"
            assert not connection.dead

    def test_an_authentication_that_is_answered_first_has_its_own_answer(self, connection_to):
        """A server answers it when it reads it, and the requests before it when they are done."""

        def script(peer):
            peer.greet()
            before, first, between, second, after = (peer.next() for _ in range(5))
            assert (first.type, second.type) == (AUTH, AUTH)
            peer.send(peer.answer(first) + peer.answer(second))
            peer.send(b"".join(map(peer.value, (before, between, after))))
            peer.serve()

        with ScriptedZooKeeper(script) as server:
            connection = connection_to(server.address)
            requests = reads(paths(5))
            requests[1], requests[3] = Auth(0, "digest", "u:p"), Auth(0, "digest", "v:p")
            answers = Answers(requests)
            connection._wire.submit(list(answers.requests(0, 5)))
            assert answers.wait(5, connection.deadline())
            assert answers.failure is None
            assert values(answers.all()[::2]) == ["/0", "/2", "/4"]
            assert answers.all()[1::2] == [True, True]
            assert len(server.peers) == 1

    def test_an_authentication_that_nobody_asked_for_breaks_the_connection(self, connection_to):
        def generous(peer):
            peer.greet()
            peer.send(peer.answer(peer.next()._replace(xid=-4)))
            with contextlib.suppress(ConnectionError):
                peer.next()

        with ScriptedZooKeeper(generous, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            with pytest.raises(OutcomeUnknownError):
                connection.call("read", "/a", GetData("/a", None), connection.deadline())
            until(lambda: connection.state is CONNECTED)
            assert values(connection.gather("read", reads(["/b"]), connection.deadline())) == ["/b"]

    def test_a_length_that_is_none_breaks_the_connection(self, connection_to):
        def negative(peer):
            peer.greet()
            peer.next()
            peer.send((-5).to_bytes(4, signed=True))
            peer.next()

        with ScriptedZooKeeper(negative, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            with pytest.raises(OutcomeUnknownError):
                connection.call("read", "/a", GetData("/a", None), connection.deadline())
            until(lambda: connection.state is CONNECTED)


class TestWriting:
    def test_requests_keep_their_order_and_have_numbers_in_a_row(self, connection_to):
        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            nodes = paths(3 * WINDOW)
            assert values(connection.gather("read", reads(nodes), connection.deadline())) == nodes
            (peer,) = server.peers
            assert [asked.path for asked in peer.asked] == nodes
            assert [asked.xid for asked in peer.asked] == list(range(1, len(nodes) + 1))

    @pytest.mark.parametrize(
        ("nodes", "writes"), [(paths(600), 3), ([f"/{'x' * 100_000}"] * 10, 4)]
    )
    def test_many_take_few_writes(self, connection_to, nodes, writes):
        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            wire, written = connection._wire, []
            write = wire._write
            wire._write = lambda data, timeout: (written.append(len(data)), write(data, timeout))
            answers = Answers(reads(nodes))
            wire.submit(list(answers.requests(0, len(nodes))))
            assert answers.wait(len(nodes), connection.deadline())
            assert values(answers.all()) == nodes
            assert len(written) == writes

    def test_what_was_written_and_what_was_not_fails_together(self, connection_to):
        """The server reads a part, answers ten, and hangs up: each request has one answer."""

        def script(peer):
            peer.greet()
            asked = [peer.next() for _ in range(30)]
            peer.send(b"".join(map(peer.value, asked[:10])))
            # To hang up before they are read would take them back.
            until(lambda: answers.all()[9] is not Answers._NONE)

        with ScriptedZooKeeper(script, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            answers = Answers(reads(paths(WINDOW)))
            connection._wire.submit(list(answers.requests(0, WINDOW)))
            until(lambda: Answers._NONE not in answers.all())
            assert values(answers.all()[:10]) == paths(10)
            for failure in answers.all()[10:]:
                assert isinstance(failure, kazoo_errors.ConnectionLoss)
            assert not connection._client._pending
            until(lambda: connection.state is CONNECTED)
            # None of them is sent in the next connection.
            nodes = ["/x"]
            assert values(connection.gather("read", reads(nodes), connection.deadline())) == nodes
            assert [asked.path for asked in server.peers[1].asked] == nodes

    def test_a_write_that_fails_half_way(self, connection_to):
        failing = threading.Event()

        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            wire = connection._wire
            write = wire._write

            def half(data, timeout):
                if failing.is_set():
                    failing.clear()
                    write(data[: len(data) // 2], timeout)
                    raise kazoo_errors.ConnectionDropped("half way")
                write(data, timeout)

            wire._write = half
            failing.set()
            with pytest.raises(OutcomeUnknownError, match="lost meanwhile"):
                connection.gather("read", reads(paths(100)), connection.deadline())
            until(lambda: connection.state is CONNECTED)
            assert values(connection.gather("read", reads(["/x"]), connection.deadline())) == ["/x"]

    def test_nothing_is_sent_behind_the_end(self, connection_to):
        over = threading.Event()

        def script(peer):
            peer.greet()
            try:
                # For as long as the client has something to say.
                while True:
                    peer.send(peer.value(peer.next()))
            finally:
                over.set()

        with ScriptedZooKeeper(script) as server:
            connection = connection_to(server.address)
            answers = Answers([GetData("/a", None), GetData("/b", None)])
            first, last = answers.requests(0, 2)
            connection._wire.submit([first, (CloseInstance, None), last])
            assert answers.wait(2, connection.deadline())
            assert values(answers.all()[:1]) == ["/a"]
            assert isinstance(answers.all()[1], kazoo_errors.ConnectionLoss)
            assert over.wait(DEADLINE_SECS)
            assert [asked.type for asked in server.peers[0].asked] == [GetData.type, CLOSE]

    def test_what_cannot_be_written_fails_alone(self, connection_to):
        with ScriptedZooKeeper(ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            requests = [GetData("/a", None), SetData("/b", "text", -1), GetData("/c", None)]
            answers = connection.gather("use", requests, connection.deadline())
            assert values(answers[::2]) == ["/a", "/c"]
            assert isinstance(answers[1], StateError)
            assert "/b: a value is not bytes" in str(answers[1])
            with pytest.raises(StateError, match="not bytes"):
                connection.call("write", "/b", requests[1], connection.deadline())

    def test_a_refusal_is_one_requests_own(self, connection_to):
        def script(peer):
            peer.greet()
            for _ in range(2):
                peer.send(peer.value(peer.next()))
                peer.send(peer.answer(peer.next(), error=-101))
            peer.serve()

        with ScriptedZooKeeper(script) as server:
            connection = connection_to(server.address)
            answers = connection.gather("read", reads(paths(5)), connection.deadline())
            assert [type(answer) for answer in answers] == [tuple, NoNodeError] * 2 + [tuple]
            assert "/1" in str(answers[1])

    def test_silence_is_noticed_while_requests_keep_coming(self, connection_to):
        """They come more often than kazoo pings, so that it never does."""

        def silent(peer):
            peer.greet(timeout_ms=1500)
            while True:
                peer.next_frame()

        def ask():
            asked.append(Answers(reads(["/a"])))
            connection._wire.submit(list(asked[-1].requests(0, 1)))
            return len(server.peers) == 2

        asked = []
        with ScriptedZooKeeper(silent, ScriptedPeer.serve) as server:
            connection = connection_to(server.address)
            until(ask)
            assert isinstance(asked[0].failure, kazoo_errors.ConnectionLoss)


@pytest.mark.parametrize("state", sorted(NOT_CONNECTED))
def test_nothing_is_queued_while_there_is_no_connection(state):
    client = KazooClient()
    wire = Wire(client, None, print)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        wire._write_sock = mine
        client._state = state
        answers = Answers(reads(paths(3)))
        wire.submit(list(answers.requests(0, 3)))
    assert not client._queue
    assert [type(answer) for answer in answers.all()] == [NotSentError] * 3


def test_nothing_waits_for_a_thread_that_there_is_not():
    client = KazooClient()
    wire = Wire(client, None, print)
    client._state = KeeperState.CONNECTED
    answers = Answers(reads(paths(3)))
    wire.submit(list(answers.requests(0, 3)))
    assert not client._queue
    assert isinstance(answers.failure, NotSentError)


def test_kazoos_thread_is_not_woken_to_wait_for_who_woke_it():
    client = KazooClient()
    wire = Wire(client, None, print)
    client._session_callback(KeeperState.CONNECTED)
    held = []
    wire._wake = lambda: held.append(wire._queueing.locked()) or True
    wire.submit(list(Answers(reads(paths(3))).requests(0, 3)))
    assert held == [False]
    assert len(client._queue) == 3


@pytest.mark.parametrize(
    "state", [KeeperState.CONNECTING, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION]
)
def test_nothing_stays_queued_of_a_connection_that_ends_at_that_moment(state):
    class Requests(list):
        def __iter__(self):
            ending.start()
            # Long enough for who does not wait for the lock.
            ending.join(0.2)
            return super().__iter__()

    client = KazooClient()
    wire = Wire(client, None, print)
    ending = threading.Thread(target=lambda: client._session_callback(state))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        wire._write_sock = mine
        client._session_callback(KeeperState.CONNECTED)
        answers = Answers(reads(paths(3)))
        wire.submit(Requests(answers.requests(0, 3)))
        ending.join(DEADLINE_SECS)
    assert not client._queue
    assert [type(answer) for answer in answers.all()] == [NotSentError] * 3


def test_who_is_refused_is_told_so_though_nothing_was_sent():
    client = KazooClient()
    wire = Wire(client, None, print)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        wire._write_sock = mine
        client._session_callback(KeeperState.CONNECTED)
        answers = Answers(reads(paths(1)))
        wire.submit(list(answers.requests(0, 1)))
        client._session_callback(KeeperState.AUTH_FAILED)
    assert isinstance(answers.failure, kazoo_errors.AuthFailedError)


def test_what_is_withdrawn_leaves_the_others_in_their_order():
    client = KazooClient()
    wire = Wire(client, None, print)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        wire._write_sock = mine
        client._session_callback(KeeperState.CONNECTED)
        ours, others = Answers(reads(paths(4))), Answers(reads(paths(2)))
        wire.submit(list(ours.requests(0, 2)))
        wire.submit(list(others.requests(0, 2)))
        client._queue.append((CloseInstance, None))
        wire.submit(list(ours.requests(2, 4)))
        assert wire.withdraw(ours) == 4
        assert wire.withdraw(ours) == 0
    assert [request for request, _ in client._queue] == [*reads(paths(2)), CloseInstance]
    assert ours.none_sent
    assert others.failure is None


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
            answers = connection.gather(
                "read",
                [GetData(node, None), Exists(node, None), GetChildren(state._node("/a"), None)]
                * 400,
                connection.deadline(),
            )
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

    def test_what_kazoos_own_tests_throw_in_is_obeyed(self, state):
        client = state._connection._client
        session = state.session_id
        answers = Answers(reads([state._node("/")] * 5))
        requests = list(answers.requests(0, 5))
        requests.insert(3, (_CONNECTION_DROP, None))
        state._connection._wire.submit(requests)
        until(lambda: Answers._NONE not in answers.all())
        until(lambda: state.connection is CONNECTED)
        assert state.session_id == session
        assert all(
            isinstance(answer, tuple | kazoo_errors.ConnectionLoss) for answer in answers.all()
        )
        # Those behind it were never sent.
        assert isinstance(answers.all()[4], kazoo_errors.ConnectionLoss)
        client._queue.append((_SESSION_EXPIRED, None))
        client._connection._write_sock.send(b"\0")
        until(lambda: state.session_id != session and state.connection is CONNECTED)
        assert state.get_data("/") == b"\x07"

    def test_an_authentication_among_requests(self, connection_to, zookeeper_server):
        connection = connection_to(zookeeper_server.address)
        client = connection._client
        before = client.exists_async("/zookeeper")
        authenticated = client.add_auth_async("digest", "u:p")
        after = client.exists_async("/zookeeper")
        assert before.get(timeout=DEADLINE_SECS).version >= 0
        assert authenticated.get(timeout=DEADLINE_SECS) is True
        assert after.get(timeout=DEADLINE_SECS).version >= 0

    def test_what_was_asked_before_the_end_is_answered(self, connection_to, zookeeper_server):
        client = connection_to(zookeeper_server.address)._client
        asked = [client.exists_async("/zookeeper") for _ in range(1500)]
        client.stop()
        for answer in asked:
            assert answer.get(timeout=DEADLINE_SECS) is not None
