"""Cuts a byte stream into frames, each behind its length in four bytes, without I/O."""

from collections.abc import Callable
from struct import Struct
from typing import Final

from stormkeeper.errors import RemoteProtocolError

_HEADER: Final = 4
_unpack_length: Final = Struct(">i").unpack_from


class FrameSplitter:
    """Cuts a stream of bytes, however it is chopped, into the payloads of its frames.

    Each byte is copied a bounded number of times, and memory is taken for bytes that came, never
    for those that a length announces.

    Parameters
    ----------
    max_size
        The largest payload that is accepted, in bytes.
    bad_length
        Makes the fault of a frame whose length is negative or above that; called with both.
    """

    __slots__ = ("_bad_length", "_max_size", "_missing", "_partial", "fault")

    def __init__(
        self, max_size: int, bad_length: Callable[[int, int], RemoteProtocolError]
    ) -> None:
        self._max_size = max_size
        self._bad_length = bad_length
        #: The beginning of a frame, with its length; empty between frames.
        self._partial = bytearray()
        #: Bytes that the length of the partial frame lacks or, once that is whole, the payload.
        self._missing = _HEADER
        #: The bad length that ended the stream, once one was met.
        self.fault: RemoteProtocolError | None = None

    @property
    def has_partial(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return bool(self._partial)

    @property
    def partial_bytes(self) -> int:
        """How much has come of a frame that is not whole."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and give the payloads that they complete.

        Frames before a bad length are not lost: they are given, `fault` is set, and the next call
        raises it.

        Raises
        ------
        RemoteProtocolError
            If a frame's length is negative or above `max_size`; by every call from then on.
        """
        payloads: list[bytes] = []
        if self.fault is None:
            pos = self._complete_partial(data, payloads) if self._partial else 0
            self._cut(data, pos, payloads)
        if self.fault is not None and not payloads:
            raise self.fault
        return payloads

    def _cut(self, data: bytes, pos: int, payloads: list[bytes]) -> None:
        """Cut whole frames out of `data` from `pos`, and keep what is left as a partial one."""
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
        """Add to the partial frame what it lacks; return how many bytes of `data` that took."""
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
