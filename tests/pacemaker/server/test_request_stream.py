"""Requests and answers without I/O: in order, each once, what is bad ends it, none unasked for."""

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.server.channels import RequestStream
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.engines import OpenSession


def send(path, message_id=1, details=b"v"):
    return encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))


def get(path, message_id=1):
    return encode(Message(MessageType.GET_PULSE, message_id, path=path))


DELETE, DELETE_ONE = MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID
STREAM = b"".join(send(f"/{n % 3}", n) + get(f"/{n % 3}", n) for n in range(10))


def new_exchange():
    return RequestStream(OpenSession(PulseIndex()), 10_000_000)


def ids(stream):
    return [decode(payload).message_id for payload in PacemakerFrameSplitter().feed(stream)]


@given(st.lists(st.integers(1, 60), max_size=200), st.integers(1, 100))
def test_random_chunks_and_any_pace_give_the_same_answers(sizes, pace):
    stream = new_exchange()
    rest, got = STREAM, b""
    for size in [*sizes, len(STREAM)]:
        stream.receive(rest[:size])
        rest = rest[size:]
        got += stream.next_answers(pace)
    while stream.has_waiting:
        got += stream.next_answers(pace)
    assert ids(got) == [n // 2 for n in range(20)]
    assert (stream.sends, stream.gets, stream.others) == (10, 10, 0)
    assert stream.ending is None
    assert not stream.has_partial


def test_answers_are_made_on_demand():
    stream = new_exchange()
    stream.receive(send("/large", 1, bytes(100_000)) + get("/large") * 100 + send("/last"))
    assert len(stream.next_answers()) < 500_000
    assert stream.has_waiting
    assert len(ids(stream.next_answers(1))) == 1


def test_the_time_ends_a_turn_between_two_requests():
    stream = new_exchange()
    stream.receive(STREAM)
    assert ids(stream.next_answers(is_time_up=lambda: True)) == [0]
    assert stream.has_waiting


def test_fault_comes_after_earlier_requests():
    stream = new_exchange()
    stream.receive(send("/a") + get("/a") + b"\xff\xff\xff\xff")
    stream.next_answers(1)
    assert stream.ending is None
    stream.next_answers(1)
    cause, reason = stream.ending
    assert cause == "protocol"
    assert "frame of -1 bytes" in reason
    stream.receive(get("/a"))
    assert stream.next_answers() == b""


def test_a_partial_frame_is_told_from_none():
    stream = new_exchange()
    assert stream.receive(STREAM + STREAM[:7])
    assert stream.has_partial
    assert not stream.receive(STREAM[7:9])
    assert stream.receive(STREAM[9:])
    assert not stream.has_partial


def test_held_bytes_are_unanswered_requests():
    stream = new_exchange()
    first, second = send("/a"), send("/b", 2, bytes(1_000))
    stream.receive(first + second + first[:9])
    assert stream.held_bytes == len(first) - 4 + len(second) - 4 + 9
    stream.next_answers(1)
    assert stream.held_bytes == len(second) - 4 + 9
    assert stream.take_last_writes()
    assert stream.held_bytes == 9
    stream.receive(first[9:] + b"\xff\xff\xff\xff")
    stream.next_answers()
    assert stream.ending
    assert stream.held_bytes == 0


def test_last_writes_are_done_and_reads_dropped():
    class ClientSession(OpenSession):
        def answer(self, payload):
            self.payloads.append(payload)
            # A deletion that takes two turns.
            is_begun = decode(payload).type == DELETE and self.payloads.count(payload) < 2
            return None if is_begun else b""

    def delete(kind):
        return encode(Message(kind, 1, path="/a"))

    session = ClientSession(PulseIndex())
    stream = RequestStream(session, 10_000_000)
    frames = [get("/a"), send("/a"), delete(DELETE), get("/a"), delete(DELETE_ONE), send("/b")]
    stream.receive(b"".join(frames))
    assert not stream.take_last_writes()
    assert stream.has_waiting
    assert stream.take_last_writes()
    assert stream.take_last_writes()
    assert not stream.has_waiting
    done = [frames[n][4:] for n in (1, 2, 2, 4, 5)]
    assert session.payloads == done
    assert (stream.sends, stream.gets, stream.others) == (2, 0, 2)
