"""Writes Pacemaker messages as frames: byte for byte what Storm writes, where Storm writes it."""

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from stormkeeper.errors import LocalProtocolError
from stormkeeper.pacemaker.binary import BOOL, I32, I64, LIST, STRING, STRUCT
from stormkeeper.pacemaker.messages import (
    DEFAULT_MAX_SIZE,
    Change,
    Changes,
    ChangesRequest,
    Message,
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
_pack_length: Final = Struct(">i").pack
_pack_boolean: Final = Struct(">Bh?").pack
_pack_i32: Final = Struct(">Bhi").pack
_pack_i64: Final = Struct(">Bhq").pack
_pack_list: Final = Struct(">BhBi").pack

# What an answer needs besides the texts and values in it, in bytes of payload, for those who fill
# a frame up to its limit; a message id is counted in.
PULSE_OVERHEAD: Final = 15
RECORDS_OVERHEAD: Final = 31
CHANGE_OVERHEAD: Final = 37
CHANGES_OVERHEAD: Final = 68


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
            return _pack_without_data(15, TYPE_FIELD, kind, ID_FIELD, message_id, 0)
        tail = _STOP if message_id is None else _pack_tail(ID_FIELD, message_id, 0)
        size = 7 + sum(map(len, parts)) + len(tail)
        if size > max_size:
            raise LocalProtocolError(
                f"a message of type {kind} needs a frame of {size} bytes, more than the {max_size}"
                f" of pacemaker.thrift.message.size.max"
            )
        return b"".join((_pack_head(size, TYPE_FIELD, kind), *parts, tail))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"cannot encode a text as UTF-8: {error}") from error
    except struct_error as error:
        raise LocalProtocolError(f"a number does not fit its Thrift field: {error}") from error


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
        return [_pack_boolean(BOOL, 3, message.boolval)]
    if message.records is not None:
        parts = [b"\x0c\x00\x04", _pack_list(LIST, 1, STRUCT, len(message.records))]
        for record in message.records:
            parts.extend(_encode_pulse(record))
    elif message.nodes is not None:
        parts = [b"\x0c\x00\x05", _pack_list(LIST, 1, STRING, len(message.nodes))]
        for node in message.nodes:
            raw = node.encode()
            parts.append(_pack_length(len(raw)))
            parts.append(raw)
    elif message.blob is not None:
        return [_binary_field(7, message.blob)]
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
        _text_field(1, request.path),
        _pack_i64(I64, 2, request.after),
        _pack_i32(I32, 3, request.limit),
    ]
    if request.instance is not None:
        parts.append(_text_field(4, request.instance))
    return parts


def _encode_changes(changes: Changes) -> list[bytes]:
    parts = [
        _text_field(1, changes.instance),
        _pack_i64(I64, 2, changes.revision),
        _pack_list(LIST, 3, STRUCT, len(changes.changes)),
    ]
    for change in changes.changes:
        parts.extend(_encode_change(change))
    parts.append(_pack_boolean(BOOL, 4, changes.more))
    parts.append(_pack_boolean(BOOL, 5, changes.reset))
    parts.append(_pack_i64(I64, 6, changes.next))
    return parts


def _encode_change(change: Change) -> list[bytes]:
    parts = [_text_field(1, change.path)]
    if change.details is not None:
        parts.append(_pack_i32(STRING, 2, len(change.details)))
        parts.append(change.details)
    parts.append(_pack_i64(I64, 3, change.revision))
    parts.append(_pack_i64(I64, 4, change.age_ms))
    parts.append(_STOP)
    return parts


def _binary_field(field_id: int, value: bytes) -> bytes:
    return _pack_i32(STRING, field_id, len(value)) + value


def _text_field(field_id: int, value: str) -> bytes:
    return _binary_field(field_id, value.encode())
