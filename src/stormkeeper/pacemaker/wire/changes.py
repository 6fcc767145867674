"""Encoding and decoding of requests for changes and of pages of changes.

A page with values is a list of changes. Stormkeeper's servers write each change in one exact shape,
which is decoded without walking the fields. A page without values has columns: the paths as one
text, and a list per number, so tens of thousands of rows are decoded at once.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct, pack
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
    binary_field,
    boolean_field,
    i32_field,
    i64_field,
    list_header,
    text_field,
)
from stormkeeper.pacemaker.wire.messages import TOMBSTONE, Changes, ChangesRequest, Columns

_PATH_FIELD: Final = b"\x0b\x00\x01"
_DETAILS_FIELD: Final = b"\x0b\x00\x02"
_REVISION_FIELD: Final = b"\x0a\x00\x03"
_AGE_FIELD: Final = b"\x0a\x00\x04"
# Bytes of a header with a length, and of a change after its path and value.
_HEADER: Final = 7
_TAIL: Final = 23
_header: Final = Struct(">3si")
_tail: Final = Struct(">3sq3sqB")

_Row = tuple[str, bytes | None, int, int]

#: Fields of a page without values, in the order of `Columns`.
_COLUMNS: Final[dict[tuple[int, int], Callable[[BinaryReader], Any]]] = {
    (STRING, 7): lambda reader: reader.text("paths of changes"),
    (LIST, 8): lambda reader: reader.numbers(I64, "revisions of changes"),
    (LIST, 9): lambda reader: reader.numbers(I64, "ages of changes"),
    (LIST, 10): lambda reader: reader.numbers(I32, "sizes of changes"),
}
#: Separator of paths: servers refuse paths with control characters.
_BETWEEN_PATHS: Final = "\0"


def write_changes_request(request: ChangesRequest) -> list[bytes]:
    """Write the fields of a ``ChangesRequest``; raises `struct.error` on overflow."""
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


def write_changes(
    instance: str,
    revision: int,
    columns: Columns[bytes],
    *,
    more: bool,
    reset: bool,
    next_after: int,
) -> list[bytes]:
    """Write the fields of a ``Changes``; raises `struct.error` on overflow."""
    details = columns.details
    parts = [
        text_field(1, instance),
        i64_field(2, revision),
        list_header(3, STRUCT, 0 if details is None else len(details)),
    ]
    if details is not None:
        _append_changes(parts, columns, details)
    parts += [boolean_field(4, more), boolean_field(5, reset), i64_field(6, next_after)]
    if details is None:
        _append_columns(parts, columns)
    return parts


def _append_changes(
    parts: list[bytes], columns: Columns[bytes], values: Iterable[bytes | None]
) -> None:
    paths, revisions, ages_ms = columns.paths, columns.revisions, columns.ages_ms
    for path, details, revision, age_ms in zip(paths, values, revisions, ages_ms, strict=True):
        parts.append(_header.pack(_PATH_FIELD, len(path)))
        parts.append(path)
        if details is not None:
            parts.append(_header.pack(_DETAILS_FIELD, len(details)))
            parts.append(details)
        parts.append(_tail.pack(_REVISION_FIELD, revision, _AGE_FIELD, age_ms, STOP))


def _append_columns(parts: list[bytes], columns: Columns[bytes]) -> None:
    count = len(columns.paths)
    parts += [
        binary_field(7, _BETWEEN_PATHS.encode().join(columns.paths)),
        list_header(8, I64, count),
        pack(f">{count}q", *columns.revisions),
        list_header(9, I64, count),
        pack(f">{count}q", *columns.ages_ms),
        list_header(10, I32, count),
        pack(f">{count}i", *columns.sizes),
    ]


def read_changes_request(reader: BinaryReader) -> ChangesRequest:
    """Read a ``ChangesRequest``; raises `RemoteProtocolError` without a path."""
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
    """Read a ``Changes``; raises `RemoteProtocolError` if a required field is missing."""
    instance: str | None = None
    columns = Columns[str]([], [], [], [], [])
    fields: dict[tuple[int, int], Any] = {}
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
    texts = paths.split(_BETWEEN_PATHS) if revisions else []
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
    """Read the change at `position` in the exact shape; return row and end."""
    last = len(data) - _TAIL
    if position + _HEADER > last:
        return None
    field, length = _header.unpack_from(data, position)
    position += _HEADER
    end = position + length
    if field != _PATH_FIELD or length < 0 or end > last:
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
        if field != _DETAILS_FIELD or length < 0 or end > last:
            return None
        details = data[position:end]
    revision_field, revision, age_field, age_ms, stop = _tail.unpack_from(data, end)
    if revision_field != _REVISION_FIELD or age_field != _AGE_FIELD or stop != STOP:
        return None
    return (path, details, revision, age_ms), end + _TAIL


def _read_change(reader: BinaryReader) -> _Row:
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
    return path, details, revision, age_ms
