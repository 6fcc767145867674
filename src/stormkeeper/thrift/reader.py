"""Reads records in Thrift's binary protocol, from untrusted bytes.

- Announced lengths are compared with the remaining bytes before anything is allocated or
  repeated, so time and memory are linear in the input.
- A field that is unknown, or of another type, is skipped. But integers are read as i32 or i64,
  because Storm widened ``ClusterWorkerHeartbeat.time_secs`` between 2 and 3.
- Errors are an absent required field, a second member of a union, an enum value without a name, and
  a string that is not UTF-8.
- As in Storm's readers, only byte 1 is true, and bytes after the record are ignored.

thriftpy2 0.7.1 does not read safely: it returns uninitialised memory for long strings, accepts
truncated records, iterates as often as announced, and cannot read lists as keys. Every record ends
with a byte that is read, so running off the end raises `IndexError` or `struct.error`; only slices
need checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from struct import Struct, unpack_from
from struct import error as struct_error
from typing import Any, Final, TypeVar

from thriftpy2.thrift import TPayload

from stormkeeper.errors import SerializationError
from stormkeeper.thrift.idl import (
    BINARY,
    BOOL,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    Type,
    schema_of,
    wire_kind,
)

FIXED = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
#: Fewest bytes of a value, which limit a container's count.
LEAST = {**FIXED, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}

_unpack_i16 = Struct(">h").unpack_from
unpack_i32 = Struct(">i").unpack_from
_unpack_i64 = Struct(">q").unpack_from
_unpack_double = Struct(">d").unpack_from
unpack_list_header = Struct(">bi").unpack_from
unpack_map_header = Struct(">bbi").unpack_from

#: A cache for one record: for each map type the keys with their bytes; for each shared struct the
#: records by bytes, and the lengths of these.
Seen = dict[object, Any]
#: Reads a value: bytes, position and cache to the value and the position behind.
Reader = Callable[[bytes, int, Seen], tuple[Any, int]]

#: Nesting of unknown fields, as in Apache Thrift.
MAX_DEPTH: Final = 64

#: Cached keys of a type; more are read slower.
MAX_SEEN: Final = 64

#: Cached structs of a type, their different lengths, and the longest.
_MAX_SHARED: Final = 1024
_MAX_LENGTHS: Final = 4
_MAX_LENGTH: Final = 512

_PACKED = {(DOUBLE, None): "d", (I16, None): "h", (I32, None): "i", (I64, None): "q"}

#: Positions tried for the end of a record.
_MOST_ENDS: Final = 8

_field_header = Struct(">bh")

Record = TypeVar("Record", bound=TPayload)
_STRUCT_READERS: dict[type, Reader] = {}


def decode(cls: type[Record], data: bytes) -> Record:
    """Read an uncompressed record; further bytes are ignored; raise `SerializationError`.

    Equal keys, and equal structs of scalars, may be one object: copy a part before changing it.
    """
    read = _struct_reader(cls)
    try:
        record: Record = read(data, 0, {})[0]
    except MalformedError as error:
        raise SerializationError(f"not {with_article(cls)}: {error}") from None
    except (IndexError, struct_error):
        raise SerializationError(
            f"not {with_article(cls)}: ends in the middle of the record, after {len(data)} bytes"
        ) from None
    return record


def find_end(cls: type[TPayload], data: bytes, field_id: int) -> int | None:
    """Return where the end of a larger record begins, with the i32 field `field_id`, if found.

    The search skips a heartbeat's long statistics from the end.
    """
    read, header = _struct_reader(cls), _field_header.pack(I32, field_id)
    at = len(data)
    for _ in range(_MOST_ENDS):
        at = data.rfind(header, 0, at)
        if at < 0:
            break
        try:
            if read(data, at, {})[1] == len(data):
                return at
        except (MalformedError, IndexError, struct_error):
            continue
    return None


def find_field(data: bytes, field_id: int) -> tuple[int, int] | None:
    """Return a field's wire type and its value's position in an uncompressed record."""
    pos = 0
    while kind := data[pos]:
        if _field_header.unpack_from(data, pos)[1] == field_id:
            return kind, pos + 3
        pos = skip(data, pos + 3, kind, MAX_DEPTH)
    return None


def with_article(cls: type[TPayload]) -> str:
    return f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"


def _reader(of: Type) -> Reader:
    kind, detail = of
    if kind == STRUCT:
        return _shared_reader(detail) if _is_flat(detail) else _struct_reader(detail)
    if kind == MAP:
        return _map_reader(detail)
    if kind in (LIST, SET):
        return _list_reader(detail, list if kind == LIST else set)
    if kind == I32 and detail is not None:
        return _enum_reader(detail)
    return SCALAR_READERS[kind]


def _key_reader(of: Type) -> Reader:
    kind, detail = of
    return _list_reader(detail, tuple) if kind == LIST else _reader(of)


@cache
def _enum_reader(enum: type) -> Reader:
    def read(data: bytes, pos: int, _seen: Seen) -> tuple[Any, int]:
        (value,) = unpack_i32(data, pos)
        try:
            return enum(value), pos + 4
        except ValueError:
            raise MalformedError(f"{value} is no {enum.__name__}", pos) from None

    return read


@cache
def _list_reader(element: Type, collect: Callable[[Iterable[Any]], Any]) -> Reader:
    kind = wire_kind(element)
    read_element = _reader(element)
    least = LEAST[kind]
    packed = _PACKED.get(element)
    pair = Struct(f">2{packed}").unpack_from if packed else None

    def read(data: bytes, pos: int, seen: Seen) -> tuple[Any, int]:
        found, count = unpack_list_header(data, pos)
        if found != kind and count:
            raise MalformedError(f"elements of type {found} instead of {kind}", pos)
        pos += 5
        if count < 0 or count * least > len(data) - pos:
            raise bad_count(data, pos, count)
        if pair:
            numbers = pair(data, pos) if count == 2 else unpack_from(f">{count}{packed}", data, pos)
            return collect(numbers), pos + count * least
        values = []
        for _ in range(count):
            value, pos = read_element(data, pos, seen)
            values.append(value)
        return collect(values), pos

    return read


@cache
def _map_reader(of: tuple[Type, Type]) -> Reader:
    """Return the reader of a map, where decoding a heartbeat spends most time.

    A record's maps have few keys, in the same order, and no struct's encoding begins another's. So
    each known key's bytes are tried once per map.
    """
    key_kind, value_kind = (wire_kind(part) for part in of)
    least = LEAST[key_kind] + LEAST[value_kind]
    read_key, read_value = _key_reader(of[0]), _reader(of[1])
    packed = _PACKED.get(of[0][1]) if key_kind == LIST else None
    pair = Struct(f">bi2{packed}") if packed else None
    pair_header = (of[0][1][0], 2) if packed else ()
    this_type = object()

    def read(data: bytes, pos: int, seen: Seen) -> tuple[dict[Any, Any], int]:
        kind, other_kind, count = unpack_map_header(data, pos)
        if (kind != key_kind or other_kind != value_kind) and count:
            raise MalformedError(
                f"a map of types {kind}, {other_kind} instead of {key_kind}, {value_kind}", pos
            )
        pos += 6
        if count < 0 or count * least > len(data) - pos:
            raise bad_count(data, pos, count)
        entries: dict[Any, Any] = {}
        if pair:
            last_pair = len(data) - pair.size
            for _ in range(count):
                # An executor's first and last task.
                found = pair.unpack_from(data, pos) if pos <= last_pair else ()
                if found[:2] == pair_header:
                    key, pos = found[2:], pos + pair.size
                else:
                    key, pos = read_key(data, pos, seen)
                entries[key], pos = read_value(data, pos, seen)
            return entries, pos
        known = seen.get(this_type)
        if known is None:
            known = seen[this_type] = []
        candidates = iter(known)
        startswith = data.startswith
        for _ in range(count):
            for encoded, key in candidates:  # noqa: B007  (continues after the last key)
                if startswith(encoded, pos):
                    pos += len(encoded)
                    break
            else:
                start = pos
                key, pos = read_key(data, pos, seen)
                if len(known) < MAX_SEEN:
                    known.append((data[start:pos], key))
            entries[key], pos = read_value(data, pos, seen)
        return entries, pos

    return read


@cache
def _shared_reader(cls: type) -> Reader:
    """Return the reader of a struct with often equal values, cached by bytes."""
    read_anew = _struct_reader(cls)
    this_type = object()

    def read(data: bytes, pos: int, seen: Seen) -> tuple[Any, int]:
        known: tuple[dict[bytes, Any], list[int]] | None = seen.get(this_type)
        if known is None:
            known = seen[this_type] = ({}, [])
        records, lengths = known
        for length in lengths:
            record = records.get(data[pos : pos + length])
            if record is not None:
                return record, pos + length
        record, end = read_anew(data, pos, seen)
        length = end - pos
        if len(records) < _MAX_SHARED and length <= _MAX_LENGTH:
            if length not in lengths and len(lengths) < _MAX_LENGTHS:
                lengths.append(length)
            if length in lengths:
                # Made by `__init__`, the attributes need no dict, which takes twice the room.
                record = records[data[pos:end]] = cls(**vars(record))
        return record, end

    return read


def _is_flat(cls: type) -> bool:
    return all(_is_short(field.type) for field in schema_of(cls).fields)


def _is_short(of: Type) -> bool:
    kind, detail = of
    parts = detail if kind == MAP else (detail,) if kind in (LIST, SET) else ()
    return kind not in (STRUCT, BINARY) and all(part[0] in SCALAR_READERS for part in parts)


def _struct_reader(cls: type) -> Reader:
    if cls not in _STRUCT_READERS:
        _STRUCT_READERS[cls] = _new_struct_reader(cls)
    return _STRUCT_READERS[cls]


def _new_struct_reader(cls: type) -> Reader:
    schema = schema_of(cls)
    fields: dict[bytes, tuple[str, Reader]] = {}
    for field in schema.fields:
        for kind, reader in accepted(field.type):
            fields[_field_header.pack(kind, field.id)] = (field.name, reader)
    blank = dict.fromkeys(field.name for field in schema.fields)
    required = tuple((field.name, field.id) for field in schema.fields if field.required)
    union = schema.union
    new: Any = cls.__new__

    def read(data: bytes, pos: int, seen: Seen) -> tuple[Any, int]:
        record = new(cls)
        values = record.__dict__
        values.update(blank)
        begin = pos
        while kind := data[pos]:
            field = fields.get(data[pos : pos + 3])
            if field is None:
                pos = skip(data, pos + 3, kind, MAX_DEPTH)
            else:
                name, read_value = field
                values[name], pos = read_value(data, pos + 3, seen)
        for name, field_id in required:
            if values[name] is None:
                raise MalformedError(
                    f"{cls.__name__} without its required field {field_id}, {name}", begin
                )
        if union and sum(value is not None for value in values.values()) > 1:
            raise MalformedError(f"{cls.__name__} with more than one member", begin)
        return record, pos + 1

    return read


def accepted(of: Type) -> Iterable[tuple[int, Reader]]:
    kind, detail = of
    if kind in (I32, I64) and detail is None:
        return ((I32, read_i32), (I64, read_i64 if kind == I64 else _read_narrow))
    return ((wire_kind(of), _reader(of)),)


def skip(data: bytes, pos: int, kind: int, depth: int) -> int:
    """Return the position after a value."""
    if kind in FIXED:
        return pos + FIXED[kind]
    if kind == STRING:
        _, end = _read_binary(data, pos, {})
        return end
    if depth == 0:
        raise MalformedError(f"unknown fields nested deeper than {MAX_DEPTH}", pos)
    if kind == STRUCT:
        while inner := data[pos]:
            pos = skip(data, pos + 3, inner, depth - 1)
        return pos + 1
    if kind not in LEAST:
        raise MalformedError(f"a field of unknown type {kind}", pos)
    return _skip_container(data, pos, kind, depth - 1)


def _skip_container(data: bytes, pos: int, kind: int, depth: int) -> int:
    inners: list[int]
    count: int
    if kind == MAP:
        *inners, count = unpack_map_header(data, pos)
        pos += 6
    else:
        *inners, count = unpack_list_header(data, pos)
        pos += 5
    if not count:
        return pos
    for inner in inners:
        if inner not in LEAST:
            raise MalformedError(f"elements of unknown type {inner}", pos)
    if count < 0 or count * sum(LEAST[inner] for inner in inners) > len(data) - pos:
        raise bad_count(data, pos, count)
    if all(inner in FIXED for inner in inners):
        return pos + count * sum(FIXED[inner] for inner in inners)
    for _ in range(count):
        for inner in inners:
            pos = skip(data, pos, inner, depth)
    return pos


class MalformedError(Exception):
    """The bytes at a position are invalid."""

    def __init__(self, reason: str, pos: int) -> None:
        super().__init__(f"{reason} (at byte {pos})")


def bad_length(data: bytes, pos: int) -> MalformedError:
    (length,) = unpack_i32(data, pos)
    return MalformedError(f"a length of {length} with {len(data) - pos - 4} bytes left", pos)


def bad_count(data: bytes, pos: int, count: int) -> MalformedError:
    return MalformedError(f"a count of {count} with {len(data) - pos} bytes left", pos)


def _read_bool(data: bytes, pos: int, _seen: Seen) -> tuple[bool, int]:
    return data[pos] == 1, pos + 1


def _read_i16(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return _unpack_i16(data, pos)[0], pos + 2


def read_i32(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return unpack_i32(data, pos)[0], pos + 4


def read_i64(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return _unpack_i64(data, pos)[0], pos + 8


def _read_narrow(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    (value,) = _unpack_i64(data, pos)
    if not -(2**31) <= value < 2**31:
        raise MalformedError(f"{value} where an i32 belongs", pos)
    return value, pos + 8


def _read_double(data: bytes, pos: int, _seen: Seen) -> tuple[float, int]:
    return _unpack_double(data, pos)[0], pos + 8


def _read_binary(data: bytes, pos: int, _seen: Seen) -> tuple[bytes, int]:
    start = pos + 4
    end = start + unpack_i32(data, pos)[0]
    if not start <= end <= len(data):
        raise bad_length(data, pos)
    return data[start:end], end


def _read_string(data: bytes, pos: int, _seen: Seen) -> tuple[str, int]:
    start = pos + 4
    end = start + unpack_i32(data, pos)[0]
    if not start <= end <= len(data):
        raise bad_length(data, pos)
    try:
        return str(data[start:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedError("a string that is not UTF-8", start + error.start) from None


SCALAR_READERS: dict[int, Reader] = {
    BOOL: _read_bool,
    I16: _read_i16,
    I32: read_i32,
    I64: read_i64,
    DOUBLE: _read_double,
    STRING: _read_string,
    BINARY: _read_binary,
}
