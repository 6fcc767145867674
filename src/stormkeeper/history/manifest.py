"""A folder of tables: the manifest that names the files of a commit, lock, and leftover files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from stormkeeper.daemon.durable import sync_file, try_lock
from stormkeeper.errors import TableError

NAME: Final = "manifest.json"

_ASIDE: Final = f".{NAME}"

#: A higher format may have another meaning.
FORMAT: Final = 1

#: A commit replaces all rows (``current``), or adds rows (``log``).
Kind = Literal["current", "log"]


class Origin(msgspec.Struct, frozen=True):
    """The micro-batch of a streaming query behind a commit."""

    query: str
    batch: int


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file of a table; `path` is relative to the folder, `level` counts the merges.

    `earliest` and `latest` are of the table's time column; None without rows or such a column.
    """

    path: str
    rows: int
    bytes: int
    earliest: datetime | None = None
    latest: datetime | None = None
    level: int = 0


class Entry(msgspec.Struct, frozen=True):
    """A table with column types, and files, oldest first.

    `version` grows when columns change: older files may lack columns or have others.
    """

    kind: Kind
    time: str | None
    version: int
    columns: dict[str, str]
    files: list[DataFile]


class Manifest(msgspec.Struct, frozen=True):
    """All tables of a folder, by name, as of commit `version`, from 1.

    `written_at` is on the writer's clock; `interval_secs` is the time between commits.
    """

    format: int
    version: int
    origin: Origin
    written_at: datetime
    interval_secs: float
    tables: dict[str, Entry]

    @property
    def paths(self) -> set[str]:
        return {file.path for entry in self.tables.values() for file in entry.files}


class _Format(msgspec.Struct):
    format: int


def load(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None before the first commit.

    Raises `TableError` if the manifest is damaged or of a newer release, `OSError` if unreadable.
    """
    path = folder / NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if (found := msgspec.json.decode(text, type=_Format).format) != FORMAT:
            raise TableError(
                f"{path} is of format {found}, and this release knows {FORMAT}: use the release "
                "that wrote it, or a newer one"
            )
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise TableError(
            f"{path} is damaged: {error}; restore the folder from a copy, or remove it and start "
            "the pipeline again"
        ) from error


def stage(folder: Path, manifest: Manifest) -> None:
    """Write and sync the next manifest aside."""
    with (folder / _ASIDE).open("wb") as file:
        file.write(msgspec.json.encode(manifest))
        sync_file(file)


def publish(folder: Path) -> None:
    """Replace the manifest by the staged manifest, atomically.

    Only a sync of the folder lets the new manifest survive a power failure.
    """
    (folder / _ASIDE).replace(folder / NAME)


_LOCK: Final = ".writer"

KEY: Final = "pipeline.tables.dir"


class TableFolder:
    """A folder that must stay the same; the first check makes a missing folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity(folder)

    def check(self) -> None:
        """Raise `TableError` if the folder was moved or removed."""
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
    """Return device and inode, which survive a move; None without a folder."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def sole_writer(folder: Path, key: str = KEY) -> Iterator[None]:
    """Lock a folder, made if missing, for this process.

    `key` is the configuration key in errors. Raises `TableError` if the folder cannot be made, or
    another process holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("ab")
    except OSError as error:
        raise TableError(f"{key} cannot be {folder}: {error}") from error
    with lock:
        # Without file locks, the manifest's number detects a second writer.
        if not try_lock(lock, if_unsupported=True):
            raise two_writers_error(folder)
        yield


def two_writers_error(folder: Path) -> TableError:
    return TableError(
        f"another pipeline writes to {folder}: give each its own {KEY} and, where that is set, its "
        "own pipeline.checkpoint.dir"
    )


def write_error(folder: Path, error: OSError) -> TableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make space there, or set {KEY} to a folder where there is some"
    else:
        remedy = f"set {KEY} to a folder that this user may write to"
    reason = os.strerror(error.errno) if error.errno else error  # in which Arrow says it twice
    return TableError(f"the tables in {folder} cannot be written: {reason}; {remedy}")


def read_error(folder: Path, error: OSError) -> TableError:
    reason = os.strerror(error.errno) if error.errno else error
    remedy = ""
    if isinstance(error, PermissionError):
        remedy = "; run as the user of the pipeline that writes them, or as one of its group"
    return TableError(f"the tables in {folder} cannot be read: {reason}{remedy}")


#: Other files are left alone.
_OURS: Final = re.compile(r"[0-9]{12,}-[0-9a-f]{8}\.parquet")


def mark_as_leaving(folder: Path, paths: Iterable[str], now: float) -> None:
    """Set the times of files that leave the manifest now, in seconds since the epoch."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder / path, (now, now))


def remove_leftovers(
    folder: Path, tables: Iterable[str], named: Collection[str], now: float, keep_secs: float
) -> None:
    """Remove unnamed files that left the manifest more than `keep_secs` ago."""
    for table in tables:
        # A failed removal does not fail the commit; the next one tries again.
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
