"""A connection's rules: in order, each once, what is bad ends it, answers only as they are read."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.server.answering import Answerer, ServerStatus
from stormkeeper.pacemaker.server.connection import ServerConnection
from stormkeeper.pacemaker.server.store import PulseStore
from stormkeeper.pacemaker.wire import (
    RESERVED_PATH,
    FrameSplitter,
    Message,
    MessageType,
    Pulse,
    decode,
    encode,
)
from support.messages import golden_frames


def new_connection(**limits):
    store = PulseStore(lambda: 0.0, "instance")
    answerer = Answerer(store, lambda: ServerStatus("instance", 1, 1, "0", 0, 0, 0, 0), **limits)
    return ServerConnection(answerer, "10.0.0.1:4711", **limits), store


def answered(connection):
    stream = b""
    while answers := connection.next_answers():
        stream += answers
    return [decode(payload) for payload in FrameSplitter().feed(stream)]


def send(path, message_id=1, details=b"v"):
    return encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))


def get(path, message_id=1):
    return encode(Message(MessageType.GET_PULSE, message_id, path=path))


REQUESTS = b"".join(
    golden.frame for golden in golden_frames() if golden.name.startswith("request.")
)


def whole_answers():
    connection, _ = new_connection()
    connection.receive(REQUESTS)
    return connection.next_answers(10**9)


def test_every_split_of_the_requests_gives_the_same_answers():
    expected = whole_answers()
    for cut in range(len(REQUESTS) + 1):
        connection, _ = new_connection()
        connection.receive(REQUESTS[:cut])
        first = connection.next_answers()
        connection.receive(REQUESTS[cut:])
        assert first + connection.next_answers() == expected
        assert connection.fault is None
        assert connection.next_answers() == b""


@given(st.lists(st.integers(1, 60), max_size=200), st.integers(1, 100))
def test_random_chunks_and_any_pace_give_the_same_answers(sizes, pace):
    connection, _ = new_connection()
    rest, got = REQUESTS, b""
    for size in [*sizes, len(REQUESTS)]:
        connection.receive(rest[:size])
        rest = rest[size:]
        got += connection.next_answers(pace)
    while connection.has_unanswered:
        got += connection.next_answers(pace)
    assert got == whole_answers()


BAD = {
    "empty frame": b"\0\0\0\0",
    "announced": b"\xff\xff\xff\xffxxxx",
    "garbage": b"\0\0\0\4GET ",
    "truncated": b"\0\0\0\2\x08\0",
    "unknown message type": encode(Message(99, 1, path="/a")),
    "EXISTS with a blob": encode(Message(MessageType.EXISTS, 1, blob=b"")),
    "pacemaker.auth.method": encode(Message(MessageType.CONTROL_MESSAGE, blob=b"\xff\x36")),
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("is_one_chunk", [True, False])
def test_a_bad_frame_ends_the_connection_after_the_good_ones(fault, is_one_chunk):
    connection, store = new_connection()
    stream = send("/a", 1) + get("/a", 2) + BAD[fault] + send("/never", 3)
    for chunk in [stream] if is_one_chunk else [bytes([byte]) for byte in stream]:
        connection.receive(chunk)
    assert [answer.message_id for answer in answered(connection)] == [1, 2]
    assert fault in str(connection.fault)
    assert store.get("/never") is None
    connection.receive(send("/never"))
    assert connection.next_answers() == b""
    assert store.get("/never") is None


def test_the_fault_comes_when_its_turn_comes():
    connection, _ = new_connection()
    connection.receive(send("/a") + get("/a") + b"\xff\xff\xff\xff")
    connection.next_answers(1)
    assert connection.fault is None
    connection.next_answers(1)
    assert connection.fault is not None


def test_answers_are_made_only_as_they_are_asked_for():
    connection, store = new_connection()
    store.put("/large", bytes(1_000_000))
    connection.receive(get("/large") * 1_000 + send("/last"))
    assert len(connection.next_answers()) < 1_001_000
    assert connection.has_unanswered
    assert store.get("/last") is None


def test_a_refusal_is_an_answer_and_logged_once(caplog):
    connection, _ = new_connection()
    with caplog.at_level(logging.WARNING):
        connection.receive(send(RESERVED_PATH, 1) + send("/a", 2) + send(RESERVED_PATH, 3))
        answers = answered(connection)
    assert [(answer.type, answer.message_id) for answer in answers] == [
        (MessageType.NOT_AUTHORIZED, 1),
        (MessageType.SEND_PULSE_RESPONSE, 2),
        (MessageType.NOT_AUTHORIZED, 3),
    ]
    [record] = caplog.records
    assert "10.0.0.1:4711" in record.getMessage()
    assert RESERVED_PATH in record.getMessage()
    assert connection.fault is None
