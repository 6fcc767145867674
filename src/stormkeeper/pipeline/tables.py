"""Tables as snapshots in Parquet: a folder per batch, complete once it has its name.

::

    <tables>/liveness/batch=000000000041/part-0.parquet
    <tables>/liveness/batch=000000000042/part-0.parquet      the present
    <tables>/component_statistics/batch=000000000042/part-0.parquet

A snapshot is written aside and renamed into place, and never changed afterwards: a reader sees
whole ones only, and the newest is the table. Older ones stay for a while, so that nobody loses a
file that is being read. Folders are those of local (or mounted) file systems.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from stormkeeper.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

LIVENESS: Final = "liveness"
COMPONENT_STATISTICS: Final = "component_statistics"

_PREFIX: Final = "batch="
_PART: Final = "part-0.parquet"

#: Held by the one pipeline that writes the tables of a folder.
_LOCK: Final = ".writer"

#: Snapshots that are kept however old they are.
KEEP: Final = 10

#: How long a snapshot is kept after the next one came, in seconds: longer than a reader takes to
#: list and open files.
KEEP_SECS: Final = 300.0

_ORIGIN: Final = b"stormkeeper.origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which micro-batch of which streaming query a snapshot comes from."""

    query: str
    batch: int

    def __bytes__(self) -> bytes:
        return f"{self.query}/{self.batch}".encode()


class SnapshotTable:
    """One table, for its one writer.

    Parameters
    ----------
    directory
        The table's own folder; made if it is not there.
    keep, keep_secs
        A snapshot is removed once there are `keep` newer ones and the next one is older than
        `keep_secs`: until then somebody may have taken it for the newest.
    clock
        Gives the time that files are stamped with, in seconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = KEEP,
        keep_secs: float = KEEP_SECS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._keep_secs = keep_secs
        self._clock = clock

    def read(self) -> pa.Table | None:
        """Return the present rows; None if the table was never written."""
        newest = _newest(self._directory)
        return None if newest is None else pq.read_table(newest / _PART, partitioning=None)

    def has(self, origin: Origin) -> bool:
        """Whether the newest snapshot is of this micro-batch, which then is not to be repeated."""
        newest = _newest(self._directory)
        if newest is None:
            return False
        metadata = pq.read_schema(newest / _PART).metadata or {}
        return metadata.get(_ORIGIN) == bytes(origin)

    def write(self, rows: pa.Table, origin: Origin) -> Path:
        """Make `rows` the table's present and return the new snapshot's folder.

        Raises
        ------
        TableError
            When somebody else writes the same table, or the file system refuses.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        snapshots = _snapshots(self._directory)
        number = _number(snapshots[-1]) + 1 if snapshots else 0
        aside = self._directory / f".{_PREFIX}{number:012d}"
        shutil.rmtree(aside, ignore_errors=True)  # of a writer that was killed
        aside.mkdir()
        metadata = {**(rows.schema.metadata or {}), _ORIGIN: bytes(origin)}
        with (aside / _PART).open("wb") as file:
            pq.write_table(rows.replace_schema_metadata(metadata), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())  # else a power failure may leave the name without the rows
        place = self._directory / f"{_PREFIX}{number:012d}"
        try:
            aside.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise TableError(f"{place} could not be given its name: {error}") from error
            raise TableError(
                f"{place} is there already: another pipeline writes to {self._directory}; give "
                "each its own pipeline.tables.dir"
            ) from error
        self._remove_old([*snapshots, place])
        return place

    def _remove_old(self, snapshots: list[Path]) -> None:
        for snapshot, following in pairwise(snapshots[: 1 - self._keep or None]):
            if self._clock() - following.stat().st_mtime <= self._keep_secs:
                break
            shutil.rmtree(snapshot, ignore_errors=True)


@contextlib.contextmanager
def sole_writer(directory: Path) -> Iterator[None]:
    """Hold the folder of the tables for this process alone; it is made if it is not there.

    The system lets go of it when the process ends, however it ends.

    Raises
    ------
    TableError
        When the folder cannot be made, or another pipeline holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("ab")
    except OSError as error:
        raise TableError(f"pipeline.tables.dir cannot be {directory}: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TableError(
                f"another pipeline writes to {directory}: give each its own pipeline.tables.dir "
                "and pipeline.checkpoint.dir"
            ) from error
        except OSError as error:  # a file system without locks: the snapshots' names must do
            log.debug("%s cannot be locked: %s", directory, error)
        yield


def current_path(directory: Path | str, name: str) -> Path | None:
    """Return the Parquet file with the present rows of a table, None before the first batch.

    It stays readable for five minutes at least, however often the table is written meanwhile.

    Parameters
    ----------
    directory
        The folder of the tables: ``pipeline.tables.dir``.
    name
        ``liveness`` or ``component_statistics``.

    Examples
    --------
    >>> import pyarrow.parquet as pq
    >>> newest = current_path("tables", "liveness")
    >>> workers = None if newest is None else pq.read_table(newest)
    """
    newest = _newest(Path(directory) / name)
    return None if newest is None else newest / _PART


def current(spark: SparkSession, directory: Path | str, name: str) -> DataFrame:
    """Return a table's present rows as a DataFrame; call it again for newer ones.

    Raises
    ------
    TableError
        When the table was never written.
    """
    path = current_path(directory, name)
    if path is None:
        raise TableError(f"there is no table {name!r} in {directory}; has `storm pipeline` run?")
    return spark.read.parquet(f"file://{path.resolve()}")  # as it is: Spark decodes no %3D


def _newest(directory: Path) -> Path | None:
    snapshots = _snapshots(directory)
    return snapshots[-1] if snapshots else None


def _snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{_PREFIX}*"), key=_number)


def _number(snapshot: Path) -> int:
    return int(snapshot.name.removeprefix(_PREFIX))
