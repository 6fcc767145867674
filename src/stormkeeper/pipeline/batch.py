"""A micro-batch between Spark's tasks and the driver: packed, spilled, read part by part.

The column ``executors`` is a hundred times larger than the others, gigabytes for one large
topology: the driver unpacks some rows at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.heartbeats.change_pages import Part, part_of
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoded_rows import decode_batches
from stormkeeper.pipeline.rows import TYPED

#: Each value holds many `TYPED` rows of one ``part`` (or `EVERY_PART`), compressed to a fifth.
PACKED: Final = pa.schema([("part", pa.int32()), ("rows", pa.binary())])

#: `PACKED` rows in order of parts, or spill files. The last row of each read of a part has only
#: ``part`` and ``reads``, the part's number of reads.
PACKED_PARTS: Final = pa.schema([*PACKED, ("file", pa.string()), ("reads", pa.int32())])

#: Rows about servers, which each part needs.
EVERY_PART: Final = -1

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")

#: Average bytes per pulse up to which spill files are not compressed, to save CPU.
_UNCOMPRESSED_BYTES: Final = 32 << 10
_COMPRESSED_SPILL: Final = pa.ipc.IpcWriteOptions(compression="lz4")

#: Packed rows take megabytes: the JVM has no room for the default 10,000 in an Arrow batch.
_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PACKED_AT_ONCE: Final = "8"

#: `SQLExecution.EXECUTION_ID_KEY`: ties a thread's jobs to a query.
_QUERY: Final = "spark.sql.execution.id"

_LARGE: Final = "executors"

_WITHOUT_LARGE: Final = pa.ipc.IpcReadOptions(
    included_fields=[place for place, name in enumerate(TYPED.names) if name != _LARGE]
)

#: Returns pieces of the rows; can be called again.
Chunks = Callable[[], Iterator[pa.Table]]

AddNames = Callable[[pa.Table], pa.Table]

#: Only glibc has, and needs, a trim.
_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)

#: At one second, releases of memory took a sixth of the driver's time.
_KEPT_SECS: Final = 10.0


def pack(df: DataFrame, parts: int = 1) -> DataFrame:
    """Decode the source's rows into `PACKED` rows for `read_parts`; packed rows stay."""
    if df.columns in (PACKED.names, PACKED_PARTS.names):
        return df
    return df.mapInArrow(partial(_pack, parts=parts), from_arrow_schema(PACKED))


def _pack(batches: Iterator[pa.RecordBatch], parts: int) -> Iterator[pa.RecordBatch]:
    for batch in decode_batches(batches):
        for part, found in split_by_part(pa.Table.from_batches([batch]), parts):
            columns = {"part": [part], "rows": [_packed_rows(found)]}
            yield pa.RecordBatch.from_pydict(columns, schema=PACKED)


def pack_read(
    batches: Iterator[pa.RecordBatch], part: Part, reads: int, spill: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode and pack one of a part's `reads` as `PACKED_PARTS`, in files if `spill` is set."""
    found = _decode_parts(batches, part)
    if spill is None:
        for number, table in found:
            yield _value(number, rows=_packed_rows(table))
    else:
        for number, file in _spill(found, Path(spill)):
            yield _value(number, file=file)
    yield _value(part.number, reads=reads)


def _decode_parts(batches: Iterator[pa.RecordBatch], part: Part) -> Iterator[tuple[int, pa.Table]]:
    for batch in decode_batches(batches):
        found = pa.Table.from_batches([batch])
        yield from [(part.number, found)] if part.number else split_by_part(found, part.count, 0)


def _value(part: int, **given: Any) -> pa.RecordBatch:
    values = dict.fromkeys(PACKED_PARTS.names) | {"part": part} | given
    return pa.RecordBatch.from_pylist([values], schema=PACKED_PARTS)


def _spill(found: Iterator[tuple[int, pa.Table]], folder: Path) -> Iterator[tuple[int, str]]:
    files: dict[int, str] = {}
    writers: dict[int, pa.RecordBatchStreamWriter] = {}
    with contextlib.ExitStack() as open_:
        for number, table in found:
            if number not in writers:
                files[number] = str(folder / f"{secrets.token_hex(8)}.arrow")
                sink = open_.enter_context(pa.OSFile(files[number], "wb"))
                is_small = table.nbytes <= _UNCOMPRESSED_BYTES * table.num_rows
                options = None if is_small else _COMPRESSED_SPILL
                writer = pa.ipc.new_stream(sink, TYPED, options=options)
                writers[number] = open_.enter_context(writer)
            writers[number].write_table(table)
    yield from files.items()


def _packed_rows(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TYPED, options=_COMPRESSED) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def split_by_part(
    table: pa.Table, parts: int, servers_part: int = EVERY_PART
) -> Iterator[tuple[int, pa.Table]]:
    """Split decoded rows by part; rows without a topology are in the first part."""
    numbers = pc.fill_null(part_numbers(table, parts), 0)
    numbers = pc.if_else(pc.equal(table["kind"], rows.SERVER), servers_part, numbers)
    found = pc.unique(numbers).to_pylist()
    for number in found:
        yield number, table if len(found) == 1 else table.filter(pc.equal(numbers, number))


def part_numbers(table: pa.Table, parts: int) -> pa.ChunkedArray:
    """Return each row's part; null without a topology."""
    ids = rows.one_array(table["storm_id"]).dictionary_encode()
    numbers = [part_of(storm_id, parts) for storm_id in ids.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(numbers, pa.int32()).take(ids.indices)])


class Batch:
    """The decoded rows of a part of a micro-batch.

    In `rows`, ``executors`` is null, and servers come last, one row each.
    """

    def __init__(self, light: pa.Table, chunks: Chunks) -> None:
        place = TYPED.get_field_index(_LARGE)
        nothing = pa.nulls(light.num_rows, TYPED.field(_LARGE).type)
        light = light.add_column(place, TYPED.field(_LARGE), nothing)
        of_servers = pc.equal(light["kind"], rows.SERVER)
        others = rows.where(light, pc.invert(of_servers))
        self.rows = pa.concat_tables([others, merge_server_rows(rows.where(light, of_servers))])
        self._chunks = chunks

    @classmethod
    def from_packed(cls, values: Sequence[pa.Buffer]) -> Self:
        """Take values of the column ``rows``."""

        def chunks() -> Iterator[pa.Table]:
            for value in values:
                for batch in pa.ipc.open_stream(value):
                    yield pa.Table.from_batches([batch])

        light = [pa.ipc.open_stream(value, options=_WITHOUT_LARGE).read_all() for value in values]
        return cls(pa.concat_tables(light or [TYPED.empty_table().drop_columns([_LARGE])]), chunks)

    def pulses(self, wanted: Any, named: AddNames = lambda pulses: pulses) -> Iterator[pa.Table]:
        """Unpack rows of a mask, with all columns, some at a time, named by `named`."""
        start = 0
        for chunk in self._chunks():
            others = rows.where(chunk, pc.not_equal(chunk["kind"], rows.SERVER))
            found = rows.where(others, wanted.slice(start, others.num_rows))
            start += others.num_rows
            if found.num_rows:
                yield named(found)


def merge_server_rows(batch: pa.Table) -> pa.Table:
    """Keep a single row per server, reachable only if all of the server's parts were read."""
    of_servers = pc.equal(batch["kind"], rows.SERVER)
    found = batch.filter(of_servers)
    if len(pc.unique(found["server"])) == found.num_rows:
        return batch
    first: dict[str, dict[str, Any]] = {}
    for row in sorted(found.to_pylist(), key=_worst_first):
        kept = first.setdefault(row["server"], row)
        kept["health"]["reset"] |= row["health"]["reset"]
    merged = pa.Table.from_pylist([*first.values()], schema=batch.schema)
    return pa.concat_tables([rows.where(batch, pc.invert(of_servers)), merged])


def _worst_first(row: Mapping[str, Any]) -> tuple[bool, datetime]:
    return row["health"]["reachable"], row["read_at"]


def read_parts(df: DataFrame, parts: int = 1) -> Iterator[Batch]:
    """Iterate over the parts of a packed micro-batch: whole topologies, and all servers' rows.

    A part is read while the part before is used.
    """
    if df.columns == PACKED_PARTS.names and parts > 1:
        return _read_ahead(_in_order(_iterate(df), parts))
    return _unpacked(_collect(df), parts)


def _collect(df: DataFrame) -> pa.Table:
    conf = df.sparkSession.conf
    usual = conf.get(_RECORDS)
    conf.set(_RECORDS, _PACKED_AT_ONCE)
    try:
        return df.toArrow()
    finally:
        conf.set(_RECORDS, str(usual))


def _read_ahead(parts: Iterator[Batch]) -> Iterator[Batch]:
    with ThreadPoolExecutor(1, "batch-reader") as thread:
        coming = thread.submit(_next, parts)
        while found := coming.result():
            coming = thread.submit(_next, parts)
            yield found.pop()  # so that only its user holds it


def _next(parts: Iterator[Batch]) -> list[Batch]:
    return list(itertools.islice(parts, 1))


def _in_order(read: Iterator[Row], parts: int) -> Iterator[Batch]:
    held: dict[int, list[pa.Buffer]] = {part: [] for part in range(parts)}
    left: dict[int, int] = {}
    for part, rows_, file, reads in read:
        if reads is None:
            held[part].append(pa.py_buffer(rows_) if file is None else _take_file(file))
            continue
        left[part] = left.get(part, reads) - 1
        while held and left.get(min(held)) == 0:
            yield Batch.from_packed(held.pop(min(held)))
    yield from map(Batch.from_packed, held.values())  # a batch without reads


def _iterate(df: DataFrame) -> Iterator[Row]:
    """Read the partitions in order, each while the partition before is used.

    Runs in the query's thread, so that a stop cancels the jobs. The jobs belong to no query: Spark
    4.3 would keep their results for ever.
    """
    context: Any = df.sparkSession.sparkContext
    query = context.getLocalProperty(_QUERY)
    context.setLocalProperty(_QUERY, None)
    try:
        return df.rdd.toLocalIterator(prefetchPartitions=True)
    finally:
        context.setLocalProperty(_QUERY, query)


def _unpacked(values: pa.Table, parts: int) -> Iterator[Batch]:
    held: dict[int, list[pa.Buffer]] = {}
    parts_, files = (
        values[name].to_pylist() if name in values.column_names else [None] * values.num_rows
        for name in ("part", "file")
    )
    for part, rows_, file in zip(parts_, values["rows"], files, strict=True):
        if rows_.is_valid or file:
            buffer = _take_file(file) if file else rows_.as_buffer()
            held.setdefault(part, []).append(buffer)
    del values  # so that each part's values are freed once it is used
    of_each = held.pop(EVERY_PART, [])
    for part in range(parts):
        yield Batch.from_packed([*held.pop(part, []), *of_each])


def _take_file(file: str) -> pa.Buffer:
    """Map and remove a file: the mapping stays."""
    with pa.memory_map(file) as mapped:
        content = mapped.read_buffer()
    Path(file).unlink()
    return content


class _MemoryRelease:
    def __init__(self) -> None:
        self._next_at = 0.0

    def __call__(self) -> None:
        """Return memory that Arrow's and C's allocators keep: 200 MB after a part."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _KEPT_SECS
        pa.default_memory_pool().release_unused()
        if _TRIM is not None:
            _TRIM(0)


release_memory: Final = _MemoryRelease()

with contextlib.suppress(NotImplementedError):  # Arrow built without jemalloc
    pa.jemalloc_set_decay_ms(round(1000 * _KEPT_SECS))
