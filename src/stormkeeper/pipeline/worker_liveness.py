"""The table ``worker_liveness``: the status of each worker after a batch.

`worker_reports` judges workers by the same rules, from decoded pulses. The driver merges the batch
into the previous table: a join in Spark takes four times as long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.heartbeats.liveness import (
    FORGET_SECS,
    LivenessLimits,
    ServerHorizon,
    Status,
    WorkerLiveness,
)
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoded_rows import typed
from stormkeeper.pipeline.liveness_columns import WORKERS, Step, step
from stormkeeper.pipeline.table_columns import WORKER_LIVENESS

#: The key in the table's metadata for forgotten workers, and their columns.
_FORGOTTEN: Final = b"stormkeeper.forgotten"
_REMEMBERED: Final = ("server", "last_seen", "status", "time_secs")


class LastPulseFacts(NamedTuple):
    """Facts from the last pulses of silent workers.

    All queries of `completed` workers had ended. The last pulse of `unread` workers could not be
    read, though the server answers.
    """

    completed: Collection[WorkerId] = ()
    unread: Collection[WorkerId] = ()


#: Reads the last pulses of silent workers (`liveness_columns.WORKERS`) from the servers that
#: answer.
ReadLastPulses = Callable[[pa.Table, Collection[str]], LastPulseFacts]


def no_last_pulses(_silent: pa.Table, _servers: Collection[str]) -> LastPulseFacts:
    """For a batch with the pulses' values."""
    return LastPulseFacts()


class JudgedWorkers(NamedTuple):
    """The workers after a batch, the pulses (with positions in `step.taken`), and the time."""

    step: Step
    pulses: pa.Table
    now: float


def judge_workers(
    previous: pa.Table,
    remembered: Sequence[WorkerLiveness],
    batch: pa.Table,
    limits: LivenessLimits,
    between: tuple[float, float] | None = None,
    *,
    read_last_pulses: ReadLastPulses = no_last_pulses,
) -> JudgedWorkers:
    """Arguments are as for `next_liveness`."""
    servers = _of_kind(batch, rows.SERVER)
    pulses = _of_kind(batch, rows.PULSE)
    read_at = rows.to_seconds(servers["read_at"]).drop_null().to_pylist()
    newest = max(read_at, default=0.0)
    earliest, latest = between or (newest, newest)
    now = max((at for at in read_at if earliest <= at <= latest), default=latest)
    found = _servers(servers, earliest, now)
    buried = _of_kind(batch, rows.TOMBSTONE)
    result = step(previous, remembered, pulses, buried, found, now=now, limits=limits)
    return JudgedWorkers(_apply_last_pulses(result, found, read_last_pulses), pulses, now)


def _apply_last_pulses(
    result: Step, servers: Mapping[str, ServerHorizon], read_last_pulses: ReadLastPulses
) -> Step:
    """Completed workers are not dead; death of unread workers is unproven."""
    status = result.rows["status"]
    is_silent = pc.invert(pc.is_in(status, pa.array([Status.ALIVE, Status.COMPLETED], pa.string())))
    if not pc.any(is_silent).as_py():
        return result
    silent = result.rows.filter(is_silent)
    facts = read_last_pulses(silent, [name for name, server in servers.items() if server.reachable])
    if not (facts.completed or facts.unread):
        return result
    completed, unread = (_is_among(silent, workers) for workers in facts)
    unread = pc.and_(unread, pc.equal(silent["status"], Status.DEAD))
    judged = pc.if_else(unread, str(Status.UNPROVEN), silent["status"])
    judged = rows.one_array(pc.if_else(completed, str(Status.COMPLETED), judged))
    status = pc.replace_with_mask(status, rows.one_array(is_silent), judged)
    return result._replace(rows=rows.replace_column(result.rows, "status", status))


def _is_among(table: pa.Table, workers: Collection[WorkerId]) -> Any:
    return pc.is_in(rows.worker_keys(table), rows.worker_keys(rows.worker_table(workers)))


def next_liveness(
    previous: pa.Table | None,
    batch: pa.Table,
    limits: LivenessLimits,
    between: tuple[float, float] | None = None,
    read_last_pulses: ReadLastPulses = no_last_pulses,
    *,
    reports: pa.Table | None = None,
) -> pa.Table:
    """Return the next liveness table.

    Without values in the decoded `batch`, `read_last_pulses` is needed. `between` is the first and
    last time of the read on the driver's clock, in seconds since the epoch; without `between`,
    every server counts as read at the newest ``read_at``. `reports` have the workers' start times.
    """
    known = WORKER_LIVENESS.empty_table() if previous is None else previous
    result, _, now = judge_workers(
        _known_workers(known),
        list(forgotten(known)),
        batch,
        limits,
        between,
        read_last_pulses=read_last_pulses,
    )
    table = _table(result, now)
    for source in (previous, reports):
        if source is not None and "started_at" in source.column_names:
            known_since = source["started_at"].take(rows.positions(table, source))
            table = rows.replace_column(
                table, "started_at", pc.coalesce(known_since, table["started_at"])
            )
    return table


def liveness(
    df: DataFrame,
    *,
    late_secs: float = 9.0,
    timeout_secs: float = 30.0,
    forget_secs: float = FORGET_SECS,
) -> DataFrame:
    """Judge the workers by a single read of the ``pacemaker`` source.

    `df` has all columns of the source; the limits are those of `LivenessLimits`.

    >>> raw = spark.read.format("pacemaker").option("servers", "a,b").load()  # doctest: +SKIP
    >>> raw.transform(liveness, timeout_secs=60).show()  # doctest: +SKIP
    """
    limits = LivenessLimits(late_secs, timeout_secs, forget_secs)

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        if read:
            table = next_liveness(None, pa.Table.from_batches(read), limits)
            yield from table.replace_schema_metadata(None).to_batches()

    # In one task: which servers workers have left follows from all workers.
    return typed(df).coalesce(1).mapInArrow(judge, from_arrow_schema(WORKER_LIVENESS))


def _of_kind(batch: pa.Table, kind: str) -> pa.Table:
    of_kind = pc.equal(batch["kind"], kind)
    if kind == rows.SERVER:
        return rows.where(batch, of_kind)
    return rows.where(batch, pc.and_(of_kind, pc.is_valid(batch["storm_id"])))


def _servers(servers: pa.Table, earliest: float, now: float) -> dict[str, ServerHorizon]:
    found = {}
    for name, health, read_at in rows.columns_of(servers, "server", "health", "read_at"):
        # A pulse and the server's row are read with the same clock. If that clock is wrong, the
        # server still was read in this batch.
        ahead_secs = 0.0 if earliest <= read_at <= now else read_at - now
        found[name] = ServerHorizon(bool(health["reachable"]), health["horizon_secs"], ahead_secs)
    return found


def _known_workers(table: pa.Table) -> pa.Table:
    columns = {name: pa.nulls(table.num_rows, WORKERS.field(name).type) for name in WORKERS.names}
    columns |= {name: table[name] for name in table.column_names if name in columns}
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.to_seconds(table[name])
    columns["status"] = pc.if_else(table["stale"], str(Status.UNPROVEN), table["status"])
    return pa.table(columns).cast(WORKERS)


def forgotten(table: pa.Table) -> Iterator[WorkerLiveness]:
    """Read a note of workers without a row, which a later pulse may bring back."""
    for worker, *rest in json.loads((table.schema.metadata or {}).get(_FORGOTTEN, b"[]")):
        known: dict[str, Any] = dict.fromkeys(WorkerLiveness._fields)
        known |= zip(_REMEMBERED, rest, strict=True)
        known |= {"worker": WorkerId(*worker), "status": Status(known["status"])}
        yield WorkerLiveness(**known)


def merge_forgotten(
    notes: Iterable[Mapping[bytes, bytes]], has: Callable[[str], bool]
) -> dict[bytes, bytes]:
    """Merge the notes of several tables on forgotten workers, of topologies that `has` accepts."""
    noted = [one for each in notes for one in json.loads(each.get(_FORGOTTEN, b"[]"))]
    return {_FORGOTTEN: json.dumps([one for one in noted if has(one[0][0])]).encode()}


def move_forgotten(table: pa.Table, secs: float) -> Mapping[bytes, bytes] | None:
    """Return a table's metadata, with the times of forgotten workers moved by `secs`."""
    noted: Mapping[bytes, bytes] | None = table.schema.metadata
    if noted is None or _FORGOTTEN not in noted:
        return noted
    moved = [row._replace(last_seen=max(0.0, row.last_seen + secs)) for row in forgotten(table)]
    return {**noted, _FORGOTTEN: _note(moved)}


def schema_with_forgotten(schema: pa.Schema, result: Step) -> pa.Schema:
    """Add a note of the workers without a row."""
    return schema.with_metadata({_FORGOTTEN: _note(result.forgotten)})


def _note(forgotten: Iterable[WorkerLiveness]) -> bytes:
    noted = [[row.worker, *(getattr(row, name) for name in _REMEMBERED)] for row in forgotten]
    return json.dumps(noted).encode()


def _table(result: Step, now: float) -> pa.Table:
    found = result.rows
    columns: dict[str, Any] = {
        name: found[name] for name in found.column_names if name in WORKER_LIVENESS.names
    }
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.to_timestamps(found[name])
    columns["topology"] = rows.topology_names(found["storm_id"]).cast(pa.string())
    unproven = pc.equal(found["status"], Status.UNPROVEN)
    columns["stale"] = unproven
    columns["status"] = pc.if_else(unproven, str(Status.LATE), found["status"])
    columns["updated_at"] = pa.repeat(rows.timestamps([now])[0], found.num_rows)
    columns["started_at"] = pa.nulls(found.num_rows, rows.TIMESTAMP)
    return pa.table(
        {name: columns[name] for name in WORKER_LIVENESS.names},
        schema=schema_with_forgotten(WORKER_LIVENESS, result),
    )
