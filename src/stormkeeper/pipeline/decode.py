"""From pulses to typed rows: ``raw.transform(heartbeats).transform(statistics)``."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, explode
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.heartbeats.following import Part, part_of
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoding.engine import Engine
from stormkeeper.pipeline.decoding.layout import HEARTBEAT, plain
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

#: The same as Spark has it, which knows no dictionaries within lists.
OF_SPARK: Final = pa.schema([(field.name, plain(field.type)) for field in TYPED])

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

#: What `paths.parse_workerbeat` reads.
_WORKERBEAT: Final = "^/workerbeats/(?P<storm_id>[^/]+)/(?P<node>[^/]+)-(?P<port>[0-9]{1,9})$"

#: Values that are taken out of a batch at once.
_AT_ONCE: Final = 512

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")

#: In a file that is read at once and removed, CPU counts. Pulses of up to so many bytes are not
#: compressed, which takes a twentieth of the time. Of larger ones a part has gigabytes.
_SMALL: Final = 32 << 10
_QUICKLY: Final = pa.ipc.IpcWriteOptions(compression="lz4")


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
    return df.mapInArrow(_decode_for_spark, from_arrow_schema(OF_SPARK))


def _decode_for_spark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in decode_batches(batches):
        yield batch.cast(OF_SPARK)


def packed(df: DataFrame, parts: int = 1) -> DataFrame:
    """Do as `typed`, for a driver that reads them `batch.by_part`: as `PACKED`.

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
    """Return rows of the source, or those that `typed` has made of them, as `TYPED`."""
    if rows.column_names == TYPED.names:
        return rows if rows.schema == TYPED else rows.cast(TYPED)
    return pa.Table.from_batches(decode_batches(iter(rows.to_batches())), TYPED)


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
