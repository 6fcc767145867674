"""The components of tasks, which Nimbus knows and Storm's own workers do not report.

A rebalance only regroups tasks: one answer of Nimbus names all executors that a topology ever has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoding.layout import EXECUTOR
from stormkeeper.pipeline.table_columns import COMPONENTS, TOPOLOGIES

#: Limit of kept topologies: the last read stay.
MOST_TOPOLOGIES: Final = 10_000

#: Age at which an answer is renewed: a rebalance may change the topology's configuration.
_DAY_SECS: Final = 86_400.0

#: Above the largest task number.
_NUMBERS: Final = 2**31


class Tasks(NamedTuple):
    """A component's range of tasks, both ends included."""

    component: str
    start: int
    end: int


def unnamed(pulses: pa.Table) -> dict[str, tuple[int, int]]:
    """Return the first and the last unnamed task, from 1, of each topology in decoded rows."""
    found = []
    for batch in pulses.select(["storm_id", "executors"]).to_batches():
        executors = pc.list_flatten(batch["executors"])
        start, end = (pc.struct_field(executors, name) for name in ("task_start", "task_end"))
        lacks = pc.is_null(pc.struct_field(executors, "component"))
        storm_ids = batch["storm_id"].take(pc.list_parent_indices(batch["executors"]))
        tasks = pa.table({"storm_id": storm_ids, "start": start, "end": end})
        found.append(tasks.filter(pc.and_(lacks, pc.greater(start, 0))))
    if not found:
        return {}
    by_topology = pa.concat_tables(found).group_by("storm_id")
    extents = by_topology.aggregate([("start", "min"), ("end", "max")])
    of_each = rows.columns_of(extents, "storm_id", "start_min", "end_max")
    return {storm_id: (start, end) for storm_id, start, end in of_each}


class Lookup:
    """The components of each topology's tasks, for lookups of many executors."""

    def __init__(self, tasks: Mapping[str, Iterable[Tasks]]) -> None:
        self._topologies = pa.array(tasks, pa.string())
        keys, names = [], []
        for number, ranges in enumerate(tasks.values()):
            for component, start, end in ranges:
                keys += [number * _NUMBERS + task for task in range(start, end + 1)]
                names += [component] * (end - start + 1)
        self._keys = pa.array(keys, pa.int64())
        self._names = pa.array(names, pa.string())

    def named(self, pulses: pa.Table) -> pa.Table:
        """Add missing components to rows of `decoded_rows.typed`, by each executor's first task."""
        if not len(self._keys):
            return pulses
        return pa.Table.from_batches(map(self._named, pulses.to_batches()), pulses.schema)

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        number = pc.index_in(batch["storm_id"], self._topologies).cast(pa.int64())
        lists = batch["executors"]
        if number.null_count == len(number):
            return batch
        executors = pc.list_flatten(lists)
        columns = dict(zip(EXECUTOR.names, executors.flatten(), strict=True))
        of = pc.multiply(number.take(pc.list_parent_indices(lists)), _NUMBERS)
        place = pc.index_in(pc.add(of, columns["task_start"].cast(pa.int64())), self._keys)
        known = columns["component"].cast(pa.string())
        columns["component"] = pc.coalesce(known, self._names.take(place)).dictionary_encode()
        sizes = pc.fill_null(pc.list_value_length(lists), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
        values = pa.StructArray.from_arrays(list(columns.values()), fields=list(EXECUTOR))
        named = pa.ListArray.from_arrays(offsets, values, type=lists.type, mask=lists.is_null())
        return rows.replace_column(batch, "executors", named)


def join_ranges(executors: Iterable[Tasks]) -> tuple[Tasks, ...]:
    """Return tasks in as few ranges as possible, in order."""
    result: list[Tasks] = []
    for tasks in sorted(executors, key=lambda each: each.start):
        last = result[-1] if result else None
        if last is not None and (last.component, last.end + 1) == (tasks.component, tasks.start):
            result[-1] = last._replace(end=tasks.end)
        else:
            result.append(tasks)
    return tuple(result)


class Known(NamedTuple):
    """A topology's components and timeout; times are seconds since the epoch."""

    tasks: tuple[Tasks, ...]
    timeout_secs: float | None
    asked_at: float
    seen_at: float

    def has(self, tasks: tuple[int, int]) -> bool:
        """Return whether the components of all tasks in a range are known."""
        start, last = tasks
        for known in self.tasks:
            if known.start <= start <= known.end:
                start = known.end + 1
        return start > last


class Names:
    """Known topologies, kept for `kept_secs` after the last read of a worker."""

    def __init__(
        self, components: pa.Table | None, topologies: pa.Table | None, kept_secs: float
    ) -> None:
        self._kept_secs = kept_secs
        self._known: dict[str, Known] = {}
        self._written_at = 0.0
        #: Whether the tables have to be written.
        self.is_new = False
        if components is None or topologies is None:
            return
        tasks: dict[str, list[Tasks]] = {}
        for storm_id, *one in rows.columns_of(components, *COMPONENTS.names):
            tasks.setdefault(storm_id, []).append(Tasks(*one))
        for storm_id, timeout_secs, *at in rows.columns_of(topologies, *TOPOLOGIES.names):
            asked_at, seen_at = (one or 0.0 for one in at)
            ranges = tuple(tasks.get(storm_id, ()))
            self._known[storm_id] = Known(ranges, timeout_secs, asked_at, seen_at)
            self._written_at = max(self._written_at, seen_at)

    def has(self, storm_id: str, tasks: tuple[int, int]) -> bool:
        known = self._known.get(storm_id)
        return known is not None and known.has(tasks)

    def is_fresh(self, storm_id: str, now: float) -> bool:
        known = self._known.get(storm_id)
        return known is not None and now - known.asked_at < _DAY_SECS

    def lookup(self, now: float) -> Lookup:
        return Lookup(
            {
                storm_id: known.tasks
                for storm_id, known in self._known.items()
                if now - known.seen_at < 2 * _DAY_SECS
            }
        )

    def learn(
        self, storm_id: str, executors: Iterable[Tasks], timeout_secs: float | None, now: float
    ) -> None:
        """Record an answer; fewer tasks than before, as during a rebalance, do not replace more."""
        tasks = join_ranges(executors)
        before = self._known.get(storm_id)
        if before is not None and _count(tasks) < _count(before.tasks):
            tasks = before.tasks
        self._known[storm_id] = Known(tasks, timeout_secs, now, now)
        self.is_new = True

    def saw(self, storm_ids: Iterable[str], now: float) -> None:
        for storm_id in storm_ids:
            if storm_id in self._known:
                self._known[storm_id] = self._known[storm_id]._replace(seen_at=now)
                self.is_new |= now - self._written_at > _DAY_SECS

    def written(self, now: float) -> tuple[pa.Table, pa.Table]:
        """Drop topologies that are too old, and return the tables to write."""
        self.is_new = False
        self._written_at = now
        newest = sorted(self._known.items(), key=lambda each: each[1].seen_at, reverse=True)
        self._known = {
            storm_id: known
            for storm_id, known in newest[:MOST_TOPOLOGIES]
            if now - known.seen_at <= self._kept_secs
        }
        ranges = [(id_, *one) for id_, known in self._known.items() for one in known.tasks]
        known = self._known.values()
        columns = {
            "storm_id": list(self._known),
            "timeout_secs": [one.timeout_secs for one in known],
            "asked_at": rows.timestamps(one.asked_at for one in known),
            "seen_at": rows.timestamps(one.seen_at for one in known),
        }
        components = pa.Table.from_pylist(
            [dict(zip(COMPONENTS.names, one, strict=True)) for one in ranges], COMPONENTS
        )
        return components, pa.table(columns, schema=TOPOLOGIES)


def _count(tasks: Iterable[Tasks]) -> int:
    return sum(one.end - one.start + 1 for one in tasks)


class _Open(NamedTuple):
    tasks: tuple[int, int]
    at: float
    pause_secs: float
    raised_at: float


class Questions:
    """Which topologies to ask Nimbus about, and when; times are on a monotonic clock.

    The pause doubles after each insufficient answer. A question whose tasks are no longer read is
    dropped.
    """

    def __init__(self, pauses_secs: tuple[float, float]) -> None:
        self._first_secs, self._longest_secs = pauses_secs
        self._open: dict[str, _Open] = {}

    @property
    def tasks(self) -> dict[str, tuple[int, int]]:
        """The unnamed tasks of each topology with an open question."""
        return {storm_id: one.tasks for storm_id, one in self._open.items()}

    def saw(
        self, tasks: Mapping[str, tuple[int, int]], is_known: Callable[..., bool], now: float
    ) -> None:
        """Open questions about tasks read without a name, unless `is_known`."""
        for storm_id, extent in tasks.items():
            if is_known(storm_id, extent):
                self._open.pop(storm_id, None)
                continue
            known = self._open.get(storm_id, _Open(extent, now, self._first_secs, now))
            self._open[storm_id] = known._replace(tasks=extent, raised_at=now)
        oldest = now - 2 * self._longest_secs
        self._open = {storm_id: o for storm_id, o in self._open.items() if o.raised_at >= oldest}

    def next(self, now: float) -> str | None:
        return next((storm_id for storm_id, one in self._open.items() if one.at <= now), None)

    @property
    def next_at(self) -> float:
        return min((one.at for one in self._open.values()), default=inf)

    def asked(self, storm_id: str, is_known: Callable[..., bool], now: float) -> None:
        one = self._open[storm_id]
        if is_known(storm_id, one.tasks):
            del self._open[storm_id]
        else:
            pause = min(2 * one.pause_secs, self._longest_secs)
            self._open[storm_id] = one._replace(at=now + one.pause_secs, pause_secs=pause)
