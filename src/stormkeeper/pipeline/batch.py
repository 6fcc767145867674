"""A micro-batch in the driver: rows, part by part, of which the large column is read bit by bit.

What executors count is most of a batch: a hundred times its other columns in memory, and for one
topology with many workers gigabytes. It stays packed, and is unpacked while some rows are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decode import EACH, IN_TURN, PACKED, TYPED, in_parts, typed_rows
from stormkeeper.pipeline.servers import one_each

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


def by_part(df: DataFrame, parts: int = 1) -> Iterator[Batch]:
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
