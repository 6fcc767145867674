"""Files on a daemon's disk: writes that survive a power failure, locks, and a check of a folder.

A write goes to a new file, to the disk, and then to its name by a rename.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

_log = logging.getLogger(__name__)


@contextmanager
def replace_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` unless the block raises; `mode` is less the umask."""
    new = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex[:12]}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            sync_file(file)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    with replace_file(path, mode) as file:
        file.write(content)


def sync_file(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(descriptor)


def try_lock(file: IO[Any] | int, *, if_unsupported: bool) -> bool:
    """Lock an open file until the file or the process ends; return whether that succeeded.

    Without locks in the file system, return `if_unsupported`.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.debug("%s cannot be locked: %s", getattr(file, "name", file), error)
        return if_unsupported
    return True


#: A block of most file systems, which a full disk refuses.
PROBE_BYTES: Final = 4096

#: Free bytes that a daemon needs: packages, workers and ZooKeeper share the disk.
LEAST_FREE_BYTES: Final = 64 * 2**20

#: Free bytes after a shortage, so that leadership and work do not move to and fro.
AGAIN_FREE_BYTES: Final = 2 * LEAST_FREE_BYTES

_REMEDIES: Final = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room, or raise the user's disk quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) of this process",
    errno.EROFS: "mount its disk for writing; if the kernel made it read-only, check the disk",
    errno.ENOENT: "create the folder, or mount its disk",
    errno.ENOTDIR: "remove the file that stands in place of a folder",
    errno.EACCES: "let the user of this process write there",
    errno.EPERM: "let the user of this process write there",
    errno.EIO: "check the disk and the log of the kernel",
}


def find_fault(folder: Path, *, had_fault: bool = False, is_written: bool = True) -> str | None:
    """Return why a folder does not take files, with the remedy.

    After a fault (`had_fault`) more free space is needed. Unless `is_written`, only full and
    read-only disks are found. A hanging disk blocks the calling thread.
    """
    try:
        (_write_probe if is_written else _look)(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the folder and its disk")
        return f"{folder} cannot be written to ({error.strerror or error}): {remedy}"
    least = AGAIN_FREE_BYTES if had_fault else LEAST_FREE_BYTES
    if free < least:
        return (
            f"{folder} has {free // 2**20:,} MiB free and needs {least // 2**20:,} MiB: make room"
            " on its disk"
        )
    return None


def _look(folder: Path) -> None:
    code = 0
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        code = errno.EROFS
    elif not folder.is_dir():
        code = errno.ENOTDIR
    if code:
        raise OSError(code, os.strerror(code))


def _write_probe(folder: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".probe-", dir=folder)
    try:
        # First, so that a crash leaves no file.
        os.unlink(name)  # noqa: PTH108 - a name, as mkstemp returns it
        remaining = PROBE_BYTES
        while remaining:
            remaining -= os.write(descriptor, b"\0" * remaining)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
