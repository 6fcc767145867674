"""Writes Pacemaker messages as frames: byte for byte what Storm writes, where Storm writes it.

`encode` writes any message. The answers that a server gives most have ways of their own, which
write the same bytes and make no message first. There paths are bytes, as a server keeps them.
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
from stormkeeper.rpc import message_frames

# Headers of fields that follow each other in every message: (Thrift type, field id i16) each.
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

# What an answer needs besides the texts and values in it, in bytes of payload, for those who fill
# a frame up to its limit; a message id is counted in.
PULSE_OVERHEAD: Final = 15
RECORDS_OVERHEAD: Final = 31
CHANGE_OVERHEAD: Final = 37
CHANGES_OVERHEAD: Final = 68
#: The same of a page without values: its paths begin with seven bytes, its three lists with eight.
#: The byte between two paths is counted with each.
SIZE_OVERHEAD: Final = 21
SIZES_OVERHEAD: Final = CHANGES_OVERHEAD + 31


def encode(message: Message, *, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """Write a whole frame, its length included.

    Raises
    ------
    LocalProtocolError
        If the message has no type, more than one member, a value that Thrift cannot carry, or
        makes a payload of more than `max_size` bytes.
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
    """Write the frame of an answer without data: `encode` of type and message id alone."""
    return _pack_without_data(15, TYPE_FIELD, kind, ID_FIELD, message_id, 0)


def encode_pulse_answer(message_id: int, path: bytes, details: bytes | None) -> bytes:
    """Write the frame of a GET_PULSE_RESPONSE: `encode` of that message, in half the time.

    `path` is written as it is, UTF-8 or not.
    """
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
    """Write what stands before and after the details in the frame of a SEND_PULSE.

    Between the two, `size` bytes of details make it what `encode` writes.
    """
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
    """Write the frame of a CHANGES_RESPONSE or HELD_RESPONSE; see `messages.Changes`."""
    page = write_changes(instance, revision, columns, more=more, reset=reset, next_after=next_after)
    size = 23 + sum(map(len, page))
    head = _pack_head(size, TYPE_FIELD, kind)
    tail = _pack_tail(ID_FIELD, message_id, 0)
    return b"".join((head, DATA_FIELD, b"\x0c\x00\x65", *page, _STOP, _STOP, tail))


def _encode_data(message: Message) -> Sequence[bytes]:
    """Encode field 2 with the member that is set; nothing if none is."""
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


#: Thrift values in one request. Ours have ten; ten thousand are some milliseconds of work, and
#: a frame made of nothing but tiny unknown values would otherwise be seconds.
MAX_REQUEST_VALUES: Final = 10_000

# The two exact shapes: everything before the path or the id, and everything after the value.
_TO_PATH: Final = DATA_FIELD + PATH_FIELD
_TO_PULSE_ID: Final = DATA_FIELD + PULSE_FIELD + PULSE_ID_FIELD
_AFTER_PATH: Final = b"\x00" + ID_FIELD
_AFTER_PULSE: Final = b"\x00\x00" + ID_FIELD
_unpack_path_shape: Final = Struct(">3si6si").unpack_from
_unpack_pulse_shape: Final = Struct(">3si9si").unpack_from
_unpack_field: Final = Struct(">3si").unpack_from
_unpack_i32: Final = Struct(">i").unpack_from


def decode(payload: bytes) -> Message:
    """Read the message of one frame.

    Parameters
    ----------
    payload
        The frame without its length.

    Raises
    ------
    RemoteProtocolError
        If the bytes are not Thrift, are cut short, hold text that is not UTF-8, or a struct in
        them lacks what it cannot be without (a pulse its id). A type that is absent or unknown
        and a member that does not fit the type are no faults here.
    """
    exact = match_exact_shape(payload)
    if exact is None:
        return _read_message(payload, is_request=False)
    try:
        return _message_of(exact, "strict")
    except UnicodeDecodeError:
        return _read_message(payload, is_request=False)  # which says what is wrong


def decode_request(payload: bytes) -> Message:
    """Read the message of one frame, which must be a request that a server can answer.

    Bytes of a path that are not UTF-8 become lone surrogates, as ``surrogateescape`` has it: a
    server refuses such a path, and keeps the connection.

    Raises
    ------
    RemoteProtocolError
        As `decode`, and if the type is absent, unknown or a response's, the data absent or not
        that of the type, a sent pulse without details, or the frame made of more than
        `MAX_REQUEST_VALUES` Thrift values.
    """
    exact = match_exact_shape(payload)
    if exact is None:
        message = _read_message(payload, is_request=True)
    else:
        message = _message_of(exact, "surrogateescape")
    check_request(message)
    return message


def match_exact_shape(payload: bytes) -> tuple[int, int, bytes, bytes | None] | None:
    """Read a path or a pulse in the one shape that Storm and we write, with a message id.

    Returns
    -------
    tuple of (type, message id, path, details), or None
        With `details` the message carries a pulse, without them a path, as bytes that may not be
        UTF-8. None if the payload has any other shape, which `decode` and `decode_request` then
        judge.
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
    """Read the union; a second member takes the place of the first."""
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
            # Refused before it is read: a long list is work that no request is worth.
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


#: Of each member of the union: its Thrift type, its name in `Message`, and what reads it.
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


#: A TLS record of the handshake, of whichever version.
_TLS_HANDSHAKE: Final = b"\x16\x03"
#: How requests to a web server begin, as somebody sends them who looks for the metrics; and how its
#: answers do, as they come to a client that was told the metrics' port.
_HTTP: Final = (b"GET ", b"HEAD", b"POST")
_HTTP_ANSWER: Final = b"HTTP"


class PacemakerFrameSplitter(message_frames.FrameSplitter):
    """Cuts a stream of bytes, however it is chopped, into the payloads of Pacemaker's frames.

    Parameters
    ----------
    max_size
        The largest payload that is accepted, in bytes.
    """

    __slots__ = ()

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE) -> None:
        super().__init__(max_size, bad_length)


def bad_length(length: int, max_size: int) -> RemoteProtocolError:
    """Return the fault of a frame whose length is negative or above `max_size`."""
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
