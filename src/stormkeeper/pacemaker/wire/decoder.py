"""Decoding of Pacemaker frames.

Paths, pulses and changes, as Storm and Stormkeeper write them, have exact shapes, which are decoded
without walking the fields; any other order of fields takes the general way. As in every Thrift
reader, unknown fields and bytes after the message are ignored, and the last of a repeated field
counts.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, TypeVar

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.binary import (
    BOOL,
    I32,
    I64,
    LIST,
    STOP,
    STRING,
    STRUCT,
    BinaryReader,
)
from stormkeeper.pacemaker.wire.messages import (
    AGE_FIELD,
    BETWEEN_PATHS,
    DATA_FIELD,
    DEFAULT_MAX_SIZE,
    DETAILS_FIELD,
    ID_FIELD,
    MAX_TOKEN,
    PATH_FIELD,
    PULSE_FIELD,
    REVISION_FIELD,
    TOKEN_CODE,
    TOMBSTONE,
    TYPE_FIELD,
    Changes,
    ChangesRequest,
    Columns,
    Control,
    Message,
    Pulse,
    check_request,
)
from stormkeeper.thrift.framing import FrameSplitter

T = TypeVar("T")

# Bytes of a header with length, and of a change after the value.
_HEADER: Final = 7
_TAIL: Final = 23
_header: Final = Struct(">3si")
_tail: Final = Struct(">3sq3sqB")
_code: Final = Struct(">h")
_token_head: Final = Struct(">hi")

#: Ten are usual; ten thousand take some milliseconds.
MAX_REQUEST_VALUES: Final = 10_000

# The exact shapes: bytes before the path or id, and after the value.
_TO_PATH: Final = DATA_FIELD + PATH_FIELD
_TO_PULSE_ID: Final = DATA_FIELD + PULSE_FIELD + PATH_FIELD
_AFTER_PATH: Final = b"\x00" + ID_FIELD
_AFTER_PULSE: Final = b"\x00\x00" + ID_FIELD
_unpack_path_shape: Final = Struct(">3si6si").unpack_from
_unpack_pulse_shape: Final = Struct(">3si9si").unpack_from
_unpack_field: Final = Struct(">3si").unpack_from
_unpack_i32: Final = Struct(">i").unpack_from


def decode(payload: bytes) -> Message:
    """Read a frame without the length; raise `RemoteProtocolError`.

    The type may be absent or unknown, and the member another type's.
    """
    exact = match_exact_shape(payload)
    if exact is None:
        return _read_message(payload, is_request=False)
    try:
        return _message_of(exact, "strict")
    except UnicodeDecodeError:
        return _read_message(payload, is_request=False)  # raises with a reason


def decode_request(payload: bytes) -> Message:
    """Read a request's frame without the length; raise `RemoteProtocolError`.

    A path that is not UTF-8 is decoded with ``surrogateescape``: the server refuses the path but
    keeps the connection.
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

    The path is not checked for UTF-8. Without a value `details` is None.
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
    for kind, field_id in reader.fields():
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
    return message


def _read_data(reader: BinaryReader, *, is_request: bool) -> Message:
    message = Message(None)
    for kind, field_id in reader.fields():
        wanted, name, read = _MEMBERS.get(field_id, _UNKNOWN_MEMBER)
        if kind != wanted:
            reader.skip(kind)
            continue
        if is_request and field_id in _ANSWER_MEMBERS:
            # First, as reading a long list is much work.
            raise RemoteProtocolError(f"request with data of an answer (union member {field_id})")
        message = Message(None)
        setattr(message, name, read(reader))
    return message


def _read_pulse(reader: BinaryReader) -> Pulse:
    path: str | None = None
    details: bytes | None = None
    for kind, field_id in reader.fields():
        if field_id == 1 and kind == STRING:
            path = reader.text("pulse id")
        elif field_id == 2 and kind == STRING:
            details = reader.binary()
        else:
            reader.skip(kind)
    if path is None:
        raise RemoteProtocolError("pulse without an id")
    return Pulse(path, details)


def _read_listing(
    reader: BinaryReader, element: int, what: str, read: Callable[[BinaryReader], T]
) -> list[T]:
    """Read a struct with one field, a list."""
    found: list[T] = []
    for kind, field_id in reader.fields():
        if field_id == 1 and kind == LIST:
            found = [read(reader) for _ in range(reader.elements(element, what))]
        else:
            reader.skip(kind)
    return found


def _read_node(reader: BinaryReader) -> str:
    return reader.text("node")


_Row = tuple[str, bytes | None, int, int]

#: In the order of `Columns`.
_COLUMNS: Final[dict[tuple[int, int], Callable[[BinaryReader], Any]]] = {
    (STRING, 7): lambda reader: reader.text("paths of changes"),
    (LIST, 8): lambda reader: reader.numbers(I64, "revisions of changes"),
    (LIST, 9): lambda reader: reader.numbers(I64, "ages of changes"),
    (LIST, 10): lambda reader: reader.numbers(I32, "sizes of changes"),
}


def _read_changes_request(reader: BinaryReader) -> ChangesRequest:
    path: str | None = None
    instance: str | None = None
    after = limit = 0
    values = True
    for kind, field_id in reader.fields():
        if field_id == 1 and kind == STRING:
            path = reader.text("path")
        elif field_id == 2 and kind == I64:
            after = reader.i64()
        elif field_id == 3 and kind == I32:
            limit = reader.i32()
        elif field_id == 4 and kind == STRING:
            instance = reader.text("instance")
        elif field_id == 5 and kind == BOOL:
            values = reader.boolean()
        else:
            reader.skip(kind)
    if path is None:
        raise RemoteProtocolError("request for changes without a path")
    return ChangesRequest(path, after, limit, instance, values)


def _read_changes(reader: BinaryReader) -> Changes[str]:
    instance: str | None = None
    columns = Columns[str]([], [], [], [], [])
    fields: dict[tuple[int, int], Any] = {}
    revision = after = 0
    more = reset = False
    for kind, field_id in reader.fields():
        if field_id == 1 and kind == STRING:
            instance = reader.text("instance")
        elif field_id == 2 and kind == I64:
            revision = reader.i64()
        elif field_id == 3 and kind == LIST:
            columns = _read_list(reader)
        elif field_id == 4 and kind == BOOL:
            more = reader.boolean()
        elif field_id == 5 and kind == BOOL:
            reset = reader.boolean()
        elif field_id == 6 and kind == I64:
            after = reader.i64()
        elif (kind, field_id) in _COLUMNS:
            fields[kind, field_id] = _COLUMNS[kind, field_id](reader)
        else:
            reader.skip(kind)
    if instance is None:
        raise RemoteProtocolError("changes without the server's instance")
    if fields:
        columns = _read_columns(*(fields.get(field, "") for field in _COLUMNS))
    return Changes(instance, revision, columns, more, reset, after)


def _read_columns(
    paths: str, revisions: Sequence[int], ages_ms: Sequence[int], sizes: Sequence[int]
) -> Columns[str]:
    texts = paths.split(BETWEEN_PATHS) if revisions else []
    if not len(texts) == len(revisions) == len(ages_ms) == len(sizes):
        raise RemoteProtocolError("changes whose columns have not one length")
    return Columns(texts, revisions, ages_ms, sizes)


def _read_list(reader: BinaryReader) -> Columns[str]:
    rows: list[_Row] = []
    for _ in range(reader.elements(STRUCT, "changes")):
        data, position = reader.rest()
        exact = _match_change(data, position)
        if exact is None:
            rows.append(_read_change(reader))
        else:
            row, position = exact
            rows.append(row)
            reader.seek(position)
    details = [row[1] for row in rows]
    return Columns(
        [row[0] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
        [TOMBSTONE if value is None else len(value) for value in details],
        details,
    )


def _match_change(data: bytes, position: int) -> tuple[_Row, int] | None:
    """Read a change in the exact shape; return row and end."""
    last = len(data) - _TAIL
    if position + _HEADER > last:
        return None
    field, length = _header.unpack_from(data, position)
    position += _HEADER
    end = position + length
    if field != PATH_FIELD or length < 0 or end > last:
        return None
    try:
        path = data[position:end].decode()
    except UnicodeDecodeError:
        return None  # the general way raises with a reason
    details: bytes | None = None
    if data[end] == STRING:
        field, length = _header.unpack_from(data, end)
        position = end + _HEADER
        end = position + length
        if field != DETAILS_FIELD or length < 0 or end > last:
            return None
        details = data[position:end]
    revision_field, revision, age_field, age_ms, stop = _tail.unpack_from(data, end)
    if revision_field != REVISION_FIELD or age_field != AGE_FIELD or stop != STOP:
        return None
    return (path, details, revision, age_ms), end + _TAIL


def _read_change(reader: BinaryReader) -> _Row:
    path: str | None = None
    details: bytes | None = None
    revision = age_ms = 0
    for kind, field_id in reader.fields():
        if field_id == 1 and kind == STRING:
            path = reader.text("path")
        elif field_id == 2 and kind == STRING:
            details = reader.binary()
        elif field_id == 3 and kind == I64:
            revision = reader.i64()
        elif field_id == 4 and kind == I64:
            age_ms = reader.i64()
        else:
            reader.skip(kind)
    if path is None:
        raise RemoteProtocolError("change without a path")
    return path, details, revision, age_ms


_MEMBERS: Final[dict[int, tuple[int, str, Callable[[BinaryReader], object]]]] = {
    1: (STRING, "path", lambda reader: reader.text("path")),
    2: (STRUCT, "pulse", _read_pulse),
    3: (BOOL, "boolval", BinaryReader.boolean),
    4: (STRUCT, "records", lambda reader: _read_listing(reader, STRUCT, "records", _read_pulse)),
    5: (STRUCT, "nodes", lambda reader: _read_listing(reader, STRING, "nodes", _read_node)),
    7: (STRING, "blob", BinaryReader.binary),
    100: (STRUCT, "changes_request", _read_changes_request),
    101: (STRUCT, "changes", _read_changes),
}
_UNKNOWN_MEMBER: Final = (STOP, "", BinaryReader.boolean)
_ANSWER_MEMBERS: Final = frozenset({4, 5, 101})


_TLS_HANDSHAKE: Final = b"\x16\x03"
# HTTP comes by mistake for the metrics' port, and the other way round.
_HTTP: Final = (b"GET ", b"HEAD", b"POST")
_HTTP_ANSWER: Final = b"HTTP"


class PacemakerFrameSplitter(FrameSplitter):
    """Splits a stream of bytes into payloads."""

    __slots__ = ()

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE) -> None:
        super().__init__(max_size, bad_length)


def bad_length(length: int, max_size: int) -> RemoteProtocolError:
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


def read_control(message: Message) -> Control:
    blob = message.blob
    if blob is None or len(blob) != _code.size:
        raise RemoteProtocolError(f"control message without a code (its data: {_shown(blob)})")
    (code,) = _code.unpack(blob)
    try:
        return Control(code)
    except ValueError:
        raise RemoteProtocolError(f"unknown control message {code}") from None


def read_token(message: Message) -> bytes:
    """Return a SASL token; errors do not show the token."""
    blob = message.blob
    if blob is None or len(blob) < _token_head.size:
        raise RemoteProtocolError("SASL token without its length")
    code, length = _token_head.unpack_from(blob)
    if code != TOKEN_CODE:
        raise RemoteProtocolError(f"SASL token with the code {code} where {TOKEN_CODE} is due")
    token = blob[_token_head.size :]
    if length != len(token):
        raise RemoteProtocolError(f"SASL token of {len(token)} bytes that says it has {length}")
    if length > MAX_TOKEN:
        raise RemoteProtocolError(f"SASL token of {length} bytes; {MAX_TOKEN} is the most")
    return token


def _shown(blob: bytes | None) -> str:
    return "none" if blob is None else repr(blob[:16])


def read_extensions(details: bytes | None) -> frozenset[str]:
    """Read the extensions from the pulse at `RESERVED_PATH`; empty for a Java Pacemaker.

    Only field 4 of the ``ServerInfo`` is read, so clients need no Thrift library.
    """
    names: set[str] = set()
    if details is None:
        return frozenset()
    reader = BinaryReader(details)
    for kind, field_id in reader.fields():
        if field_id == 4 and kind == LIST:
            element, count = reader.sequence()
            for _ in range(count):
                if element == STRING:
                    names.add(reader.text("name of an extension"))
                else:
                    reader.skip(element)
        else:
            reader.skip(kind)
    return frozenset(names)
