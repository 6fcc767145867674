"""A micro-batch in the driver: rows, part by part, of which the large column is read bit by bit.

What executors count is most of a batch: a hundred times its other columns in memory, and for one
topology with many workers gigabytes. It stays packed, and is unpacked while some rows are used.
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

from stormkeeper.heartbeats.following import Part, part_of
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decode import decode_batches, typed_rows
from stormkeeper.pipeline.rows import TYPED

#: How many rows Spark's JVM has in one batch of Arrow on their way to the driver. A packed one has
#: megabytes, and of ten thousand, which is usual, the JVM would not have room for one batch.
_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PACKED_AT_ONCE: Final = "8"

#: What says of a thread which query its jobs are of, `SQLExecution.EXECUTION_ID_KEY`.
_QUERY: Final = "spark.sql.execution.id"

_LARGE: Final = "executors"

_LIGHT: Final = pa.ipc.IpcReadOptions(
    included_fields=[place for place, name in enumerate(TYPED.names) if name != _LARGE]
)

#: Returns rows, some at a time, each time that it is called.
Chunks = Callable[[], Iterator[pa.Table]]

#: Returns pulses, rows as `decode.typed` gives them, with names of components that they lack.
Named = Callable[[pa.Table], pa.Table]


class Batch:
    """What was read of a part: rows as `decode.typed` gives them.

    Parameters
    ----------
    light
        The rows, without what executors count.
    chunks
        The same rows, in the same order, with it.

    Attributes
    ----------
    rows
        The rows, with null for what executors count. Those of servers come last, one of each,
        though it was read in several parts.
    """

    def __init__(self, light: pa.Table, chunks: Chunks) -> None:
        place = TYPED.get_field_index(_LARGE)
        nothing = pa.nulls(light.num_rows, TYPED.field(_LARGE).type)
        light = light.add_column(place, TYPED.field(_LARGE), nothing)
        of_servers = pc.equal(light["kind"], rows.SERVER)
        others = rows.where(light, pc.invert(of_servers))
        self.rows = pa.concat_tables([others, one_each(rows.where(light, of_servers))])
        self._chunks = chunks

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Return what has the rows of a table: as of `decode.typed`, or of the source."""
        table = typed_rows(table)
        return cls(table.drop_columns([_LARGE]), lambda: iter([table]))

    @classmethod
    def packed(cls, values: Sequence[pa.Buffer]) -> Self:
        """Return what has the rows that some values have, packed as `decode.PACKED` has them."""

        def chunks() -> Iterator[pa.Table]:
            for value in values:
                for batch in pa.ipc.open_stream(value):
                    yield pa.Table.from_batches([batch])

        light = [pa.ipc.open_stream(value, options=_LIGHT).read_all() for value in values]
        return cls(pa.concat_tables(light or [TYPED.empty_table().drop_columns([_LARGE])]), chunks)

    def pulses(self, wanted: Any, named: Named = lambda pulses: pulses) -> Pulses:
        """Return some of the `rows` with all of their columns.

        Parameters
        ----------
        wanted
            For each of them whether it is wanted, which those of servers are not.
        named
            Names components.
        """
        return Pulses(self._chunks, wanted, named)


class Pulses:
    """Rows of pulses, some at a time, which are unpacked each time that they are gone through."""

    def __init__(self, chunks: Chunks, wanted: Any, named: Named) -> None:
        self._chunks = chunks
        self._wanted = wanted
        self._named = named

    def __iter__(self) -> Iterator[pa.Table]:
        start = 0
        for chunk in self._chunks():
            others = rows.where(chunk, pc.not_equal(chunk["kind"], rows.SERVER))
            found = rows.where(others, self._wanted.slice(start, others.num_rows))
            start += others.num_rows
            if found.num_rows:
                yield self._named(found)


def read_parts(df: DataFrame, parts: int = 1) -> Iterator[Batch]:
    """Read rows in the driver, and return an iterator over their parts.

    A part has some topologies whole, and what is said of the servers. Rows that the source has
    packed are read part by part, each while the one before it is used. Others come as they are,
    where there is one part only.

    Parameters
    ----------
    df
        Rows of `decode.packed`, of `decode.typed`, or of the source.
    parts
        How many there are.
    """
    if df.columns == IN_TURN.names and parts > 1:
        return _ahead(_in_turn(_one_by_one(df), parts))
    if df.columns in (PACKED.names, IN_TURN.names):
        return _unpacked(_collected(df), parts)
    found = df.toArrow()
    if parts == 1:
        return iter([Batch.of(found)])
    return _together(list(in_parts(found, parts)), parts)


def _collected(df: DataFrame) -> pa.Table:
    conf = df.sparkSession.conf
    usual = conf.get(_RECORDS)
    conf.set(_RECORDS, _PACKED_AT_ONCE)
    try:
        return df.toArrow()
    finally:
        conf.set(_RECORDS, str(usual))


def _ahead(parts: Iterator[Batch]) -> Iterator[Batch]:
    """Read one part ahead, in a thread, while the one before it is used."""
    with ThreadPoolExecutor(1, "batch-reader") as thread:
        coming = thread.submit(_one, parts)
        while found := coming.result():
            coming = thread.submit(_one, parts)
            yield found.pop()  # so that nobody holds it but who uses it


def _one(parts: Iterator[Batch]) -> list[Batch]:
    return list(itertools.islice(parts, 1))


def _in_turn(read: Iterator[Row], parts: int) -> Iterator[Batch]:
    held: dict[int, list[pa.Buffer]] = {part: [] for part in range(parts)}
    left: dict[int, int] = {}
    for part, rows_, file, reads in read:
        if reads is None:
            held[part].append(pa.py_buffer(rows_) if file is None else _taken(file))
            continue
        left[part] = left.get(part, reads) - 1
        while held and left.get(min(held)) == 0:
            yield Batch.packed(held.pop(min(held)))
    yield from map(Batch.packed, held.values())  # of a batch that reads nothing


def _one_by_one(df: DataFrame) -> Iterator[Row]:
    """Take rows of one partition after another, in their order, each while the next one is read.

    In the query's thread: jobs that begin in another one are not cut off when the query is stopped.

    Jobs of a query, with what they gave, are kept until the query has ended; and those of an
    iterator, which begin after that, for ever (Spark 4.3). So they are to be of no query.
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
            buffer = _taken(file) if file else rows_.as_buffer()
            held.setdefault(part, []).append(buffer)
    del values  # a part's values go once it is used
    of_each = held.pop(EACH, [])
    for part in range(parts):
        yield Batch.packed([*held.pop(part, []), *of_each])


def _taken(file: str) -> pa.Buffer:
    """Return what a file has, without reading it yet, and remove it: what is mapped stays."""
    with pa.memory_map(file) as mapped:
        content = mapped.read_buffer()
    Path(file).unlink()
    return content


def _together(found: Sequence[tuple[int, pa.Table]], parts: int) -> Iterator[Batch]:
    for part in range(parts):
        mine = [rows_ for number, rows_ in found if number in (part, EACH)]
        yield Batch.of(pa.concat_tables(mine or [TYPED.empty_table()]))


#: Of glibc; others give back by themselves, or not at all.
_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)

#: For so long what was freed is kept, in seconds. Whoever needs it again sooner has the system
#: clear it first: once a second, that was a sixth of the driver's time.
_KEPT_SECS: Final = 10.0


class _Giving:
    def __init__(self) -> None:
        self._next_at = 0.0

    def __call__(self) -> None:
        """Give back what Arrow's allocator and C's hold without need; seldom enough to be cheap.

        Both keep what was freed, in case it is asked for again: after one part of a batch of 72,000
        workers that is 200 MB more than before it.
        """
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _KEPT_SECS
        pa.default_memory_pool().release_unused()
        if _TRIM is not None:
            _TRIM(0)


give_back: Final = _Giving()

with contextlib.suppress(NotImplementedError):  # where Arrow was built without it
    pa.jemalloc_set_decay_ms(round(1000 * _KEPT_SECS))


#: Rows of `TYPED`, many in each value, compressed: a fifth of their size on their way through the
#: JVM, which would take them apart and put them together again, twice. Those of one value are of
#: one `part`, or of `EACH`.
PACKED: Final = pa.schema([("part", pa.int32()), ("rows", pa.binary())])


#: The same as the source has it, which reads part after part: the rows, or the ``file`` that has
#: them. After the last that one of the ``reads`` of a part gives comes a value that has neither,
#: and says how many reads there are.
IN_TURN: Final = pa.schema([*PACKED, ("file", pa.string()), ("reads", pa.int32())])


#: Stands for every part: how a server was is to be known in each.
EACH: Final = -1


_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")


#: In a file that is read at once and removed, CPU counts. Pulses of up to so many bytes are not
#: compressed, which takes a twentieth of the time. Of larger ones a part has gigabytes.
_SMALL: Final = 32 << 10


_QUICKLY: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def packed(df: DataFrame, parts: int = 1) -> DataFrame:
    """Do as `typed`, for a driver that reads them `batch.read_parts`: as `PACKED`.

    Rows that are packed already, as by the source's option of this name, stay as they are.
    """
    if df.columns in (PACKED.names, IN_TURN.names):
        return df
    return df.mapInArrow(partial(_pack, parts=parts), from_arrow_schema(PACKED))


def _pack(batches: Iterator[pa.RecordBatch], parts: int) -> Iterator[pa.RecordBatch]:
    for batch in decode_batches(batches):
        for part, found in in_parts(pa.Table.from_batches([batch]), parts):
            columns = {"part": [part], "rows": [_packed_rows(found)]}
            yield pa.RecordBatch.from_pydict(columns, schema=PACKED)


def pack_read(
    batches: Iterator[pa.RecordBatch], part: Part, reads: int, aside: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode and pack what a read of a part has given, as Arrow batches of the source's rows.

    What it says of its server counts for its part alone.

    Parameters
    ----------
    batches
        The rows; with those of the first part may be others.
    part
        The part.
    reads
        How many reads of it there are.
    aside
        The folder to which the rows are written, if not into what is returned.

    Returns
    -------
    Rows of `IN_TURN`.
    """
    found = _of_parts(batches, part)
    if aside is None:
        for number, table in found:
            yield _value(number, rows=_packed_rows(table))
    else:
        for number, file in _put_aside(found, Path(aside)):
            yield _value(number, file=file)
    yield _value(part.number, reads=reads)


def _of_parts(batches: Iterator[pa.RecordBatch], part: Part) -> Iterator[tuple[int, pa.Table]]:
    for batch in decode_batches(batches):
        found = pa.Table.from_batches([batch])
        yield from [(part.number, found)] if part.number else in_parts(found, part.count, 0)


def _value(part: int, **given: Any) -> pa.RecordBatch:
    values = dict.fromkeys(IN_TURN.names) | {"part": part} | given
    return pa.RecordBatch.from_pylist([values], schema=IN_TURN)


def _put_aside(found: Iterator[tuple[int, pa.Table]], folder: Path) -> Iterator[tuple[int, str]]:
    """Write the rows of each part to a file of its own; whoever reads it removes it."""
    files: dict[int, str] = {}
    writers: dict[int, pa.RecordBatchStreamWriter] = {}
    with contextlib.ExitStack() as open_:
        for number, table in found:
            if number not in writers:
                files[number] = str(folder / f"{secrets.token_hex(8)}.arrow")
                sink = open_.enter_context(pa.OSFile(files[number], "wb"))
                is_small = table.nbytes <= _SMALL * table.num_rows
                writer = pa.ipc.new_stream(sink, TYPED, options=None if is_small else _QUICKLY)
                writers[number] = open_.enter_context(writer)
            writers[number].write_table(table)
    yield from files.items()


def _packed_rows(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TYPED, options=_COMPRESSED) as writer:
        writer.write_table(table)
    packed_: bytes = sink.getvalue().to_pybytes()
    return packed_


def in_parts(table: pa.Table, parts: int, of_servers: int = EACH) -> Iterator[tuple[int, pa.Table]]:
    """Cut rows as of `typed` into those of each part that has any; servers are in `of_servers`."""
    # What belongs to no topology is in the first part.
    numbers = pc.fill_null(part_numbers(table, parts), 0)
    numbers = pc.if_else(pc.equal(table["kind"], rows.SERVER), of_servers, numbers)
    found = pc.unique(numbers).to_pylist()
    for number in found:
        yield number, table if len(found) == 1 else table.filter(pc.equal(numbers, number))


def part_numbers(table: pa.Table, parts: int) -> pa.ChunkedArray:
    """Return of which part each row's topology is, null for no topology."""
    ids = rows.one_array(table["storm_id"]).dictionary_encode()
    numbers = [part_of(storm_id, parts) for storm_id in ids.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(numbers, pa.int32()).take(ids.indices)])


def one_each(batch: pa.Table) -> pa.Table:
    """Return a batch in which each server has one row, though it was read in several parts.

    It was read only if all of its parts were, and all was read when the first of them was.
    """
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
