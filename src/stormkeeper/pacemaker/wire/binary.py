"""Thrift's binary protocol: writers of fields, and a strict reader of frames.

The reader allocates only for received bytes, never for an announced length. Unknown fields are
skipped within limits on nesting and on the number of values: a frame of ten million one-byte values
would take ten seconds.
"""

from collections.abc import Iterator
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

_FIXED_SIZES: Final[dict[int, int]] = {
    BOOL: 1,
    BYTE: 1,
    DOUBLE: 8,
    I16: 2,
    I32: 4,
    I64: 8,
    UUID: 16,
}

_LETTERS: Final = {I32: "i", I64: "q"}

MAX_NESTING: Final = 64

UNLIMITED_VALUES: Final = 0x7FFFFFFF

_pack_header: Final = Struct(">Bh").pack
_pack_boolean: Final = Struct(">Bh?").pack
_pack_i32: Final = Struct(">Bhi").pack
_pack_i64: Final = Struct(">Bhq").pack
_pack_list: Final = Struct(">BhBi").pack
_FIELD_ID: Final = Struct(">h").unpack_from
_I32: Final = Struct(">i").unpack_from
_I64: Final = Struct(">q").unpack_from


def field_header(kind: int, field_id: int) -> bytes:
    return _pack_header(kind, field_id)


def boolean_field(field_id: int, value: bool) -> bytes:
    return _pack_boolean(BOOL, field_id, value)


def i32_field(field_id: int, value: int) -> bytes:
    """Write a field; raise `struct.error` on overflow."""
    return _pack_i32(I32, field_id, value)


def i64_field(field_id: int, value: int) -> bytes:
    """Write a field; raise `struct.error` on overflow."""
    return _pack_i64(I64, field_id, value)


def binary_field(field_id: int, value: bytes) -> bytes:
    return _pack_i32(STRING, field_id, len(value)) + value


def text_field(field_id: int, value: str) -> bytes:
    """Write a field; raise `UnicodeEncodeError` for lone surrogates."""
    return binary_field(field_id, value.encode())


def list_header(field_id: int, element: int, count: int) -> bytes:
    return _pack_list(LIST, field_id, element, count)


class BinaryReader:
    """Reads the Thrift values of a frame without the length, in order.

    Every method raises `RemoteProtocolError` for invalid Thrift, or after more than `max_values`
    fields and skipped elements.
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

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the type and id of each field of a struct; the caller reads or skips the value."""
        while (kind := self._byte()) != STOP:
            self._spend(1)
            yield kind, _FIELD_ID(self._data, self._advance(2))[0]

    def boolean(self) -> bool:
        return self._byte() != 0

    def i32(self) -> int:
        value: int = _I32(self._data, self._advance(4))[0]
        return value

    def i64(self) -> int:
        value: int = _I64(self._data, self._advance(8))[0]
        return value

    def binary(self) -> bytes:
        start = self._advance(self._length("string"))
        return self._data[start : self._pos]

    def text(self, what: str) -> str:
        """Read a string, which errors call `what`."""
        raw = self.binary()
        try:
            return raw.decode("utf-8", self._text_errors)
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{what} is not UTF-8: {error}") from error

    def sequence(self) -> tuple[int, int]:
        """Read the header of a list or set: element type and count."""
        kind = self._byte()
        return kind, self._length("list")

    def elements(self, wanted: int, what: str) -> int:
        """Read the header of a list of type `wanted`; return the count."""
        kind, count = self.sequence()
        if kind != wanted and count:
            raise RemoteProtocolError(f"{what} of Thrift type {kind} where {wanted} is due")
        return count

    def numbers(self, wanted: int, what: str) -> tuple[int, ...]:
        """Read a list of `I32` or `I64`."""
        count = self.elements(wanted, what)
        start = self._advance(count * _FIXED_SIZES[wanted])
        return unpack_from(f">{count}{_LETTERS[wanted]}", self._data, start)

    def rest(self) -> tuple[bytes, int]:
        """Return the frame and the position of the next value."""
        return self._data, self._pos

    def seek(self, position: int) -> None:
        self._pos = position

    def skip(self, kind: int, depth: int = MAX_NESTING) -> None:
        """Skip a value of at most `depth` levels."""
        size = _FIXED_SIZES.get(kind)
        if size is not None:
            self._advance(size)
        elif kind == STRING:
            self._advance(self._length("string"))
        elif depth == 0:
            raise RemoteProtocolError(f"Thrift nested deeper than {MAX_NESTING} levels")
        elif kind == STRUCT:
            for field, _ in self.fields():
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
