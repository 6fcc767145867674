"""Requests and answers without I/O: in order, each once, what is bad ends it, none unasked for."""

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.server.exchange import Exchange
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.wire import FrameSplitter, Message, MessageType, Pulse, decode, encode
from support.engines import OpenSession


def send(path, message_id=1, details=b"v"):
    return encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))


def get(path, message_id=1):
    return encode(Message(MessageType.GET_PULSE, message_id, path=path))


DELETE, DELETE_ONE = MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID
STREAM = b"".join(send(f"/{n % 3}", n) + get(f"/{n % 3}", n) for n in range(10))


def new_exchange():
    return Exchange(OpenSession(PulseIndex()), 10_000_000)


def ids(stream):
    return [decode(payload).message_id for payload in FrameSplitter().feed(stream)]


@given(st.lists(st.integers(1, 60), max_size=200), st.integers(1, 100))
def test_random_chunks_and_any_pace_give_the_same_answers(sizes, pace):
    exchange = new_exchange()
    rest, got = STREAM, b""
    for size in [*sizes, len(STREAM)]:
        exchange.receive(rest[:size])
        rest = rest[size:]
        got += exchange.next_answers(pace)
    while exchange.has_unanswered:
        got += exchange.next_answers(pace)
    assert ids(got) == [n // 2 for n in range(20)]
    assert (exchange.sends, exchange.gets, exchange.others) == (10, 10, 0)
    assert exchange.ending is None
    assert not exchange.has_partial


def test_answers_are_made_only_as_they_are_asked_for():
    exchange = new_exchange()
    exchange.receive(send("/large", 1, bytes(100_000)) + get("/large") * 100 + send("/last"))
    assert len(exchange.next_answers()) < 500_000
    assert exchange.has_unanswered
    assert len(ids(exchange.next_answers(1))) == 1


def test_the_time_ends_a_turn_between_two_requests():
    exchange = new_exchange()
    exchange.receive(STREAM)
    assert ids(exchange.next_answers(is_time_up=lambda: True)) == [0]
    assert exchange.has_unanswered


def test_the_fault_comes_when_its_turn_comes():
    exchange = new_exchange()
    exchange.receive(send("/a") + get("/a") + b"\xff\xff\xff\xff")
    exchange.next_answers(1)
    assert exchange.ending is None
    exchange.next_answers(1)
    cause, reason = exchange.ending
    assert cause == "protocol"
    assert "frame of -1 bytes" in reason
    exchange.receive(get("/a"))
    assert exchange.next_answers() == b""


def test_a_partial_frame_is_told_from_none():
    exchange = new_exchange()
    assert exchange.receive(STREAM + STREAM[:7])
    assert exchange.has_partial
    assert not exchange.receive(STREAM[7:9])
    assert exchange.receive(STREAM[9:])
    assert not exchange.has_partial


def test_when_nobody_is_there_any_more_what_writes_is_done_and_what_reads_is_not():
    class Session(OpenSession):
        def answer(self, payload):
            self.payloads.append(payload)
            # A deletion that takes two turns.
            is_begun = decode(payload).type == DELETE and self.payloads.count(payload) < 2
            return None if is_begun else b""

    def delete(kind):
        return encode(Message(kind, 1, path="/a"))

    session = Session(PulseIndex())
    exchange = Exchange(session, 10_000_000)
    frames = [get("/a"), send("/a"), delete(DELETE), get("/a"), delete(DELETE_ONE), send("/b")]
    exchange.receive(b"".join(frames))
    assert not exchange.take_last_writes()
    assert exchange.has_unanswered
    assert exchange.take_last_writes()
    assert exchange.take_last_writes()
    assert not exchange.has_unanswered
    done = [frames[n][4:] for n in (1, 2, 2, 4, 5)]
    assert session.payloads == done
    assert (exchange.sends, exchange.gets, exchange.others) == (2, 0, 2)
