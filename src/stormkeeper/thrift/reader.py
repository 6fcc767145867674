"""Reads records in Thrift's binary protocol, from bytes that anyone may have written.

The rules that hold here:

* Nothing is allocated, and nothing repeated, by a length that a value announces: every length is
  first held against the bytes that are there. Time and memory are linear in the input.
* A field that the class does not know, or knows by another type, is skipped, as everywhere in
  Thrift. The exception: an integer is read at either width, i32 or i64, because Storm widened
  ``ClusterWorkerHeartbeat.time_secs`` between 2 and 3 and so made each unreadable to the other.
* A required field that is absent, a second member of a union, an enum value without a name and a
  string that is not UTF-8 are errors.
* A bool is true if its byte is 1, and only then; what follows the record is ignored: both as
  Storm's readers do.

thriftpy2 makes the record classes, but does not read them. As of 0.7.1 its fast protocol returns
uninitialised memory for a string that is longer than the value (nine bytes that announce 1 GiB keep
it busy for a minute), takes a truncated record for a complete one, skips the elements of a list of
an unknown type as often as the list says, and cannot read the lists that are keys in an assignment.

A reader is a closure, one for each type, made from the schema at first use. It takes the bytes, a
position and the keys seen so far, and returns the value and the position after it. Positions only
grow, and every record ends with a byte that is read, so running off the end always shows as
`IndexError` or `struct.error`; only slices, which would not complain, are checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from struct import Struct
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

#: How deep unknown fields may nest (known ones are as deep as the schema): Apache Thrift's limit.
MAX_DEPTH: Final = 64

#: How many different keys of one type are remembered while a record is read. A bolt rarely has
#: more streams; with more, reading gets slower, not wrong.
_MAX_KEYS_SEEN: Final = 64

#: The bytes that a value of a type has, where they are always as many.
_FIXED = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
#: The bytes that a value of a type has at least: what a container's count is held against.
_LEAST = {**_FIXED, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}

_field_header = Struct(">bh")
_unpack_i16 = Struct(">h").unpack_from
_unpack_i32 = Struct(">i").unpack_from
_unpack_i64 = Struct(">q").unpack_from
_unpack_double = Struct(">d").unpack_from
_unpack_list_header = Struct(">bi").unpack_from
_unpack_map_header = Struct(">bbi").unpack_from

Record = TypeVar("Record", bound=TPayload)
#: For every type of map, the keys met so far: the bytes and the value of each.
Seen = defaultdict[object, list[tuple[bytes, Any]]]
#: Reads one value: returns it and the position after it.
Reader = Callable[[bytes, int, Seen], tuple[Any, int]]
_STRUCT_READERS: dict[type, Reader] = {}


class _MalformedError(Exception):
    """The bytes at a position are not what they should be."""

    def __init__(self, reason: str, pos: int) -> None:
        super().__init__(f"{reason} (at byte {pos})")


def decode(cls: type[Record], data: bytes) -> Record:
    """Read a record.

    Parameters
    ----------
    cls : type
        A class of `stormkeeper.thrift.records` or `stormkeeper.thrift.pacemaker`.
    data : bytes
        The record, uncompressed; what follows it is ignored.

    Returns
    -------
    Record
        An instance of `cls`. Equal keys in it may be one object.

    Raises
    ------
    SerializationError
        If the bytes are not such a record.
    """
    read = _struct_reader(cls)
    try:
        record: Record = read(data, 0, defaultdict(list))[0]
    except _MalformedError as error:
        raise SerializationError(f"not a {cls.__name__}: {error}") from None
    except (IndexError, struct_error):
        raise SerializationError(
            f"not a {cls.__name__}: ends in the middle of the record, after {len(data)} bytes"
        ) from None
    return record


def _read_bool(data: bytes, pos: int, _seen: Seen) -> tuple[bool, int]:
    return data[pos] == 1, pos + 1


def _read_i16(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return _unpack_i16(data, pos)[0], pos + 2


def _read_i32(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return _unpack_i32(data, pos)[0], pos + 4


def _read_i64(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return _unpack_i64(data, pos)[0], pos + 8


def _read_double(data: bytes, pos: int, _seen: Seen) -> tuple[float, int]:
    return _unpack_double(data, pos)[0], pos + 8


def _read_binary(data: bytes, pos: int, _seen: Seen) -> tuple[bytes, int]:
    start = pos + 4
    end = start + _unpack_i32(data, pos)[0]
    if not start <= end <= len(data):
        raise _bad_length(data, pos)
    return data[start:end], end


def _read_string(data: bytes, pos: int, _seen: Seen) -> tuple[str, int]:
    start = pos + 4
    end = start + _unpack_i32(data, pos)[0]
    if not start <= end <= len(data):
        raise _bad_length(data, pos)
    try:
        return str(data[start:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise _MalformedError("a string that is not UTF-8", start + error.start) from None


_SCALAR_READERS: dict[int, Reader] = {
    BOOL: _read_bool,
    I16: _read_i16,
    I32: _read_i32,
    I64: _read_i64,
    DOUBLE: _read_double,
    STRING: _read_string,
    BINARY: _read_binary,
}


def _bad_length(data: bytes, pos: int) -> _MalformedError:
    (length,) = _unpack_i32(data, pos)
    return _MalformedError(f"a length of {length} with {len(data) - pos - 4} bytes left", pos)


def _bad_count(data: bytes, pos: int, count: int) -> _MalformedError:
    return _MalformedError(f"a count of {count} with {len(data) - pos} bytes left", pos)


def _reader(of: Type) -> Reader:
    kind, detail = of
    if kind == STRUCT:
        return _struct_reader(detail)
    if kind == MAP:
        return _map_reader(detail)
    if kind in (LIST, SET):
        return _list_reader(detail, list if kind == LIST else set)
    if kind == I32 and detail is not None:
        return _enum_reader(detail)
    return _SCALAR_READERS[kind]


def _key_reader(of: Type) -> Reader:
    kind, detail = of
    return _list_reader(detail, tuple) if kind == LIST else _reader(of)


@cache
def _enum_reader(enum: type) -> Reader:
    def read(data: bytes, pos: int, _seen: Seen) -> tuple[Any, int]:
        (value,) = _unpack_i32(data, pos)
        try:
            return enum(value), pos + 4
        except ValueError:
            raise _MalformedError(f"{value} is no {enum.__name__}", pos) from None

    return read


@cache
def _list_reader(element: Type, collect: Callable[[list[Any]], Any]) -> Reader:
    kind = wire_kind(element)
    read_element = _reader(element)
    least = _LEAST[kind]

    def read(data: bytes, pos: int, seen: Seen) -> tuple[Any, int]:
        found, count = _unpack_list_header(data, pos)
        if found != kind and count:
            raise _MalformedError(f"elements of type {found} instead of {kind}", pos)
        pos += 5
        if count < 0 or count * least > len(data) - pos:
            raise _bad_count(data, pos, count)
        values = []
        for _ in range(count):
            value, pos = read_element(data, pos, seen)
            values.append(value)
        return collect(values), pos

    return read


@cache
def _map_reader(of: tuple[Type, Type]) -> Reader:
    """Return the reader of a map: the place where the time goes when heartbeats are read.

    The keys of a record's statistics are few, and the same again in every window and in the same
    order. A struct's encoding is never the beginning of another one's, so where the bytes of a
    known key stand, that key is what they say. The known keys are tried in the order they were met,
    each once for each map, which also bounds what trying them in vain can cost.
    """
    key_kind, value_kind = (wire_kind(part) for part in of)
    least = _LEAST[key_kind] + _LEAST[value_kind]
    read_key, read_value = _key_reader(of[0]), _reader(of[1])
    this_type = object()

    def read(data: bytes, pos: int, seen: Seen) -> tuple[dict[Any, Any], int]:
        kind, other_kind, count = _unpack_map_header(data, pos)
        if (kind != key_kind or other_kind != value_kind) and count:
            raise _MalformedError(
                f"a map of types {kind}, {other_kind} instead of {key_kind}, {value_kind}", pos
            )
        pos += 6
        if count < 0 or count * least > len(data) - pos:
            raise _bad_count(data, pos, count)
        known = seen[this_type]
        candidates = iter(known)
        startswith = data.startswith
        entries: dict[Any, Any] = {}
        for _ in range(count):
            for encoded, key in candidates:  # noqa: B007  (goes on from the last key's place)
                if startswith(encoded, pos):
                    pos += len(encoded)
                    break
            else:
                start = pos
                key, pos = read_key(data, pos, seen)
                if len(known) < _MAX_KEYS_SEEN:
                    known.append((data[start:pos], key))
            entries[key], pos = read_value(data, pos, seen)
        return entries, pos

    return read


def _struct_reader(cls: type) -> Reader:
    if cls not in _STRUCT_READERS:
        _STRUCT_READERS[cls] = _new_struct_reader(cls)
    return _STRUCT_READERS[cls]


def _new_struct_reader(cls: type) -> Reader:
    schema = schema_of(cls)
    fields: dict[bytes, tuple[str, Reader]] = {}
    for field in schema.fields:
        for kind, reader in _accepted(field.type):
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
                pos = _skip(data, pos + 3, kind, MAX_DEPTH)
            else:
                name, read_value = field
                values[name], pos = read_value(data, pos + 3, seen)
        for name, field_id in required:
            if values[name] is None:
                raise _MalformedError(
                    f"{cls.__name__} without its required field {field_id}, {name}", begin
                )
        if union and sum(value is not None for value in values.values()) > 1:
            raise _MalformedError(f"{cls.__name__} with more than one member", begin)
        return record, pos + 1

    return read


def _accepted(of: Type) -> Iterable[tuple[int, Reader]]:
    """Return the wire types that a field is read from."""
    kind, detail = of
    if kind in (I32, I64) and detail is None:
        return ((I32, _read_i32), (I64, _read_i64))
    return ((wire_kind(of), _reader(of)),)


def _skip(data: bytes, pos: int, kind: int, depth: int) -> int:
    """Return the position after a value of a type that nobody asked for."""
    if kind in _FIXED:
        return pos + _FIXED[kind]
    if kind == STRING:
        _, end = _read_binary(data, pos, defaultdict(list))
        return end
    if depth == 0:
        raise _MalformedError(f"unknown fields nested deeper than {MAX_DEPTH}", pos)
    if kind == STRUCT:
        while inner := data[pos]:
            pos = _skip(data, pos + 3, inner, depth - 1)
        return pos + 1
    if kind not in _LEAST:
        raise _MalformedError(f"a field of unknown type {kind}", pos)
    return _skip_container(data, pos, kind, depth - 1)


def _skip_container(data: bytes, pos: int, kind: int, depth: int) -> int:
    inners: list[int]
    count: int
    if kind == MAP:
        *inners, count = _unpack_map_header(data, pos)
        pos += 6
    else:
        *inners, count = _unpack_list_header(data, pos)
        pos += 5
    if not count:
        return pos
    for inner in inners:
        if inner not in _LEAST:
            raise _MalformedError(f"elements of unknown type {inner}", pos)
    if count < 0 or count * sum(_LEAST[inner] for inner in inners) > len(data) - pos:
        raise _bad_count(data, pos, count)
    if all(inner in _FIXED for inner in inners):
        return pos + count * sum(_FIXED[inner] for inner in inners)
    for _ in range(count):
        for inner in inners:
            pos = _skip(data, pos, inner, depth)
    return pos
