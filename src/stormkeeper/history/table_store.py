"""``TableStore``: the only writer of a folder of tables."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeAlias

import msgspec
import pyarrow as pa

from stormkeeper.daemon.durable import sync_folder
from stormkeeper.errors import TableError
from stormkeeper.history import manifest, parquet
from stormkeeper.history.compaction import FAN_IN, Compactor, Merge, RetentionClock, files_to_keep
from stormkeeper.history.manifest import (
    DataFile,
    Entry,
    Manifest,
    Origin,
    TableFolder,
    mark_as_leaving,
    remove_leftovers,
    two_writers_error,
    write_error,
)
from stormkeeper.history.parquet import TableSpec

log = logging.getLogger(__name__)

#: Seconds that a file outlives the last manifest with its name: longer than a reader takes.
KEEP_SECS: Final = 300.0

#: In pieces if too many for memory.
Rows: TypeAlias = pa.Table | Iterable[pa.Table]

#: The tables of a part, by name, even several times. Rows in pieces are written in a thread while
#: the next are made.
Made: TypeAlias = Iterable[tuple[str, Rows]]

_AHEAD: Final = 2

_CLOSE_SECS: Final = 5.0


class TableStore:
    """Writes the tables of a folder; a context manager.

    Compaction and retention run beside the writer and take effect with commits. Tables other than
    `specs` stay.
    """

    def __init__(
        self,
        folder: Path,
        specs: Iterable[TableSpec],
        *,
        interval_secs: float,
        keep_secs: float = KEEP_SECS,
        fan_in: int = FAN_IN,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._specs = {spec.name: spec for spec in specs}
        self._interval_secs = interval_secs
        self._keep_secs = keep_secs
        self._clock = clock
        self._kept_by = RetentionClock(steady)
        self._place = TableFolder(folder)
        self._compactor = Compactor(folder, self._specs, fan_in)
        #: The manifest's commit; None before our first, or if unknown.
        self._version: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._compactor.stop(_CLOSE_SECS):
            log.warning("a merge of tables in %s goes on until the process ends", self._folder)

    def check_place(self) -> None:
        """Raise `TableError` if the folder was moved or removed, or cannot be made."""
        try:
            self._place.check()
        except OSError as error:
            raise write_error(self._folder, error) from error

    def has(self, origin: Origin) -> bool:
        """Return whether the newest commit is of this micro-batch."""
        found = manifest.load(self._folder)
        if found is None or found.origin != origin:
            return False
        # The writer may have been killed before the sync.
        sync_folder(self._folder)
        return True

    def read(
        self, name: str, since: datetime | None = None, schema: pa.Schema | None = None
    ) -> pa.Table | None:
        """Return the rows of a table; None before the first write.

        A ``current`` table in one part has its metadata. Files of a log that end before `since` are
        skipped. `schema` may choose columns and dictionaries.
        """
        spec, files = self._specs[name], self._files(name)
        if not files:
            return None
        if spec.kind == "current" and len(files) == 1:
            return self._read_current(files[0], schema or spec.schema)
        if since is not None:
            files = [file for file in files if file.latest is not None and file.latest >= since]
        return parquet.read(self._folder, files, schema or spec.schema)

    def read_parts(
        self, name: str, schema: pa.Schema | None = None
    ) -> Sequence[Callable[[], pa.Table]]:
        """Return readers of a ``current`` table's parts, with metadata, in published order."""
        schema = schema or self._specs[name].schema
        return [partial(self._read_current, file, schema) for file in self._files(name)]

    def _files(self, name: str) -> Sequence[DataFile]:
        found = manifest.load(self._folder)
        return found.tables[name].files if found is not None and name in found.tables else []

    def _read_current(self, file: DataFile, schema: pa.Schema) -> pa.Table:
        rows = parquet.read(self._folder, [file], schema)
        return rows.replace_schema_metadata(parquet.metadata(self._folder, file))

    def settle(self, deadline_secs: float) -> bool:
        """Wait for running merges, which the next commit publishes; returns whether all ended."""
        return self._compactor.settle(deadline_secs)

    def publish(self, origin: Origin, tables: Mapping[str, Rows]) -> int:
        """Publish the tables of a micro-batch atomically; returns the commit's number.

        `tables` has all rows of a ``current`` table, new rows of a log; other tables stay.
        Repeating the newest micro-batch changes nothing. Raises `TableError` if another process
        writes the tables, the folder is gone, or the file system refuses.
        """
        return self.publish_in_parts(origin, [tables.items()])

    def publish_in_parts(self, origin: Origin, parts: Iterable[Made]) -> int:
        """Publish as `publish` does, with tables made part by part.

        Each part is written, to files of its own, before the next is made. A part without a
        ``current`` table keeps its file, if the number of parts is unchanged.
        """
        try:
            return self._commit(origin, parts)
        except OSError as error:
            raise write_error(self._folder, error) from error

    def _commit(self, origin: Origin, parts: Iterable[Made]) -> int:
        self._place.check()
        before = manifest.load(self._folder)
        if before is not None and before.origin == origin:
            sync_folder(self._folder)
            return before.version
        if self._version is not None and (before is None or before.version != self._version):
            raise two_writers_error(self._folder)
        merges = self._compactor.finished
        with self._removed_on_failure() as begun:
            version = before.version + 1 if before else 1
            self._make_folders()
            written = [self._write(part, version, begun) for part in parts]
            now = self._clock()  # parts may take a while
            after = self._next(before, origin, written, merges, now)
            leaving = before.paths - after.paths if before else set()
            mark_as_leaving(self._folder, leaving, now)
            manifest.stage(self._folder, after)
        self._version = None  # until we know
        manifest.publish(self._folder)
        self._version = after.version
        sync_folder(self._folder)
        self._compactor.taken(merges)
        named = after.paths | self._compactor.outputs
        remove_leftovers(self._folder, after.tables, named, now, self._keep_secs)
        self._compactor.begin(after)
        return after.version

    @contextlib.contextmanager
    def _removed_on_failure(self) -> Iterator[list[str]]:
        """Collect the paths of new files, removed if the commit fails."""
        begun: list[str] = []
        try:
            yield begun
        except BaseException:
            for path in begun:
                with contextlib.suppress(OSError):
                    (self._folder / path).unlink(missing_ok=True)
            raise

    def _make_folders(self) -> None:
        new = [name for name in self._specs if not (self._folder / name).is_dir()]
        for name in new:
            (self._folder / name).mkdir(exist_ok=True)
        if new:
            sync_folder(self._folder)

    def _write(self, part: Made, version: int, begun: list[str]) -> dict[str, DataFile]:
        files = _NewFiles(self._folder, version, begun)
        with ThreadPoolExecutor(1, "table-writer") as beside:
            coming = deque[Future[None]]()
            names: dict[str, None] = {}
            for name, rows in part:
                spec = self._specs[name]
                if isinstance(rows, pa.Table):
                    files.add(spec, [rows])
                    files.finish(name)
                    continue
                names[name] = None
                coming.append(beside.submit(files.add, spec, rows))
                if len(coming) > _AHEAD:
                    coming.popleft().result()
            coming += [beside.submit(files.finish, name) for name in names]
            for each in coming:
                each.result()
        return files.written

    def _next(
        self,
        before: Manifest | None,
        origin: Origin,
        written: Sequence[Mapping[str, DataFile]],
        merges: Sequence[Merge],
        now: float,
    ) -> Manifest:
        at = datetime.fromtimestamp(now, UTC)
        kept_by = self._kept_by.at(at, before.written_at if before else None)
        tables = dict(before.tables) if before else {}
        for name, spec in self._specs.items():
            entry = _entry(tables.get(name), spec)
            if spec.kind == "current":
                files = _replaced(name, entry.files, [part.get(name) for part in written])
            else:
                files = _merged(entry.files, [merge for merge in merges if merge.table == name])
                files += [part[name] for part in written if name in part]
                files = files_to_keep(files, spec.retention, kept_by)
            tables[name] = msgspec.structs.replace(entry, files=files)
        version = before.version + 1 if before else 1
        return Manifest(manifest.FORMAT, version, origin, at, self._interval_secs, tables)


class _NewFiles:
    def __init__(self, folder: Path, version: int, begun: list[str]) -> None:
        self.written: dict[str, DataFile] = {}
        self._folder = folder
        self._version = version
        self._begun = begun
        self._files: dict[str, parquet.NewFile] = {}

    def add(self, spec: TableSpec, given: Iterable[pa.Table]) -> None:
        """Add rows; a log without rows gets no file."""
        for rows in map(spec.fitted, given):
            if spec.name not in self._files and (rows.num_rows or spec.kind == "current"):
                path = parquet.new_path(spec.name, self._version)
                self._begun.append(path)
                self._files[spec.name] = parquet.NewFile(self._folder, path, spec)
            if spec.name in self._files:
                self._files[spec.name].add(rows)

    def finish(self, name: str) -> None:
        if name in self._files:
            self.written[name] = self._files.pop(name).finish()
            # Otherwise a power failure may lose files that the manifest names.
            sync_folder(self._folder / name)


def _replaced(
    name: str, files: Sequence[DataFile], written: Sequence[DataFile | None]
) -> list[DataFile]:
    """Return the files of a table's parts; unwritten parts keep theirs."""
    if not any(written):
        return list(files)
    if not all(written) and len(files) != len(written):
        raise TableError(
            f"the table {name} has {len(files)} parts, and only some of {len(written)} were given"
        )
    parts = itertools.zip_longest(written, files[: len(written)])
    return [new or old for new, old in parts]


def _entry(before: Entry | None, spec: TableSpec) -> Entry:
    if before is None:
        return Entry(spec.kind, spec.time, 1, spec.columns, [])
    differing = [
        name
        for name, kind in spec.columns.items()
        if name in before.columns and before.columns[name] != kind
    ]
    if differing or (before.kind, before.time) != (spec.kind, spec.time):
        what = f"the column {differing[0]}" if differing else "the time or the kind"
        raise TableError(
            f"the table {spec.name} was written by a release in which {what} was another: move the "
            "folder of the tables away, and start the pipeline again"
        )
    if before.columns == spec.columns:
        return before
    return msgspec.structs.replace(before, version=before.version + 1, columns=spec.columns)


def _merged(files: Sequence[DataFile], merges: Sequence[Merge]) -> list[DataFile]:
    paths = {file.path for file in files}
    place = {path: merge for merge in merges if merge.inputs <= paths for path in merge.inputs}
    result, seen = [], set[str]()
    for file in files:
        merge = place.get(file.path)
        if merge is None:
            result.append(file)
        elif merge.output.path not in seen:
            seen.add(merge.output.path)
            result.append(merge.output)
    return result
