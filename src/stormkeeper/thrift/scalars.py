"""Readers of scalars in Thrift's binary protocol, and the errors of malformed bytes."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

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
)

#: Bytes of a value, for types of fixed size.
FIXED = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
#: Fewest bytes of a value, which limit the count of a container.
LEAST = {**FIXED, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}

_unpack_i16 = Struct(">h").unpack_from
unpack_i32 = Struct(">i").unpack_from
_unpack_i64 = Struct(">q").unpack_from
_unpack_double = Struct(">d").unpack_from
unpack_list_header = Struct(">bi").unpack_from
unpack_map_header = Struct(">bbi").unpack_from

#: A cache for one record: for each map type its keys with their bytes; for each shared struct its
#: records by bytes, and the lengths of these.
Seen = dict[object, Any]
#: Reads a value: bytes, position and cache to the value and the position after it.
Reader = Callable[[bytes, int, Seen], tuple[Any, int]]


class MalformedError(Exception):
    """The bytes at a position are invalid."""

    def __init__(self, reason: str, pos: int) -> None:
        super().__init__(f"{reason} (at byte {pos})")


def bad_length(data: bytes, pos: int) -> MalformedError:
    """Return the error for a value longer than the remaining bytes."""
    (length,) = unpack_i32(data, pos)
    return MalformedError(f"a length of {length} with {len(data) - pos - 4} bytes left", pos)


def bad_count(data: bytes, pos: int, count: int) -> MalformedError:
    """Return the error for more elements than the remaining bytes can hold."""
    return MalformedError(f"a count of {count} with {len(data) - pos} bytes left", pos)


def _read_bool(data: bytes, pos: int, _seen: Seen) -> tuple[bool, int]:
    return data[pos] == 1, pos + 1


def _read_i16(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    return _unpack_i16(data, pos)[0], pos + 2


def read_i32(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    """Read an i32."""
    return unpack_i32(data, pos)[0], pos + 4


def read_i64(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    """Read an i64."""
    return _unpack_i64(data, pos)[0], pos + 8


def read_narrow(data: bytes, pos: int, _seen: Seen) -> tuple[int, int]:
    """Read an i64 as an i32."""
    (value,) = _unpack_i64(data, pos)
    if not -(2**31) <= value < 2**31:
        raise MalformedError(f"{value} where an i32 belongs", pos)
    return value, pos + 8


def _read_double(data: bytes, pos: int, _seen: Seen) -> tuple[float, int]:
    return _unpack_double(data, pos)[0], pos + 8


def read_binary(data: bytes, pos: int, _seen: Seen) -> tuple[bytes, int]:
    """Read bytes, with their length in four bytes before them."""
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
    BINARY: read_binary,
}
