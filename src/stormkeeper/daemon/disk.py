"""Whether a folder takes files: a probe file is written, brought to the disk, and removed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

#: Size of the probe file in bytes: one block of most file systems, so that a full disk refuses it.
PROBE_BYTES: Final = 4096

#: Bytes that have to be free on a daemon's disk: fewer are soon gone, as packages, workers and
#: ZooKeeper write there, too.
LEAST_FREE_BYTES: Final = 64 * 2**20

#: Bytes that have to be free before a disk that was full counts as good again. So a disk near
#: the limit does not move the lead, or work, to and fro.
AGAIN_FREE_BYTES: Final = 2 * LEAST_FREE_BYTES

#: What to do about each error of a write, by errno.
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
    """Return why a folder does not take files; None if it does.

    The folder is not created. The call takes as long as the disk does: a disk that hangs holds up
    the calling thread.

    Parameters
    ----------
    folder
        An existing folder.
    had_fault
        Whether the look before found a fault: then more bytes have to be free.
    is_written
        False: write no probe file, and look only at what the system says of the folder. That is
        cheap, and finds a disk that is full or read-only.

    Returns
    -------
    str or None
        One line that names the folder, the cause and the remedy.
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
        # Unlinked first, so that a crash leaves no file.
        os.unlink(name)  # noqa: PTH108 - a name, as mkstemp returns it
        remaining = PROBE_BYTES
        while remaining:
            remaining -= os.write(descriptor, b"\0" * remaining)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
