"""The writer's folder: its lock, whether it was moved, what the disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from stormkeeper.daemon.durable import try_lock
from stormkeeper.errors import TableError

#: Held by the one process that writes the tables of a folder.
_LOCK: Final = ".writer"

#: The configuration key that says where tables are, for what is to be told of it.
KEY: Final = "pipeline.tables.dir"


class Place:
    """A folder that is to stay what it was when this object was made.

    Parameters
    ----------
    folder
        Made by the first check if it is not there. One that has come in its place since is refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity(folder)

    def check(self) -> None:
        """See to it that the folder is still the same.

        Raises
        ------
        TableError
            It was moved or removed.
        """
        if self._identity is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._identity = _identity(self.folder)
        elif self._identity != _identity(self.folder):
            raise TableError(
                f"the folder {self.folder} was moved or removed while the pipeline wrote its "
                "tables there: remove or rename what is there now, move the folder back to that "
                "path, and start the pipeline again; without it new tables are begun"
            )


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what a folder keeps when it is moved, None if there is no folder."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def sole_writer(folder: Path, key: str = KEY) -> Iterator[None]:
    """Hold a folder for this process alone; it is made if it is not there.

    The system lets go of it when the process ends, however it ends. `key` says which folder it is.

    Raises
    ------
    TableError
        When the folder cannot be made, or another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("ab")
    except OSError as error:
        raise TableError(f"{key} cannot be {folder}: {error}") from error
    with lock:
        # A file system without locks: the manifest's number must do.
        if not try_lock(lock, if_unsupported=True):
            raise shared(folder)
        yield


def shared(folder: Path) -> TableError:
    """Return the error of a folder that has two writers."""
    return TableError(
        f"another pipeline writes to {folder}: give each its own {KEY} and, where that is set, its "
        "own pipeline.checkpoint.dir"
    )


def refused(folder: Path, error: OSError) -> TableError:
    """Return what to say where the file system refuses to write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make space there, or set {KEY} to a folder where there is some"
    else:
        remedy = f"set {KEY} to a folder that this user may write to"
    reason = os.strerror(error.errno) if error.errno else error  # in which Arrow says it twice
    return TableError(f"the tables in {folder} cannot be written: {reason}; {remedy}")


def unreadable(folder: Path, error: OSError) -> TableError:
    """Return what to say where the file system refuses to read."""
    reason = os.strerror(error.errno) if error.errno else error
    remedy = ""
    if isinstance(error, PermissionError):
        remedy = "; run as the user of the pipeline that writes them, or as one of its group"
    return TableError(f"the tables in {folder} cannot be read: {reason}{remedy}")


#: What we call our files. Others are somebody else's.
_OURS: Final = re.compile(r"[0-9]{12,}-[0-9a-f]{8}\.parquet")


def mark_as_leaving(folder: Path, paths: Iterable[str], now: float) -> None:
    """Note on files that they leave the manifest now, in seconds since the epoch."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder / path, (now, now))


def remove_leftovers(
    folder: Path, tables: Iterable[str], named: Collection[str], now: float, keep_secs: float
) -> None:
    """Remove the files of these tables that are not named and left more than `keep_secs` ago."""
    for table in tables:
        # What cannot be removed is not worth a commit; it is tried again at the next one.
        with contextlib.suppress(OSError), os.scandir(folder / table) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) and f"{table}/{entry.name}" not in named:
                    _remove_old(entry, now, keep_secs)


def _remove_old(entry: os.DirEntry[str], now: float, keep_secs: float) -> None:
    with contextlib.suppress(OSError):
        age = now - entry.stat().st_mtime
        if age < 0:  # the clock was set back: it counts from now on
            os.utime(entry.path, (now, now))
        elif age > keep_secs:
            Path(entry.path).unlink()
