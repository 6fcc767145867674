"""The client against peers that are not there, say nothing, or break every rule."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.pacemaker import nobody
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, hang, honest, refusing
from support.waiting import DEADLINE_SECS, until


def test_a_peer_that_hangs_is_given_up_in_bounded_time():
    with (
        ScriptedPacemaker(hang) as peer,
        PacemakerClient(peer.address, try_timeout=0.3, retries=3) as client,
    ):
        started = time.monotonic()
        with pytest.raises(PacemakerUnavailableError, match="4 tries") as raised:
            client.get_pulse("/a")
        took = time.monotonic() - started
        assert "no answer within 0.3 s" in str(raised.value)
        assert took >= 1.2
        until(lambda: peer.connections >= 4)  # the last one may be taken late
        assert peer.connections == 4


def test_the_deadline_ends_what_the_tries_would_not():
    with (
        ScriptedPacemaker(hang) as peer,
        PacemakerClient(peer.address, try_timeout=0.1, deadline=0.35, retries=1000) as client,
    ):
        with pytest.raises(PacemakerUnavailableError):
            client.get_pulse("/a")
        assert peer.connections < 10


def test_a_peer_that_never_takes_the_connection_is_given_up():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # the queue of a listener that accepts nothing
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            with (
                PacemakerClient(f"127.0.0.1:{address[1]}", try_timeout=0.2, retries=1) as client,
                pytest.raises(PacemakerUnavailableError, match=r"no connection within 0\.2 s"),
            ):
                client.exists("/a")
        finally:
            for filler in fillers:
                filler.close()


def test_nobody_there_is_said_so():
    with (
        PacemakerClient(nobody(), retries=2) as client,
        pytest.raises(PacemakerUnavailableError, match=r"3 tries in .* connection refused"),
    ):
        client.exists("/a")


def test_an_unknown_host_is_said_so():
    with (
        PacemakerClient("no-such-host.invalid", retries=1) as client,
        pytest.raises(PacemakerUnavailableError, match=r"no-such-host\.invalid:6699"),
    ):
        client.exists("/a")


def misbehaving(fault):
    """Make a script that answers the first request with bytes made by `fault` from the request."""

    def script(connection):
        connection.send(fault(connection.request()))
        connection.wait_for_end()

    return script


def right_answer(request):
    return encode(Message(MessageType.EXISTS_RESPONSE, request.message_id, boolval=True))


FAULTS = {
    "no such id": lambda _: encode(Message(3, 4711, boolval=True)),
    "id -1": lambda _: encode(Message(3, -1, boolval=True)),
    "no id": lambda _: encode(Message(3, boolval=True)),
    "two answers at once": lambda request: right_answer(request) * 2,
    "negative length": lambda _: b"\xff\xff\xff\xff",
    "frame above the limit": lambda _: (10_485_761).to_bytes(4, "big"),
    "empty frame": lambda _: bytes(4),
    "garbage": lambda _: b"\x00\x00\x00\x05hello",
    "control message": lambda _: encode(Message(16, blob=b"\xff\x9c")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_protocol_fault_ends_connection_and_next_one_works(fault):
    with (
        ScriptedPacemaker(misbehaving(FAULTS[fault]), honest) as peer,
        PacemakerClient(peer.address) as client,
    ):
        answer = client.exists("/a")
        assert answer == (fault == "two answers at once")
        assert client.exists("/b") is False
        assert peer.connections == 2


@pytest.mark.parametrize("fault", ["garbage", "empty frame", "no such id"])
def test_peer_that_always_fails_is_named(fault):
    with (
        ScriptedPacemaker(misbehaving(FAULTS[fault])) as peer,
        PacemakerClient(peer.address, retries=2) as client,
    ):
        with pytest.raises(
            RemoteProtocolError, match=f"{peer.address} did not answer a request to look for /a"
        ):
            client.exists("/a")
        assert peer.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        Message(11, 0, pulse=Pulse("/a", b"x")),
        Message(3, 0),
        Message(77, 0),
        Message(3, 0, path=""),
    ],
)
def test_a_wrong_answer_is_an_error_at_once(answer):
    with (
        ScriptedPacemaker(misbehaving(lambda _: encode(answer)), honest) as peer,
        PacemakerClient(peer.address) as client,
    ):
        with pytest.raises(RemoteProtocolError, match="broke the protocol"):
            client.exists("/a")
        assert client.exists("/a") is False


def test_a_connection_that_is_cut_in_mid_frame_is_made_again():
    def half_an_answer(connection):
        connection.send(right_answer(connection.request())[:-3])

    with (
        ScriptedPacemaker(half_an_answer, honest) as peer,
        PacemakerClient(peer.address) as client,
    ):
        assert client.exists("/a") is False
        assert peer.connections == 2


def test_a_late_answer_reaches_nobody():
    given_up, answered = threading.Event(), threading.Event()

    def too_late(connection):
        request = connection.request()
        assert given_up.wait(DEADLINE_SECS)
        try:
            connection.send(right_answer(request))
        finally:
            answered.set()

    with (
        ScriptedPacemaker(too_late, honest) as peer,
        PacemakerClient(peer.address, try_timeout=2.0) as client,
    ):
        assert client.exists("/late") is False
        given_up.set()
        assert answered.wait(DEADLINE_SECS)
        for _ in range(50):
            assert client.exists("/other") is False
        assert peer.connections == 2


def test_an_answer_that_came_while_we_were_late_ourselves_counts():
    late_already, both_sent = threading.Event(), threading.Event()

    def answer_two(connection):
        first, second = connection.request(), connection.request()
        connection.send(right_answer(first))
        assert late_already.wait(DEADLINE_SECS)
        connection.send(right_answer(second))
        both_sent.set()
        connection.wait_for_end()

    def be_late(_):
        """Be as late as if nobody gave us the processor."""
        late_already.set()
        time.sleep(2.2)
        assert both_sent.wait(DEADLINE_SECS)

    with (
        ScriptedPacemaker(answer_two) as peer,
        PacemakerClient(peer.address, try_timeout=2.0) as client,
    ):
        late = client.submit(Message(MessageType.EXISTS, path="/a"))
        late.add_done_callback(be_late)
        assert client.exists("/b") is True
        assert peer.connections == 1


def test_an_answer_in_small_pieces_is_read():
    def drip(connection):
        frame = right_answer(connection.request())
        for position in range(0, len(frame), 4):
            connection.send(frame[position : position + 4])
            connection.wait(0.7)
        connection.wait_for_end()

    with (
        ScriptedPacemaker(drip) as peer,
        PacemakerClient(peer.address, try_timeout=3.0, retries=0) as client,
    ):
        assert client.exists("/a") is True, "it took longer than a try, but came without a pause"


def test_a_peer_that_takes_no_more_bytes_is_given_up():
    def take_nothing(connection):
        connection.wait()

    with (
        ScriptedPacemaker(take_nothing, honest) as peer,
        PacemakerClient(peer.address, try_timeout=3.0) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        large = [
            threads.submit(client.send_pulse, f"/{number}", bytes(8_000_000)) for number in range(3)
        ]
        for sent in large:
            sent.result(DEADLINE_SECS)
        assert peer.connections == 2


def test_a_refusal_is_never_an_empty_list():
    with ScriptedPacemaker(refusing) as peer, PacemakerClient(peer.address) as client:
        for verb in (client.children, client.get_pulse, client.exists):
            with pytest.raises(NotAuthorizedError, match=r"pacemaker\.auth\.method"):
                verb("/a")
        with pytest.raises(NotAuthorizedError):
            client.changes("/a")
        with pytest.raises(NotAuthorizedError):
            client.server_info()


def test_a_java_pacemaker_is_served_and_never_sent_an_extension():
    java = JavaPacemaker()
    with ScriptedPacemaker(java) as peer, PacemakerClient(peer.address) as client:
        client.send_pulse("/a/b", b"1")
        assert client.get_pulse("/a/b") == b"1"
        assert client.children("/a") == ["b"]
        assert list(client.walk("/")) == [[Pulse("/a/b", b"1")]]
        assert client.server_info() is None
        for _ in range(2):
            with pytest.raises(UnsupportedExtensionError, match="changes"):
                client.changes("/")
        client.delete_path("/a")
        assert client.children("/a") == []
        assert MessageType.CHANGES not in java.asked
