"""The tables of workers after a batch: ``worker_liveness``, ``worker_reports`` and ``rejected``.

``worker_liveness`` has each worker's status. ``worker_reports``, from decoded pulses, has the
newest pulse by the same rules, ``rejected`` the refused pulses. The driver merges the batch into
the previous table: a join in Spark takes four times as long.
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
from stormkeeper.pipeline.table_columns import REJECTED, WORKER_LIVENESS, WORKER_REPORTS

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


def _judge_workers(
    previous: pa.Table,
    remembered: Sequence[WorkerLiveness],
    batch: pa.Table,
    limits: LivenessLimits,
    between: tuple[float, float] | None = None,
    *,
    read_last_pulses: ReadLastPulses = no_last_pulses,
) -> tuple[Step, pa.Table, float]:
    """Return the workers after a batch, its pulses, and the time; arguments as `next_liveness`."""
    servers = _of_kind(batch, rows.SERVER)
    pulses = _of_kind(batch, rows.PULSE)
    read_at = rows.to_seconds(servers["read_at"]).drop_null().to_pylist()
    newest = max(read_at, default=0.0)
    earliest, latest = between or (newest, newest)
    now = max((at for at in read_at if earliest <= at <= latest), default=latest)
    found = _servers(servers, earliest, now)
    buried = _of_kind(batch, rows.TOMBSTONE)
    result = step(previous, remembered, pulses, buried, found, now=now, limits=limits)
    return _apply_last_pulses(result, found, read_last_pulses), pulses, now


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
    last time of the read on the driver's clock, in seconds since the epoch; by default the newest
    ``read_at``. `reports` have the workers' start times.
    """
    known = WORKER_LIVENESS.empty_table() if previous is None else previous
    result, _, now = _judge_workers(
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
    """Merge tables' notes of forgotten workers, of topologies that `has` accepts."""
    noted = [one for each in notes for one in json.loads(each.get(_FORGOTTEN, b"[]"))]
    return {_FORGOTTEN: json.dumps([one for one in noted if has(one[0][0])]).encode()}


def move_forgotten(table: pa.Table, secs: float) -> Mapping[bytes, bytes] | None:
    """Return a table's metadata, with the times of forgotten workers moved by `secs`."""
    noted: Mapping[bytes, bytes] | None = table.schema.metadata
    if noted is None or _FORGOTTEN not in noted:
        return noted
    moved = [row._replace(last_seen=max(0.0, row.last_seen + secs)) for row in forgotten(table)]
    return {**noted, _FORGOTTEN: _note(moved)}


def _with_forgotten(schema: pa.Schema, result: Step) -> pa.Schema:
    return schema.with_metadata({_FORGOTTEN: _note(result.forgotten)})


def _note(forgotten: Iterable[WorkerLiveness]) -> bytes:
    noted = [[row.worker, *(getattr(row, name) for name in _REMEMBERED)] for row in forgotten]
    return json.dumps(noted).encode()


def _table(result: Step, now: float) -> pa.Table:
    found = result.rows
    columns = rows.columns_by_name(found)
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.to_timestamps(found[name])
    columns["topology"] = rows.topology_names(found["storm_id"]).cast(pa.string())
    unproven = pc.equal(found["status"], Status.UNPROVEN)
    columns["stale"] = unproven
    columns["status"] = pc.if_else(unproven, str(Status.LATE), found["status"])
    columns["updated_at"] = pa.repeat(rows.timestamps([now])[0], found.num_rows)
    columns["started_at"] = pa.nulls(found.num_rows, rows.TIMESTAMP)
    return pa.table(columns, schema=_with_forgotten(WORKER_LIVENESS, result))


#: The columns of ``worker_reports`` with workers' start times.
STARTS: Final = pa.schema(
    [WORKER_LIVENESS.field(name) for name in (*WorkerId._fields, "started_at")]
)

#: Columns of `WORKER_REPORTS`, by their names in `liveness_columns.WORKERS`.
_OF_WORKER: Final = {
    name: name if name != "last_seen" else "received_at"
    for name in WORKERS.names
    if name in WORKER_REPORTS.names or name == "last_seen"
}

#: Limit of the rows of a batch: a broken release of workers must not fill the disk.
AT_ONCE: Final = 1000

#: Seconds for which a rejected pulse is recognised when read again, as by a repeated batch. A Java
#: Pacemaker's pulse is read at every trigger.
KNOWN_SECS: Final = 3600.0

_STRAY: Final = "its path is not a worker's: /workerbeats/<topology id>/<node>-<port>"

#: The identity of a pulse.
_PULSE: Final = ("server", "path", "revision")


def next_reports(
    previous: pa.Table | None,
    batch: pa.Table,
    limits: LivenessLimits,
    period_secs: float,
    between: tuple[float, float] | None = None,
) -> tuple[pa.Table, pa.Array]:
    """Return the next ``worker_reports``, and which rows of the batch are workers' newest pulses.

    `period_secs` is the period of heartbeats, to estimate skipped pulses; the other arguments are
    as for `next_liveness`.
    """
    before = WORKER_REPORTS.empty_table() if previous is None else previous
    every = pa.arange(0, batch.num_rows)
    batch = batch.append_column("row", every)
    result, pulses, _ = _judge_workers(
        _reported_workers(before), list(forgotten(before)), batch, limits, between
    )
    newest = rows.where(pulses, pc.is_in(pa.arange(0, pulses.num_rows), result.taken))
    now, at = result.rows, rows.positions(result.rows, newest)
    was, read, is_new = before.take(rows.positions(now, before)), newest.take(at), pc.is_valid(at)
    skipped, started_at = _since(was, now, period_secs)
    columns: dict[str, Any] = {name: now[of_worker] for of_worker, name in _OF_WORKER.items()}
    columns |= {
        "received_at": rows.to_timestamps(now["last_seen"]),
        "completed": pc.if_else(is_new, read["completed"], was["completed"]),
        "bytes": pc.if_else(is_new, read["bytes"], was["bytes"]),
        "skipped": pc.if_else(is_new, skipped, was["skipped"]),
        "started_at": pc.if_else(is_new, started_at, was["started_at"]),
    }
    schema = _with_forgotten(WORKER_REPORTS, result)
    found = pa.table(columns, schema=schema)
    # A worker with neither a new pulse nor an earlier report gets none.
    found = found.filter(pc.or_(is_new, pc.is_valid(was["storm_id"])))
    return found, pc.is_in(every, rows.one_array(newest["row"]))


def _reported_workers(reports: pa.Table) -> pa.Table:
    count = reports.num_rows
    columns = {name: pa.nulls(count, WORKERS.field(name).type) for name in WORKERS.names}
    columns |= {of_worker: reports[name] for of_worker, name in _OF_WORKER.items()}
    columns["last_seen"] = rows.to_seconds(reports["received_at"])
    completed = pc.fill_null(reports["completed"], False)
    columns["status"] = pc.if_else(completed, str(Status.COMPLETED), str(Status.ALIVE))
    return pa.table(columns).cast(WORKERS)


def _since(was: pa.Table, now: pa.Table, period_secs: float) -> tuple[Any, Any]:
    """Estimate the pulses skipped between two readings, and workers' start times."""
    uptime, last_seen = now["uptime_secs"].cast(pa.float64()), now["last_seen"]
    passed = pc.subtract(last_seen, rows.to_seconds(was["received_at"]))
    least = pc.max_element_wise(
        was["uptime_secs"].cast(pa.float64()), pc.subtract(passed, period_secs), skip_nulls=False
    )
    is_other = pc.fill_null(pc.less(uptime, least), False)
    secs = pc.if_else(is_other, pc.min_element_wise(passed, uptime), passed)
    skipped = pc.subtract(pc.round(pc.divide(secs, period_secs)).cast(pa.int64()), 1)
    counted = pc.subtract(pc.subtract(now["revision"], was["revision"]), 1)
    is_there = pc.and_(
        rows.is_same(was["server"], now["server"]), rows.is_same(was["instance"], now["instance"])
    )
    skipped = pc.min_element_wise(skipped, pc.if_else(is_there, counted, None))
    skipped = pc.if_else(pc.is_valid(passed), pc.max_element_wise(skipped, 0), 0)
    started_at = pc.if_else(is_other, None, was["started_at"])
    return skipped, pc.coalesce(started_at, rows.to_timestamps(pc.subtract(last_seen, uptime)))


def next_rejected(recent: Callable[[], pa.Table | None], batch: pa.Table) -> pa.Table:
    is_stray = pc.is_null(batch["storm_id"])
    refused = pc.or_(is_stray, pc.is_valid(batch["error"]))
    refused = batch.filter(pc.and_(pc.equal(batch["kind"], rows.PULSE), refused))
    if not refused.num_rows:
        return REJECTED.empty_table()
    reason = pc.if_else(pc.is_null(refused["storm_id"]), _STRAY, refused["error"])
    found = refused.append_column("reason", reason).select(REJECTED.names).cast(REJECTED)
    before = recent()
    known = set() if before is None else set(rows.columns_of(before, *_PULSE))
    places = []
    for place, pulse in enumerate(rows.columns_of(found, *_PULSE)):
        if pulse not in known:
            known.add(pulse)
            places.append(place)
    return found.take(pa.array(places[-AT_ONCE:], pa.int64()))
