"""What client and server send each other to authenticate: control messages and SASL tokens.

Both are ``HBMessage`` without an id that carry a blob. That of a control message is its code, an
i16; that of a token an i16, -500, the token's length as i32, and the token
(``org.apache.storm.messaging.netty``: ``ControlMessage``, ``SaslMessageToken``).
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from stormkeeper.errors import LocalProtocolError, RemoteProtocolError
from stormkeeper.pacemaker.wire.encoding import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType

#: The longest token that is sent or taken, in bytes: the buffer that the JDK's mechanisms announce
#: (``maxbuf=65536``). A Kerberos ticket with a large authorisation record stays below it.
MAX_TOKEN: Final = 65_536

_TOKEN_CODE: Final = -500
_code: Final = Struct(">h")
_token_head: Final = Struct(">hi")


class Control(IntEnum):
    """The codes of control messages."""

    CLOSE = -100
    OK = -200
    END_OF_BATCH = -201
    #: The client asks for the server's first token.
    SASL_TOKEN_REQUEST = -202
    #: The server says that the client is authenticated.
    SASL_COMPLETE = -203
    FAILURE = -400


def control_frame(code: Control) -> bytes:
    """Write a control message as a frame."""
    return encode(Message(MessageType.CONTROL_MESSAGE, blob=_code.pack(code)))


def token_frame(token: bytes) -> bytes:
    """Write a SASL token as a frame.

    Raises
    ------
    LocalProtocolError
        If the token has more than `MAX_TOKEN` bytes.
    """
    if len(token) > MAX_TOKEN:
        raise LocalProtocolError(f"a SASL token of {len(token)} bytes; {MAX_TOKEN} is the most")
    blob = _token_head.pack(_TOKEN_CODE, len(token)) + token
    return encode(Message(MessageType.SASL_MESSAGE_TOKEN, blob=blob))


def read_control(message: Message) -> Control:
    """Return the code of a CONTROL_MESSAGE.

    Raises
    ------
    RemoteProtocolError
        If it carries no code, or one that nobody knows.
    """
    blob = message.blob
    if blob is None or len(blob) != _code.size:
        raise RemoteProtocolError(f"control message without a code (its data: {_shown(blob)})")
    (code,) = _code.unpack(blob)
    try:
        return Control(code)
    except ValueError:
        raise RemoteProtocolError(f"unknown control message {code}") from None


def read_token(message: Message) -> bytes:
    """Return the token of a SASL_MESSAGE_TOKEN; it is a secret in parts, so no error shows it.

    Raises
    ------
    RemoteProtocolError
        If it is no token, is not as long as it says, or has more than `MAX_TOKEN` bytes.
    """
    blob = message.blob
    if blob is None or len(blob) < _token_head.size:
        raise RemoteProtocolError("SASL token without its length")
    code, length = _token_head.unpack_from(blob)
    if code != _TOKEN_CODE:
        raise RemoteProtocolError(f"SASL token with the code {code} where {_TOKEN_CODE} is due")
    token = blob[_token_head.size :]
    if length != len(token):
        raise RemoteProtocolError(f"SASL token of {len(token)} bytes that says it has {length}")
    if length > MAX_TOKEN:
        raise RemoteProtocolError(f"SASL token of {length} bytes; {MAX_TOKEN} is the most")
    return token


def _shown(blob: bytes | None) -> str:
    return "none" if blob is None else repr(blob[:16])
