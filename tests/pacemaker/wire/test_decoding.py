"""Reading messages: any order of fields, and every fault by its name."""

import itertools
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.binary import BOOL, I32, I64, LIST, MAP, STRING, STRUCT
from stormkeeper.pacemaker.wire.decoder import (
    MAX_REQUEST_VALUES,
    decode,
    decode_request,
    match_exact_shape,
)
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.messages import field, golden_frames, i32, messages, string

UNKNOWN = field(MAP, 9, bytes([STRING, I32]) + i32(1) + string("later") + i32(1))
PATH = field(STRING, 1, string("/a"))
PULSE = field(STRUCT, 2, field(STRING, 1, string("/a")) + field(STRING, 2, string("v")) + b"\0")


def type_field(kind):
    return field(I32, 1, i32(kind))


def data_field(union):
    return field(STRUCT, 2, union + b"\0")


def id_field(message_id):
    return field(I32, 3, i32(message_id))


@pytest.mark.parametrize(("kind", "union"), [(4, PULSE), (10, PATH)])
def test_fields_come_in_any_order_among_unknown_ones(kind, union):
    expected = Message(kind, 7)
    if kind == 4:
        expected.pulse = Pulse("/a", b"v")
    else:
        expected.path = "/a"
    known = [type_field(kind), data_field(union), id_field(7)]
    for fields in itertools.permutations(known):
        for gap in range(4):
            mixed = [*fields[:gap], UNKNOWN, *fields[gap:]]
            for payload in (b"".join(fields) + b"\0", b"".join(mixed) + b"\0"):
                assert decode(payload) == decode_request(payload) == expected
                assert decode_request(payload + b"trailing bytes") == expected


def test_unknown_fields_within_every_struct_are_skipped():
    def known(kind, field_id, value):
        return UNKNOWN + field(kind, field_id, value) + UNKNOWN

    pulse = known(STRING, 1, string("/a")) + known(STRING, 2, string("v")) + b"\0"
    change = pulse[:-1] + known(I64, 3, bytes(7) + b"\5") + known(I64, 4, bytes(8)) + b"\0"
    for union, member, value in [
        (known(STRUCT, 2, pulse), "pulse", Pulse("/a", b"v")),
        (
            known(STRUCT, 4, known(LIST, 1, bytes([STRUCT]) + i32(1) + pulse) + b"\0"),
            "records",
            [Pulse("/a", b"v")],
        ),
        (
            known(STRUCT, 5, known(LIST, 1, bytes([STRING]) + i32(1) + string("n")) + b"\0"),
            "nodes",
            ["n"],
        ),
        (
            known(STRUCT, 100, known(STRING, 1, string("/a")) + known(I32, 3, i32(3)) + b"\0"),
            "changes_request",
            ("/a", 0, 3, None, True),
        ),
        (
            known(
                STRUCT,
                101,
                known(STRING, 1, string("me"))
                + known(LIST, 3, bytes([STRUCT]) + i32(1) + change)
                + b"\0",
            ),
            "changes",
            ("me", 0, (["/a"], [5], [0], [1], [b"v"]), False, False, 0),
        ),
    ]:
        message = decode(type_field(1) + data_field(union) + b"\0")
        assert getattr(message, member) == value


def test_of_a_field_that_comes_twice_the_last_counts():
    other = field(STRING, 1, string("/b"))
    twice = type_field(3) + type_field(10) + data_field(PATH + other) + id_field(1) + id_field(2)
    assert decode(twice + b"\0") == Message(10, 2, path="/b")
    # Another member takes the place of the first, and another union that of the whole first.
    assert decode(type_field(4) + data_field(PATH + PULSE) + b"\0").path is None
    assert decode(data_field(PATH) + data_field(PULSE) + b"\0") == Message(
        None, pulse=Pulse("/a", b"v")
    )


def test_a_known_field_of_another_thrift_type_is_as_unknown():
    payload = field(I64, 1, bytes(8)) + data_field(field(I32, 1, i32(1))) + b"\0"
    assert decode(payload) == Message(None)


FAULTS = {
    "empty frame": b"",
    "without a type": b"\0",
    "truncated": b"\x08\0\1\0\0",
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "unknown message type 42": type_field(42) + data_field(PATH) + b"\0",
    "unknown message type -1": type_field(-1) + data_field(PATH) + b"\0",
    "CREATE_PATH without data": type_field(0) + b"\0",
    "EXISTS without data": type_field(2) + data_field(b"") + b"\0",
    "GET_PULSE with a pulse where its path": type_field(10)
    + data_field(PULSE)
    + id_field(1)
    + b"\0",
    "SEND_PULSE with a path where its pulse": type_field(4)
    + data_field(PATH)
    + id_field(1)
    + b"\0",
    "SEND_PULSE with a boolval": type_field(4) + data_field(field(BOOL, 3, b"\1")) + b"\0",
    "CHANGES with a path": type_field(100) + data_field(PATH) + b"\0",
    "CHANGES without data": type_field(100) + b"\0",
    "pulse without an id": type_field(4)
    + data_field(field(STRUCT, 2, field(STRING, 2, string("v")) + b"\0"))
    + b"\0",
    "pulse without details": type_field(4)
    + data_field(field(STRUCT, 2, field(STRING, 1, string("/a")) + b"\0"))
    + b"\0",
    "changes without a path": type_field(100) + data_field(field(STRUCT, 100, b"\0")) + b"\0",
    "unknown message type 102": type_field(102) + data_field(field(STRUCT, 102, b"\0")) + b"\0",
    "EXISTS_RESPONSE is not a request": type_field(3) + data_field(PATH) + b"\0",
    "NOT_AUTHORIZED is not a request": type_field(18) + b"\0",
    "CHANGES_RESPONSE is not a request": type_field(101) + b"\0",
    "data of an answer": type_field(8)
    + data_field(field(STRUCT, 5, field(LIST, 1, bytes([STRING]) + i32(0)) + b"\0"))
    + b"\0",
    "CONTROL_MESSAGE without data": type_field(16) + b"\0",
    "SASL_MESSAGE_TOKEN with a path": type_field(17) + data_field(PATH) + b"\0",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_with_a_fault_is_refused_by_its_name(fault):
    with pytest.raises(RemoteProtocolError, match=fault):
        decode_request(FAULTS[fault])


NOT_UTF8 = {
    "path": type_field(2) + data_field(field(STRING, 1, string(b"/\xff"))) + b"\0",
    "pulse id": encode(Message(4, 1, pulse=Pulse("/abc", b"v")))[4:].replace(
        b"/abc", b"/\xed\xa0\x80"
    ),
}


@pytest.mark.parametrize("what", NOT_UTF8)
def test_text_not_utf8_fails_in_answers_only(what):
    with pytest.raises(RemoteProtocolError, match=f"{what} is not UTF-8"):
        decode(NOT_UTF8[what])
    request = decode_request(NOT_UTF8[what])
    path = request.path or request.pulse.id
    assert path.encode("utf-8", "surrogateescape") in (b"/\xff", b"/\xed\xa0\x80")


def test_every_truncation_of_every_frame_is_a_fault():
    for golden in golden_frames():
        payload = golden.frame[4:]
        for end in range(len(payload)):
            with pytest.raises(RemoteProtocolError):
                decode(payload[:end])


def test_answer_without_a_required_field_is_refused():
    no_instance = "without the server's instance"
    for member, fault in [(101, no_instance), (2, "without an id")]:
        with pytest.raises(RemoteProtocolError, match=fault):
            decode(type_field(1) + data_field(field(STRUCT, member, b"\0")) + b"\0")
    uneven = field(LIST, 8, bytes([I64]) + i32(1) + bytes(8))
    page = field(STRING, 1, string("me")) + uneven + b"\0"
    with pytest.raises(RemoteProtocolError, match="have not one length"):
        decode(data_field(field(STRUCT, 101, page)) + b"\0")
    change = field(LIST, 3, bytes([STRUCT]) + i32(1) + b"\0")
    with pytest.raises(RemoteProtocolError, match="change without a path"):
        decode(data_field(field(STRUCT, 101, change + b"\0")) + b"\0")
    for member in (4, 5):
        numbers = field(LIST, 1, bytes([I32]) + i32(1) + i32(1))
        with pytest.raises(RemoteProtocolError, match="of Thrift type 8 where"):
            decode(data_field(field(STRUCT, member, numbers + b"\0")) + b"\0")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(payload):
    for read in (decode, decode_request):
        with suppress(RemoteProtocolError):
            assert isinstance(read(payload), Message)


@given(messages, st.data())
def test_a_damaged_message_is_a_message_or_a_protocol_error(message, data):
    payload = bytearray(encode(message)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    test_any_bytes_are_a_message_or_a_protocol_error.hypothesis.inner_test(bytes(payload))


@given(messages)
def test_exact_shape_equals_general_decoding(message):
    payload = encode(message)[4:]
    exact = match_exact_shape(payload)
    is_exact_path = message.path is not None and message.message_id is not None
    is_exact_pulse = (
        message.pulse is not None
        and message.pulse.details is not None
        and message.message_id is not None
    )
    assert (exact is not None) == (is_exact_path or is_exact_pulse)
    # An unknown field makes it go the general way.
    assert decode(payload) == decode(UNKNOWN + payload) == message


def test_usual_requests_have_the_exact_shape():
    for golden in golden_frames():
        if golden.message.type in (MessageType.SEND_PULSE, MessageType.GET_PULSE):
            assert match_exact_shape(golden.frame[4:]) is not None


@pytest.mark.parametrize(
    "filler",
    [
        field(LIST, 9, bytes([STRUCT]) + i32(9_000_000) + bytes(9_000_000)),
        field(BOOL, 9, b"\1") * 2_000_000,
        data_field(PATH) * 500_000,
    ],
    ids=["elements", "fields", "unions"],
)
def test_a_request_cannot_be_made_of_endless_trifles(filler):
    started = time.process_time()
    with pytest.raises(RemoteProtocolError, match="more Thrift values"):
        decode_request(filler + type_field(2) + data_field(PATH) + b"\0")
    assert time.process_time() - started < 1.0
    assert MAX_REQUEST_VALUES >= 1000
