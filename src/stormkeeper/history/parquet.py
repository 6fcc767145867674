"""Table specifications, and their rows in Parquet files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from stormkeeper.history.manifest import DataFile, Kind

TIME: Final = pa.timestamp("us", tz="UTC")

TYPES: Final = {
    str(kind): kind
    for kind in (pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.binary(), TIME)
}

_GROUP_ROWS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Retention:
    """The bounds of a log in age and MiB; None: no bound.

    Files go whole, so rows may stay an eighth longer. The newest file stays, whatever its size.
    """

    hours: float | None = None
    mb: float | None = None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's definition.

    The name, of a-z, 0-9 and _, is also the folder's. The `time` column is never null; logs need
    it. Rows of a file are sorted by `sort`, or by time.
    """

    name: str
    schema: pa.Schema
    kind: Kind
    time: str | None = None
    sort: tuple[str, ...] = ()
    retention: Retention = field(default=Retention())

    @property
    def order(self) -> tuple[str, ...]:
        return self.sort or ((self.time,) if self.time else ())

    @property
    def group_rows(self) -> int:
        """Rows per group, which readers skip by statistics.

        Rows sorted by time alone are skipped as whole files; larger groups are written faster.
        """
        return _GROUP_ROWS if self.sort else 4 * _GROUP_ROWS

    @property
    def columns(self) -> dict[str, str]:
        return {column.name: str(column.type) for column in self.schema}

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return rows with this table's columns and order; metadata and dictionaries stay."""
        rows = rows.select(self.schema.names)
        columns = map(self._column, rows.schema)
        return self.sorted(rows.cast(pa.schema(columns, metadata=rows.schema.metadata)))

    def _column(self, given: pa.Field) -> pa.Field:
        """Keep a dictionary a dictionary."""
        wanted = self.schema.field(given.name)
        is_dictionary = pa.types.is_dictionary(given.type) and given.type.value_type == wanted.type
        return given if is_dictionary and given.name not in self.order else wanted

    def sorted(self, rows: pa.Table) -> pa.Table:
        if not self.order or (len(self.order) == 1 and _ascends(rows[self.order[0]])):
            return rows
        return rows.sort_by([(name, "ascending") for name in self.order])


def _ascends(column: pa.ChunkedArray) -> bool:
    """Most batches have a single time for all rows."""
    if column.null_count:
        return False
    return bool(pc.all(pc.less_equal(column[:-1], column[1:])).as_py() is not False)


def schema_of(columns: dict[str, str]) -> pa.Schema:
    return pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])


def new_path(name: str, version: int) -> str:
    """Return an unused path for a file, relative to the folder of the tables."""
    return f"{name}/{version:012d}-{secrets.token_hex(4)}.parquet"


class NewFile:
    """A new file that takes rows until `finish`; a caller that gives up removes the file.

    `path` is relative to `folder`, the folder of the tables.
    """

    def __init__(self, folder: Path, path: str, spec: TableSpec) -> None:
        self._folder = folder
        self._path = path
        self._spec = spec
        self._names = _repeating(spec)
        (folder / path).open("xb").close()  # Arrow would write over what is there
        self._sink = pa.OSFile(str(folder / path), "wb")
        self._writer: pq.ParquetWriter | None = None
        self._count = 0
        self._times: list[Any] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows from `TableSpec.fitted`; the file has the first rows' metadata."""
        writer = self._writer or self._begun(rows)
        for start in range(0, rows.num_rows, self._spec.group_rows):
            writer.write_table(_encoded(rows.slice(start, self._spec.group_rows), self._names))
        self._count += rows.num_rows
        if self._spec.time is not None and rows.num_rows:
            self._times += pc.min_max(rows[self._spec.time]).as_py().values()

    def finish(self, level: int = 0) -> DataFile:
        """Complete and sync the file after an `add`; the caller syncs the folder."""
        assert self._writer is not None
        self._writer.close()
        self._sink.close()
        with (self._folder / self._path).open("r+b") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        earliest, latest = (min(self._times), max(self._times)) if self._times else (None, None)
        return DataFile(self._path, self._count, size, earliest, latest, level)

    def _begun(self, rows: pa.Table) -> pq.ParquetWriter:
        spec = self._spec
        schema = _encoded(rows.slice(0, 0), self._names).schema
        # Readers need not know of dictionaries.
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            # Every batch rewrites current tables: there CPU counts more than size.
            compression="zstd" if spec.kind == "log" else "snappy",
            use_dictionary=self._names,
            store_schema=False,
            # Only sort columns and times have useful statistics.
            write_statistics=sorted({*spec.order, *([spec.time] if spec.time else [])}),
        )
        self._writer.add_key_value_metadata(schema.metadata or {})
        return self._writer


def _repeating(spec: TableSpec) -> list[str]:
    kinds = (pa.string(), pa.binary())
    return [column.name for column in spec.schema if column.type in kinds]


def _encoded(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        place = rows.column_names.index(name)
        rows = rows.set_column(place, name, rows[name].dictionary_encode())
    return rows


def read(
    folder: Path,
    files: Sequence[DataFile],
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    only: ds.Expression | None = None,
    use_threads: bool = True,
) -> pa.Table:
    """Return the rows of files, with null for missing columns.

    Texts in `schema` may be dictionaries; `only` filters rows.
    """
    if not files:
        return schema.empty_table().select(list(columns or schema.names))
    # Without a file system, a path with a colon counts as a URL.
    paths = [str((folder / file.path).absolute()) for file in files]
    coded = [column.name for column in schema if pa.types.is_dictionary(column.type)]
    form = ds.ParquetFileFormat(dictionary_columns=coded)
    found = ds.dataset(paths, schema=schema, format=form, filesystem=fs.LocalFileSystem())
    return found.to_table(
        columns=None if columns is None else list(columns), filter=only, use_threads=use_threads
    )


def metadata(folder: Path, file: DataFile) -> dict[bytes, bytes] | None:
    found: dict[bytes, bytes] | None = pq.read_schema(folder / file.path).metadata
    return found
