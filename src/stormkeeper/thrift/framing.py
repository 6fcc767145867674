"""Splits a byte stream into frames with a four-byte length, without I/O."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Final

from stormkeeper.errors import RemoteProtocolError

_HEADER: Final = 4
_unpack_length: Final = Struct(">i").unpack_from


class FrameSplitter:
    """Splits a chopped stream of bytes into payloads of at most `max_size` bytes.

    Memory grows with received bytes, never with announced lengths. `bad_length` makes the error for
    a length and `max_size`.
    """

    __slots__ = ("_bad_length", "_max_size", "_partial", "fault")

    def __init__(
        self, max_size: int, bad_length: Callable[[int, int], RemoteProtocolError]
    ) -> None:
        self._max_size = max_size
        self._bad_length = bad_length
        self._partial = bytearray()
        self.fault: RemoteProtocolError | None = None

    @property
    def has_partial(self) -> bool:
        return bool(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the completed payloads.

        A length below 0 or above `max_size` sets `fault`, which every call after the payloads
        before it raises.
        """
        payloads: list[bytes] = []
        if self.fault is None:
            partial = self._partial
            if partial:
                partial += data
                del partial[: self._cut(partial, payloads)]
            elif (pos := self._cut(data, payloads)) < len(data):
                partial += memoryview(data)[pos:]
        if self.fault is not None and not payloads:
            raise self.fault
        return payloads

    def _cut(self, stream: bytes | bytearray, payloads: list[bytes]) -> int:
        """Append the payloads at the beginning of `stream`; return the number of bytes cut."""
        pos, size = 0, len(stream)
        while size - pos >= _HEADER:
            (length,) = _unpack_length(stream, pos)
            if not 0 <= length <= self._max_size:
                self.fault = self._bad_length(length, self._max_size)
                return size
            end = pos + _HEADER + length
            if end > size:
                break
            if type(stream) is bytes:
                payloads.append(stream[pos + _HEADER : end])
            else:
                payloads.append(bytes(memoryview(stream)[pos + _HEADER : end]))
            pos = end
        return pos


class FrameQueue(FrameSplitter):
    """A splitter whose payloads wait until they are taken; `fault` counts after them."""

    __slots__ = ("_waiting", "_waiting_bytes")

    def __init__(
        self, max_size: int, bad_length: Callable[[int, int], RemoteProtocolError]
    ) -> None:
        super().__init__(max_size, bad_length)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def held_bytes(self) -> int:
        return self._waiting_bytes + len(self._partial)

    def receive(self, data: bytes) -> int:
        """Take bytes, and return the number of completed payloads."""
        payloads: list[bytes] = []
        with suppress(RemoteProtocolError):
            payloads = self.feed(data)
        self._waiting.extend(payloads)
        self._waiting_bytes += sum(map(len, payloads))
        return len(payloads)

    def end(self, fault: RemoteProtocolError) -> None:
        """Drop the waiting payloads, and ignore further bytes."""
        self.fault = fault
        self._waiting.clear()
        self._waiting_bytes = 0
