"""The table ``worker_events``: events that follow from two liveness tables.

Events are dated by receipt: a worker is late from its newest pulse's receipt plus the limit. The
newest pulse dates a start, move or return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.heartbeats.liveness import LivenessLimits, Status
from stormkeeper.names import topology_name
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.table_columns import WORKER_EVENTS

#: A worker flaps if it returns, or is restarted, this often within `FLAP_SECS` seconds.
FLAPS: Final = 3
FLAP_SECS: Final = 600.0

_CHANGING: Final = ("status", "server", "started_at")


class _Worker(NamedTuple):
    """A worker in a liveness table; `late` includes unproven workers."""

    storm_id: str
    node: str
    port: int
    status: str
    server: str
    age_secs: float
    last_seen: float
    moved_at: float | None
    started_at: float | None


class _Event(NamedTuple):
    at: float
    worker: _Worker
    event: str
    evidence: str
    from_server: str | None = None


def next_events(
    recent: Callable[[], pa.Table | None],
    before: pa.Table | None,
    after: pa.Table,
    *,
    limits: LivenessLimits,
    now: float,
) -> pa.Table:
    """Return the events of a batch; none before the first liveness table.

    `recent` reads the rows of the last `FLAP_SECS`.
    """
    if before is None:
        return WORKER_EVENTS.empty_table()
    found = list(_events(before, after, limits, now))
    found += _flapping(recent, found, now)
    return _table(found, limits)


def _events(
    before: pa.Table,
    after: pa.Table,
    limits: LivenessLimits,
    now: float,
) -> Iterator[_Event]:
    earlier = rows.positions(after, before)
    is_new = pc.is_null(earlier)
    for worker in _workers(after.filter(is_new)):
        yield from _of_new(worker, limits)
    both, was = after.filter(pc.invert(is_new)), before.take(earlier.drop_null())
    differs = pa.repeat(False, both.num_rows)
    for name in _CHANGING:
        differs = pc.or_(differs, pc.invert(rows.is_same(both[name], was[name])))
    pairs = zip(_workers(was.filter(differs)), _workers(both.filter(differs)), strict=True)
    for one, other in pairs:
        yield from _of_change(one, other, limits)
    for worker in _workers(before.filter(pc.is_null(rows.positions(before, after)))):
        forgotten = now - worker.last_seen > limits.forget_secs
        why = (
            f"nothing was heard of it for {now - worker.last_seen:.0f} s"
            if forgotten
            else f"its pulse on {worker.server} was deleted, or has expired"
        )
        yield _Event(now, worker._replace(age_secs=max(0.0, now - worker.last_seen)), "gone", why)


def _of_new(worker: _Worker, limits: LivenessLimits) -> Iterator[_Event]:
    if worker.status in (Status.ALIVE, Status.COMPLETED):
        yield _Event(
            worker.last_seen, worker, "started", f"{worker.server} received its first pulse"
        )
    yield from _of_status(worker, limits)


def _of_change(before: _Worker, after: _Worker, limits: LivenessLimits) -> Iterator[_Event]:
    if before.started_at is not None and after.started_at not in (None, before.started_at):
        assert after.started_at is not None
        since = datetime.fromtimestamp(after.started_at, UTC).isoformat(timespec="seconds")
        yield _Event(after.started_at, after, "restarted", f"its uptime counts from {since}")
    if before.server != after.server:
        at = after.last_seen if after.moved_at is None else after.moved_at
        why = f"its pulses go to {after.server}, no longer to {before.server}"
        yield _Event(at, after, "moved", why, before.server)
    if before.status == after.status:
        return
    if after.status == Status.ALIVE:
        # Only the newest pulse since the batch before is known.
        most_secs = max(0.0, after.last_seen - before.last_seen)
        why = f"a pulse came after at most {most_secs:.1f} s of silence"
        yield _Event(after.last_seen, after, "back", why)
    yield from _of_status(after, limits)


def _of_status(worker: _Worker, limits: LivenessLimits) -> Iterator[_Event]:
    age, timeout_secs = worker.age_secs, limits.timeout_of(worker.storm_id)
    if worker.status == Status.LATE:
        why = f"no pulse for {age:.1f} s, more than {limits.late_secs:g} s"
        yield _Event(worker.last_seen + limits.late_secs, worker, "late", why)
    elif worker.status == Status.DEAD:
        why = f"no pulse for {age:.1f} s, more than {timeout_secs:g} s; servers vouch for that"
        yield _Event(worker.last_seen + timeout_secs, worker, "dead", why)
    elif worker.status == Status.COMPLETED:
        why = "its last pulse says that all of its queries have ended"
        yield _Event(worker.last_seen, worker, "completed", why)


def _flapping(
    recent: Callable[[], pa.Table | None], found: Iterable[_Event], now: float
) -> list[_Event]:
    """Return an event for each worker that has now returned or restarted too often."""
    again = [event.worker for event in found if event.event in ("back", "restarted")]
    if not again:
        return []
    times: Counter[tuple[Any, ...]] = Counter(worker[:3] for worker in again)
    said = set()
    since = rows.timestamps([now - FLAP_SECS])[0]
    table = recent() or WORKER_EVENTS.empty_table()
    table = table.filter(pc.greater(table["at"], since))
    for *worker, event in rows.columns_of(table, "storm_id", "node", "port", "event"):
        if event in ("back", "restarted"):
            times[tuple(worker)] += 1
        elif event == "flapping":
            said.add(tuple(worker))
    return [
        _Event(
            now,
            worker,
            "flapping",
            f"it came back or was started again {times[key]} times in {FLAP_SECS:.0f} s",
        )
        for key, worker in {worker[:3]: worker for worker in again}.items()
        if times[key] >= FLAPS and key not in said
    ]


def _workers(table: pa.Table) -> Iterator[_Worker]:
    return map(_Worker._make, rows.columns_of(table, *_Worker._fields))


def _table(found: list[_Event], limits: LivenessLimits) -> pa.Table:
    workers = [event.worker for event in found]
    columns: dict[str, Any] = {
        name: [getattr(worker, name) for worker in workers]
        for name in ("storm_id", "node", "port", "server", "age_secs")
    }
    columns |= {
        name: [getattr(event, name) for event in found]
        for name in ("event", "from_server", "evidence")
    }
    columns["at"] = rows.timestamps(event.at for event in found)
    columns["topology"] = [topology_name(worker.storm_id) for worker in workers]
    columns["timeout_secs"] = [limits.timeout_of(worker.storm_id) for worker in workers]
    return pa.table(columns, schema=WORKER_EVENTS)
