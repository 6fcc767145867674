"""Rows to and from a Parquet file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from stormkeeper.history.manifest import DataFile
from stormkeeper.history.table_specs import TableSpec


def new_path(name: str, version: int) -> str:
    """Return a path that no file of a table has had, from the folder of the tables."""
    return f"{name}/{version:012d}-{secrets.token_hex(4)}.parquet"


def write(
    folder: Path, path: str, spec: TableSpec, parts: Iterable[pa.Table], level: int = 0
) -> DataFile:
    """Write rows to a new file, as `NewFile` does, in one part or more.

    `level` is how often they were merged.
    """
    file = NewFile(folder, path, spec)
    for rows in parts:
        file.add(rows)
    return file.finish(level)


class NewFile:
    """A file that takes rows until it is finished. Whoever gives up removes it.

    Parameters
    ----------
    folder
        The folder of the tables.
    path
        The new file, from there.
    spec
        Its table.
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
        """Add rows, as `TableSpec.fitted` gives them; the metadata of the first are the file's."""
        writer = self._writer or self._begun(rows)
        for start in range(0, rows.num_rows, self._spec.group_rows):
            writer.write_table(_encoded(rows.slice(start, self._spec.group_rows), self._names))
        self._count += rows.num_rows
        if self._spec.time is not None and rows.num_rows:
            self._times += pc.min_max(rows[self._spec.time]).as_py().values()

    def finish(self, level: int = 0) -> DataFile:
        """Have it whole, and safe from a power failure; `add` was called before.

        The name itself is safe only once its folder was synced.
        """
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
        # That the file was written of dictionaries is no reader's business.
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            # Each batch writes a present table anew: there CPU counts, and not the size.
            compression="zstd" if spec.kind == "log" else "snappy",
            use_dictionary=self._names,
            store_schema=False,
            # What rows are not sorted by is in almost any group: no reader passes over one by it.
            write_statistics=sorted({*spec.order, *([spec.time] if spec.time else [])}),
        )
        self._writer.add_key_value_metadata(schema.metadata or {})
        return self._writer


def _repeating(spec: TableSpec) -> list[str]:
    """Return the columns whose values are to be looked up in a dictionary.

    Names come again and again. Counts and latencies hardly do, and are a fifth smaller without one.
    """
    kinds = (pa.string(), pa.binary())
    return [column.name for column in spec.schema if column.type in kinds]


def _encoded(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows with dictionaries in some columns, which are written more quickly than values.

    A group of rows gets all of its dictionary: so it is to be made of few rows.
    """
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
    """Return the rows of files: null in columns that a file lacks, and without those that are gone.

    Parameters
    ----------
    folder
        The folder of the tables.
    files
        Which of them.
    schema
        The table's columns, or some of them; texts may be dictionaries.
    columns
        Those that are wanted; None: all.
    only
        Which rows; None: all.
    use_threads
        Whether it may take all cores.
    """
    if not files:
        return schema.empty_table().select(list(columns or schema.names))
    # A path with a colon in it would be taken for a URL without its file system.
    paths = [str((folder / file.path).absolute()) for file in files]
    coded = [column.name for column in schema if pa.types.is_dictionary(column.type)]
    form = ds.ParquetFileFormat(dictionary_columns=coded)
    found = ds.dataset(paths, schema=schema, format=form, filesystem=fs.LocalFileSystem())
    return found.to_table(
        columns=None if columns is None else list(columns), filter=only, use_threads=use_threads
    )


def metadata(folder: Path, file: DataFile) -> dict[bytes, bytes] | None:
    """Return the metadata with which the rows of a file were written."""
    found: dict[bytes, bytes] | None = pq.read_schema(folder / file.path).metadata
    return found
