"""From pulses to typed rows: ``raw.transform(heartbeats).transform(statistics)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, explode
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.heartbeats.following import Part, part_of
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoding.engine import Engine
from stormkeeper.pipeline.decoding.layout import HEARTBEAT
from stormkeeper.pipeline.decoding.values import decode

_WORKER: Final = [("storm_id", pa.string()), ("node", pa.string()), ("port", pa.int32())]

_PASSED_ON: Final = [name for name in rows.SCHEMA.names if name != "details"]

TYPED: Final = pa.schema(
    [
        *_WORKER,
        *HEARTBEAT.items(),
        ("bytes", pa.int64()),
        *((name, rows.SCHEMA.field(name).type) for name in _PASSED_ON),
    ]
)

#: Rows of `TYPED`, many in each value, compressed: a fifth of their size on their way through the
#: JVM, which would take them apart and put them together again, twice. Those of one value are of
#: one `part`, or of `_EACH`.
PACKED: Final = pa.schema([("part", pa.int32()), ("rows", pa.binary())])

#: The same as the source has it, which reads part after part: after the last rows that one of the
#: ``reads`` of a part gives comes a value that has none, and says how many reads there are.
IN_TURN: Final = pa.schema([*PACKED, ("reads", pa.int32())])

#: Stands for every part: how a server was is to be known in each.
_EACH: Final = -1

#: What `paths.parse_workerbeat` reads.
_WORKERBEAT: Final = "^/workerbeats/(?P<storm_id>[^/]+)/(?P<node>[^/]+)-(?P<port>[0-9]{1,9})$"

#: Values that are taken out of a batch at once.
_AT_ONCE: Final = 512

#: How many rows Spark's JVM has in one batch of Arrow on their way to the driver. A packed one has
#: megabytes, and of ten thousand, which is usual, the JVM would not have room for one batch.
_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PACKED_AT_ONCE: Final = "8"

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")


def heartbeats(df: DataFrame) -> DataFrame:
    """Decode the pulses among the rows of the ``pacemaker`` source; other rows are left out.

    Parameters
    ----------
    df
        Rows of ``format("pacemaker")``, all of its columns.

    Returns
    -------
    One row per pulse:

    - ``storm_id``, ``node``, ``port``: the worker, by the pulse's path; null when the path is not
      ``/workerbeats/<storm id>/<node>-<port>``.
    - ``time_secs``: the worker's clock when it beat, seconds since the epoch; ``uptime_secs``.
    - ``executors``: an array of ``task_start``, ``task_end``, ``component`` (null in a heartbeat of
      Storm's own workers, which does not carry it), ``kind`` (spout or bolt), ``rate``, and
      ``counters`` as `statistics` has them.
    - ``completed``: whether all queries of the worker have ended by themselves, and this is its
      last heartbeat.
    - ``error``: why the pulse could not be decoded, in which case the columns above but the path's
      are null; else null.
    - ``bytes``: the pulse's size, as it was sent.
    - ``server``, ``instance``, ``path``, ``revision``, ``age_secs``, ``received_at``, ``read_at``:
      as in the source.

    Notes
    -----
    The field ids are those of ``ClusterWorkerHeartbeat`` in Storm's ``storm.thrift``; plain, gzip
    and zstd values are told apart by their first bytes.
    """
    return typed(df.where(col("kind") == rows.PULSE)).drop("kind", "health")


def statistics(df: DataFrame) -> DataFrame:
    """Lay out the executors' statistics of `heartbeats` rows, one row per window and stream.

    Returns
    -------
    ``storm_id``, ``node``, ``port``, ``server``, ``received_at``, ``time_secs`` of the heartbeat;
    ``task_start``, ``task_end``, ``component``, ``kind`` of the executor; ``window`` (600, 10800,
    86400 seconds or ``:all-time``, a string); ``source``, null for a stream that the executor
    emitted on, else the component from which the stream came in; ``stream``; ``emitted``,
    ``transferred``, ``executed``, ``acked``, ``failed``, ``complete_ms_avg``, ``execute_ms_avg``,
    ``process_ms_avg``, null where not reported; ``partial``, whether the executor had more rows in
    that window than were counted.
    """
    worker = ["storm_id", "node", "port", "server", "received_at", "time_secs"]
    executor = ["task_start", "task_end", "component", "kind"]
    return (
        df.select(*worker, explode("executors").alias("executor"))
        .select(
            *worker,
            *(f"executor.{name}" for name in executor),
            explode("executor.counters").alias("counter"),
        )
        .select(*worker, *executor, "counter.*")
    )


def typed(df: DataFrame) -> DataFrame:
    """Do as `heartbeats`, but keep the source's other rows, with null in the typed columns."""
    return df.mapInArrow(decode_batches, from_arrow_schema(TYPED))


def packed(df: DataFrame, parts: int = 1) -> DataFrame:
    """Do as `typed`, for a driver that unpacks the rows `by_part`: they are as `PACKED`.

    Rows that are packed already, as by the source's option of this name, stay as they are.
    """
    if df.columns in (PACKED.names, IN_TURN.names):
        return df
    return df.mapInArrow(partial(_pack, parts=parts), from_arrow_schema(PACKED))


def _pack(batches: Iterator[pa.RecordBatch], parts: int) -> Iterator[pa.RecordBatch]:
    for batch in decode_batches(batches):
        for part, found in _divided(pa.Table.from_batches([batch]), parts):
            columns = {"part": [part], "rows": [_packed_rows(found)]}
            yield pa.RecordBatch.from_pydict(columns, schema=PACKED)


def pack_read(
    batches: Iterator[pa.RecordBatch], part: Part, reads: int
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

    Returns
    -------
    Rows of `IN_TURN`.
    """
    for batch in decode_batches(batches):
        found = pa.Table.from_batches([batch])
        divided = [(part.number, found)] if part.number else _divided(found, part.count, 0)
        for number, rows_ in divided:
            columns = {"part": [number], "rows": [_packed_rows(rows_)], "reads": [None]}
            yield pa.RecordBatch.from_pydict(columns, schema=IN_TURN)
    columns = {"part": [part.number], "rows": [None], "reads": [reads]}
    yield pa.RecordBatch.from_pydict(columns, schema=IN_TURN)


def _packed_rows(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TYPED, options=_COMPRESSED) as writer:
        writer.write_table(table)
    packed_: bytes = sink.getvalue().to_pybytes()
    return packed_


def by_part(df: DataFrame, parts: int = 1) -> Iterator[pa.Table]:
    """Read rows in the driver, and return an iterator over their parts, each as `typed` gives it.

    A part has some topologies whole, and what is said of the servers. Rows that were `packed` are
    unpacked part by part; those that the source has packed are read part by part, too, each while
    the one before it is used. Others come as they are, where there is one part only.

    Parameters
    ----------
    df
        Rows of `packed`, of `typed`, or of the source.
    parts
        How many there are.
    """
    if df.columns == IN_TURN.names and parts > 1:
        return _in_turn(df, parts)
    if df.columns in (PACKED.names, IN_TURN.names):
        return _unpacked(_collected(df), parts)
    found = df.toArrow()
    if parts == 1:
        return iter([found])
    return _together(list(_divided(found, parts)), parts)


def _collected(df: DataFrame) -> pa.Table:
    conf = df.sparkSession.conf
    usual = conf.get(_RECORDS)
    conf.set(_RECORDS, _PACKED_AT_ONCE)
    try:
        return df.toArrow()
    finally:
        conf.set(_RECORDS, str(usual))


def _in_turn(df: DataFrame, parts: int) -> Iterator[pa.Table]:
    held: dict[int, list[pa.Buffer]] = {part: [] for part in range(parts)}
    left: dict[int, int] = {}
    # One read after another, in their order.
    for part, rows_, reads in df.toLocalIterator(prefetchPartitions=True):
        if rows_ is not None:
            held[part].append(pa.py_buffer(rows_))
            continue
        left[part] = left.get(part, reads) - 1
        while held and left.get(min(held)) == 0:
            yield _unpack(held.pop(min(held)))
    yield from map(_unpack, held.values())  # of a batch that reads nothing


def _unpacked(values: pa.Table, parts: int) -> Iterator[pa.Table]:
    held: dict[int, list[pa.Buffer]] = {}
    for part, rows_ in zip(values["part"].to_pylist(), values["rows"], strict=True):
        if rows_.is_valid:
            held.setdefault(part, []).append(rows_.as_buffer())
    del values  # a part's values go once they are unpacked
    of_each = _unpack(held.pop(_EACH, []))
    for part in range(parts):
        yield pa.concat_tables([_unpack(held.pop(part, [])), of_each])


def _unpack(values: Iterable[pa.Buffer]) -> pa.Table:
    found = [batch for value in values for batch in pa.ipc.open_stream(value)]
    return pa.Table.from_batches(found, TYPED)


def _together(found: Sequence[tuple[int, pa.Table]], parts: int) -> Iterator[pa.Table]:
    for part in range(parts):
        mine = [rows_ for number, rows_ in found if number in (part, _EACH)]
        yield pa.concat_tables(mine or [TYPED.empty_table()])


def _divided(
    table: pa.Table, parts: int, of_servers: int = _EACH
) -> Iterator[tuple[int, pa.Table]]:
    """Cut rows as of `typed` into those of each part that has any."""
    # What belongs to no topology is in the first part.
    numbers = pc.fill_null(part_numbers(table, parts), 0)
    numbers = pc.if_else(pc.equal(table["kind"], rows.SERVER), of_servers, numbers)
    found = pc.unique(numbers).to_pylist()
    for number in found:
        yield number, table if len(found) == 1 else table.filter(pc.equal(numbers, number))


def part_numbers(table: pa.Table, parts: int) -> pa.ChunkedArray:
    """Return of which part each row's topology is, null for no topology."""
    ids = table["storm_id"].combine_chunks().dictionary_encode()
    numbers = [part_of(storm_id, parts) for storm_id in ids.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(numbers, pa.int32()).take(ids.indices)])


def decode_batches(
    batches: Iterator[pa.RecordBatch], engine: Engine | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode Arrow batches of the source's rows; the rows stay in their order.

    What comes out is cut by size, not as it came in. `engine` is as in `decoding.values.decode`.
    """
    for batch in batches:
        if batch["details"].null_count == batch.num_rows:
            yield _typed(batch, {name: pa.nulls(len(batch), of) for name, of in HEARTBEAT.items()})
            continue
        start = 0
        for count, heartbeat in decode(_values(batch["details"]), engine):
            yield _typed(batch.slice(start, count), heartbeat)
            start += count


def typed_rows(rows: pa.Table) -> pa.Table:
    """Return rows of the source as `typed` does; those that are so already stay as they are."""
    if rows.column_names == TYPED.names:
        return rows
    return pa.Table.from_batches(decode_batches(iter(rows.to_batches())), TYPED)


def decode_batch(batch: pa.RecordBatch, engine: Engine | None = None) -> pa.RecordBatch:
    """Decode one Arrow batch of the source's rows to one batch."""
    decoded = pa.Table.from_batches(decode_batches(iter([batch]), engine), schema=TYPED)
    found = decoded.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=TYPED)


def _values(details: pa.Array) -> Iterator[bytes | None]:
    for start in range(0, len(details), _AT_ONCE):
        yield from details.slice(start, _AT_ONCE).to_pylist()


def _typed(batch: pa.RecordBatch, heartbeat: dict[str, pa.Array]) -> pa.RecordBatch:
    workers = pc.extract_regex(batch["path"], _WORKERBEAT)
    columns = {
        **{name: pc.struct_field(workers, name) for name in WorkerId._fields},
        **heartbeat,
        "bytes": pc.binary_length(batch["details"]).cast(pa.int64()),
        # Spark hands times over in the session's time zone.
        **{name: batch[name].cast(TYPED.field(name).type) for name in _PASSED_ON},
    }
    columns["port"] = columns["port"].cast(pa.int32())
    return pa.RecordBatch.from_pydict(columns, schema=TYPED)
