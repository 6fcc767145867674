"""The tables ``worker_reports``, of workers' newest pulses, and ``rejected``, of refused pulses.

`worker_liveness.judge_workers` finds the newest pulses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.heartbeats.liveness import LivenessLimits, Status
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.liveness_columns import WORKERS
from stormkeeper.pipeline.table_columns import REJECTED, WORKER_LIVENESS, WORKER_REPORTS
from stormkeeper.pipeline.worker_liveness import forgotten, judge_workers, schema_with_forgotten

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
    as for `worker_liveness.next_liveness`.
    """
    before = WORKER_REPORTS.empty_table() if previous is None else previous
    every = pa.arange(0, batch.num_rows)
    batch = batch.append_column("row", every)
    result, pulses, _ = judge_workers(
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
    schema = schema_with_forgotten(WORKER_REPORTS, result)
    found = pa.table({name: columns[name] for name in schema.names}).cast(schema)
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
