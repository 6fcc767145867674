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
        earlier, _ = before.get(worker, (None, None))
        skipped = _skipped(earlier, after[worker], period_secs)
        beside[worker] = _Beside(completed, size, skipped)
    found = [(row, beside[row.worker]) for row in sorted(result.rows) if row.worker in beside]
    columns: dict[str, Any] = {
        name: [getattr(row.worker, name) for row, _ in found] for name in WorkerId._fields
    }
    columns |= {
        name: [getattr(row, of_row) for row, _ in found] for of_row, name in _OF_ROW.items()
    }
    columns |= {name: [getattr(one, name) for _, one in found] for name in _Beside._fields}
    columns["received_at"] = rows.timestamps(columns["received_at"])
    schema = remembering(WORKER_REPORTS, result)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema), newest


def _reports(table: pa.Table) -> Iterator[tuple[WorkerId, tuple[Row, _Beside]]]:
    names = (*WorkerId._fields, *_Beside._fields, *_OF_ROW.values())
    for storm_id, node, port, completed, size, skipped, *rest in columns_of(table, *names):
        worker = WorkerId(storm_id, node, port)
        row = Row(
            worker,
            age_secs=0.0,
            status=Status.COMPLETED if completed else Status.ALIVE,
            moved_from=None,
            moved_at=None,
            **dict(zip(_OF_ROW, rest, strict=True)),
        )
        yield worker, (row, _Beside(completed, size, skipped))


def _skipped(before: Row | None, now: Row, period_secs: float) -> int:
    """Return how many pulses came between two that were read, about.

    No more than the time between them has periods, or the newer incarnation of the worker has, or
    their server counted changes.
    """
    if before is None:
        return 0
    secs = now.last_seen - before.last_seen
    if now.uptime_secs is not None and now.uptime_secs < (before.uptime_secs or 0):
        secs = min(secs, now.uptime_secs)
    skipped = round(secs / period_secs) - 1
    same = (before.server, before.instance) == (now.server, now.instance)
    if same and before.revision is not None and now.revision is not None:
        skipped = min(skipped, now.revision - before.revision - 1)
    return max(0, skipped)
