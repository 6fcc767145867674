"""Files in progress: a draft is written from its beginning to its end and then becomes a blob.

A draft counts the SHA-256 of its bytes and, for what clients upload, their CRC-32C (RFC 3720,
appendix B.4), which Storm has for the version of a blob: Storm's clients compare it with that of
their copy, so it must be the same on every Nimbus. Only the SHA-256 is relied on here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from stormkeeper.errors import BlobStorageError

#: Bytes read from a disk at once.
BLOCK: Final = 1 << 20

#: Default limit of one upload in bytes: larger packages are rare, and one upload does not fill a
#: disk.
MOST_BYTES: Final = 2**31

#: The disk is full, or the quota of this user or the limit of this process is reached.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: The polynomial of CRC-32C, bits reversed.
_POLYNOMIAL: Final = 0x82F63B78

#: Bytes in a lane (see `extend_crc32c`), and the fewest lanes that save time.
_LANE: Final = 256
_LANES: Final = 16


class Content(NamedTuple):
    """The SHA-256 in hexadecimal digits, and the size in bytes, of some bytes."""

    sha256: str
    size: int


class Draft:
    """A file that is written from its beginning to its end. Not safe for concurrent use.

    An existing file is continued. With `counted` the CRC-32C is computed too, which takes much
    longer than everything else.

    Raises
    ------
    BlobStorageError
        The file cannot be made or read.
    """

    def __init__(self, path: Path, *, counted: bool = False) -> None:
        self.path = path
        self.size = 0
        self.crc32c = 0
        self._counted = counted
        self._sha256 = hashlib.sha256()
        with storing(path.parent, "begin a blob"):
            self._file = path.open("ab+", buffering=0)
            try:
                self._file.seek(0)
                while block := self._file.read(BLOCK):
                    self._count(block)
            except BaseException:
                self._file.close()
                raise

    def write(self, data: bytes) -> None:
        """Append bytes; discard the draft and raise `BlobStorageError` if the disk refuses them."""
        remaining = memoryview(data)
        try:
            with storing(self.path.parent, f"write {len(data)} bytes of a blob"):
                while remaining:
                    remaining = remaining[self._file.write(remaining) :]
        except BlobStorageError:
            self.discard()
            raise
        self._count(data)

    def content(self) -> Content:
        """Return checksum and size of the bytes so far."""
        return Content(self._sha256.hexdigest(), self.size)

    def finish(self) -> None:
        """Sync the file to the disk and close it; errors are those of `write`."""
        try:
            with storing(self.path.parent, "write a blob"):
                os.fsync(self._file.fileno())
                self._file.close()
        except BlobStorageError:
            self.discard()
            raise

    def close(self) -> None:
        """Close the file as it is, to be continued later."""
        self._file.close()

    def discard(self) -> None:
        """Delete the file, if it still exists."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _count(self, data: bytes) -> None:
        self._sha256.update(data)
        self.size += len(data)
        if self._counted:
            self.crc32c = extend_crc32c(self.crc32c, data)


def write_upload(draft: Draft, data: bytes, most_bytes: int | None) -> None:
    """Append what a client sends; None allows any size.

    Raises
    ------
    BlobStorageError
        The draft would be larger than `most_bytes`, or the disk refused the bytes. The draft is
        discarded.
    """
    if most_bytes is not None and draft.size + len(data) > most_bytes:
        draft.discard()
        raise BlobStorageError(
            f"the upload is larger than {most_bytes:,} bytes, the limit set by"
            " nimbus.upload.max.bytes on each Nimbus; the bytes so far are deleted"
        )
    draft.write(data)


@contextmanager
def storing(folder: Path, action: str) -> Iterator[None]:
    """Turn an `OSError` into a `BlobStorageError` that says what failed and what to do."""
    try:
        yield
    except OSError as error:
        remedy = "check the folder and its disk"
        if error.errno in _FULL:
            free = shutil.disk_usage(folder).free
            remedy = f"{free} bytes are free there: make room, and try again"
        raise BlobStorageError(
            f"cannot {action} in {folder}: {error.strerror or error}; {remedy}"
        ) from error


def extend_crc32c(crc: int, data: bytes) -> int:
    """Return the CRC-32C of the bytes with the CRC `crc`, followed by `data`; 0 is that of nothing.

    A step per byte would take Python seconds for a large package. So long data is processed in
    lanes of `_LANE` consecutive bytes, one byte of every lane at a time. The CRC is linear: the
    register after two pieces is the first's, shifted by the second's length in zeros, xor the
    second's alone.

    Examples
    --------
    >>> hex(extend_crc32c(extend_crc32c(0, b"1234"), b"56789"))
    '0xe3069283'
    """
    register = crc ^ 0xFFFFFFFF
    whole = len(data) // _LANE
    if whole < _LANES:
        return _by_byte(register, data) ^ 0xFFFFFFFF
    zeros = _zeros()
    for lane in _by_lane(data, whole):
        register = (
            zeros[0][register & 0xFF]
            ^ zeros[1][register >> 8 & 0xFF]
            ^ zeros[2][register >> 16 & 0xFF]
            ^ zeros[3][register >> 24]
            ^ lane
        )
    return _by_byte(register, data[whole * _LANE :]) ^ 0xFFFFFFFF


def _by_byte(register: int, data: bytes) -> int:
    table = _table()
    for byte in data:
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register


def _by_lane(data: bytes, count: int) -> list[int]:
    """Return the register of each of the first `count` lanes, from a register of 0."""
    parts = _parts()
    # The registers' lowest bytes, one per lane, then the next ones, and so on.
    lowest = lower = higher = highest = 0
    for first in range(_LANE):
        column = int.from_bytes(data[first : count * _LANE : _LANE], "little")
        index = (lowest ^ column).to_bytes(count, "little")
        lowest = lower ^ int.from_bytes(index.translate(parts[0]), "little")
        lower = higher ^ int.from_bytes(index.translate(parts[1]), "little")
        higher = highest ^ int.from_bytes(index.translate(parts[2]), "little")
        highest = int.from_bytes(index.translate(parts[3]), "little")
    columns = [each.to_bytes(count, "little") for each in (lowest, lower, higher, highest)]
    return [int.from_bytes(lane, "little") for lane in map(bytes, zip(*columns, strict=True))]


@cache
def _table() -> tuple[int, ...]:
    """Return the register that each byte makes of a register of 0."""
    table = []
    for register in range(256):
        for _ in range(8):
            register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)  # noqa: PLW2901
        table.append(register)
    return tuple(table)


@cache
def _parts() -> tuple[bytes, ...]:
    """Return `_table` as four tables of bytes, that of the lowest byte first."""
    return tuple(bytes(each >> shift & 0xFF for each in _table()) for shift in (0, 8, 16, 24))


@cache
def _zeros() -> tuple[tuple[int, ...], ...]:
    """Return what a lane of zeros makes of a register, by each of its bytes, the lowest first."""
    zeros = bytes(_LANE)
    return tuple(
        tuple(_by_byte(byte << shift, zeros) for byte in range(256)) for shift in (0, 8, 16, 24)
    )
