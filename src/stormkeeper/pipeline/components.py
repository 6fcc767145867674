"""What Nimbus knows of topologies and their workers do not say: the components of their tasks.

Storm's own workers name an executor by its tasks alone. Of which component these are is settled
when the topology is submitted, and a rebalance only groups them anew. So one answer of Nimbus names
all executors that the topology has, had and will have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoding.layout import EXECUTOR

#: One row per component and range of its tasks, without a gap.
COMPONENTS: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("component", pa.string()),
        ("task_start", pa.int32()),
        ("task_end", pa.int32()),
    ]
)

#: One row per topology: its ``topology.worker.timeout.secs``, if it has one; when Nimbus was asked;
#: and when workers of it were last read that do not name their components, up to a day earlier.
TOPOLOGIES: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("timeout_secs", pa.float64()),
        ("asked_at", rows.TIMESTAMP),
        ("seen_at", rows.TIMESTAMP),
    ]
)

#: Topologies that are kept at most: those that were seen last.
MOST_TOPOLOGIES: Final = 10_000

#: How often Nimbus is asked for a topology again, as a rebalance may change its configuration.
_DAY_SECS: Final = 86_400.0

#: More than a task's number may be.
_NUMBERS: Final = 2**31


class Tasks(NamedTuple):
    """Tasks of one component, from the first to the last."""

    component: str
    start: int
    end: int


def unnamed(pulses: pa.Table) -> dict[str, tuple[int, int]]:
    """Return the first and the last task of executors without a component, by topology.

    Parameters
    ----------
    pulses
        Rows as `decode.typed` gives them. The executor that each of Storm's workers has for itself,
        of task -1, belongs to no component.
    """
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
    columns = (extents[name].to_pylist() for name in ("storm_id", "start_min", "end_max"))
    return {storm_id: (start, end) for storm_id, start, end in zip(*columns, strict=True)}


class Lookup:
    """The components of tasks, to be looked up for many executors at once.

    Parameters
    ----------
    tasks
        The tasks of each topology.
    """

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
        """Return rows of `decode.typed` with the components that workers have not named.

        An executor is named by its first task: Storm has none of two components.
        """
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
        return batch.set_column(batch.schema.get_field_index("executors"), "executors", named)


def joined(executors: Iterable[Tasks]) -> tuple[Tasks, ...]:
    """Return the tasks of executors in as few ranges as there may be, in their order."""
    result: list[Tasks] = []
    for tasks in sorted(executors, key=lambda each: each.start):
        last = result[-1] if result else None
        if last is not None and (last.component, last.end + 1) == (tasks.component, tasks.start):
            result[-1] = last._replace(end=tasks.end)
        else:
            result.append(tasks)
    return tuple(result)


class Known(NamedTuple):
    """What is known of a topology; times are in seconds since the epoch."""

    tasks: tuple[Tasks, ...]
    timeout_secs: float | None
    asked_at: float
    seen_at: float

    def has(self, tasks: tuple[int, int]) -> bool:
        """Whether the component of every task is known, from a first to a last one."""
        start, last = tasks
        for known in self.tasks:
            if known.start <= start <= known.end:
                start = known.end + 1
        return start > last


class Names:
    """What is known of topologies.

    Parameters
    ----------
    components, topologies
        Rows of `COMPONENTS` and `TOPOLOGIES`; None at the beginning.
    kept_secs
        How long a topology is known after it was last seen.
    """

    def __init__(
        self, components: pa.Table | None, topologies: pa.Table | None, kept_secs: float
    ) -> None:
        self._kept_secs = kept_secs
        self._known: dict[str, Known] = {}
        self._written_at = 0.0
        #: Whether the tables are to be written.
        self.is_new = False
        if components is None or topologies is None:
            return
        tasks: dict[str, list[Tasks]] = {}
        for storm_id, *one in _values(components):
            tasks.setdefault(storm_id, []).append(Tasks(*one))
        times = (rows.seconds(topologies[name]) for name in ("asked_at", "seen_at"))
        secs = _values(topologies.select(["storm_id", "timeout_secs"]))
        for (storm_id, timeout_secs), *at in zip(secs, *times, strict=True):
            asked_at, seen_at = (one or 0.0 for one in at)
            ranges = tuple(tasks.get(storm_id, ()))
            self._known[storm_id] = Known(ranges, timeout_secs, asked_at, seen_at)
            self._written_at = max(self._written_at, seen_at)

    def has(self, storm_id: str, tasks: tuple[int, int]) -> bool:
        """Whether the component of every task of a topology is known, from a first to a last."""
        known = self._known.get(storm_id)
        return known is not None and known.has(tasks)

    def is_fresh(self, storm_id: str, now: float) -> bool:
        """Whether Nimbus was asked for a topology of late."""
        known = self._known.get(storm_id)
        return known is not None and now - known.asked_at < _DAY_SECS

    def lookup(self, now: float) -> Lookup:
        """Return the components of those topologies that were seen of late."""
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
        """Take in what Nimbus says of a topology.

        Of one that is being rebalanced it may not say all executors: then the former answer stays.
        """
        tasks = joined(executors)
        before = self._known.get(storm_id)
        if before is not None and _count(tasks) < _count(before.tasks):
            tasks = before.tasks
        self._known[storm_id] = Known(tasks, timeout_secs, now, now)
        self.is_new = True

    def saw(self, storm_ids: Iterable[str], now: float) -> None:
        """Take in of which topologies workers were read."""
        for storm_id in storm_ids:
            if storm_id in self._known:
                self._known[storm_id] = self._known[storm_id]._replace(seen_at=now)
                self.is_new |= now - self._written_at > _DAY_SECS

    def written(self, now: float) -> tuple[pa.Table, pa.Table]:
        """Return the tables to write, without those that were last seen too long ago."""
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


def _values(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _count(tasks: Iterable[Tasks]) -> int:
    return sum(one.end - one.start + 1 for one in tasks)


class _Open(NamedTuple):
    """A question that is open: of which tasks, when it is asked, and when it was last raised."""

    tasks: tuple[int, int]
    at: float
    pause_secs: float
    raised_at: float


class Questions:
    """Of which topologies Nimbus is to be asked, and when; times are of a monotonic clock.

    Parameters
    ----------
    pauses_secs
        The first pause, and the longest, before a question is repeated to which the answer was not
        enough: each is twice as long as the one before. After twice the longest one, a question is
        dropped that was not raised again.
    """

    def __init__(self, pauses_secs: tuple[float, float]) -> None:
        self._first_secs, self._longest_secs = pauses_secs
        self._open: dict[str, _Open] = {}

    @property
    def tasks(self) -> dict[str, tuple[int, int]]:
        """The questions that are open: topologies, and tasks of theirs without a name."""
        return {storm_id: one.tasks for storm_id, one in self._open.items()}

    def saw(
        self, tasks: Mapping[str, tuple[int, int]], is_known: Callable[..., bool], now: float
    ) -> None:
        """Take in which tasks of topologies were read without a name.

        `is_known` says of a topology and its tasks whether there is nothing to ask.
        """
        for storm_id, extent in tasks.items():
            if is_known(storm_id, extent):
                self._open.pop(storm_id, None)
                continue
            known = self._open.get(storm_id, _Open(extent, now, self._first_secs, now))
            self._open[storm_id] = known._replace(tasks=extent, raised_at=now)
        oldest = now - 2 * self._longest_secs
        self._open = {storm_id: o for storm_id, o in self._open.items() if o.raised_at >= oldest}

    def next(self, now: float) -> str | None:
        """Return the topology to ask for now, if there is one."""
        return next((storm_id for storm_id, one in self._open.items() if one.at <= now), None)

    @property
    def next_at(self) -> float | None:
        """When there is a topology to ask for; None if there is none to come."""
        return min((one.at for one in self._open.values()), default=None)

    def asked(self, storm_id: str, is_known: Callable[..., bool], now: float) -> None:
        """Take in that Nimbus was asked for a topology, whatever it said."""
        one = self._open[storm_id]
        if is_known(storm_id, one.tasks):
            del self._open[storm_id]
        else:
            pause = min(2 * one.pause_secs, self._longest_secs)
            self._open[storm_id] = one._replace(at=now + one.pause_secs, pause_secs=pause)
