"""What each worker's newest pulse says: the table of worker reports, and how a batch changes it.

Which pulse is a worker's newest, and when a worker is forgotten, is judged as for the liveness
table, so what is remembered from batch to batch is in this table alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from stormkeeper.heartbeats.liveness import Limits, Row, Status
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.current import columns_of, forgotten, judged, remembering

#: One row per worker.
WORKER_REPORTS: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("server", pa.string()),
        ("instance", pa.string()),
        ("revision", pa.int64()),
        ("received_at", rows.TIMESTAMP),
        ("time_secs", pa.int64()),
        ("uptime_secs", pa.int32()),
        ("started_at", rows.TIMESTAMP),
        ("completed", pa.bool_()),
        ("bytes", pa.int64()),
        ("error", pa.string()),
        ("skipped", pa.int64()),
    ]
)

#: The columns that a `Row` of the same worker has, by its names for them.
_OF_ROW: Final = {
    "server": "server",
    "instance": "instance",
    "revision": "revision",
    "last_seen": "received_at",
    "time_secs": "time_secs",
    "uptime_secs": "uptime_secs",
    "error": "error",
}


class _Beside(NamedTuple):
    """What a report has besides."""

    completed: bool | None
    bytes: int
    skipped: int
    started_at: float | None


def next_reports(
    previous: pa.Table | None,
    batch: pa.Table,
    limits: Limits,
    period_secs: float,
    between: tuple[float, float] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Return the next table of reports, and the rows of the batch that are workers' newest pulses.

    Parameters
    ----------
    previous
        The table so far, its metadata included; None at the beginning.
    batch
        Rows as `decode.typed` gives them, servers' rows included.
    limits, between
        As of `current.next_liveness`.
    period_secs
        How often workers beat, for the estimate of pulses that were not read.
    """
    before = {} if previous is None else dict(_reports(previous))
    known = [row for row, _ in before.values()]
    remembered = [] if previous is None else list(forgotten(previous))
    result, pulses, _ = judged([*known, *remembered], batch, limits, between)
    newest = pulses.take(pa.array(result.taken, pa.int64()))
    beside = {worker: one for worker, (_, one) in before.items()}
    after = {row.worker: row for row in result.rows}
    for storm_id, node, port, completed, size in columns_of(
        newest, *WorkerId._fields, "completed", "bytes"
    ):
        worker = WorkerId(storm_id, node, port)
        row, (earlier, said) = after[worker], before.get(worker, (None, None))
        is_same = earlier is not None and _is_same(earlier, row, period_secs)
        started_at = said.started_at if said is not None and is_same else None
        if started_at is None and row.uptime_secs is not None:
            started_at = row.last_seen - row.uptime_secs
        skipped = 0 if earlier is None else _skipped(earlier, row, period_secs)
        beside[worker] = _Beside(completed, size, skipped, started_at)
    found = [(row, beside[row.worker]) for row in sorted(result.rows) if row.worker in beside]
    columns: dict[str, Any] = {
        name: [getattr(row.worker, name) for row, _ in found] for name in WorkerId._fields
    }
    columns |= {
        name: [getattr(row, of_row) for row, _ in found] for of_row, name in _OF_ROW.items()
    }
    columns |= {name: [getattr(one, name) for _, one in found] for name in _Beside._fields}
    for name in ("received_at", "started_at"):
        columns[name] = rows.timestamps(columns[name])
    schema = remembering(WORKER_REPORTS, result)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema), newest


def _reports(table: pa.Table) -> Iterator[tuple[WorkerId, tuple[Row, _Beside]]]:
    names = (*WorkerId._fields, *_Beside._fields, *_OF_ROW.values())
    for storm_id, node, port, completed, size, skipped, started_at, *rest in columns_of(
        table, *names
    ):
        worker = WorkerId(storm_id, node, port)
        row = Row(
            worker,
            age_secs=0.0,
            status=Status.COMPLETED if completed else Status.ALIVE,
            moved_from=None,
            moved_at=None,
            **dict(zip(_OF_ROW, rest, strict=True)),
        )
        yield worker, (row, _Beside(completed, size, skipped, started_at))


def _is_same(before: Row, now: Row, period_secs: float) -> bool:
    """Whether two pulses are of one incarnation of a worker, as far as they tell.

    One that was started in between is up for less than it was, or than the time that has passed;
    how long a pulse takes varies.
    """
    if now.uptime_secs is None or before.uptime_secs is None:
        return True
    passed_secs = now.last_seen - before.last_seen
    return now.uptime_secs >= max(before.uptime_secs, passed_secs - period_secs)


def _skipped(before: Row, now: Row, period_secs: float) -> int:
    """Return how many pulses came between two that were read, about.

    No more than the time between them has periods, or the newer incarnation of the worker has, or
    their server counted changes.
    """
    secs = now.last_seen - before.last_seen
    if now.uptime_secs is not None and not _is_same(before, now, period_secs):
        secs = min(secs, now.uptime_secs)
    skipped = round(secs / period_secs) - 1
    same = (before.server, before.instance) == (now.server, now.instance)
    if same and before.revision is not None and now.revision is not None:
        skipped = min(skipped, now.revision - before.revision - 1)
    return max(0, skipped)
