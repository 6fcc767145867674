"""Writes Pacemaker messages as frames: byte for byte what Storm writes, where Storm writes it."""

from collections.abc import Sequence
from struct import Struct, pack
from struct import error as struct_error
from typing import Final

from stormkeeper.errors import LocalProtocolError
from stormkeeper.pacemaker.wire.binary import (
    I32,
    I64,
    STRING,
    STRUCT,
    binary_field,
    boolean_field,
    i32_field,
    i64_field,
    list_header,
    text_field,
)
from stormkeeper.pacemaker.wire.messages import (
    DEFAULT_MAX_SIZE,
    Change,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)

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
_pack_exists_answer: Final = Struct(">i13sBB3siB").pack
_EXISTS_ANSWER: Final = TYPE_FIELD + b"\x00\x00\x00\x03" + DATA_FIELD + b"\x02\x00\x03"
_pack_length: Final = Struct(">i").pack

# What an answer needs besides the texts and values in it, in bytes of payload, for those who fill
# a frame up to its limit; a message id is counted in.
PULSE_OVERHEAD: Final = 15
RECORDS_OVERHEAD: Final = 31
CHANGE_OVERHEAD: Final = 37
CHANGES_OVERHEAD: Final = 68
#: The same of a page without values, whose four lists begin with eight bytes each.
SIZE_OVERHEAD: Final = 24
SIZES_OVERHEAD: Final = CHANGES_OVERHEAD + 32


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
            raise _too_large(kind, size, max_size)
        return b"".join((_pack_head(size, TYPE_FIELD, kind), *parts, tail))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"cannot encode a text as UTF-8: {error}") from error
    except struct_error as error:
        raise LocalProtocolError(f"a number does not fit its Thrift field: {error}") from error


def encode_acknowledgement(kind: int, message_id: int) -> bytes:
    """Write the frame of an answer without data: `encode` of type and message id alone."""
    return _pack_without_data(15, TYPE_FIELD, kind, ID_FIELD, message_id, 0)


def encode_exists_answer(message_id: int, exists: bool) -> bytes:
    """Write the frame of an EXISTS_RESPONSE: `encode` of that message, in a third of the time."""
    return _pack_exists_answer(23, _EXISTS_ANSWER, exists, 0, ID_FIELD, message_id, 0)


def encode_pulse_answer(
    message_id: int, path: bytes, details: bytes | None, *, max_size: int = DEFAULT_MAX_SIZE
) -> bytes:
    """Write the frame of a GET_PULSE_RESPONSE: `encode` of that message, in half the time.

    `path` is written as it is, UTF-8 or not.
    """
    if details is None:
        head = _pack_pulse_head(30 + len(path), _PULSE_ANSWER, len(path))
        return head + path + _pack_pulse_tail(0, ID_FIELD, message_id, 0)
    length, details_length = len(path), len(details)
    size = 37 + length + details_length
    if size > max_size:
        raise _too_large(MessageType.GET_PULSE_RESPONSE, size, max_size)
    return b"".join(
        (
            _pack_pulse_head(size, _PULSE_ANSWER, length),
            path,
            DETAILS_FIELD,
            _pack_length(details_length),
            details,
            _pack_pulse_tail(0, ID_FIELD, message_id, 0),
        )
    )


def _too_large(kind: int, size: int, max_size: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a message of type {kind} needs a frame of {size} bytes, more than the {max_size} of"
        f" pacemaker.thrift.message.size.max"
    )


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
        parts = [b"\x0c\x00\x64", *_encode_changes_request(message.changes_request)]
    elif message.changes is not None:
        parts = [b"\x0c\x00\x65", *_encode_changes(message.changes)]
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


def _encode_changes_request(request: ChangesRequest) -> list[bytes]:
    parts = [
        text_field(1, request.path),
        i64_field(2, request.after),
        i32_field(3, request.limit),
    ]
    if request.instance is not None:
        parts.append(text_field(4, request.instance))
    if not request.values:
        parts.append(boolean_field(5, False))
    return parts


def _encode_changes(changes: Changes) -> list[bytes]:
    rows = changes.changes
    has_sizes = any(change.details is None and change.size is not None for change in rows)
    parts = [text_field(1, changes.instance), i64_field(2, changes.revision)]
    if has_sizes:
        parts.append(list_header(3, STRUCT, 0))
    else:
        parts.append(list_header(3, STRUCT, len(rows)))
        for change in rows:
            parts.extend(_encode_change(change))
    parts.append(boolean_field(4, changes.more))
    parts.append(boolean_field(5, changes.reset))
    parts.append(i64_field(6, changes.next))
    if has_sizes:
        parts += encode_columns(
            [change.path.encode() for change in rows],
            [change.revision for change in rows],
            [change.age_ms for change in rows],
            [-1 if change.size is None else change.size for change in rows],
        )
    return parts


def encode_columns(
    paths: Sequence[bytes], revisions: Sequence[int], ages: Sequence[int], sizes: Sequence[int]
) -> list[bytes]:
    """Write the lists of a page without values; `struct.error` for a number that does not fit."""
    count = len(paths)
    texts: list[bytes] = [list_header(7, STRING, count)]
    for path in paths:
        texts.append(_pack_length(len(path)))
        texts.append(path)
    return [
        *texts,
        list_header(8, I64, count),
        pack(f">{count}q", *revisions),
        list_header(9, I64, count),
        pack(f">{count}q", *ages),
        list_header(10, I32, count),
        pack(f">{count}i", *sizes),
    ]


def _encode_change(change: Change) -> list[bytes]:
    parts = [text_field(1, change.path)]
    if change.details is not None:
        parts.append(DETAILS_FIELD + _pack_length(len(change.details)))
        parts.append(change.details)
    parts.append(i64_field(3, change.revision))
    parts.append(i64_field(4, change.age_ms))
    parts.append(_STOP)
    return parts
