"""Writes records in Thrift's binary protocol, for a release of Storm.

A value that does not fit its field raises an error with its path. Records built alike give equal
bytes: fields are in the IDL's order, maps in their own order, sets sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from thriftpy2.thrift import TPayload

from stormkeeper.errors import SerializationError
from stormkeeper.thrift.idl import (
    BINARY,
    BOOL,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    Field,
    Type,
    schema_of,
    wire_kind,
)
from stormkeeper.thrift.reader import decode, find_field

_i16, _i32, _i64, _double = Struct(">h"), Struct(">i"), Struct(">q"), Struct(">d")
_field_header, _list_header, _map_header = Struct(">bh"), Struct(">bi"), Struct(">bbi")

Writer = Callable[[Any, list[bytes]], None]

#: Remembered keys of each field that is a map.
_MOST_KEYS: Final = 4096


class Release(Enum):
    """The release of Storm that reads a record.

    ``ClusterWorkerHeartbeat.time_secs`` is i32 in Storm 2 and i64 in Storm 3, and each refuses the
    other's heartbeats.
    """

    STORM_2 = 2
    STORM_3 = 3


class _UnfitError(Exception):
    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


def encode(record: TPayload, release: Release = Release.STORM_2) -> bytes:
    """Encode a record without the fields that are None; raise `SerializationError`.

    Values must fit their field's type and range; required fields need a value, and a union one
    member.
    """
    out: list[bytes] = []
    try:
        _struct_writer(type(record), release)(record, out)
    except _UnfitError as error:
        where = f".{error.path}" if error.path else ""
        raise SerializationError(f"{type(record).__name__}{where}: {error.reason}") from None
    return b"".join(out)


class Encoded:
    """An encoded record in parts, which the writer copies where it takes a record of that class."""

    __slots__ = ("cls", "parts")

    def __init__(self, cls: type[TPayload], *parts: bytes) -> None:
        self.cls = cls
        self.parts = parts

    def decoded(self) -> Any:
        """Return the record, for callers in the same process."""
        return decode(self.cls, b"".join(self.parts))


def encode_around(record: TPayload, name: str) -> tuple[bytes, bytes]:
    """Return an encoded record's bytes before and after the value of its i32 field `name`."""
    data = encode(record)
    (field_id,) = (each.id for each in schema_of(type(record)).fields if each.name == name)
    found = find_field(data, field_id)
    if found is None or found[0] != I32:
        raise SerializationError(f"{type(record).__name__}.{name} has no i32")
    return data[: found[1]], data[found[1] + 4 :]


def _type_name(value: object) -> str:
    return type(value).__name__


def _integer_writer(form: Struct, name: str) -> Writer:
    def write(value: Any, out: list[bytes]) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _UnfitError(f"must be an int, not {_type_name(value)}")
        try:
            out.append(form.pack(value))
        except struct_error:
            raise _UnfitError(f"{value} does not fit {name}") from None

    return write


def _write_bool(value: Any, out: list[bytes]) -> None:
    if not isinstance(value, bool):
        raise _UnfitError(f"must be a bool, not {_type_name(value)}")
    out.append(b"\x01" if value else b"\x00")


def _write_double(value: Any, out: list[bytes]) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _UnfitError(f"must be a float, not {_type_name(value)}")
    try:
        out.append(_double.pack(float(value)))
    except OverflowError:
        raise _UnfitError("an int that is too large for a double") from None


def _write_bytes(value: bytes, out: list[bytes]) -> None:
    try:
        out.append(_i32.pack(len(value)))
    except struct_error:
        raise _UnfitError(f"{len(value)} bytes are more than Thrift can write") from None
    out.append(value)


def _write_string(value: Any, out: list[bytes]) -> None:
    if not isinstance(value, str):
        raise _UnfitError(f"must be a str, not {_type_name(value)}")
    try:
        _write_bytes(value.encode(), out)
    except UnicodeEncodeError as error:
        raise _UnfitError(f"cannot be written as UTF-8: {error.reason}") from None


def _write_binary(value: Any, out: list[bytes]) -> None:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _UnfitError(f"must be bytes, not {_type_name(value)}")
    _write_bytes(bytes(value), out)


_SCALAR_WRITERS: dict[int, Writer] = {
    BOOL: _write_bool,
    I16: _integer_writer(_i16, "i16"),
    I32: _integer_writer(_i32, "i32"),
    I64: _integer_writer(_i64, "i64"),
    DOUBLE: _write_double,
    STRING: _write_string,
    BINARY: _write_binary,
}


def _writer(of: Type, release: Release) -> Writer:
    kind, detail = of
    if kind == STRUCT:
        return _struct_writer(detail, release)
    if kind == MAP:
        return _map_writer(detail, release)
    if kind == LIST:
        return _list_writer(detail, release)
    if kind == SET:
        return _set_writer(detail, release)
    if kind == I32 and detail is not None:
        return _enum_writer(detail)
    return _SCALAR_WRITERS[kind]


def _enum_writer(enum: type) -> Writer:
    def write(value: Any, out: list[bytes]) -> None:
        try:
            member = enum(value)
        except ValueError:
            raise _UnfitError(f"{value!r} is no {enum.__name__}") from None
        out.append(_i32.pack(member))

    return write


def _list_writer(element: Type, release: Release) -> Writer:
    write_elements = _elements_writer(element, release)

    def write(value: Any, out: list[bytes]) -> None:
        if not isinstance(value, list | tuple):
            raise _UnfitError(f"must be a list or tuple, not {_type_name(value)}")
        write_elements(value, out)

    return write


def _set_writer(element: Type, release: Release) -> Writer:
    write_elements = _elements_writer(element, release)

    def write(value: Any, out: list[bytes]) -> None:
        if not isinstance(value, set | frozenset):
            raise _UnfitError(f"must be a set, not {_type_name(value)}")
        try:
            ordered = sorted(value)
        except TypeError:
            raise _UnfitError("a set of values of different types") from None
        write_elements(ordered, out)

    return write


def _elements_writer(element: Type, release: Release) -> Writer:
    kind = wire_kind(element)
    write_element = _writer(element, release)

    def write(values: Any, out: list[bytes]) -> None:
        out.append(_list_header.pack(kind, len(values)))
        for value in values:
            write_element(value, out)

    return write


def _map_writer(of: tuple[Type, Type], release: Release) -> Writer:
    key, value = of
    kinds = (wire_kind(key), wire_kind(value))
    encoded_key, write_value = _key_encoder(key, release), _writer(value, release)

    def write(entries: Any, out: list[bytes]) -> None:
        if not isinstance(entries, Mapping):
            raise _UnfitError(f"must be a dict, not {_type_name(entries)}")
        out.append(_map_header.pack(*kinds, len(entries)))
        last, start, again = None, 0, b""
        for entry_key, entry_value in entries.items():
            out.append(encoded_key(entry_key))
            if entry_value is last and last is not None:
                # The executors of a worker have the same slot.
                again = again or b"".join(out[start:-1])
                out.append(again)
                continue
            start, again = len(out), b""
            write_value(entry_value, out)
            last = entry_value

    return write


def _key_encoder(of: Type, release: Release) -> Callable[[Any], bytes]:
    write = _writer(of, release)

    def encoded(key: Any) -> bytes:
        out: list[bytes] = []
        write(key, out)
        return b"".join(out)

    # Many records have the same executors and components as keys; a struct may change.
    return encoded if of[0] == STRUCT else lru_cache(_MOST_KEYS)(encoded)


@cache
def _struct_writer(cls: type, release: Release) -> Writer:
    schema = schema_of(cls)
    fields = []
    for field in schema.fields:
        of = _written_type(field, release)
        header = _field_header.pack(wire_kind(of), field.id)
        fields.append((field.name, field.required, header, _writer(of, release)))

    def write(record: Any, out: list[bytes]) -> None:
        if type(record) is not cls:
            if type(record) is Encoded and record.cls is cls:
                out.extend(record.parts)
                return
            raise _UnfitError(f"must be of class {cls.__name__}, not {_type_name(record)}")
        members = 0
        for name, is_required, header, write_value in fields:
            value = getattr(record, name)
            if value is None:
                if is_required:
                    raise _UnfitError("is required, but None", path=name)
                continue
            members += 1
            out.append(header)
            try:
                write_value(value, out)
            except _UnfitError as error:
                path = f"{name}.{error.path}" if error.path else name
                raise _UnfitError(error.reason, path=path) from None
        if schema.union and members != 1:
            raise _UnfitError(f"{schema.name} must have exactly one member, has {members}")
        out.append(b"\x00")

    return write


def _written_type(field: Field, release: Release) -> Type:
    if release is Release.STORM_2 and field.storm2 is not None:
        return field.storm2
    return field.type
