"""Pacemaker messages as frames: encoding, decoding, and the blobs of an authentication.

`encode` writes the bytes that Storm writes. Frequent answers have encoders of their own, which
write the same bytes without a `Message`, with paths as bytes. Paths and pulses, as Storm and
Stormkeeper write them, have one of two exact shapes, which are decoded without walking the fields;
any other order of fields takes the general way. Unknown fields and bytes after the message are
ignored, and the last of a repeated field counts, as in every Thrift reader.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Final

from stormkeeper.errors import LocalProtocolError, RemoteProtocolError
from stormkeeper.pacemaker.wire.binary import (
    BOOL,
    I32,
    LIST,
    STOP,
    STRING,
    STRUCT,
    BinaryReader,
    binary_field,
    boolean_field,
    list_header,
)
from stormkeeper.pacemaker.wire.changes import (
    read_changes,
    read_changes_request,
    write_changes,
    write_changes_request,
)
from stormkeeper.pacemaker.wire.messages import (
    DEFAULT_MAX_SIZE,
    Columns,
    Message,
    MessageType,
    Pulse,
    check_request,
)
from stormkeeper.thrift import framing

# Field headers: Thrift type and i16 id.
TYPE_FIELD: Final = b"\x08\x00\x01"
ID_FIELD: Final = b"\x08\x00\x03"
DATA_FIELD: Final = b"\x0c\x00\x02"
PATH_FIELD: Final = b"\x0b\x00\x01"
PULSE_FIELD: Final = b"\x0c\x00\x02"
PULSE_ID_FIELD: Final = b"\x0b\x00\x01"
DETAILS_FIELD: Final = b"\x0b\x00\x02"
_STOP: Final = b"\x00"

_pack_head: Final = Struct(">i3si").pack
_pack_tail: Final = Struct(">3siB").pack
_pack_without_data: Final = Struct(">i3si3siB").pack
_pack_pulse_head: Final = Struct(">i16si").pack
_pack_pulse_tail: Final = Struct(">H3siB").pack
_PULSE_ANSWER: Final = TYPE_FIELD + b"\x00\x00\x00\x0b" + DATA_FIELD + PULSE_FIELD + PULSE_ID_FIELD
_PULSE_SENT: Final = (
    TYPE_FIELD
    + MessageType.SEND_PULSE.to_bytes(4, "big")
    + DATA_FIELD
    + PULSE_FIELD
    + PULSE_ID_FIELD
)
_pack_length: Final = Struct(">i").pack

# Bytes of an answer's payload beside texts and values, with a message id.
PULSE_OVERHEAD: Final = 15
RECORDS_OVERHEAD: Final = 31
CHANGE_OVERHEAD: Final = 37
CHANGES_OVERHEAD: Final = 68
# The same for a page without values, with the byte between two paths.
SIZE_OVERHEAD: Final = 21
SIZES_OVERHEAD: Final = CHANGES_OVERHEAD + 31


def encode(message: Message, *, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """Write a frame with the length.

    Raises `LocalProtocolError` for a message without type, with several members, with a value that
    Thrift cannot carry, or with a payload of more than `max_size` bytes.
    """
    kind, message_id = message.type, message.message_id
    if kind is None:
        raise LocalProtocolError("cannot encode a message without a type")
    try:
        parts = _encode_data(message)
        if not parts and message_id is not None:
            return encode_acknowledgement(kind, message_id)
        tail = _STOP if message_id is None else _pack_tail(ID_FIELD, message_id, 0)
        size = 7 + sum(map(len, parts)) + len(tail)
        if size > max_size:
            raise LocalProtocolError(
                f"a message of type {kind} needs a frame of {size} bytes, more than the"
                f" {max_size} of pacemaker.thrift.message.size.max"
            )
        return b"".join((_pack_head(size, TYPE_FIELD, kind), *parts, tail))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"cannot encode a text as UTF-8: {error}") from error
    except struct_error as error:
        raise LocalProtocolError(f"a number does not fit its Thrift field: {error}") from error


def encode_acknowledgement(kind: int, message_id: int) -> bytes:
    """Write the frame of an answer without data."""
    return _pack_without_data(15, TYPE_FIELD, kind, ID_FIELD, message_id, 0)


def encode_pulse_answer(message_id: int, path: bytes, details: bytes | None) -> bytes:
    """Write the frame of a GET_PULSE_RESPONSE, in half the time of `encode`."""
    if details is None:
        head = _pack_pulse_head(30 + len(path), _PULSE_ANSWER, len(path))
        return head + path + _pack_pulse_tail(0, ID_FIELD, message_id, 0)
    length, details_length = len(path), len(details)
    return b"".join(
        (
            _pack_pulse_head(37 + length + details_length, _PULSE_ANSWER, length),
            path,
            DETAILS_FIELD,
            _pack_length(details_length),
            details,
            _pack_pulse_tail(0, ID_FIELD, message_id, 0),
        )
    )


def encode_pulse_around(message_id: int, path: bytes, size: int) -> tuple[bytes, bytes]:
    """Write the bytes before and after `size` bytes of details in the frame of a SEND_PULSE."""
    length = len(path)
    before = (
        _pack_pulse_head(37 + length + size, _PULSE_SENT, length)
        + path
        + DETAILS_FIELD
        + _pack_length(size)
    )
    return before, _pack_pulse_tail(0, ID_FIELD, message_id, 0)


def encode_changes(
    message_id: int,
    instance: str,
    revision: int,
    columns: Columns[bytes],
    *,
    more: bool,
    reset: bool,
    next_after: int,
    kind: MessageType = MessageType.CHANGES_RESPONSE,
) -> bytes:
    """Write the frame of a CHANGES_RESPONSE or HELD_RESPONSE (see `messages.Changes`)."""
    page = write_changes(instance, revision, columns, more=more, reset=reset, next_after=next_after)
    size = 23 + sum(map(len, page))
    head = _pack_head(size, TYPE_FIELD, kind)
    tail = _pack_tail(ID_FIELD, message_id, 0)
    return b"".join((head, DATA_FIELD, b"\x0c\x00\x65", *page, _STOP, _STOP, tail))


def _encode_data(message: Message) -> Sequence[bytes]:
    """Encode field 2, the union; empty if no member is set."""
    path, pulse = message.path, message.pulse
    others = (
        message.boolval,
        message.records,
        message.nodes,
        message.blob,
        message.changes_request,
        message.changes,
    )
    if others == _NONE_OF_THEM:
        if pulse is None:
            if path is None:
                return ()
            raw = path.encode()
            return DATA_FIELD + PATH_FIELD + _pack_length(len(raw)), raw, _STOP
        if path is None:
            return DATA_FIELD + PULSE_FIELD, *_encode_pulse(pulse), _STOP
    members = [member for member in (path, pulse, *others) if member is not None]
    if len(members) != 1:
        raise LocalProtocolError(f"a message carries one member, not {len(members)}")
    return DATA_FIELD, *_encode_rare_member(message), _STOP


_NONE_OF_THEM: Final = (None, None, None, None, None, None)


def _encode_rare_member(message: Message) -> list[bytes]:
    if message.boolval is not None:
        return [boolean_field(3, message.boolval)]
    if message.records is not None:
        parts = [b"\x0c\x00\x04", list_header(1, STRUCT, len(message.records))]
        for record in message.records:
            parts.extend(_encode_pulse(record))
    elif message.nodes is not None:
        parts = [b"\x0c\x00\x05", list_header(1, STRING, len(message.nodes))]
        for node in message.nodes:
            raw = node.encode()
            parts.append(_pack_length(len(raw)))
            parts.append(raw)
    elif message.blob is not None:
        return [binary_field(7, message.blob)]
    elif message.changes_request is not None:
        parts = [b"\x0c\x00\x64", *write_changes_request(message.changes_request)]
    elif message.changes is not None:
        instance, revision, columns, more, reset, after = message.changes
        raw_columns = Columns([path.encode() for path in columns.paths], *columns[1:])
        page = write_changes(
            instance, revision, raw_columns, more=more, reset=reset, next_after=after
        )
        parts = [b"\x0c\x00\x65", *page]
    parts.append(_STOP)
    return parts


def _encode_pulse(pulse: Pulse) -> tuple[bytes, ...]:
    raw, details = pulse.id.encode(), pulse.details
    if details is None:
        return PULSE_ID_FIELD, _pack_length(len(raw)), raw, _STOP
    return (
        PULSE_ID_FIELD + _pack_length(len(raw)),
        raw,
        DETAILS_FIELD + _pack_length(len(details)),
        details,
        _STOP,
    )


#: Thrift values of a request: a usual one has ten, ten thousand take some milliseconds, and a frame
#: full of tiny unknown values would take seconds.
MAX_REQUEST_VALUES: Final = 10_000

# The exact shapes: bytes before the path or id, and after the value.
_TO_PATH: Final = DATA_FIELD + PATH_FIELD
_TO_PULSE_ID: Final = DATA_FIELD + PULSE_FIELD + PULSE_ID_FIELD
_AFTER_PATH: Final = b"\x00" + ID_FIELD
_AFTER_PULSE: Final = b"\x00\x00" + ID_FIELD
_unpack_path_shape: Final = Struct(">3si6si").unpack_from
_unpack_pulse_shape: Final = Struct(">3si9si").unpack_from
_unpack_field: Final = Struct(">3si").unpack_from
_unpack_i32: Final = Struct(">i").unpack_from


def decode(payload: bytes) -> Message:
    """Read the message of a frame without the length.

    Raises `RemoteProtocolError` for invalid or truncated Thrift, text that is not UTF-8, and
    structs without a required field. The type may be absent or unknown, and the member another
    type's.
    """
    exact = match_exact_shape(payload)
    if exact is None:
        return _read_message(payload, is_request=False)
    try:
        return _message_of(exact, "strict")
    except UnicodeDecodeError:
        return _read_message(payload, is_request=False)  # raises with a reason


def decode_request(payload: bytes) -> Message:
    """Read the request of a frame without the length.

    A path that is not UTF-8 is decoded with ``surrogateescape``: the server refuses the path but
    keeps the connection. Raises `RemoteProtocolError` as `decode` does, and also for messages that
    are no valid requests or have more than `MAX_REQUEST_VALUES` Thrift values.
    """
    exact = match_exact_shape(payload)
    if exact is None:
        message = _read_message(payload, is_request=True)
    else:
        message = _message_of(exact, "surrogateescape")
    check_request(message)
    return message


def match_exact_shape(payload: bytes) -> tuple[int, int, bytes, bytes | None] | None:
    """Return (type, message id, path, details) of a payload in an exact shape, else None.

    A message with a path has `details` None. The path may not be UTF-8.
    """
    size = len(payload)
    if size < 26:  # the shortest: an empty path
        return None
    if payload[10] == STRING:
        type_field, kind, fields, length = _unpack_path_shape(payload)
        end = 17 + length
        if (
            end + 9 == size
            and length >= 0
            and type_field == TYPE_FIELD
            and fields == _TO_PATH
            and payload[end : end + 4] == _AFTER_PATH
            and payload[-1] == STOP
        ):
            return kind, _unpack_i32(payload, end + 4)[0], payload[17:end], None
    elif size >= 37:  # the shortest: an empty id, empty details
        type_field, kind, fields, length = _unpack_pulse_shape(payload)
        end = 20 + length
        if fields == _TO_PULSE_ID and length >= 0 and type_field == TYPE_FIELD and end + 17 <= size:
            details_field, length = _unpack_field(payload, end)
            stop = end + 7 + length
            if (
                stop + 10 == size
                and length >= 0
                and details_field == DETAILS_FIELD
                and payload[stop : stop + 5] == _AFTER_PULSE
                and payload[-1] == STOP
            ):
                message_id = _unpack_i32(payload, stop + 5)[0]
                return kind, message_id, payload[20:end], payload[end + 7 : stop]
    return None


def _message_of(exact: tuple[int, int, bytes, bytes | None], text_errors: str) -> Message:
    kind, message_id, raw, details = exact
    path = raw.decode(errors=text_errors)
    if details is None:
        return Message(kind, message_id, path)
    return Message(kind, message_id, None, Pulse(path, details))


def _read_message(payload: bytes, *, is_request: bool) -> Message:
    if not payload:
        raise RemoteProtocolError("empty frame: no message in it")
    if is_request:
        reader = BinaryReader(payload, MAX_REQUEST_VALUES, text_errors="surrogateescape")
    else:
        reader = BinaryReader(payload)
    message = Message(None)
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            return message
        if field_id == 1 and kind == I32:
            message.type = reader.i32()
        elif field_id == 2 and kind == STRUCT:
            data = _read_data(reader, is_request=is_request)
            data.type, data.message_id = message.type, message.message_id
            message = data
        elif field_id == 3 and kind == I32:
            message.message_id = reader.i32()
        else:
            reader.skip(kind)


def _read_data(reader: BinaryReader, *, is_request: bool) -> Message:
    message = Message(None)
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            return message
        wanted, name, read = _MEMBERS.get(field_id, _UNKNOWN_MEMBER)
        if kind != wanted:
            reader.skip(kind)
            continue
        if is_request and field_id in _ANSWER_MEMBERS:
            # Before the member is read, as a long list is much work.
            raise RemoteProtocolError(f"request with data of an answer (union member {field_id})")
        message = Message(None)
        setattr(message, name, read(reader))


def _read_pulse(reader: BinaryReader) -> Pulse:
    path: str | None = None
    details: bytes | None = None
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            break
        if field_id == 1 and kind == STRING:
            path = reader.text("pulse id")
        elif field_id == 2 and kind == STRING:
            details = reader.binary()
        else:
            reader.skip(kind)
    if path is None:
        raise RemoteProtocolError("pulse without an id")
    return Pulse(path, details)


def _read_records(reader: BinaryReader) -> list[Pulse]:
    records: list[Pulse] = []
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            return records
        if field_id == 1 and kind == LIST:
            records = [_read_pulse(reader) for _ in range(reader.elements(STRUCT, "records"))]
        else:
            reader.skip(kind)


def _read_nodes(reader: BinaryReader) -> list[str]:
    nodes: list[str] = []
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            return nodes
        if field_id == 1 and kind == LIST:
            nodes = [reader.text("node") for _ in range(reader.elements(STRING, "nodes"))]
        else:
            reader.skip(kind)


_MEMBERS: Final[dict[int, tuple[int, str, Callable[[BinaryReader], object]]]] = {
    1: (STRING, "path", lambda reader: reader.text("path")),
    2: (STRUCT, "pulse", _read_pulse),
    3: (BOOL, "boolval", BinaryReader.boolean),
    4: (STRUCT, "records", _read_records),
    5: (STRUCT, "nodes", _read_nodes),
    7: (STRING, "blob", BinaryReader.binary),
    100: (STRUCT, "changes_request", read_changes_request),
    101: (STRUCT, "changes", read_changes),
}
_UNKNOWN_MEMBER: Final = (STOP, "", BinaryReader.boolean)
_ANSWER_MEMBERS: Final = frozenset({4, 5, 101})


_TLS_HANDSHAKE: Final = b"\x16\x03"
# HTTP comes to a Pacemaker's port by mistake for the metrics' port, and the other way round.
_HTTP: Final = (b"GET ", b"HEAD", b"POST")
_HTTP_ANSWER: Final = b"HTTP"


class PacemakerFrameSplitter(framing.FrameSplitter):
    """Splits a stream of bytes into payloads of at most `max_size` bytes."""

    __slots__ = ()

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE) -> None:
        super().__init__(max_size, bad_length)


def bad_length(length: int, max_size: int) -> RemoteProtocolError:
    """Make the error for a frame length below 0 or above `max_size`."""
    raw = length.to_bytes(4, "big", signed=True)
    hint = ""
    if raw.startswith(_TLS_HANDSHAKE):
        hint = "; this is how TLS begins: set pacemaker.tls.enable alike at both ends"
    elif raw.startswith(_HTTP):
        hint = "; this is HTTP, which is answered on pacemaker.metrics.port, where that is set"
    elif raw.startswith(_HTTP_ANSWER):
        hint = "; this is HTTP: no port for heartbeats, but perhaps a pacemaker.metrics.port"
    return RemoteProtocolError(
        f"frame of {length} bytes announced (by the bytes {raw!r}); a length is 0 to"
        f" {max_size}, pacemaker.thrift.message.size.max{hint}"
    )


#: Bytes of a SASL token: the buffer of the JDK's mechanisms (``maxbuf=65536``), enough for
#: a Kerberos ticket with a large authorisation record.
MAX_TOKEN: Final = 65_536

_TOKEN_CODE: Final = -500
_code: Final = Struct(">h")
_token_head: Final = Struct(">hi")


class Control(IntEnum):
    """Codes of control messages (Storm's ``ControlMessage``)."""

    CLOSE = -100
    OK = -200
    END_OF_BATCH = -201
    SASL_TOKEN_REQUEST = -202
    SASL_COMPLETE = -203
    FAILURE = -400


def control_frame(code: Control) -> bytes:
    """Write a control message as a frame."""
    return encode(Message(MessageType.CONTROL_MESSAGE, blob=_code.pack(code)))


def token_frame(token: bytes) -> bytes:
    """Write a SASL token of at most `MAX_TOKEN` bytes as a frame (Storm's ``SaslMessageToken``).

    The blob is the i16 -500, the token's length as i32, and the token.
    """
    if len(token) > MAX_TOKEN:
        raise LocalProtocolError(f"a SASL token of {len(token)} bytes; {MAX_TOKEN} is the most")
    blob = _token_head.pack(_TOKEN_CODE, len(token)) + token
    return encode(Message(MessageType.SASL_MESSAGE_TOKEN, blob=blob))


def read_control(message: Message) -> Control:
    """Return the code of a CONTROL_MESSAGE, an i16."""
    blob = message.blob
    if blob is None or len(blob) != _code.size:
        raise RemoteProtocolError(f"control message without a code (its data: {_shown(blob)})")
    (code,) = _code.unpack(blob)
    try:
        return Control(code)
    except ValueError:
        raise RemoteProtocolError(f"unknown control message {code}") from None


def read_token(message: Message) -> bytes:
    """Return the token of a SASL_MESSAGE_TOKEN; errors do not show the token, a secret in parts."""
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
