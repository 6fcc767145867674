"""Writes the answers that carry much, straight out of what a server holds.

The frames are those of `encoding.encode`, without a message in between: a page holds hundreds of
pulses, and a server has nothing else to do while it writes one. Paths are bytes here, as a server
keeps them.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, Protocol

from stormkeeper.pacemaker.wire.binary import (
    STRING,
    STRUCT,
    boolean_field,
    i64_field,
    list_header,
    text_field,
)
from stormkeeper.pacemaker.wire.encoding import (
    DATA_FIELD,
    DETAILS_FIELD,
    ID_FIELD,
    PATH_FIELD,
    PULSE_ID_FIELD,
    TYPE_FIELD,
    encode_columns,
)
from stormkeeper.pacemaker.wire.messages import MessageType

_STOP: Final = b"\x00"
_pack_head: Final = Struct(">i3si").pack
_pack_tail: Final = Struct(">3siB").pack
_pack_field: Final = Struct(">3si").pack
_pack_length: Final = Struct(">i").pack
_pack_change_tail: Final = Struct(">3sq3sqB").pack
_REVISION_FIELD: Final = b"\x0a\x00\x03"
_AGE_FIELD: Final = b"\x0a\x00\x04"


class Kept(Protocol):
    """A pulse or a tombstone as a server keeps it: `changed` in seconds of its clock."""

    @property
    def path(self) -> bytes:
        """The whole path."""

    @property
    def details(self) -> bytes | None:
        """The value; None for a tombstone."""

    @property
    def revision(self) -> int:
        """The revision of the newest change."""

    @property
    def changed(self) -> float:
        """When it was received or deleted."""


def encode_changes(
    message_id: int,
    instance: str,
    revision: int,
    entries: Sequence[Kept],
    now: float,
    *,
    more: bool,
    reset: bool,
    next_after: int,
    values: bool = True,
    kind: MessageType = MessageType.CHANGES_RESPONSE,
) -> bytes:
    """Write the frame of a CHANGES_RESPONSE or HELD_RESPONSE; see `messages.Changes`."""
    parts = [
        b"\x0c\x00\x65",
        text_field(1, instance),
        i64_field(2, revision),
        list_header(3, STRUCT, len(entries) if values else 0),
    ]
    if values:
        _append_entries(parts, entries, now)
    parts += [boolean_field(4, more), boolean_field(5, reset), i64_field(6, next_after)]
    if not values:
        parts += encode_columns(
            [entry.path for entry in entries],
            [entry.revision for entry in entries],
            [max(0, int((now - entry.changed) * 1000)) for entry in entries],
            [-1 if entry.details is None else len(entry.details) for entry in entries],
        )
    parts.append(_STOP)
    return _frame(kind, message_id, parts)


def encode_records(message_id: int, entries: Sequence[Kept]) -> bytes:
    """Write the frame of a GET_ALL_PULSE_FOR_PATH_RESPONSE with pulses."""
    parts = [b"\x0c\x00\x04", list_header(1, STRUCT, len(entries))]
    for entry in entries:
        path, details = entry.path, entry.details or b""
        parts += (
            _pack_field(PULSE_ID_FIELD, len(path)),
            path,
            _pack_field(DETAILS_FIELD, len(details)),
            details,
            _STOP,
        )
    parts.append(_STOP)
    return _frame(MessageType.GET_ALL_PULSE_FOR_PATH_RESPONSE, message_id, parts)


def encode_nodes(
    message_id: int,
    names: Sequence[bytes],
    kind: MessageType = MessageType.GET_ALL_NODES_FOR_PATH_RESPONSE,
) -> bytes:
    """Write the frame of a GET_ALL_NODES_FOR_PATH_RESPONSE or DELETED_RESPONSE."""
    parts = [b"\x0c\x00\x05", list_header(1, STRING, len(names))]
    for name in names:
        parts += (_pack_length(len(name)), name)
    parts.append(_STOP)
    return _frame(kind, message_id, parts)


def _append_entries(parts: list[bytes], entries: Iterable[Kept], now: float) -> None:
    for entry in entries:
        path, details = entry.path, entry.details
        parts.append(_pack_field(PATH_FIELD, len(path)))
        parts.append(path)
        if details is not None:
            parts.append(_pack_field(DETAILS_FIELD, len(details)))
            parts.append(details)
        age_ms = max(0, int((now - entry.changed) * 1000))
        parts.append(_pack_change_tail(_REVISION_FIELD, entry.revision, _AGE_FIELD, age_ms, 0))


def _frame(kind: int, message_id: int, parts: Sequence[bytes]) -> bytes:
    size = 19 + sum(map(len, parts))
    head = _pack_head(size, TYPE_FIELD, kind)
    return b"".join((head, DATA_FIELD, *parts, _STOP, _pack_tail(ID_FIELD, message_id, 0)))
