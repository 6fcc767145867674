"""``TableStore``: the one writer of a folder of tables."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self, TypeAlias

import msgspec
import pyarrow as pa

from stormkeeper.errors import TableError
from stormkeeper.tables import leftovers, manifest, parquet, retention
from stormkeeper.tables.compaction import FAN_IN, Compactor, Merge
from stormkeeper.tables.manifest import DataFile, Entry, Manifest, Origin
from stormkeeper.tables.places import Place, refused, shared, sync
from stormkeeper.tables.specs import TableSpec

log = logging.getLogger(__name__)

#: How long a file stays after it has left the manifest, in seconds: longer than a reader takes from
#: the manifest to its last file.
KEEP_SECS: Final = 300.0

#: Rows of a table; or of a log, in parts, where they are too many to be in memory together.
Rows: TypeAlias = pa.Table | Iterable[pa.Table]

#: How long the end of a store waits for a merge that runs, in seconds.
_CLOSE_SECS: Final = 5.0


class TableStore:
    """The tables of a folder, for their one writer; it is closed as a context manager.

    Files of logs are merged and grow too old beside it, which its commits put into effect.

    Parameters
    ----------
    folder
        The folder of the tables; made by the first commit if it is not there. One that has come in
        its place since is refused.
    specs
        The tables. Those that the folder has besides stay as they are.
    interval_secs
        How often there is to be a commit, for the manifest to tell.
    keep_secs
        How long a file stays after it has left the manifest.
    fan_in
        How many files of a log are merged into one.
    clock
        Gives seconds since the epoch.
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
    ) -> None:
        self._folder = folder
        self._specs = {spec.name: spec for spec in specs}
        self._interval_secs = interval_secs
        self._keep_secs = keep_secs
        self._clock = clock
        self._place = Place(folder)
        self._compactor = Compactor(folder, self._specs, fan_in)
        #: The commit that we know the manifest to have; None before ours, or if we do not know.
        self._version: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._compactor.stop(_CLOSE_SECS):
            log.warning("a merge of tables in %s goes on until the process ends", self._folder)

    def check_place(self) -> None:
        """See to it that the folder is the one that was there when this object was made.

        Raises
        ------
        TableError
            It was moved or removed since then, or cannot be made.
        """
        try:
            self._place.check()
        except OSError as error:
            raise refused(self._folder, error) from error

    def has(self, origin: Origin) -> bool:
        """Whether the newest commit is of this micro-batch, which then is not to be repeated."""
        found = manifest.load(self._folder)
        if found is None or found.origin != origin:
            return False
        # A writer may have ended before its commit was safe from a power failure.
        manifest.settle(self._folder)
        return True

    def read(self, name: str, since: datetime | None = None) -> pa.Table | None:
        """Return the present rows of a table; None if it was never written.

        A table of the kind ``current`` has the metadata with which it was written. Of a log, only
        the files are read that have rows since then; these may have earlier ones, too.
        """
        found = manifest.load(self._folder)
        if found is None or name not in found.tables or not found.tables[name].files:
            return None
        spec, files = self._specs[name], found.tables[name].files
        if since is not None:
            files = [file for file in files if file.latest is not None and file.latest >= since]
        rows = parquet.read(self._folder, files, spec.schema)
        if spec.kind == "log":
            return rows
        return rows.replace_schema_metadata(parquet.metadata(self._folder, files[0]))

    def settle(self, deadline_secs: float) -> bool:
        """Wait for the merges that were begun; return whether they are done.

        The next commit puts them into effect.
        """
        return self._compactor.settle(deadline_secs)

    def publish(self, origin: Origin, tables: Mapping[str, Rows]) -> int:
        """Commit tables by name, each as its kind is: all rows of it, or the new ones of a log."""
        logs = {name for name, spec in self._specs.items() if spec.kind == "log"}
        return self.commit(
            origin,
            {name: rows for name, rows in tables.items() if name not in logs},
            {name: rows for name, rows in tables.items() if name in logs},
        )

    def commit(
        self,
        origin: Origin,
        current: Mapping[str, pa.Table] | None = None,
        appended: Mapping[str, Rows] | None = None,
    ) -> int:
        """Publish the tables of one micro-batch, all at once; return the number of the commit.

        A micro-batch that the newest commit is of already changes nothing.

        Parameters
        ----------
        origin
            The micro-batch.
        current
            All rows of tables of the kind ``current``, by name. Those that are not named stay.
        appended
            New rows of logs, by name. Those that come in parts are made while they are written:
            what fails then is raised as it is, and nothing is published either.

        Raises
        ------
        TableError
            The rows are not the tables', somebody else writes the same tables, the folder is not
            there any more, or the file system refuses. Then nothing is published.
        """
        rows = {**self._fitted("current", current or {}), **self._fitted("log", appended or {})}
        try:
            return self._commit(origin, rows)
        except OSError as error:
            raise refused(self._folder, error) from error

    def _fitted(self, kind: str, rows: Mapping[str, Rows]) -> dict[str, Iterable[pa.Table]]:
        """Return the parts of tables, as their files have them."""
        for name in rows:
            if name not in self._specs or self._specs[name].kind != kind:
                known = ", ".join(spec.name for spec in self._specs.values() if spec.kind == kind)
                raise TableError(f"no table {name!r} is of the kind {kind}; these are: {known}")
        return {
            name: [self._specs[name].fitted(given)]
            if isinstance(given, pa.Table)
            else map(self._specs[name].fitted, given)
            for name, given in rows.items()
        }

    def _commit(self, origin: Origin, rows: Mapping[str, Iterable[pa.Table]]) -> int:
        self._place.check()
        before = manifest.load(self._folder)
        if before is not None and before.origin == origin:
            manifest.settle(self._folder)
            return before.version
        if self._version is not None and (before is None or before.version != self._version):
            raise shared(self._folder)
        now = self._clock()
        merges = self._compactor.finished
        with self._removed_on_failure() as begun:
            written = self._write(rows, before.version + 1 if before else 1, begun)
            after = self._next(before, origin, written, merges, now)
            leaving = before.paths - after.paths if before else set()
            leftovers.mark(self._folder, leaving, now)
            manifest.stage(self._folder, after)
        self._version = None  # until we know
        manifest.publish(self._folder)
        self._version = after.version
        manifest.settle(self._folder)
        self._compactor.taken(merges)
        named = after.paths | self._compactor.outputs
        leftovers.sweep(self._folder, after.tables, named, now, self._keep_secs)
        self._compactor.begin(after)
        return after.version

    @contextlib.contextmanager
    def _removed_on_failure(self) -> Iterator[list[str]]:
        """Take the paths of files that are begun, which are removed if the commit fails."""
        begun: list[str] = []
        try:
            yield begun
        except BaseException:
            for path in begun:
                with contextlib.suppress(OSError):
                    (self._folder / path).unlink(missing_ok=True)
            raise

    def _write(
        self, rows: Mapping[str, Iterable[pa.Table]], version: int, begun: list[str]
    ) -> dict[str, DataFile]:
        written = {}
        new = [name for name in self._specs if not (self._folder / name).is_dir()]
        for name in new:
            (self._folder / name).mkdir(exist_ok=True)
        if new:
            sync(self._folder)
        for name, given in rows.items():
            parts = _some(given) if self._specs[name].kind == "log" else given
            if parts is None:
                continue
            path = parquet.new_path(name, version)
            begun.append(path)
            written[name] = parquet.write(self._folder, path, self._specs[name], parts)
            # Else a power failure may leave the manifest without what it names.
            sync(self._folder / name)
        return written

    def _next(
        self,
        before: Manifest | None,
        origin: Origin,
        written: Mapping[str, DataFile],
        merges: Sequence[Merge],
        now: float,
    ) -> Manifest:
        """Return the manifest that follows."""
        at = datetime.fromtimestamp(now, UTC)
        tables = dict(before.tables) if before else {}
        for name, spec in self._specs.items():
            entry = _entry(tables.get(name), spec)
            if spec.kind == "current":
                files = [written[name]] if name in written else entry.files
            else:
                files = _merged(entry.files, [merge for merge in merges if merge.table == name])
                files += [written[name]] if name in written else []
                files = retention.kept(files, spec.retention, at)
            tables[name] = msgspec.structs.replace(entry, files=files)
        version = before.version + 1 if before else 1
        return Manifest(manifest.FORMAT, version, origin, at, self._interval_secs, tables)


def _some(parts: Iterable[pa.Table]) -> Iterable[pa.Table] | None:
    """Return the parts that have rows; None if there are none."""
    some = (part for part in parts if part.num_rows)
    first = next(some, None)
    return None if first is None else itertools.chain([first], some)


def _entry(before: Entry | None, spec: TableSpec) -> Entry:
    """Return a table's entry with the columns that it has from now on."""
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
    """Return files of which some were merged; each takes the place of its oldest input.

    If one of the inputs has gone meanwhile, as it was too old, the merge is not used.
    """
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
