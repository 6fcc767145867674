"""From pulses to typed rows: ``raw.transform(heartbeats).transform(statistics)``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, explode
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.errors import SerializationError
from stormkeeper.paths import parse_workerbeat
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.counters import Counter, counters
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo, ExecutorStats
from stormkeeper.thrift.serialization import deserialize

_COUNTER_TYPES: Final = {
    **dict.fromkeys(("window", "source", "stream"), pa.string()),
    **dict.fromkeys(("emitted", "transferred", "executed", "acked", "failed"), pa.int64()),
    **dict.fromkeys(("complete_ms_avg", "execute_ms_avg", "process_ms_avg"), pa.float64()),
    "partial": pa.bool_(),
}
_COUNTER: Final = pa.struct(list(_COUNTER_TYPES.items()))

_EXECUTOR: Final = pa.struct(
    [
        ("task_start", pa.int32()),
        ("task_end", pa.int32()),
        ("component", pa.string()),
        ("kind", pa.string()),
        ("rate", pa.float64()),
        ("counters", pa.list_(_COUNTER)),
    ]
)

_WORKER: Final = [("storm_id", pa.string()), ("node", pa.string()), ("port", pa.int32())]

_HEARTBEAT: Final = [
    ("time_secs", pa.int64()),
    ("uptime_secs", pa.int32()),
    ("executors", pa.list_(_EXECUTOR)),
    ("completed", pa.bool_()),
    ("error", pa.string()),
]

_PASSED_ON: Final = [name for name in rows.SCHEMA.names if name != "details"]

TYPED: Final = pa.schema(
    [*_WORKER, *_HEARTBEAT, *((name, rows.SCHEMA.field(name).type) for name in _PASSED_ON)]
)

#: Rows decoded at once. The more records are alive together, the more of the time goes to Python's
#: search for unreachable ones: half of it with thousands.
_AT_ONCE: Final = 100


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


def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode Arrow batches of the source's rows; the rows stay in their order."""
    for batch in batches:
        for start in range(0, batch.num_rows, _AT_ONCE):
            yield decode_batch(batch.slice(start, _AT_ONCE))


def decode_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode one Arrow batch of the source's rows."""
    workers = [parse_workerbeat(path or "") for path in batch["path"].to_pylist()]
    beats = [_decode(details) for details in batch["details"].to_pylist()]
    columns = {
        "storm_id": [worker and worker.storm_id for worker in workers],
        "node": [worker and worker.node for worker in workers],
        "port": [worker and worker.port for worker in workers],
        "time_secs": [beat and beat.time_secs for beat, _ in beats],
        "uptime_secs": [beat and beat.uptime_secs for beat, _ in beats],
        "executors": _executors([beat for beat, _ in beats]),
        "completed": [beat and bool(beat.completed) for beat, _ in beats],
        "error": [error for _, error in beats],
        # Spark hands times over in the session's time zone.
        **{name: batch[name].cast(TYPED.field(name).type) for name in _PASSED_ON},
    }
    return pa.RecordBatch.from_pydict(columns, schema=TYPED)


def _decode(details: bytes | None) -> tuple[ClusterWorkerHeartbeat | None, str | None]:
    if details is None:
        return None, None
    try:
        return deserialize(ClusterWorkerHeartbeat, details), None
    except SerializationError as error:
        return None, str(error)


def _executors(beats: list[ClusterWorkerHeartbeat | None]) -> pa.Array:
    """Return a list array, built by column: a value object per counter would cost most of the time.

    A row without a heartbeat is null.
    """
    reported: list[tuple[ExecutorInfo, ExecutorStats]] = []
    counts: list[int] = []
    for beat in beats:
        executors = list(beat.executor_stats.items()) if beat and beat.executor_stats else []
        reported += executors
        counts.append(len(executors))
    counted = [list(counters(stats)) for _, stats in reported]
    flat = [counter for executor in counted for counter in executor]
    values = zip(*flat, strict=True) if flat else ((),) * len(Counter._fields)
    counter_array = pa.StructArray.from_arrays(
        [pa.array(column, t) for column, t in zip(values, _COUNTER_TYPES.values(), strict=True)],
        fields=list(_COUNTER),
    )
    executor_array = pa.StructArray.from_arrays(
        [
            pa.array([info.task_start for info, _ in reported], pa.int32()),
            pa.array([info.task_end for info, _ in reported], pa.int32()),
            pa.array([stats.component for _, stats in reported], pa.string()),
            pa.array([_kind(stats) for _, stats in reported], pa.string()),
            pa.array([stats.rate for _, stats in reported], pa.float64()),
            _lists(counter_array, [len(executor) for executor in counted]),
        ],
        fields=list(_EXECUTOR),
    )
    return _lists(executor_array, counts, present=[beat is not None for beat in beats])


def _lists(values: pa.Array, counts: list[int], present: list[bool] | None = None) -> pa.Array:
    ends = list(accumulate(counts, initial=0))
    mask = None if present is None else pa.array([not there for there in present], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=mask)


def _kind(stats: ExecutorStats) -> str | None:
    specific: Any = stats.specific
    if specific is None:
        return None
    if specific.bolt is not None:
        return "bolt"
    return "spout" if specific.spout is not None else None
