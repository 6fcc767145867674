import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.handlers.utils import selector_select

from stormkeeper.conf import Address
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.kazoo_client import BufferedSocket, KazooHandler
from support.pacemaker import nobody
from support.waiting import DEADLINE_SECS


@pytest.fixture
def handler():
    return KazooHandler(EnsembleSettings(servers=(Address("127.0.0.1", 1),)))


@pytest.fixture
def pairs():
    """Sockets that can be written; the first can be read too, and the third has lost its peer."""
    pairs = [socket.socketpair() for _ in range(3)]
    pairs[0][1].send(b"x")
    pairs[2][1].close()
    yield [mine for mine, _ in pairs]
    for pair in pairs:
        for side in pair:
            side.close()


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_what_is_ready_is_what_kazoo_would_say(handler, pairs, timeout):
    for reading, writing in ((pairs, []), ([], pairs), (pairs[1:2], []), (pairs[:2], pairs[2:])):
        ours = handler.select(reading, writing, [], timeout)
        theirs = selector_select(reading, writing, [], timeout)
        assert [set(side) for side in ours[:2]] == [set(side) for side in theirs[:2]]
        assert ours[2] == []


def test_it_waits_until_something_is_ready(handler, pairs):
    assert handler.select(pairs[:1], [], [], None) == ([pairs[0]], [], [])


def test_it_waits_no_shorter_than_asked(handler, pairs):
    began = time.monotonic()
    assert handler.select(pairs[1:2], [], [], 0.0501) == ([], [], [])
    assert time.monotonic() - began >= 0.05


def test_a_closed_socket_is_an_error_and_not_silence(handler, pairs):
    pairs[0].close()
    with pytest.raises(ValueError, match="negative"):
        handler.select(pairs, [], [], 1.0)


def test_a_connection_that_is_refused_leaves_no_socket(handler):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with contextlib.closing(handler.create_connection(address, "localhost", 5.0)) as connection:
            assert connection.connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    absent = nobody()
    with pytest.raises(ConnectionRefusedError):
        handler.create_connection((absent.host, absent.port), "localhost", 5.0)


class TestBufferedSocket:
    """Bytes come as they were sent, and those at hand count as readable."""

    @pytest.fixture
    def ends(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield BufferedSocket(ours), theirs

    def test_bytes_are_received_together_and_read_in_parts(self, ends):
        ours, theirs = ends
        theirs.sendall(b"abcdefgh")
        assert ours.take(1) is None
        assert ours.recv(3) == b"abc"
        assert ours.pending() == 5
        assert ours.take(6) is None
        assert ours.take(2) == b"de"
        assert ours.recv(9) == b"fgh"
        assert ours.pending() == 0
        theirs.sendall(b"i")
        assert ours.recv(9) == b"i"

    def test_unread_bytes_are_ready(self, handler, ends):
        ours, theirs = ends
        theirs.sendall(b"abc")
        ours.recv(1)
        assert handler.select([ours], [], [], None) == ([ours], [], [])
        ours.recv(2)
        assert handler.select([ours], [], [], 0.0) == ([], [], [])

    def test_end_of_the_stream_is_empty(self, ends):
        ours, theirs = ends
        theirs.sendall(b"abc")
        theirs.close()
        assert ours.recv(9) == b"abc"
        assert ours.recv(9) == b""


class TestCall:
    """A request is sent or withdrawn, and never both."""

    def test_what_is_claimed_cannot_be_withdrawn(self, handler):
        call = handler.async_result()
        assert call.claim()
        assert not call.withdraw()
        assert not call.claim()

    def test_what_is_withdrawn_cannot_be_claimed(self, handler):
        call = handler.async_result()
        assert call.withdraw()
        assert call.withdraw()
        assert not call.claim()

    def test_whoever_is_first_decides(self, handler):
        calls = [handler.async_result() for _ in range(2000)]
        with ThreadPoolExecutor(2) as pool:
            claimed = pool.submit(lambda: [call.claim() for call in calls])
            withdrawn = pool.submit(lambda: [call.withdraw() for call in reversed(calls)])
            pairs = zip(claimed.result(), reversed(withdrawn.result()), strict=True)
            assert all(is_claimed is not is_withdrawn for is_claimed, is_withdrawn in pairs)

    def test_its_answer_is_waited_for_until_the_deadline(self, handler):
        call = handler.async_result()
        assert not call.is_answered_by(time.monotonic() + 0.01)
        answering = threading.Timer(0.02, call.set, [b"x"])
        answering.start()
        assert call.is_answered_by(time.monotonic() + DEADLINE_SECS)
        answering.join()
        assert call.value == b"x"
        assert handler.answers == 1


class TestWakeUps:
    def test_there_is_something_to_read_for_each_byte(self, handler):
        reading, writing = handler.create_socket_pair()
        for count in (1, 3):
            for _ in range(count):
                assert writing.send(b"\0") == 1
            for _ in range(count):
                assert handler.select([reading], [], [], 0)[0] == [reading]
                reading.recv(1)
            assert handler.select([reading], [], [], 0)[0] == []
        reading.close()

    def test_a_byte_may_be_looked_for_before_it_is_sent(self, handler):
        reading, writing = handler.create_socket_pair()
        assert reading.recv(1) == b""
        writing.send(b"\0")
        assert handler.select([reading], [], [], 0)[0] == [reading]
        reading.close()

    def test_it_has_room_for_any_number(self, handler):
        reading, writing = handler.create_socket_pair()
        for _ in range(100_000):
            writing.send(b"\0")
        for _ in range(100_000):
            reading.recv(1)
        assert handler.select([reading], [], [], 0)[0] == []
        reading.close()

    def test_a_closed_one_says_so(self, handler):
        reading, writing = handler.create_socket_pair()
        writing.send(b"\0")
        reading.close()
        writing.close()
        with pytest.raises(ValueError, match="closed"):
            writing.send(b"\0")
        writing.close()


def queue_as_kazoo_does(call, send):
    try:
        send()
    except BaseException:
        call.set_exception(ConnectionError("closed"))


def test_ctrl_c_while_queueing_withdraws_the_request(handler):
    def interrupted():
        raise KeyboardInterrupt

    call = handler.async_result()
    with pytest.raises(KeyboardInterrupt):
        queue_as_kazoo_does(call, interrupted)
    assert not call.ready()
    assert not call.claim()


def test_what_is_told_while_ctrl_c_is_handled_is_taken(handler):
    """Whoever tidies up after it may ask just when a session has ended."""

    def tidy_up_after_it():
        try:
            raise KeyboardInterrupt
        finally:
            calls.append(handler.async_result())
            calls[0].set_exception(ConnectionError("closed"))

    calls = []
    with pytest.raises(KeyboardInterrupt):
        tidy_up_after_it()
    assert isinstance(calls[0].exception, ConnectionError)


def test_a_wait_can_be_made_shorter(handler, pairs):
    handler.longest_wait_secs = 0.01
    assert handler.select(pairs[1:2], [], [], 3600.0) == ([], [], [])
