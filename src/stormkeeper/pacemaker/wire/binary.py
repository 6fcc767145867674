"""Thrift's binary protocol: fields to write, and a strict reader of one frame.

The rules that hold in the reader:

- No read passes the end of the frame; a length that announces more is the sender's fault.
- Nothing is allocated by a length or a count that the sender announced, only by bytes that came.
- What we do not know is skipped, but not without end: nesting is limited, and a reader can be
  given a budget of values, since a frame of ten million one-byte values is ten seconds of work.

Source: the Apache Thrift specification, "Thrift Binary protocol encoding".
"""

from struct import Struct, unpack_from
from typing import Final

from stormkeeper.errors import RemoteProtocolError

STOP: Final = 0
BOOL: Final = 2
BYTE: Final = 3
DOUBLE: Final = 4
I16: Final = 6
I32: Final = 8
I64: Final = 10
STRING: Final = 11
STRUCT: Final = 12
MAP: Final = 13
SET: Final = 14
LIST: Final = 15
UUID: Final = 16

#: Size in bytes of each type whose values all have one size.
_FIXED_SIZES: Final[dict[int, int]] = {
    BOOL: 1,
    BYTE: 1,
    DOUBLE: 8,
    I16: 2,
    I32: 4,
    I64: 8,
    UUID: 16,
}

#: What `struct` calls the numbers that are read by the list.
_LETTERS: Final = {I32: "i", I64: "q"}

#: Structs and containers within each other that are followed; Thrift's own readers stop at 64.
MAX_NESTING: Final = 64

#: Stands for "as many values as fit": a frame of the largest i32 length has no more.
UNLIMITED_VALUES: Final = 0x7FFFFFFF

_pack_boolean: Final = Struct(">Bh?").pack
_pack_i32: Final = Struct(">Bhi").pack
_pack_i64: Final = Struct(">Bhq").pack
_pack_list: Final = Struct(">BhBi").pack
_FIELD_ID: Final = Struct(">h").unpack_from
_I32: Final = Struct(">i").unpack_from
_I64: Final = Struct(">q").unpack_from


def boolean_field(field_id: int, value: bool) -> bytes:
    """Write a field of type bool."""
    return _pack_boolean(BOOL, field_id, value)


def i32_field(field_id: int, value: int) -> bytes:
    """Write a field of type i32; `struct.error` if `value` is not one."""
    return _pack_i32(I32, field_id, value)


def i64_field(field_id: int, value: int) -> bytes:
    """Write a field of type i64; `struct.error` if `value` is not one."""
    return _pack_i64(I64, field_id, value)


def binary_field(field_id: int, value: bytes) -> bytes:
    """Write a field of type binary."""
    return _pack_i32(STRING, field_id, len(value)) + value


def text_field(field_id: int, value: str) -> bytes:
    """Write a field of type string; `UnicodeEncodeError` if `value` has lone surrogates."""
    return binary_field(field_id, value.encode())


def list_header(field_id: int, element: int, count: int) -> bytes:
    """Write the header of a list field: `count` elements of type `element` must follow."""
    return _pack_list(LIST, field_id, element, count)


class BinaryReader:
    """Reads Thrift values one after another.

    Parameters
    ----------
    data
        The frame's bytes, without its length.
    max_values
        Fields and skipped elements that may be read in all.
    text_errors
        What becomes of a text that is not UTF-8, as `bytes.decode` has it.

    Every method raises `RemoteProtocolError` when the bytes are not what Thrift writes.
    """

    __slots__ = ("_data", "_end", "_pos", "_text_errors", "_values_left")

    def __init__(
        self, data: bytes, max_values: int = UNLIMITED_VALUES, *, text_errors: str = "strict"
    ) -> None:
        self._data = data
        self._text_errors = text_errors
        self._end = len(data)
        self._pos = 0
        self._values_left = max_values

    def field(self) -> tuple[int, int]:
        """Read a field's header: its type and id, or ``(STOP, 0)`` at the end of the struct."""
        kind = self._byte()
        if kind == STOP:
            return STOP, 0
        self._spend(1)
        return kind, _FIELD_ID(self._data, self._advance(2))[0]

    def boolean(self) -> bool:
        """Read a bool."""
        return self._byte() != 0

    def i32(self) -> int:
        """Read a signed 32-bit integer."""
        value: int = _I32(self._data, self._advance(4))[0]
        return value

    def i64(self) -> int:
        """Read a signed 64-bit integer."""
        value: int = _I64(self._data, self._advance(8))[0]
        return value

    def binary(self) -> bytes:
        """Read a length and that many bytes."""
        start = self._advance(self._length("string"))
        return self._data[start : self._pos]

    def text(self, what: str) -> str:
        """Read a string; `what` names it should it not be UTF-8."""
        raw = self.binary()
        try:
            return raw.decode("utf-8", self._text_errors)
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{what} is not UTF-8: {error}") from error

    def sequence(self) -> tuple[int, int]:
        """Read the header of a list or set: the type of its elements and their number."""
        kind = self._byte()
        return kind, self._length("list")

    def elements(self, wanted: int, what: str) -> int:
        """Read the header of a list of `wanted` elements, called `what`; return their number."""
        kind, count = self.sequence()
        if kind != wanted and count:
            raise RemoteProtocolError(f"{what} of Thrift type {kind} where {wanted} is due")
        return count

    def numbers(self, wanted: int, what: str) -> tuple[int, ...]:
        """Read a list of numbers of type `wanted`, `I32` or `I64`, called `what`."""
        count = self.elements(wanted, what)
        start = self._advance(count * _FIXED_SIZES[wanted])
        return unpack_from(f">{count}{_LETTERS[wanted]}", self._data, start)

    def rest(self) -> tuple[bytes, int]:
        """Return the whole frame and where in it the next value begins, for who reads at once."""
        return self._data, self._pos

    def seek(self, position: int) -> None:
        """Go on at `position`, up to which somebody has read what `rest` gave."""
        self._pos = position

    def skip(self, kind: int, depth: int = MAX_NESTING) -> None:
        """Pass over a value of type `kind`, nested no deeper than `depth`."""
        size = _FIXED_SIZES.get(kind)
        if size is not None:
            self._advance(size)
        elif kind == STRING:
            self._advance(self._length("string"))
        elif depth == 0:
            raise RemoteProtocolError(f"Thrift nested deeper than {MAX_NESTING} levels")
        elif kind == STRUCT:
            while (field := self.field()[0]) != STOP:
                self.skip(field, depth - 1)
        elif kind in (LIST, SET):
            element, count = self.sequence()
            self._skip_elements((element,), count, depth - 1)
        elif kind == MAP:
            key, value = self._byte(), self._byte()
            self._skip_elements((key, value), self._length("map"), depth - 1)
        else:
            raise RemoteProtocolError(
                f"garbage where Thrift was due: type {kind} at byte {self._pos}"
            )

    def _skip_elements(self, kinds: tuple[int, ...], count: int, depth: int) -> None:
        sizes = [_FIXED_SIZES.get(kind) for kind in kinds]
        if None not in sizes:
            self._advance(count * sum(size for size in sizes if size is not None))
            return
        for _ in range(count):
            self._spend(len(kinds))
            for kind in kinds:
                self.skip(kind, depth)

    def _byte(self) -> int:
        return self._data[self._advance(1)]

    def _length(self, what: str) -> int:
        length = self.i32()
        if length < 0:
            raise RemoteProtocolError(
                f"garbage where Thrift was due: {what} of length {length} at byte {self._pos - 4}"
            )
        return length

    def _advance(self, size: int) -> int:
        start = self._pos
        if size > self._end - start:
            raise RemoteProtocolError(
                f"truncated Thrift: {size} bytes due at byte {start} of a frame of {self._end}"
            )
        self._pos = start + size
        return start

    def _spend(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise RemoteProtocolError("more Thrift values in one frame than any message has")
