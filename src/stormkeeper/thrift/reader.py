"""Reads records in Thrift's binary protocol, from bytes that anyone may have written.

The rules that hold here:

* Nothing is allocated, and nothing repeated, by a length that a value announces: every length is
  first held against the bytes that are there. Time and memory are linear in the input.
* A field that the class does not know, or knows by another type, is skipped, as everywhere in
  Thrift. The exception: an integer is read at either width, i32 or i64, because Storm widened
  ``ClusterWorkerHeartbeat.time_secs`` between 2 and 3 and so made each unreadable to the other.
  One that does not fit the field's own width is an error.
* A required field that is absent, a second member of a union, an enum value without a name and a
  string that is not UTF-8 are errors.
* A bool is true if its byte is 1, and only then; what follows the record is ignored: both as
  Storm's readers do.

thriftpy2 makes the record classes, but does not read them. As of 0.7.1 its fast protocol returns
uninitialised memory for a string that is longer than the value (nine bytes that announce 1 GiB keep
it busy for a minute), takes a truncated record for a complete one, skips the elements of a list of
an unknown type as often as the list says, and cannot read the lists that are keys in an assignment.

A reader is a closure, one for each type, made from the schema at first use. It takes the bytes, a
position and what was seen in the record so far, and returns the value and the position after it.
Positions only grow, and every record ends with a byte that is read, so running off the end always
shows as `IndexError` or `struct.error`; only slices, which would not complain, are checked.
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
from stormkeeper.thrift.scalars import (
    FIXED,
    LEAST,
    SCALAR_READERS,
    MalformedError,
    Reader,
    Seen,
    bad_count,
    read_binary,
    read_i32,
    read_i64,
    read_narrow,
    unpack_i32,
    unpack_list_header,
    unpack_map_header,
)

#: How deep unknown fields may nest (known ones are as deep as the schema): Apache Thrift's limit.
MAX_DEPTH: Final = 64

#: How many different keys of one type are remembered while a record is read. A bolt rarely has
#: more streams; with more, reading gets slower, not wrong.
MAX_SEEN: Final = 64

#: How many different structs of one type are, of how many different lengths, and of what length at
#: most. Few topologies have more workers.
_MAX_SHARED: Final = 1024
_MAX_LENGTHS: Final = 4
_MAX_LENGTH: Final = 512

#: How `struct` writes the numbers that are read many at a time.
_PACKED = {(DOUBLE, None): "d", (I16, None): "h", (I32, None): "i", (I64, None): "q"}

#: Places at which the end of a record is looked for.
_MOST_ENDS: Final = 8

_field_header = Struct(">bh")

Record = TypeVar("Record", bound=TPayload)
_STRUCT_READERS: dict[type, Reader] = {}


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
        An instance of `cls`. Equal keys in it may be one object, and so may equal structs of
        scalars: copy such a part before you change it.

    Raises
    ------
    SerializationError
        If the bytes are not such a record.
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


def decode_end(cls: type[Record], data: bytes, field_id: int) -> Record | None:
    """Read the end of a larger record, from its i32 field of that id on; None: it is not found.

    A heartbeat's statistics take most of the time of its decoding. What follows them is found from
    the end: it counts only where it ends exactly where the data do.

    Parameters
    ----------
    cls : type
        A class that has the last fields of the larger one, by the same ids.
    data : bytes
        The larger record, uncompressed, its fields in the order of their ids.
    field_id : int
        The first of these fields.
    """
    read, header = _struct_reader(cls), _field_header.pack(I32, field_id)
    at = data.rfind(header)
    for _ in range(_MOST_ENDS):
        if at < 0:
            return None
        try:
            record, end = read(data, at, {})
        except (MalformedError, IndexError, struct_error):
            pass
        else:
            if end == len(data):
                found: Record = record
                return found
        at = data.rfind(header, 0, at)
    return None


def field_kind(data: bytes, field_id: int) -> int | None:
    """Return the wire type that a record's field was written with, None where it has none.

    Parameters
    ----------
    data : bytes
        A record that `decode` reads, uncompressed.
    field_id : int
        The field's.
    """
    pos = 0
    while kind := data[pos]:
        if _field_header.unpack_from(data, pos)[1] == field_id:
            return kind
        pos = skip(data, pos + 3, kind, MAX_DEPTH)
    return None


def with_article(cls: type[TPayload]) -> str:
    """Return what a record is called in a sentence: ``an Assignment``, ``a StormBase``."""
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
    """Return the reader of a map, which takes most of the time when heartbeats are read.

    The keys of a record's statistics are few, and the same again in every window and in the same
    order. A struct's encoding is never the beginning of another one's, so where the bytes of a
    known key stand, that key is what they say. The known keys are tried in the order they were met,
    each once for each map, which also bounds what trying them in vain can cost.
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
                # Two numbers, as an executor's first and last task; all else goes the long way.
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
            for encoded, key in candidates:  # noqa: B007  (goes on from the last key's place)
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
    """Return the reader of a struct that a record may have many times, always with the same values.

    Such is the place of a worker, which is named for each of its executors. It is read once, and
    found again by its bytes, as no struct's encoding is the beginning of another one's.
    """
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
                records[data[pos:end]] = record
        return record, end

    return read


def _is_flat(cls: type) -> bool:
    """Whether a struct is made of scalars, and of containers of such, and of no long values."""
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
    """Return the wire types that a field is read from."""
    kind, detail = of
    if kind in (I32, I64) and detail is None:
        return ((I32, read_i32), (I64, read_i64 if kind == I64 else read_narrow))
    return ((wire_kind(of), _reader(of)),)


def skip(data: bytes, pos: int, kind: int, depth: int) -> int:
    """Return the position after a value of an unknown type."""
    if kind in FIXED:
        return pos + FIXED[kind]
    if kind == STRING:
        _, end = read_binary(data, pos, {})
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
