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

from stormkeeper.daemon.durable import sync_file, sync_folder, try_lock
from stormkeeper.errors import TableError

NAME: Final = "manifest.json"

_ASIDE: Final = f".{NAME}"

#: Format number of manifests; a higher one may have another meaning.
FORMAT: Final = 1


#: ``current``: each commit replaces all rows. ``log``: each commit adds rows.
Kind = Literal["current", "log"]


class Origin(msgspec.Struct, frozen=True):
    """The micro-batch of a streaming query that a commit comes from."""

    query: str
    batch: int


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file of a table; `path` is relative to the folder of the tables.

    `earliest` and `latest` are of the table's time column; None without rows or such a column.
    `level` is how often its rows were merged.
    """

    path: str
    rows: int
    bytes: int
    earliest: datetime | None = None
    latest: datetime | None = None
    level: int = 0


class Entry(msgspec.Struct, frozen=True):
    """A table with its columns' types, and its files, oldest first.

    `version` grows when columns change: files of earlier versions may lack columns or have others.
    """

    kind: Kind
    time: str | None
    version: int
    columns: dict[str, str]
    files: list[DataFile]


class Manifest(msgspec.Struct, frozen=True):
    """All tables of a folder, by name, as of a commit with the number `version`, from 1.

    `written_at` is on the writer's clock; `interval_secs` is how often the writer commits.
    """

    format: int
    version: int
    origin: Origin
    written_at: datetime
    interval_secs: float
    tables: dict[str, Entry]

    @property
    def paths(self) -> set[str]:
        """The paths of all named files."""
        return {file.path for entry in self.tables.values() for file in entry.files}


class _Format(msgspec.Struct):
    format: int


def load(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None before the first commit.

    Raises `TableError` if the manifest is damaged or of a newer release, `OSError` if it cannot be
    read.
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
    """Write the next manifest aside and sync the file."""
    with (folder / _ASIDE).open("wb") as file:
        file.write(msgspec.json.encode(manifest))
        sync_file(file)


def publish(folder: Path) -> None:
    """Replace the manifest by the staged manifest, atomically."""
    (folder / _ASIDE).replace(folder / NAME)


def sync_manifest(folder: Path) -> None:
    """Sync the folder, so that the manifest survives a power failure."""
    sync_folder(folder)


_LOCK: Final = ".writer"

KEY: Final = "pipeline.tables.dir"


class TableFolder:
    """A folder that must stay the same; the first check makes a missing folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = _identity(folder)

    def check(self) -> None:
        """Check that the folder is still the same; raises `TableError`."""
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
    """Return the identity of a folder, which survives a move; None without a folder."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def sole_writer(folder: Path, key: str = KEY) -> Iterator[None]:
    """Lock a folder for this process, after making a missing folder.

    `key` is the configuration key in errors. Raises `TableError` if the folder cannot be made, or
    another process holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("ab")
    except OSError as error:
        raise TableError(f"{key} cannot be {folder}: {error}") from error
    with lock:
        # A file system without locks: the manifest's number must do.
        if not try_lock(lock, if_unsupported=True):
            raise two_writers_error(folder)
        yield


def two_writers_error(folder: Path) -> TableError:
    """Return the error of a folder with two writers."""
    return TableError(
        f"another pipeline writes to {folder}: give each its own {KEY} and, where that is set, its "
        "own pipeline.checkpoint.dir"
    )


def write_error(folder: Path, error: OSError) -> TableError:
    """Return the error of a failed write, with a remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make space there, or set {KEY} to a folder where there is some"
    else:
        remedy = f"set {KEY} to a folder that this user may write to"
    reason = os.strerror(error.errno) if error.errno else error  # in which Arrow says it twice
    return TableError(f"the tables in {folder} cannot be written: {reason}; {remedy}")


def read_error(folder: Path, error: OSError) -> TableError:
    """Return the error of a failed read, with a remedy."""
    reason = os.strerror(error.errno) if error.errno else error
    remedy = ""
    if isinstance(error, PermissionError):
        remedy = "; run as the user of the pipeline that writes them, or as one of its group"
    return TableError(f"the tables in {folder} cannot be read: {reason}{remedy}")


#: Names of our files; other files are left alone.
_OURS: Final = re.compile(r"[0-9]{12,}-[0-9a-f]{8}\.parquet")


def mark_as_leaving(folder: Path, paths: Iterable[str], now: float) -> None:
    """Set the times of files that leave the manifest now, in seconds since the epoch."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder / path, (now, now))


def remove_leftovers(
    folder: Path, tables: Iterable[str], named: Collection[str], now: float, keep_secs: float
) -> None:
    """Remove unnamed files of these tables that left the manifest more than `keep_secs` ago."""
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
