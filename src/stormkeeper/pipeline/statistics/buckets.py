"""The tables of roll-ups from batch to batch: which buckets are open, and which have closed.

A reading is in the minute in which its heartbeat was received, a minute is closed once a batch has
begun to be read after its end, and what is closed is never added to:

- What comes late, as from a Pacemaker that could not be read, is in the oldest minute that is open.
  So is everything while the clock of the pipeline's machine is behind what it was.
- What comes from the future, by a reader's clock that is wrong, is in the minute of the batch.
- If the clock was wrong by more than an hour and is set back, all that is open is closed at once,
  and the minutes go on from the clock. Those that it reaches for the second time have two rows.

Longer buckets are made of the rows of shorter ones, and are closed once these are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.judging import worker_keys
from stormkeeper.pipeline.statistics.increments import COUNTERS, increments
from stormkeeper.pipeline.statistics.rollups import (
    OPEN,
    ROLLUP,
    floored,
    longer,
    rollup,
    summed,
    together,
    work_of,
)

#: The newest reading of each executor, and its ``work`` in the ``bucket`` of that reading, for its
#: ``component``, which may have got its name since.
EXECUTOR_COUNTERS: Final = pa.schema(
    [*COUNTERS, ("bucket", rows.TIMESTAMP), ("component", pa.string()), ("work", pa.float64())]
)

#: What is closed of a longer bucket that is open, and of how many ``minutes`` that is.
ROLLUP_PARTS: Final = pa.schema([("minutes", pa.int32()), *ROLLUP])

#: The roll-ups, by the minutes of a bucket, from the shortest.
ROLLUPS: Final = {1: tables.ROLLUP_1M, 10: tables.ROLLUP_10M, 60: tables.ROLLUP_60M}

#: For so long a worker that is silent is known again, if it should ever beat again.
FORGET: Final = timedelta(hours=24)

#: From here on a clock that is set back was wrong before.
_WRONG: Final = timedelta(hours=1)

_MINUTE: Final = timedelta(minutes=1)

_MARKS: Final = b"stormkeeper.marks"


class _Marks(NamedTuple):
    """Up to when minutes are closed; of who was started by `since`, the past may be unknown."""

    closed: datetime
    since: datetime

    @classmethod
    def of(cls, table: pa.Table | None, now: datetime) -> Self:
        noted = ((table.schema.metadata or {}) if table is not None else {}).get(_MARKS)
        if noted is None:
            # What a worker counted in its first minute may count as of now.
            return cls(_floor(now), now - _MINUTE)
        closed, since = map(datetime.fromisoformat, json.loads(noted))
        return cls(closed, since)

    def on(self, table: pa.Table) -> pa.Table:
        """Return a table with a note of these in its metadata."""
        noted = json.dumps([self.closed.isoformat(), self.since.isoformat()])
        return table.replace_schema_metadata({_MARKS: noted})


def merged_notes(notes: Iterable[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """Put together what the parts of a table of open minutes have noted."""
    noted = [json.loads(each[_MARKS]) for each in notes if _MARKS in each]
    times = [max(map(datetime.fromisoformat, of)).isoformat() for of in zip(*noted, strict=True)]
    return {_MARKS: json.dumps(times).encode()} if times else {}


def next_rollups(
    before: Callable[[str], pa.Table | None],
    counted: pa.Table,
    reports: pa.Table,
    between: tuple[float, float],
) -> Mapping[str, pa.Table]:
    """Return the tables of roll-ups that a batch changes, of logs the rows that are new.

    Parameters
    ----------
    before
        Reads one of these tables as it is.
    counted
        What the newest pulses of this batch say: rows of `increments.READINGS`.
    reports
        The next table of worker reports: which workers there are, how large their heartbeats were,
        and how many were not read.
    between
        When the batch was read, at the earliest and at the latest: seconds since the epoch.
    """
    began, now = (datetime.fromtimestamp(at, UTC) for at in between)
    previous, open_ = before(tables.EXECUTOR_COUNTERS), before(tables.ROLLUP_OPEN)
    marks = _Marks.of(open_, began)
    if previous is None:
        previous = EXECUTOR_COUNTERS.empty_table()
    if open_ is None:
        open_ = OPEN.empty_table()
    is_wrong = marks.closed > now + _WRONG
    changes, readings = increments(counted, previous, marks.since)
    earliest = _floor(began) if is_wrong else marks.closed
    changes = _placed(changes, previous, reports, earliest, max(_floor(now), earliest))
    known, forgotten = _known(previous, changes, readings, reports, now)
    closed_now = open_ if is_wrong else open_.slice(0, 0)
    open_ = together(open_.slice(0, 0) if is_wrong else open_, summed(changes))
    closed = max(earliest, _floor(began))
    is_over = pc.less(open_["bucket"], pa.scalar(closed, rows.TIMESTAMP))
    closed_now = pa.concat_tables([closed_now, open_.filter(is_over)])
    found: dict[str, pa.Table] = {}
    if is_wrong or closed != marks.closed:
        parts = before(tables.ROLLUP_PARTS)
        found = _closed(rollup(closed_now), parts, None if is_wrong else closed)
    marks = _Marks(closed, max(marks.since, forgotten or marks.since))
    return {
        tables.EXECUTOR_COUNTERS: known,
        tables.ROLLUP_OPEN: marks.on(open_.filter(pc.invert(is_over))),
        **found,
    }


def _placed(
    changes: pa.Table, previous: pa.Table, reports: pa.Table, earliest: datetime, latest: datetime
) -> pa.Table:
    """Put increments into their buckets, beside what their worker reports."""
    first, last = (pa.scalar(at, rows.TIMESTAMP) for at in (earliest, latest))
    bucket = floored(changes["at"], 1)
    bucket = pc.if_else(pc.greater(bucket, last), last, bucket)
    bucket = pc.if_else(pc.less(bucket, first), first, bucket)
    then = previous.select(["bucket", "component", "work"]).take(changes["before"])
    is_same = pc.and_(
        pc.equal(then["bucket"], bucket), pc.equal(then["component"], changes["component"])
    )
    is_same = pc.fill_null(is_same, False)
    done = pc.if_else(is_same, then["work"], pa.scalar(None, pa.float64()))
    worker = pc.index_in(worker_keys(changes), worker_keys(reports))
    said = reports.select(["bytes", "skipped"]).take(worker)
    placed = {**_columns(changes), "bucket": bucket, "done": done, "worker": worker}
    return pa.table(placed | _columns(said))


def _known(
    previous: pa.Table, changes: pa.Table, readings: pa.Table, reports: pa.Table, now: datetime
) -> tuple[pa.Table, datetime | None]:
    """Return the next table of counters, and when the newest was read that is not in it any more.

    Those stay that were read within `FORGET`, and those of workers that may yet be heard: there is
    a report of them, and nothing newer.
    """
    is_replaced = pc.is_in(pa.arange(0, previous.num_rows).cast(pa.int32()), changes["before"])
    kept = previous.filter(pc.invert(is_replaced))
    is_young = pc.greater_equal(kept["at"], pa.scalar(now - FORGET, rows.TIMESTAMP))
    workers = worker_keys(kept)
    is_waited_for = pc.and_(
        pc.is_in(workers, worker_keys(reports)), pc.invert(pc.is_in(workers, worker_keys(readings)))
    )
    stays = pc.or_(is_young, is_waited_for)
    forgotten = pc.max(kept["at"].filter(pc.invert(stays))).as_py()
    work = pc.add(pc.fill_null(changes["done"], 0.0), work_of(changes))
    counted = _columns(readings.select(COUNTERS.names))
    beside = {"bucket": changes["bucket"], "component": changes["component"], "work": work}
    known = pa.table(counted | beside, schema=EXECUTOR_COUNTERS)
    return pa.concat_tables([kept.filter(stays), known]), forgotten


def _closed(
    minutes: pa.Table, parts: pa.Table | None, closed: datetime | None
) -> dict[str, pa.Table]:
    """Return the rows of buckets that have closed, and the parts of those that have not, by table.

    Parameters
    ----------
    minutes
        Rows of minutes that are closed now.
    parts
        The parts so far.
    closed
        Up to when all minutes are closed; None: so is everything else.
    """
    if parts is None:
        parts = ROLLUP_PARTS.empty_table()
    result, left = {ROLLUPS[1]: minutes}, []
    finer = minutes
    for length, name in list(ROLLUPS.items())[1:]:
        is_part = pc.equal(parts["minutes"], length)
        known = parts.filter(is_part).select(ROLLUP.names)
        found = longer(pa.concat_tables([known, finer]), length)
        if closed is not None:
            whole = _floor(closed, length)
            is_over = pc.less(found["bucket"], pa.scalar(whole, rows.TIMESTAMP))
            rest = found.filter(pc.invert(is_over))
            left.append(rest.add_column(0, ROLLUP_PARTS.field(0), _repeated(length, rest)))
            found = found.filter(is_over)
        result[name] = finer = found
    return result | {tables.ROLLUP_PARTS: pa.concat_tables([ROLLUP_PARTS.empty_table(), *left])}


def _repeated(minutes: int, table: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(minutes, pa.int32()), table.num_rows)


def _floor(at: datetime, minutes: int = 1) -> datetime:
    secs = 60 * minutes
    return datetime.fromtimestamp(at.timestamp() // secs * secs, UTC)


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table[name] for name in table.column_names}
