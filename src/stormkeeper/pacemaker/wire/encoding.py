"""Writes Pacemaker messages as frames: byte for byte what Storm writes, where Storm writes it.

`encode` writes any message. The answers that a server gives most have ways of their own, which
write the same bytes and make no message first. There paths are bytes, as a server keeps them.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from stormkeeper.errors import LocalProtocolError
from stormkeeper.pacemaker.wire.binary import (
    STRING,
    STRUCT,
    binary_field,
    boolean_field,
    list_header,
)
from stormkeeper.pacemaker.wire.messages import (
    DEFAULT_MAX_SIZE,
    Columns,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.pacemaker.wire.pages import write_changes, write_changes_request

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
