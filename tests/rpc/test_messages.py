"""Messages, in the strict form and in the old one, to and from bytes."""

from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError, SerializationError
from stormkeeper.rpc.message_frames import (
    FaultKind,
    Kind,
    ThriftMessage,
    bad_length,
    fault_frame,
    frame,
    read_fault,
    read_message,
)

MESSAGES = st.builds(
    ThriftMessage,
    st.sampled_from(Kind),
    st.text(max_size=40),
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=40),
)


@given(MESSAGES)
def test_what_is_written_is_read(message):
    data = frame(*message)
    assert unpack(">i", data[:4])[0] == len(data) - 4
    assert read_message(data[4:]) == message


def test_bytes_on_the_wire():
    data = frame(Kind.REPLY, "ab", 7, b"\0")
    assert data == b"\0\0\0\x0f" + b"\x80\x01\0\x02" + b"\0\0\0\x02ab" + b"\0\0\0\x07" + b"\0"


@given(MESSAGES)
def test_the_old_form_is_read_too(message):
    name = message.name.encode()
    payload = pack(">i", len(name)) + name + pack(">bi", message.kind, message.sequence)
    assert read_message(payload + message.body) == message


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: b"\x80\x01\0\x01" + tail))
def test_any_bytes_are_a_message_or_a_fault(payload):
    try:
        message = read_message(payload)
    except RemoteProtocolError:
        return
    assert payload.endswith(message.body)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "ends within its head, after 0 bytes"),
        (b"\x80\x01\0\x01\0\0\0\x02a", "within its method's name"),
        (b"\x80\x01\0\x01\0\0\0\x01a\0\0", "within its head"),
        (b"\x80\x02\0\x01\0\0\0\x01a\0\0\0\0", "version 0x8002"),
        (b"\x80\x01\0\x05\0\0\0\x01a\0\0\0\0", "unknown type 5"),
        (b"\x80\x01\0\x01\xff\xff\xff\xff", "-1 bytes"),
        (b"\x80\x01\0\x01\x7f\xff\xff\xff", "2147483647 bytes"),
        (b"\x80\x01\0\x01\0\0\0\x01\xff\0\0\0\0", "not UTF-8"),
        (b"\0\0\0\x01a\x09\0\0\0\0", "unknown type 9"),
    ],
)
def test_a_bad_head_says_what_is_wrong(payload, words):
    with pytest.raises(RemoteProtocolError, match=words):
        read_message(payload)


def test_a_fault_survives():
    message = read_message(fault_frame("kill", 3, FaultKind.INTERNAL_ERROR, "no")[4:])
    assert message[:3] == (Kind.EXCEPTION, "kill", 3)
    assert read_fault(message.body) == (6, "no")


def test_a_fault_may_lack_everything_and_have_any_kind():
    assert read_fault(b"\0") == (0, "")
    assert read_fault(b"\x08\0\x02\0\0\0\x63\0") == (99, "")
    with pytest.raises(SerializationError):
        read_fault(b"\x0b")


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"\x16\x03\x01\x02", "TLS"),
        (b"GET ", "HTTP"),
        (b"\x7f\0\0\0", "nimbus.thrift.max_buffer_size"),
    ],
)
def test_a_bad_length_says_what_to_do(begin, words):
    assert words in str(bad_length(int.from_bytes(begin, "big", signed=True), 100))
