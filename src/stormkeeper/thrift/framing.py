"""Splits a byte stream into frames with a four-byte length, without I/O."""

from collections.abc import Callable
from struct import Struct
from typing import Final

from stormkeeper.errors import RemoteProtocolError

_HEADER: Final = 4
_unpack_length: Final = Struct(">i").unpack_from


class FrameSplitter:
    """Splits a stream of bytes, however it is chopped, into payloads of at most `max_size` bytes.

    Each byte is copied a bounded number of times, and memory grows with received bytes, never with
    announced lengths. `bad_length` makes the error for a length and `max_size`.
    """

    __slots__ = ("_bad_length", "_max_size", "_missing", "_partial", "fault")

    def __init__(
        self, max_size: int, bad_length: Callable[[int, int], RemoteProtocolError]
    ) -> None:
        self._max_size = max_size
        self._bad_length = bad_length
        #: Beginning of an incomplete frame, with its length.
        self._partial = bytearray()
        #: Missing bytes of the partial frame's length, or of its payload.
        self._missing = _HEADER
        self.fault: RemoteProtocolError | None = None

    @property
    def has_partial(self) -> bool:
        """Whether a frame is incomplete."""
        return bool(self._partial)

    @property
    def partial_bytes(self) -> int:
        """Received bytes of an incomplete frame."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the payloads that they complete.

        A length below 0 or above `max_size` sets `fault`, which every call after the payloads
        before it raises.
        """
        payloads: list[bytes] = []
        if self.fault is None:
            pos = self._complete_partial(data, payloads) if self._partial else 0
            self._cut(data, pos, payloads)
        if self.fault is not None and not payloads:
            raise self.fault
        return payloads

    def _cut(self, data: bytes, pos: int, payloads: list[bytes]) -> None:
        size = len(data)
        missing = _HEADER
        while size - pos >= _HEADER:
            length = _unpack_length(data, pos)[0]
            if not self._is_allowed(length):
                return
            end = pos + _HEADER + length
            if end > size:
                missing = end - pos
                break
            payloads.append(data[pos + _HEADER : end])
            pos = end
        if pos < size:
            self._partial += memoryview(data)[pos:]
            self._missing = missing - (size - pos)

    def _complete_partial(self, data: bytes, payloads: list[bytes]) -> int:
        """Complete the partial frame; return the number of used bytes of `data`."""
        pos = 0
        partial = self._partial
        while True:
            had_length = len(partial) >= _HEADER
            piece = memoryview(data)[pos : pos + self._missing]
            partial += piece
            pos += len(piece)
            self._missing -= len(piece)
            if self._missing:
                return pos
            if not had_length:
                length = _unpack_length(partial)[0]
                if not self._is_allowed(length):
                    return len(data)
                self._missing = length
                if length:
                    continue
            payloads.append(bytes(memoryview(partial)[_HEADER:]))
            self._partial = bytearray()
            self._missing = _HEADER
            return pos

    def _is_allowed(self, length: int) -> bool:
        if 0 <= length <= self._max_size:
            return True
        self.fault = self._bad_length(length, self._max_size)
        return False
