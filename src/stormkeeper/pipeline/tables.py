"""A query's tables as snapshots in Parquet: a folder per batch that holds them, whole once named.

::

    <tables>/liveness/batch=000000000041/worker_liveness.parquet
    <tables>/liveness/batch=000000000041/servers.parquet
    <tables>/liveness/batch=000000000042/worker_liveness.parquet    the present
    <tables>/liveness/batch=000000000042/servers.parquet            of the same moment

A batch is written aside, whole, and published by one rename of its folder; it is never changed
afterwards. So there is no moment at which one of its tables is there and another is not, and what
a writer leaves that ends before the rename has no name that a reader looks for. The newest batch is
the tables' present. Older ones stay for a while, so that nobody loses a file that is being read.

That needs a file system on which renaming a folder is one step: every local one, and network ones
that are mounted as POSIX has them, such as NFS. Object stores have no such step.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
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

#: The queries: each has a folder of this name, with its tables and its checkpoint.
LIVENESS: Final = "liveness"
STATISTICS: Final = "statistics"

WORKER_LIVENESS: Final = "worker_liveness"
WORKER_EVENTS: Final = "worker_events"
SERVERS: Final = "servers"
WORKER_REPORTS: Final = "worker_reports"
COMPONENT_STATISTICS: Final = "component_statistics"
REJECTED: Final = "rejected"

#: All of them, by query.
NAMES: Final = {
    LIVENESS: (WORKER_LIVENESS, WORKER_EVENTS, SERVERS),
    STATISTICS: (WORKER_REPORTS, COMPONENT_STATISTICS, REJECTED),
}

_PREFIX: Final = "batch="

_BATCH: Final = re.compile(f"{_PREFIX}[0-9]+")

#: What Spark would take for a pattern in a path.
_PATTERN: Final = re.compile(r"[][{}*?\\]")

#: Held by the one pipeline that writes the tables of a folder.
_LOCK: Final = ".writer"

#: Batches that are kept however old they are.
KEEP: Final = 10

#: How long a batch is kept after the next one came, in seconds: longer than a reader takes to
#: list and open files.
KEEP_SECS: Final = 300.0

_ORIGIN: Final = b"stormkeeper.origin"

#: In a file's metadata: the time between two batches of its query, in seconds.
_INTERVAL: Final = b"interval_secs"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which micro-batch of which streaming query a batch of tables comes from."""

    query: str
    batch: int

    def __bytes__(self) -> bytes:
        return f"{self.query}/{self.batch}".encode()

    @classmethod
    def parse(cls, text: bytes) -> Origin:
        """Return what `bytes` made these of."""
        query, _, batch = text.decode().rpartition("/")
        return cls(query, int(batch))


class SnapshotTables:
    """The tables of a query's folder, for their one writer.

    Parameters
    ----------
    directory
        The folder of the tables; made by the first batch if it is not there. One that has come in
        its place since is refused.
    interval_secs
        The time between two batches, which their files say; None for no regular one.
    keep, keep_secs
        A batch is removed once there are `keep` newer ones and the next one is older than
        `keep_secs`: until then somebody may have taken it for the newest.
    clock
        Gives the time that files are stamped with, in seconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        *,
        interval_secs: float | None = None,
        keep: int = KEEP,
        keep_secs: float = KEEP_SECS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._identity = _identity(directory)
        self._interval_secs = interval_secs
        self._keep = keep
        self._keep_secs = keep_secs
        self._clock = clock

    def read(self, name: str) -> pa.Table | None:
        """Return the present rows of a table; None if it was never written."""
        path = current_path(self._directory, name)
        return None if path is None else pq.read_table(path, partitioning=None)

    def has(self, origin: Origin) -> bool:
        """Whether the newest batch is of this micro-batch, which then is not to be repeated."""
        return newest_origin(self._directory) == origin

    def publish(self, tables: Mapping[str, pa.Table], origin: Origin) -> Path:
        """Make these tables, by name, the present, all at once; return the new batch's folder.

        Raises
        ------
        TableError
            When somebody else writes the same tables, the folder is not there any more, or the file
            system refuses.
        """
        try:
            return self._publish(tables, origin)
        except OSError as error:
            raise _refused(self._directory, error) from error

    def _publish(self, tables: Mapping[str, pa.Table], origin: Origin) -> Path:
        self.check_place()
        batches = _batches(self._directory)
        number = _number(batches[-1]) + 1 if batches else 0
        place = self._directory / f"{_PREFIX}{number:012d}"
        for left in self._directory.glob(f".{_PREFIX}*"):  # by a writer that was killed
            shutil.rmtree(left, ignore_errors=True)
        aside = _aside(place)
        aside.mkdir()
        metadata = {_ORIGIN: bytes(origin)}
        if self._interval_secs is not None:
            metadata[_INTERVAL] = f"{self._interval_secs:g}".encode()
        for name, rows in tables.items():
            _write(rows, _file(aside, name), metadata)
        # Else a power failure may leave the batch's name without its tables.
        _sync(aside)
        try:
            aside.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise _shared(self._directory) from error
        # Spark notes that the micro-batch is done once this has returned.
        _sync(self._directory)
        self._remove_old([*batches, place])
        return place

    def check_place(self) -> None:
        """See to it that the folder is the one that was there when this object was made.

        Raises
        ------
        TableError
            It was moved or removed since then.
        """
        if self._identity is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._identity = _identity(self._directory)
        elif self._identity != _identity(self._directory):
            raise TableError(
                f"the folder {self._directory} was moved or removed while the pipeline wrote its "
                "tables there: remove or rename what is there now, move the folder back to that "
                "path, and start the pipeline again; without it new tables are begun"
            )

    def _remove_old(self, batches: list[Path]) -> None:
        now = self._clock()
        for batch, following in pairwise(batches[: 1 - self._keep or None]):
            # What cannot be removed is not worth the batch that was just published.
            with contextlib.suppress(OSError):
                age = now - following.stat().st_mtime
                if age < 0:  # the clock was set back: it counts from now on
                    os.utime(following, (now, now))
                elif age > self._keep_secs:
                    # Its name goes first: half a batch has none at its end either.
                    shutil.rmtree(batch.rename(_aside(batch)))


def _shared(directory: Path) -> TableError:
    return TableError(
        f"another pipeline writes to {directory}: give each its own pipeline.tables.dir and, where "
        "that is set, its own pipeline.checkpoint.dir"
    )


def _refused(directory: Path, error: OSError) -> TableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "make space there, or set pipeline.tables.dir to a folder where there is some"
    else:
        remedy = "set pipeline.tables.dir to a folder that this user may write to"
    return TableError(f"the tables in {directory} cannot be written: {error}; {remedy}")


@contextlib.contextmanager
def sole_writer(directory: Path, key: str = "pipeline.tables.dir") -> Iterator[None]:
    """Hold the folder of the tables for this process alone; it is made if it is not there.

    The system lets go of it when the process ends, however it ends. A checkpoint that has a folder
    of its own is held in the same way; `key` says which folder it is.

    Raises
    ------
    TableError
        When the folder cannot be made, or another pipeline holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("ab")
    except OSError as error:
        raise TableError(f"{key} cannot be {directory}: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _shared(directory) from error
        except OSError as error:  # a file system without locks: the batches' names must do
            log.debug("%s cannot be locked: %s", directory, error)
        yield


def newest_batch(directory: Path | str) -> Path | None:
    """Return the folder with the present tables of one moment, None before the first batch.

    It has one file per table, ``servers.parquet`` for instance, and stays readable for five
    minutes at least, however many batches follow. Whoever reads several tables that are to belong
    together takes them from one such folder.

    Parameters
    ----------
    directory
        The folder of the query's tables: ``liveness`` or ``statistics`` in
        ``pipeline.tables.dir``.
    """
    batches = _batches(Path(directory))
    return batches[-1] if batches else None


def newest_origin(directory: Path) -> Origin | None:
    """Return which micro-batch the newest batch is of, None before the first."""
    newest = newest_batch(directory)
    if newest is None:
        return None
    # One file tells for all: they were given their names together.
    file = next(newest.glob("*.parquet"), None)
    metadata = (file and pq.read_schema(file).metadata) or {}
    return Origin.parse(metadata[_ORIGIN]) if _ORIGIN in metadata else None


def current_path(directory: Path | str, name: str) -> Path | None:
    """Return the Parquet file with the present rows of a table, None before the first batch.

    It stays readable for five minutes at least, however often the table is written meanwhile.

    Parameters
    ----------
    directory
        The folder of the query's tables: ``liveness`` or ``statistics`` in
        ``pipeline.tables.dir``.
    name
        One of the query's in `NAMES`, ``worker_liveness`` for instance.

    Examples
    --------
    >>> import pyarrow.parquet as pq
    >>> newest = current_path("tables/liveness", "worker_liveness")
    >>> workers = None if newest is None else pq.read_table(newest, partitioning=None)
    """
    newest = newest_batch(directory)
    if newest is None:
        return None
    path = _file(newest, name)
    return path if path.exists() else None


def current(spark: SparkSession, directory: Path | str, name: str) -> DataFrame:
    """Return a table's present rows as a DataFrame; call it again for newer ones.

    The arguments are those of `current_path`.

    Raises
    ------
    TableError
        When the table was never written.
    """
    path = current_path(directory, name)
    if path is None:
        raise TableError(f"there is no table {name!r} in {directory}; has `storm pipeline` run?")
    # As it is otherwise: Spark decodes no %3D.
    return spark.read.parquet("file://" + _PATTERN.sub(r"\\\g<0>", str(path.resolve())))


def make(directory: Path) -> None:
    """Make the folder of a query's tables if it is not there.

    Raises
    ------
    TableError
        When the file system refuses.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(directory, error) from error


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return what a folder keeps when it is moved, None if there is no folder."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _batches(directory: Path) -> list[Path]:
    found = directory.glob(f"{_PREFIX}[0-9]*")
    return sorted((path for path in found if _BATCH.fullmatch(path.name)), key=_number)


def _number(batch: Path) -> int:
    return int(batch.name.removeprefix(_PREFIX))


def _file(batch: Path, name: str) -> Path:
    return batch / f"{name}.parquet"


def _aside(batch: Path) -> Path:
    """Return the name of a batch that is not whole; Spark and globs pass over such names."""
    return batch.with_name(f".{batch.name}")


def _write(rows: pa.Table, path: Path, said: Mapping[bytes, bytes]) -> None:
    metadata = {**(rows.schema.metadata or {}), **said}
    with path.open("wb") as file:
        pq.write_table(rows.replace_schema_metadata(metadata), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Have the names in a folder survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of file systems that cannot
            raise
    finally:
        os.close(descriptor)
