"""Reads the members of our extensions: requests for pages of pulses, and the pages.

A page holds hundreds of pulses, each of which our servers write in one exact shape. That is read
without walking the fields; any other order of fields takes the general way.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from struct import Struct
from typing import Any, Final

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
from stormkeeper.pacemaker.wire.encoding import DETAILS_FIELD, PATH_FIELD
from stormkeeper.pacemaker.wire.messages import (
    Change,
    Changes,
    ChangesRequest,
)

_REVISION_FIELD: Final = b"\x0a\x00\x03"
_AGE_FIELD: Final = b"\x0a\x00\x04"
#: What reads each of the lists of a page without values, in the order of `Change`.
_COLUMNS: Final[dict[int, Callable[[BinaryReader], Sequence[Any]]]] = {
    7: lambda reader: reader.texts("paths of changes"),
    8: lambda reader: reader.numbers(I64, "revisions of changes"),
    9: lambda reader: reader.numbers(I64, "ages of changes"),
    10: lambda reader: reader.numbers(I32, "sizes of changes"),
}
_HEADER: Final = 7
_TAIL: Final = 23
_unpack_header: Final = Struct(">3si").unpack_from
_unpack_tail: Final = Struct(">3sq3sqB").unpack_from


def read_changes_request(reader: BinaryReader) -> ChangesRequest:
    """Read a ``ChangesRequest``; `RemoteProtocolError` if it has no path."""
    path: str | None = None
    instance: str | None = None
    after = limit = 0
    values = True
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            break
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


def read_changes(reader: BinaryReader) -> Changes:
    """Read a ``Changes``; `RemoteProtocolError` if it, or one of its changes, is not whole."""
    instance: str | None = None
    changes: list[Change] = []
    columns: dict[int, Sequence[Any]] = {}
    revision = after = 0
    more = reset = False
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            break
        if field_id == 1 and kind == STRING:
            instance = reader.text("instance")
        elif field_id == 2 and kind == I64:
            revision = reader.i64()
        elif field_id == 3 and kind == LIST:
            changes = _read_list(reader, "changes")
        elif field_id == 4 and kind == BOOL:
            more = reader.boolean()
        elif field_id == 5 and kind == BOOL:
            reset = reader.boolean()
        elif field_id == 6 and kind == I64:
            after = reader.i64()
        elif field_id in _COLUMNS and kind == LIST:
            columns[field_id] = _COLUMNS[field_id](reader)
        else:
            reader.skip(kind)
    if instance is None:
        raise RemoteProtocolError("changes without the server's instance")
    if columns:
        changes = _rows(*(columns.get(column, ()) for column in _COLUMNS))
    return Changes(instance, revision, changes, more, reset, after)


def _rows(
    paths: Sequence[str], revisions: Sequence[int], ages: Sequence[int], sizes: Sequence[int]
) -> list[Change]:
    """Make changes without values of the columns of a page."""
    if not len(paths) == len(revisions) == len(ages) == len(sizes):
        raise RemoteProtocolError("changes whose lists have not one length")
    known = [None if size < 0 else size for size in sizes]
    return list(map(Change, paths, repeat(None), revisions, ages, known))


def _read_list(reader: BinaryReader, what: str) -> list[Change]:
    changes: list[Change] = []
    for _ in range(reader.elements(STRUCT, what)):
        data, position = reader.rest()
        exact = _match_change(data, position)
        if exact is None:
            changes.append(_read_change(reader))
        else:
            change, position = exact
            changes.append(change)
            reader.seek(position)
    return changes


def _match_change(data: bytes, position: int) -> tuple[Change, int] | None:
    """Read the change at `position` in the one shape that our servers write, and where it ends."""
    last = len(data) - _TAIL
    if position + _HEADER > last:
        return None
    field, length = _unpack_header(data, position)
    position += _HEADER
    end = position + length
    if field != PATH_FIELD or length < 0 or end > last:
        return None
    try:
        path = data[position:end].decode()
    except UnicodeDecodeError:
        return None  # the general way says what is wrong
    details: bytes | None = None
    if data[end] == STRING:
        field, length = _unpack_header(data, end)
        position = end + _HEADER
        end = position + length
        if field != DETAILS_FIELD or length < 0 or end > last:
            return None
        details = data[position:end]
    revision_field, revision, age_field, age_ms, stop = _unpack_tail(data, end)
    if revision_field != _REVISION_FIELD or age_field != _AGE_FIELD or stop != STOP:
        return None
    size = None if details is None else len(details)
    return Change(path, details, revision, age_ms, size), end + _TAIL


def _read_change(reader: BinaryReader) -> Change:
    path: str | None = None
    details: bytes | None = None
    revision = age_ms = 0
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            break
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
    return Change(path, details, revision, age_ms, None if details is None else len(details))
