"""Bytes on their way to become a blob: a file of its own name, which is nobody's blob before."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from stormkeeper.blobs import crc32c
from stormkeeper.errors import BlobStorageError

#: How much is read from a disk at once, in bytes.
BLOCK: Final = 1 << 20

#: What a client may upload at once, in bytes, where nobody says: a package of that size is rare,
#: and one upload does not fill a disk.
MOST_BYTES: Final = 2**31

#: The disk is full, or what this user or this process may have of it.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Content(NamedTuple):
    """What is in a draft: the SHA-256 in hexadecimal digits, the size in bytes."""

    sha256: str
    size: int


class Draft:
    """A file that is written from its beginning to its end. Not safe for concurrent use.

    Parameters
    ----------
    path
        The file. What is in it already is gone on with.
    counted
        Whether to count its `crc32c` too, which takes much longer than all else.

    Raises
    ------
    BlobStorageError
        The file cannot be made or read.
    """

    def __init__(self, path: Path, *, counted: bool = False) -> None:
        self.path = path
        #: How many bytes are in it.
        self.size = 0
        #: Of them, if it is counted.
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
        """Add bytes at the end.

        Raises
        ------
        BlobStorageError
            The disk did not take them. Then the draft is discarded.
        """
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
        """Return what is in it so far."""
        return Content(self._sha256.hexdigest(), self.size)

    def finish(self) -> None:
        """Have all of it on the disk, and write no more.

        Raises
        ------
        BlobStorageError
            The disk did not take it. Then the draft is discarded.
        """
        try:
            with storing(self.path.parent, "write a blob"):
                os.fsync(self._file.fileno())
                self._file.close()
        except BlobStorageError:
            self.discard()
            raise

    def close(self) -> None:
        """Leave it as it is, to be gone on with."""
        self._file.close()

    def discard(self) -> None:
        """Remove it, and give its space back; one that is gone is fine."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _count(self, data: bytes) -> None:
        self._sha256.update(data)
        self.size += len(data)
        if self._counted:
            self.crc32c = crc32c.extend(self.crc32c, data)


def write_upload(draft: Draft, data: bytes, most_bytes: int | None) -> None:
    """Add what a client sends to a draft.

    Parameters
    ----------
    most_bytes
        That it may have; None: any number.

    Raises
    ------
    BlobStorageError
        It would have more, or the disk did not take them. Then the draft is discarded.
    """
    if most_bytes is not None and draft.size + len(data) > most_bytes:
        draft.discard()
        raise BlobStorageError(
            f"an upload may have {most_bytes:,} bytes, and not more, and what has come of it is"
            " removed: nimbus.upload.max.bytes of each Nimbus says how many"
        )
    draft.write(data)


@contextmanager
def storing(folder: Path, what: str) -> Iterator[None]:
    """Turn what the disk refuses into a `BlobStorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        remedy = "see to the folder and its disk"
        if error.errno in _FULL:
            free = shutil.disk_usage(folder).free
            remedy = f"{free} bytes are free there: make room, and try again"
        raise BlobStorageError(
            f"cannot {what} in {folder}: {error.strerror or error}; {remedy}"
        ) from error
