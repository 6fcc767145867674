"""The roll-ups: counts of components by minute, and longer buckets made of shorter buckets.

A reading is added to the open minute of its receipt. The first batch that begins after a minute
closes the minute; then the row never changes:

- Late readings are in the oldest open minute; readings from the future in the batch's minute.
- If the clock is set back by more than an hour, all open buckets are closed at once. Minutes that
  occur twice have two rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.executor_counters import COUNTERS, TIMES, increments
from stormkeeper.pipeline.executor_stats import (
    COUNTED,
    WEIGHTS,
    average,
    grouped,
    to_float64,
    to_int64,
)
from stormkeeper.pipeline.table_columns import ROLLUP

_KEYS: Final = {
    "bucket": rows.TIMESTAMP,
    **dict.fromkeys(("storm_id", "topology", "component", "kind"), pa.string()),
}
_SIZES: Final = ("workers", "executors", "tasks")
_COUNTS: Final = (*COUNTED, "restarts", "readings", "skipped")

_ADDED: Final = (*TIMES, "capacities", "work", "squares")
_LARGEST: Final = ("capacity", "interval_secs", "largest")

#: The sums of an open bucket. ``work`` is what a spout emitted or a bolt executed; ``squares`` are
#: of each executor's work.
OPEN: Final = pa.schema(
    [
        *_KEYS.items(),
        *((name, pa.int64()) for name in (*_SIZES, *_COUNTS, "executor_readings", "bytes")),
        *((name, pa.float64()) for name in (*_ADDED, *_LARGEST)),
    ]
)

#: Sums that may exceed 64 bits.
_EXACT: Final = (*_SIZES, *_COUNTS, "executor_readings", "bytes")

#: The newest reading of each executor, and its ``work`` in that reading's ``bucket``.
EXECUTOR_COUNTERS: Final = pa.schema(
    [*COUNTERS, ("bucket", rows.TIMESTAMP), ("component", pa.string()), ("work", pa.float64())]
)

#: The closed part of an open longer bucket, of ``minutes``.
ROLLUP_PARTS: Final = pa.schema([("minutes", pa.int32()), *ROLLUP])

#: By the minutes of a bucket, shortest first.
ROLLUPS: Final = {1: tables.ROLLUP_1M, 10: tables.ROLLUP_10M, 60: tables.ROLLUP_60M}

#: Retention of a silent worker's counters.
FORGET: Final = timedelta(hours=24)

#: A clock that is set back by more than this was wrong before.
_WRONG: Final = timedelta(hours=1)

_MARKS: Final = b"stormkeeper.marks"


def sum_changes(changes: pa.Table) -> pa.Table:
    """Sum executors' counts by component and bucket, into rows of `OPEN`.

    ``done`` is the executor's work in the bucket so far, null for its first reading there;
    ``bytes`` and ``skipped`` are of the worker's report.
    """
    is_first = pc.is_null(changes["done"])
    done = pc.fill_null(changes["done"], 0.0)
    work = work_of(changes)
    now = pc.add(done, work)
    tasks = pc.add(pc.subtract(_longs(changes["task_end"]), _longs(changes["task_start"])), 1)
    # Dictionaries take less memory than texts, and are grouped faster.
    keys = {name: changes[name].dictionary_encode() for name in _KEYS}
    executors = {name: changes[name] for name in (*COUNTED, *TIMES, "capacity")}
    executors |= {
        "executors": _longs(is_first),
        "tasks": pc.if_else(is_first, tasks, 0),
        "executor_readings": pa.repeat(1, changes.num_rows),
        "capacities": changes["capacity"],
        "work": work,
        "squares": pc.subtract(pc.multiply(now, now), pc.multiply(done, done)),
        "interval_secs": changes["secs"],
        "largest": now,
    }
    # A worker's executors share one heartbeat: they are read and restarted together.
    workers = {name: changes[name] for name in ("worker", "bytes", "skipped")}
    workers |= {"restarts": _longs(changes["restarted"]), "workers": _longs(is_first)}
    others = {"workers": "min", **dict.fromkeys(("restarts", "skipped", "bytes"), "max")}
    by_worker = grouped(pa.table(keys | workers), [*keys, "worker"], others=others)
    by_worker = by_worker.append_column("readings", pa.repeat(1, by_worker.num_rows))
    of_executors, of_workers = (
        _summed(part).sort_by([(name, "ascending") for name in _KEYS])
        for part in (pa.table(keys | executors), by_worker)
    )
    columns = rows.columns_by_name(of_workers) | rows.columns_by_name(of_executors)
    return pa.table(columns, schema=OPEN)


def work_of(changes: pa.Table) -> Any:
    is_spout = pc.fill_null(pc.equal(changes["kind"], "spout"), False)
    return to_float64(pc.if_else(is_spout, changes["emitted"], changes["executed"]))


def add_sums(one: pa.Table, other: pa.Table) -> pa.Table:
    return _summed(pa.concat_tables([one, other])).select(OPEN.names)


def _summed(parts: pa.Table) -> pa.Table:
    """Sum the columns of `OPEN` that are there."""
    exact, added, largest = (
        [name for name in names if name in parts.column_names]
        for names in (_EXACT, _ADDED, _LARGEST)
    )
    others = dict.fromkeys(added, "sum") | dict.fromkeys(largest, "max")
    found = grouped(parts, list(_KEYS), counts=exact, others=others)
    columns = {name: found[name].cast(OPEN.field(name).type) for name in (*_KEYS, *others)}
    return pa.table(columns | {name: to_int64(found[name]) for name in exact})


def rollup(open_: pa.Table) -> pa.Table:
    columns = rows.columns_by_name(open_)
    for name, weight in WEIGHTS.items():
        latency = average(open_[f"{name}_ms"], open_[weight])
        columns[f"{name}_ms_avg"] = _of_kind(open_, name, latency)
    mean = average(open_["capacities"], open_["executor_readings"])
    columns["capacity_mean"] = pc.if_else(pc.is_valid(open_["capacities"]), mean, None)
    columns["heartbeat_bytes"] = average(to_float64(open_["bytes"]), open_["readings"])
    columns["largest_share"] = pc.divide(open_["largest"], _positive(open_["work"]))
    work = open_["work"]
    spread = pc.subtract(
        pc.multiply(to_float64(open_["executors"]), open_["squares"]), pc.multiply(work, work)
    )
    spread = pc.sqrt(pc.max_element_wise(spread, 0.0))
    columns["executed_cv"] = _of_kind(open_, "execute", pc.divide(spread, _positive(work)))
    return pa.table(columns, schema=ROLLUP)


def merge_buckets(finer: pa.Table, minutes: int) -> pa.Table:
    """Merge the buckets of a roll-up into buckets of `minutes`.

    Averages are weighed by their counts, readings or work. Sizes, ``capacity`` and
    ``interval_secs`` are maxima; everything else is a sum.
    """
    weights = {f"{name}_ms_avg": to_float64(finer[weight]) for name, weight in WEIGHTS.items()}
    weights |= dict.fromkeys(("capacity_mean", "heartbeat_bytes"), to_float64(finer["readings"]))
    weights |= {"largest_share": work_of(finer), "executed_cv": to_float64(finer["executed"])}
    columns = {name: finer[name] for name in ROLLUP.names if name not in weights}
    columns["bucket"] = bucket_starts(finer["bucket"], minutes)
    for name, weight in weights.items():
        columns[name] = pc.multiply(finer[name], weight)
        columns[f"{name} weight"] = pc.if_else(pc.is_valid(finer[name]), weight, None)
    largest = (*_SIZES, "capacity", "interval_secs")
    added = [each for name in weights for each in (name, f"{name} weight")]
    found = grouped(
        pa.table(columns),
        list(_KEYS),
        counts=_COUNTS,
        others=dict.fromkeys(largest, "max") | dict.fromkeys(added, "sum"),
    )
    columns = rows.columns_by_name(found)
    columns |= {name: to_int64(found[name]) for name in _COUNTS}
    columns |= {name: average(found[name], found[f"{name} weight"]) for name in weights}
    return pa.table(columns, schema=ROLLUP)


def bucket_starts(at: pa.ChunkedArray, minutes: int) -> Any:
    micros = at.cast(pa.int64())
    length = 60_000_000 * minutes
    return pc.multiply(pc.divide(micros, length), length).cast(rows.TIMESTAMP)


def _of_kind(table: pa.Table, latency: str, values: Any) -> Any:
    kind = "spout" if latency == "complete" else "bolt"
    return pc.if_else(pc.equal(table["kind"], kind), values, None)


def _positive(values: Any) -> Any:
    return pc.if_else(pc.greater(values, 0.0), values, None)


def _longs(values: pa.ChunkedArray) -> Any:
    return values.cast(pa.int64())


class _Marks(NamedTuple):
    """Minutes before `closed` are closed.

    Earlier counts of a worker that started by `since` may be unknown.
    """

    closed: datetime
    since: datetime

    @classmethod
    def of(cls, table: pa.Table | None, now: datetime) -> Self:
        noted = ((table.schema.metadata or {}) if table is not None else {}).get(_MARKS)
        if noted is None:
            # A worker that started less than a minute ago counts from its start.
            return cls(_floor(now), now - timedelta(minutes=1))
        closed, since = map(datetime.fromisoformat, json.loads(noted))
        return cls(closed, since)

    def on(self, table: pa.Table) -> pa.Table:
        noted = json.dumps([self.closed.isoformat(), self.since.isoformat()])
        return table.replace_schema_metadata({_MARKS: noted})


def merge_marks(notes: Iterable[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the latest marks in the metadata of a table's parts."""
    noted = [json.loads(each[_MARKS]) for each in notes if _MARKS in each]
    times = [max(map(datetime.fromisoformat, of)).isoformat() for of in zip(*noted, strict=True)]
    return {_MARKS: json.dumps(times).encode()} if times else {}


def next_rollups(
    before: Callable[[str], pa.Table | None],
    counted: pa.Table,
    reports: pa.Table,
    between: tuple[float, float],
) -> Mapping[str, pa.Table]:
    """Return the roll-up tables that a batch changes; of logs, the new rows.

    `counted` are the batch's readings, `reports` the next worker reports.
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
    open_ = add_sums(open_.slice(0, 0) if is_wrong else open_, sum_changes(changes))
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
    first, last = (pa.scalar(at, rows.TIMESTAMP) for at in (earliest, latest))
    bucket = bucket_starts(changes["at"], 1)
    bucket = pc.if_else(pc.greater(bucket, last), last, bucket)
    bucket = pc.if_else(pc.less(bucket, first), first, bucket)
    then = previous.select(["bucket", "component", "work"]).take(changes["before"])
    is_same = pc.and_(
        pc.equal(then["bucket"], bucket), pc.equal(then["component"], changes["component"])
    )
    is_same = pc.fill_null(is_same, False)
    done = pc.if_else(is_same, then["work"], None)
    worker = pc.index_in(rows.worker_keys(changes), rows.worker_keys(reports))
    said = reports.select(["bytes", "skipped"]).take(worker)
    placed = {**rows.columns_by_name(changes), "bucket": bucket, "done": done, "worker": worker}
    return pa.table(placed | rows.columns_by_name(said))


def _known(
    previous: pa.Table, changes: pa.Table, readings: pa.Table, reports: pa.Table, now: datetime
) -> tuple[pa.Table, datetime | None]:
    """Return the next table of counters, and the time of the newest forgotten reading.

    Readings stay for `FORGET`, or while a worker has a report and nothing newer.
    """
    is_replaced = pc.is_in(pa.arange(0, previous.num_rows).cast(pa.int32()), changes["before"])
    kept = previous.filter(pc.invert(is_replaced))
    is_young = pc.greater_equal(kept["at"], pa.scalar(now - FORGET, rows.TIMESTAMP))
    workers = rows.worker_keys(kept)
    is_waited_for = pc.and_(
        pc.is_in(workers, rows.worker_keys(reports)),
        pc.invert(pc.is_in(workers, rows.worker_keys(readings))),
    )
    stays = pc.or_(is_young, is_waited_for)
    forgotten = pc.max(kept["at"].filter(pc.invert(stays))).as_py()
    work = pc.add(pc.fill_null(changes["done"], 0.0), work_of(changes))
    counted = rows.columns_by_name(readings.select(COUNTERS.names))
    beside = {"bucket": changes["bucket"], "component": changes["component"], "work": work}
    known = pa.table(counted | beside, schema=EXECUTOR_COUNTERS)
    return pa.concat_tables([kept.filter(stays), known]), forgotten


def _closed(
    minutes: pa.Table, parts: pa.Table | None, closed: datetime | None
) -> dict[str, pa.Table]:
    """Return buckets that end by `closed` (None: all), and the parts of open buckets."""
    if parts is None:
        parts = ROLLUP_PARTS.empty_table()
    result, left = {ROLLUPS[1]: minutes}, []
    finer = minutes
    for length, name in list(ROLLUPS.items())[1:]:
        is_part = pc.equal(parts["minutes"], length)
        known = parts.filter(is_part).select(ROLLUP.names)
        found = merge_buckets(pa.concat_tables([known, finer]), length)
        if closed is not None:
            whole = _floor(closed, length)
            is_over = pc.less(found["bucket"], pa.scalar(whole, rows.TIMESTAMP))
            rest = found.filter(pc.invert(is_over))
            lengths = pa.repeat(pa.scalar(length, pa.int32()), rest.num_rows)
            left.append(rest.add_column(0, ROLLUP_PARTS.field(0), lengths))
            found = found.filter(is_over)
        result[name] = finer = found
    return result | {tables.ROLLUP_PARTS: pa.concat_tables([ROLLUP_PARTS.empty_table(), *left])}


def _floor(at: datetime, minutes: int = 1) -> datetime:
    secs = 60 * minutes
    return datetime.fromtimestamp(at.timestamp() // secs * secs, UTC)
