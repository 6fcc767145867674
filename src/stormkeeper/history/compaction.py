"""Compaction and retention of logs: small files are merged beside the writer, old ones deleted.

Sixteen files of a level become one of the next: each row is rewritten once per level.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa

from stormkeeper.daemon.durable import sync_folder
from stormkeeper.history import parquet
from stormkeeper.history.manifest import DataFile, Manifest
from stormkeeper.history.parquet import NewFile, Retention, TableSpec

log = logging.getLogger(__name__)

MB: Final = 1 << 20

FAN_IN: Final = 16

#: Rows are sorted in memory.
MAX_ROWS: Final = 1 << 19
MAX_BYTES: Final = 64 * MB

#: A file has at most an eighth of a log's retention, as files go whole.
_PARTS: Final = 8

#: A merge takes a core for a second per 500,000 rows.
_NICE: Final = 10

_RETRY_SECS: Final = 60.0


def plan(
    files: Sequence[DataFile], retention: Retention, fan_in: int = FAN_IN
) -> list[list[DataFile]]:
    """Return groups of `fan_in` files of one level to merge.

    A group has fewer files if the next would exceed `MAX_ROWS`, `MAX_BYTES`, or an eighth of the
    retention in time or bytes.
    """
    levels: dict[int, list[DataFile]] = {}
    for file in files:
        levels.setdefault(file.level, []).append(file)
    return [
        group
        for level in sorted(levels)
        for group, is_full in _groups(levels[level], retention, fan_in)
        if is_full and len(group) > 1
    ]


def _groups(
    files: Sequence[DataFile], retention: Retention, fan_in: int
) -> Iterator[tuple[list[DataFile], bool]]:
    group: list[DataFile] = []
    for file in files:
        if len(group) == fan_in or (group and not _fit([*group, file], retention)):
            yield group, True
            group = []
        group.append(file)
    yield group, len(group) == fan_in


def _fit(files: Sequence[DataFile], retention: Retention) -> bool:
    size = sum(file.bytes for file in files)
    if sum(file.rows for file in files) > MAX_ROWS or size > MAX_BYTES:
        return False
    if retention.mb is not None and size > retention.mb * MB / _PARTS:
        return False
    if retention.hours is None:
        return True
    earliest = [file.earliest for file in files if file.earliest is not None]
    latest = [file.latest for file in files if file.latest is not None]
    return max(latest) - min(earliest) <= timedelta(hours=retention.hours) / _PARTS


@dataclass(frozen=True, slots=True)
class Merge:
    """A file with the rows of others."""

    table: str
    inputs: frozenset[str]
    output: DataFile


class Compactor:
    """Merges the files of successive manifests, in a thread."""

    def __init__(self, folder: Path, specs: Mapping[str, TableSpec], fan_in: int = FAN_IN) -> None:
        self._folder = folder
        self._specs = specs
        self._fan_in = fan_in
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        #: Under the guard.
        self._finished: list[Merge] = []
        self._outputs: set[str] = set()
        #: Set by the thread, read after its end.
        self._not_before = 0.0

    @property
    def finished(self) -> list[Merge]:
        with self._guard:
            return list(self._finished)

    @property
    def outputs(self) -> set[str]:
        """Output files that a later manifest may name."""
        with self._guard:
            return set(self._outputs)

    def taken(self, merges: Sequence[Merge]) -> None:
        """Forget merges that are published, or never will be."""
        with self._guard:
            self._finished = [merge for merge in self._finished if merge not in merges]
            self._outputs -= {merge.output.path for merge in merges}

    def begin(self, manifest: Manifest) -> None:
        """Start to merge a manifest's files unless earlier merges are open."""
        if (self._thread is not None and self._thread.is_alive()) or self.finished:
            return
        if self._stopping.is_set() or time.monotonic() < self._not_before:
            return
        work = [
            (spec, group)
            for name, spec in self._specs.items()
            if spec.kind == "log"
            for group in plan(manifest.tables[name].files, spec.retention, self._fan_in)
        ]
        if work:
            # A daemon thread: unfinished merges are in no manifest.
            self._thread = threading.Thread(
                target=self._run, args=(work, manifest.version), name="compaction", daemon=True
            )
            self._thread.start()

    def settle(self, deadline_secs: float) -> bool:
        """Wait for running merges; returns whether all ended."""
        if self._thread is not None:
            self._thread.join(deadline_secs)
        return self._thread is None or not self._thread.is_alive()

    def stop(self, deadline_secs: float) -> bool:
        """Start no more merges, and `settle`."""
        self._stopping.set()
        return self.settle(deadline_secs)

    def _run(self, work: Sequence[tuple[TableSpec, Sequence[DataFile]]], version: int) -> None:
        if sys.platform == "linux":  # elsewhere the process would be slowed
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        for spec, group in work:
            if self._stopping.is_set():
                return
            path = parquet.new_path(spec.name, version)
            with self._guard:
                self._outputs.add(path)
            try:
                merge = self._merge(spec, group, path)
            except (OSError, pa.ArrowException) as error:
                self._gave_up(spec, path, error)
                return
            with self._guard:
                self._finished.append(merge)

    def _merge(self, spec: TableSpec, group: Sequence[DataFile], path: str) -> Merge:
        # One core, as queries need the others.
        rows = parquet.read(self._folder, group, spec.schema, use_threads=False)
        file = NewFile(self._folder, path, spec)
        file.add(spec.sorted(rows))
        output = file.finish(group[0].level + 1)
        sync_folder(self._folder / spec.name)
        return Merge(spec.name, frozenset(file.path for file in group), output)

    def _gave_up(self, spec: TableSpec, path: str, error: Exception) -> None:
        log.warning(
            "files of the table %s could not be merged: %s; next attempt in %.0f s",
            spec.name,
            error,
            _RETRY_SECS,
        )
        with contextlib.suppress(OSError):
            (self._folder / path).unlink(missing_ok=True)
        with self._guard:
            self._outputs.discard(path)
        self._not_before = time.monotonic() + _RETRY_SECS


#: Before all rows: a longer retention keeps everything.
_FIRST = datetime.fromtimestamp(0, UTC)

#: How long a clock must be ahead to be trusted, and tolerance, in seconds.
DOUBT_SECS: Final = 3600.0
_SMALL_SECS: Final = 60.0


class RetentionClock:
    """The time by which rows expire: the machine's clock, or elapsed time while that is ahead.

    A clock that is suddenly ahead is not trusted at once, as deletion is final. `steady` is a
    monotonic clock in seconds.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        #: Steady and machine time of the last trusted moment.
        self._known: tuple[float, float] | None = None
        self._ahead_since: float | None = None

    def at(self, now: datetime, before: datetime | None) -> datetime:
        """Return the time by which rows expire; `before` is when the manifest was written."""
        wall, steady = now.timestamp(), self._steady()
        if self._known is None:
            # Downtime does not age data.
            self._known = steady, min(wall, before.timestamp() if before else wall)
        then, known = self._known
        passed = known + steady - then
        if wall <= passed + _SMALL_SECS:
            self._ahead_since = None
        else:
            self._ahead_since = steady if self._ahead_since is None else self._ahead_since
            if steady - self._ahead_since < DOUBT_SECS:
                return datetime.fromtimestamp(passed, UTC)
            self._ahead_since = None
        self._known = steady, wall
        return now


def files_to_keep(files: Sequence[DataFile], retention: Retention, now: datetime) -> list[DataFile]:
    """Return the files to keep: files go by the age of the latest row, or oldest first by size."""
    staying = list(files)
    if retention.hours is not None:
        age = timedelta(hours=retention.hours)
        oldest = now - age if age < now - _FIRST else _FIRST
        staying = [file for file in staying if file.latest is None or file.latest >= oldest]
    if retention.mb is None:
        return staying
    room, gone = retention.mb * MB, set[str]()
    size = sum(file.bytes for file in staying)
    for file in sorted(staying, key=lambda file: file.latest or now)[:-1]:
        if size <= room:
            break
        size -= file.bytes
        gone.add(file.path)
    return [file for file in staying if file.path not in gone]
