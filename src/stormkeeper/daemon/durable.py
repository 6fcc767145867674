"""Files that survive a power failure, and locks of files and folders.

A file is written aside, brought to the disk, and renamed: readers see the old or the new content,
never a part. The rename itself survives once the folder, too, is on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

_log = logging.getLogger(__name__)


@contextmanager
def replace_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` unless the block raises.

    Parameters
    ----------
    path
        The file; need not exist.
    mode
        Permissions of the new file, less the umask.

    Raises
    ------
    OSError
        The disk does not take it; the old file is unchanged.
    """
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
    """Replace the content of a file as `replace_file` does."""
    with replace_file(path, mode) as file:
        file.write(content)


def sync_file(file: IO[Any]) -> None:
    """Bring what was written to a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk: files that were made, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(descriptor)


def try_lock(file: IO[Any] | int, *, if_unsupported: bool) -> bool:
    """Lock an open file for this process; returns whether it now holds the lock.

    The system releases the lock when the file is closed, or the process ends.

    Parameters
    ----------
    file
        An open file or its descriptor.
    if_unsupported
        The result on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.debug("%s cannot be locked: %s", getattr(file, "name", file), error)
        return if_unsupported
    return True
