"""Counters of executors from reading to reading, across restarts and moves of workers.

An executor counts from 0 again when its worker restarts: a new *incarnation*. Two readings are of
one incarnation if no count has fallen, and the worker's start is the same by its own clock
(``time_secs`` less ``uptime_secs``); or, as that clock may be set, by receipt within a tolerance,
if the uptime has not fallen. So increments add up to the totals if readings are missed.

Of several workers that report an executor, the last started owns the executor: a moved worker
leaves its last pulse behind, or beats on in a machine that is cut off.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.executor_stats import (
    ALL_TIME,
    CAPACITY_WINDOW,
    COUNTED,
    KINDS,
    WEIGHTS,
    capacity,
    finite,
    largest_of,
    to_float64,
    to_int64,
)

#: Sums of average times count, in milliseconds.
TIMES: Final = tuple(f"{name}_ms" for name in WEIGHTS)

#: Tolerance of start times by receipt, in seconds.
TOLERANCE_SECS: Final = 5.0

#: Tolerance by the worker's clock: two roundings to whole seconds.
_ROUNDING_SECS: Final = 1.0

_EXECUTOR: Final = {
    **dict.fromkeys(("storm_id", "node"), pa.string()),
    **dict.fromkeys(("port", "task_start", "task_end"), pa.int32()),
}
_READING: Final = {
    **dict.fromkeys(("server", "instance"), pa.string()),
    **dict.fromkeys(("revision", "time_secs"), pa.int64()),
    "uptime_secs": pa.int32(),
    "at": rows.TIMESTAMP,
}
_MEASURES: Final = {
    **dict.fromkeys(COUNTED, pa.int64()),
    **dict.fromkeys(TIMES, pa.float64()),
}
_BESIDE: Final = dict.fromkeys(("topology", "component", "kind"), pa.string())

#: An executor's reading, kept until the next.
COUNTERS: Final = pa.schema([*_EXECUTOR.items(), *_READING.items(), *_MEASURES.items()])

#: One row per executor and reading: counts since the worker's start.
READINGS: Final = pa.schema([*COUNTERS, *_BESIDE.items(), ("capacity", pa.float64())])

#: The columns that decide which worker owns an executor.
OWNERSHIP: Final = pa.schema(
    [
        READINGS.field(name)
        for name in (*WorkerId._fields, "task_start", "task_end", "at", "uptime_secs")
    ]
)

#: Task numbers have 32 bits with a sign.
_TASK_BITS: Final = 33


def counters(tallies: pa.Table) -> pa.Table:
    """Return the `READINGS` of the sums of `summaries.tally_pulses` or `tally_rows`.

    ``at`` is the time of receipt, or else of the read.
    """
    window = tallies["window"].cast(pa.string())
    found, recent = (tallies.filter(pc.equal(window, of)) for of in (ALL_TIME, CAPACITY_WINDOW))
    place = pc.index_in(_executor_keys(found), _executor_keys(recent))
    busy = capacity(recent["execute_ms"].take(place), found["uptime_secs"])
    columns = rows.columns_by_name(found)
    columns["at"] = pc.coalesce(found["received_at"], found["read_at"])
    columns["kind"] = KINDS.take(rows.one_array(found["kind"]))
    columns |= {name: pc.max_element_wise(to_int64(found[name]), 0) for name in COUNTED}
    columns |= {name: pc.fill_null(finite(found[name]), 0.0) for name in TIMES}
    columns["capacity"] = pc.if_else(pc.equal(columns["kind"], "bolt"), busy, None)
    return pa.table(columns, schema=READINGS)


class Increments(NamedTuple):
    """The changes since the readings before, and the new rows of `READINGS`."""

    changes: pa.Table
    readings: pa.Table


def increments(readings: pa.Table, previous: pa.Table, since: datetime) -> Increments:
    """Return each executor's changes since the reading before.

    A reading that is in `previous`, or an earlier one of its incarnation, gives no row. A new
    executor counts from its worker's start, or from now if that was before `since`. ``secs`` is the
    time since the reading before or the later start; ``before`` the position in `previous`.
    """
    before = pc.index_in(_executor_keys(readings), _executor_keys(previous))
    then = previous.select([*_READING, *_MEASURES]).take(before)
    passed = _passed_secs(readings, then)
    same = _are_of_one_incarnation(readings, then, passed)
    uptime = pc.max_element_wise(pc.fill_null(to_float64(readings["uptime_secs"]), 0.0), 0.0)
    started = pc.subtract(rows.to_seconds(readings["at"]), uptime)
    is_unknown = pc.and_(pc.is_null(before), pc.less_equal(started, since.timestamp()))
    columns = rows.columns_by_name(readings)
    for name, type_ in _MEASURES.items():
        counted_before = pc.if_else(same, then[name], pa.scalar(0, type_))
        counted_before = pc.if_else(is_unknown, readings[name], counted_before)
        columns[name] = pc.subtract(readings[name], counted_before)
    secs = pc.if_else(same, pc.max_element_wise(passed["at"], 0.0), uptime)
    columns["secs"] = pc.if_else(is_unknown, 0.0, secs)
    columns["restarted"] = pc.and_(pc.is_valid(before), pc.invert(same))
    columns["before"] = before
    is_new = pc.invert(_are_known(readings, then, passed))
    return Increments(rows.where(pa.table(columns), is_new), rows.where(readings, is_new))


def _executor_keys(table: pa.Table) -> pa.Array:
    # A storm id is a path segment without a slash; numbers have no colon.
    topology, *rest = (table[name].cast(pa.string()) for name in _EXECUTOR)
    where = pc.binary_join_element_wise(*rest, ":")
    return rows.one_array(pc.binary_join_element_wise(topology, where, "/"))


def _passed_secs(readings: pa.Table, then: pa.Table) -> dict[str, Any]:
    # Differences of doubles do not overflow.
    passed = {
        name: pc.subtract(to_float64(readings[name]), to_float64(then[name]))
        for name in ("time_secs", "uptime_secs")
    }
    passed["at"] = pc.subtract(rows.to_seconds(readings["at"]), rows.to_seconds(then["at"]))
    return passed


def _are_of_one_incarnation(readings: pa.Table, then: pa.Table, passed: Mapping[str, Any]) -> Any:
    """Null counts as another incarnation."""
    lived = passed["uptime_secs"]
    is_near = pc.less_equal(pc.abs(pc.subtract(passed["at"], lived)), TOLERANCE_SECS)
    same = pc.or_(_have_same_start(passed), pc.and_(pc.greater_equal(lived, 0.0), is_near))
    for name in COUNTED:
        same = pc.and_(same, pc.greater_equal(readings[name], then[name]))
    return pc.fill_null(same, False)


def _have_same_start(passed: Mapping[str, Any]) -> Any:
    apart = pc.subtract(passed["time_secs"], passed["uptime_secs"])
    return pc.less_equal(pc.abs(apart), _ROUNDING_SECS)


def _are_known(readings: pa.Table, then: pa.Table, passed: Mapping[str, Any]) -> Any:
    """Return whether the reading before includes a reading; never null."""
    earlier = pc.and_(_have_same_start(passed), pc.less(passed["time_secs"], 0.0))
    again = pc.and_(
        *(pc.equal(passed[name], 0.0) for name in ("time_secs", "uptime_secs")),
    )
    for name in (*COUNTED, "server", "instance", "revision"):
        again = pc.and_(again, rows.is_same(readings[name], then[name]))
    return pc.fill_null(pc.or_(earlier, again), False)


def superseded_workers(held: pa.Table) -> pa.Array:
    """Return the keys of workers that share tasks with a worker started later."""
    if not len(_disputed(held)):
        return pa.array([], pa.string())
    held = held.append_column("worker", rows.worker_keys(held))
    held = held.filter(pc.equal(held["at"], largest_of(held, "at", ["worker"])))
    disputed = held.take(_disputed(held))
    started = pc.subtract(rows.to_seconds(disputed["at"]), to_float64(disputed["uptime_secs"]))
    disputed = disputed.append_column("started", started).sort_by([("started", "descending")])
    executors = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for topology, worker, first, last in rows.columns_of(
        disputed, "storm_id", "worker", "task_start", "task_end"
    ):
        executors[topology, worker].append((first, max(first, last)))
    taken, gone = defaultdict[str, list[tuple[int, int]]](list), []
    for (topology, worker), of_worker in executors.items():  # latest start first
        if any(_overlaps(one, taken[topology]) for one in of_worker):
            gone.append(worker)
        else:
            for one in of_worker:
                bisect.insort(taken[topology], one)
    return pa.array(gone, pa.string())


def _overlaps(tasks: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """`others` are sorted and disjoint."""
    first, last = tasks
    place = bisect.bisect_right(others, (last, inf))
    return place > 0 and others[place - 1][1] >= first


def _disputed(held: pa.Table) -> pa.Array:
    """Return the positions of executors that share tasks within a topology."""
    if not held.num_rows:
        return pa.array([], pa.int64())
    topologies = rows.one_array(held["storm_id"].dictionary_encode()).indices.to_numpy()
    above = topologies.astype(np.int64) << _TASK_BITS
    first, last = (
        pc.fill_null(held[name], 0).to_numpy().astype(np.int64)
        for name in ("task_start", "task_end")
    )
    first, last = above + first, above + np.maximum(first, last)
    order = np.argsort(first, kind="stable")
    furthest = np.maximum.accumulate(last[order])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = first[order][1:] > furthest[:-1]
    group = np.cumsum(begins) - 1
    return pa.array(order[np.bincount(group)[group] > 1])
