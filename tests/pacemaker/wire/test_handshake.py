"""Control messages and SASL tokens, byte for byte as Storm writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import LocalProtocolError, RemoteProtocolError
from stormkeeper.pacemaker.wire.decoder import decode, read_control, read_token
from stormkeeper.pacemaker.wire.encoder import control_frame, token_frame
from stormkeeper.pacemaker.wire.messages import MAX_TOKEN, Control, Message, MessageType
from support.messages import i32
from support.vectors import load

CODES = {
    "CLOSE_MESSAGE": Control.CLOSE,
    "EOB_MESSAGE": Control.END_OF_BATCH,
    "OK_RESPONSE": Control.OK,
    "FAILURE_RESPONSE": Control.FAILURE,
    "SASL_TOKEN_MESSAGE_REQUEST": Control.SASL_TOKEN_REQUEST,
    "SASL_COMPLETE_REQUEST": Control.SASL_COMPLETE,
}


def golden(prefix):
    return {v["name"]: v for v in load("pacemaker.jsonl") if v["name"].startswith(prefix)}


def message_of(frame):
    return decode(frame[4:])


def token_message(blob):
    return Message(MessageType.SASL_MESSAGE_TOKEN, blob=blob)


def test_control_messages_are_storms():
    vectors = golden("control.")
    assert len(vectors) == len(Control)
    for vector in vectors.values():
        frame, code = bytes.fromhex(vector["hex"]), CODES[vector["decoded"]]
        assert control_frame(code) == frame
        assert read_control(message_of(frame)) is code


def test_tokens_are_storms():
    vectors = golden("sasl_token.")
    assert len(vectors) == 2
    for vector in vectors.values():
        frame, token = bytes.fromhex(vector["hex"]), bytes.fromhex(vector["token"])
        assert token_frame(token) == frame
        assert read_token(message_of(frame)) == token


@given(st.binary(max_size=100))
def test_token_survives_encoding(token):
    assert read_token(message_of(token_frame(token))) == token


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "without its length"),
        (b"\xfe\x0c\0\0\0", "without its length"),
        (b"\xfe\x0d" + i32(0), "code -499"),
        (b"\xfe\x0c" + i32(4) + b"abc", "3 bytes that says it has 4"),
        (b"\xfe\x0c" + i32(2) + b"abc", "3 bytes that says it has 2"),
        (b"\xfe\x0c" + i32(-1), "says it has -1"),
        (b"\xfe\x0c" + i32(0x7FFFFFFF) + b"abc", "says it has 2147483647"),
        (b"\xfe\x0c" + i32(MAX_TOKEN + 1) + bytes(MAX_TOKEN + 1), "is the most"),
    ],
)
def test_bad_token_is_refused(blob, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        read_token(token_message(blob))


def test_an_error_about_a_token_does_not_show_it():
    with pytest.raises(RemoteProtocolError) as raised:
        read_token(token_message(b"\xfe\x0c" + i32(3) + b"response=secret"))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("blob", [b"", b"\xff", b"\xff\x36\0", b"\0\0", b"\x7f\xff"])
def test_bad_control_message_is_refused(blob):
    with pytest.raises(RemoteProtocolError, match="control message"):
        read_control(Message(MessageType.CONTROL_MESSAGE, blob=blob))


def test_too_long_token_is_not_sent():
    assert len(token_frame(bytes(MAX_TOKEN))) > MAX_TOKEN
    with pytest.raises(LocalProtocolError):
        token_frame(bytes(MAX_TOKEN + 1))


def test_a_token_is_not_in_the_repr_of_its_message():
    message = message_of(token_frame(b"a proof"))
    assert read_token(message) == b"a proof"
    assert "proof" not in repr(message)
