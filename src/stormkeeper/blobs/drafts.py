"""Drafts: files that are written from beginning to end and then become blobs.

Storm's clients use the CRC-32C as the version of a blob.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from stormkeeper.errors import BlobStorageError

#: Bytes of one read.
BLOCK: Final = 1 << 20

#: Default limit of one upload: larger packages are rare, and one upload does not fill a disk.
MOST_BYTES: Final = 2**31

#: The disk is full, or this user's quota or this process's limit is reached.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Content(NamedTuple):
    """The SHA-256 in hexadecimal digits, and the size, of some bytes."""

    sha256: str
    size: int


class Draft:
    """A file that is written from beginning to end; an existing file is continued.

    Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.crc32c = 0
        self._sha256 = hashlib.sha256()
        with disk_errors(path.parent, "begin a blob"):
            self._file = path.open("ab+", buffering=0)
            try:
                self._file.seek(0)
                while block := self._file.read(BLOCK):
                    self._count(block)
            except BaseException:
                self._file.close()
                raise

    def write(self, data: bytes) -> None:
        """Append bytes; raises `BlobStorageError` and discards the draft if the disk refuses."""
        remaining = memoryview(data)
        try:
            with disk_errors(self.path.parent, f"write {len(data)} bytes of a blob"):
                while remaining:
                    remaining = remaining[self._file.write(remaining) :]
        except BlobStorageError:
            self.discard()
            raise
        self._count(data)

    def content(self) -> Content:
        return Content(self._sha256.hexdigest(), self.size)

    def finish(self) -> None:
        """Sync the file to the disk and close it; otherwise as `write`."""
        try:
            with disk_errors(self.path.parent, "write a blob"):
                os.fsync(self._file.fileno())
                self._file.close()
        except BlobStorageError:
            self.discard()
            raise

    def close(self) -> None:
        """Close the file, for a later draft to continue."""
        self._file.close()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _count(self, data: bytes) -> None:
        self._sha256.update(data)
        self.size += len(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)


def write_upload(draft: Draft, data: bytes, most_bytes: int | None) -> None:
    """Append a client's bytes; raises `BlobStorageError` above `most_bytes`."""
    if most_bytes is not None and draft.size + len(data) > most_bytes:
        draft.discard()
        raise BlobStorageError(
            f"the upload is larger than {most_bytes:,} bytes, the limit set by"
            " nimbus.upload.max.bytes on each Nimbus; the bytes so far are deleted"
        )
    draft.write(data)


@contextmanager
def disk_errors(folder: Path, action: str) -> Iterator[None]:
    """Turn an `OSError` into a `BlobStorageError` with a remedy."""
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
