"""``Tables``: the tables of a folder as of a commit, for any number of readers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stormkeeper.errors import TableError
from stormkeeper.history import manifest
from stormkeeper.history.manifest import DataFile, Entry, Manifest, read_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: By Arrow's name.
SPARK_TYPES: Final = {
    "bool": "boolean",
    "int32": "int",
    "int64": "bigint",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "timestamp[us, tz=UTC]": "timestamp",
}

_PATTERN: Final = re.compile(r"[][{}*?\\]")


class Tables:
    """The tables of a folder as of the newest commit; a newer commit needs another object.

    Files stay readable for at least five minutes after a newer commit. Raises `TableError` if there
    are no tables, or they cannot be read.

    >>> from datetime import UTC, datetime, timedelta
    >>> tables = Tables("/data/heartbeats/statistics")
    >>> tables.arrow("worker_events", since=datetime.now(UTC) - timedelta(hours=2)).to_pandas()
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        try:
            found = manifest.load(self.folder)
        except OSError as error:
            raise read_error(self.folder, error) from error
        if found is None:
            raise self._nothing()
        self.manifest: Manifest = found

    def _nothing(self) -> TableError:
        there = sorted(str(place.parent) for place in self.folder.glob(f"*/{manifest.NAME}"))
        if there:
            return TableError(f"{self.folder} has folders of tables: open {' or '.join(there)}")
        return TableError(f"there are no tables in {self.folder}; has `storm pipeline` run?")

    def check_access(self) -> None:
        """Raise `TableError` if this user may not read the tables."""
        for folder in {(self.folder / path).parent for path in self.manifest.paths}:
            try:
                with os.scandir(folder):
                    pass
            except OSError as error:
                raise read_error(folder, error) from error

    def names(self) -> list[str]:
        return sorted(self.manifest.tables)

    def schema(self, name: str) -> pa.Schema:
        from stormkeeper.history.parquet import schema_of  # noqa: PLC0415 - as with `arrow`

        return schema_of(self._entry(name).columns)

    def files(
        self, name: str, since: datetime | None = None, until: datetime | None = None
    ) -> list[str]:
        """Return the Parquet files of a table, as absolute paths.

        Files of earlier releases may differ in columns: use DuckDB's ``read_parquet`` with
        ``union_by_name = true``. With `since` or `until`, only files that may have rows of then.
        """
        return [self._path(file) for file in self._files(name, since, until)]

    def arrow(
        self,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows of a table, unordered, from `since` to before `until`.

        Both need a time zone. Columns that a file lacks are null. Raises `TableError` if the table
        is missing or unreadable.
        """
        return self._read(name, self._files(name, since, until), since, until, columns)

    def pieces(
        self,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows of a table file by file, at least once; parameters as `arrow`."""
        for files in [[file] for file in self._files(name, since, until)] or [[]]:
            yield self._read(name, files, since, until, columns)

    def _read(
        self,
        name: str,
        files: Sequence[DataFile],
        since: datetime | None,
        until: datetime | None,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        # The import takes half a second, and names of files do without.
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        from stormkeeper.history import parquet  # noqa: PLC0415

        time, only = self._entry(name).time, None
        if since is not None:
            only = pc.field(time) >= pa.scalar(since)
        if until is not None:
            before = pc.field(time) < pa.scalar(until)
            only = before if only is None else only & before
        try:
            return parquet.read(self.folder, files, self.schema(name), columns=columns, only=only)
        except PermissionError as error:
            raise read_error(self.folder / name, error) from error
        except (OSError, pa.ArrowException) as error:
            raise TableError(
                f"the table {name} in {self.folder} cannot be read: {error}"
            ) from error

    def spark(
        self,
        session: SparkSession,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> DataFrame:
        """Return the rows of a table as a DataFrame; parameters as `arrow`."""
        entry = self._entry(name)
        schema = ", ".join(f"`{name}` {SPARK_TYPES[kind]}" for name, kind in entry.columns.items())
        # Spark does not decode %3D.
        paths = [
            "file://" + _PATTERN.sub(r"\\\g<0>", path) for path in self.files(name, since, until)
        ]
        if not paths:
            return session.createDataFrame([], schema)
        rows = session.read.schema(schema).parquet(*paths)
        if since is not None:
            rows = rows.where(rows[str(entry.time)] >= since)
        if until is not None:
            rows = rows.where(rows[str(entry.time)] < until)
        return rows

    def _entry(self, name: str) -> Entry:
        try:
            return self.manifest.tables[name]
        except KeyError:
            known = ", ".join(self.names())
            raise TableError(
                f"there is no table {name!r} in {self.folder}; these are there: {known}"
            ) from None

    def _path(self, file: DataFile) -> str:
        return str((self.folder / file.path).absolute())

    def _files(self, name: str, since: datetime | None, until: datetime | None) -> list[DataFile]:
        entry = self._entry(name)
        if since is None and until is None:
            return entry.files
        if entry.time is None:
            raise TableError(f"the table {name} has no time: read it without since and until")
        if any(at is not None and at.tzinfo is None for at in (since, until)):
            raise TableError("since and until need a time zone, as datetime.now(UTC) has")
        return [file for file in entry.files if _may_have(file, since, until)]


def _may_have(file: DataFile, since: datetime | None, until: datetime | None) -> bool:
    if file.earliest is None or file.latest is None:
        return False
    return (since is None or file.latest >= since) and (until is None or file.earliest < until)
