"""Reads Pacemaker messages out of frames.

Every path and pulse that Storm and we write has one of two exact shapes, which are read without
walking the fields; any other order of fields takes the general way. There, unknown fields and the
bytes after the message are ignored, and of a field that comes twice the last counts, as with every
Thrift reader.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.binary import (
    BOOL,
    I32,
    LIST,
    STOP,
    STRING,
    STRUCT,
    BinaryReader,
)
from stormkeeper.pacemaker.wire.encoding import (
    DATA_FIELD,
    DETAILS_FIELD,
    ID_FIELD,
    PATH_FIELD,
    PULSE_FIELD,
    PULSE_ID_FIELD,
    TYPE_FIELD,
)
from stormkeeper.pacemaker.wire.messages import (
    Message,
    Pulse,
    check_request,
)
from stormkeeper.pacemaker.wire.pages import (
    read_changes,
    read_changes_request,
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
