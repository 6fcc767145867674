"""Of which component the tasks of a topology are, where its workers do not say.

Storm's own workers name an executor by its tasks alone. Of which component these are is settled
when the topology is submitted, and a rebalance only groups them anew. So one answer of Nimbus names
all executors that the topology has, had and will have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows

#: One row per component and range of its tasks, without a gap. `seen_at` is when workers of the
#: topology were last read that do not name their components, up to a day earlier.
COMPONENTS: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("component", pa.string()),
        ("task_start", pa.int32()),
        ("task_end", pa.int32()),
        ("seen_at", rows.TIMESTAMP),
    ]
)

#: Topologies that are kept at most: those that were seen last.
MOST_TOPOLOGIES: Final = 10_000

_DAY_SECS: Final = 86_400.0


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


class Names:
    """The components that are known, by topology.

    Parameters
    ----------
    table
        Rows of `COMPONENTS`; None at the beginning.
    kept_secs
        How long a topology is known after it was last seen.
    """

    def __init__(self, table: pa.Table | None, kept_secs: float) -> None:
        self._kept_secs = kept_secs
        self._tasks: dict[str, tuple[Tasks, ...]] = {}
        #: When each topology was last seen, in seconds since the epoch; likewise in the table.
        self._seen_at: dict[str, float] = {}
        self._written_at: dict[str, float] = {}
        #: Whether the table is to be written.
        self.is_new = False
        if table is not None:
            columns = [table[name].to_pylist() for name in table.column_names[:-1]]
            for storm_id, *tasks in zip(*columns, strict=True):
                self._tasks[storm_id] = (*self._tasks.get(storm_id, ()), Tasks(*tasks))
            times = zip(columns[0], rows.seconds(table["seen_at"]), strict=True)
            self._seen_at = {storm_id: at for storm_id, at in times if at is not None}
            self._written_at = dict(self._seen_at)

    def has(self, storm_id: str, tasks: tuple[int, int]) -> bool:
        """Whether the component of every task is known, from a first to a last one."""
        start, last = tasks
        for known in self._tasks.get(storm_id, ()):
            if known.start <= start <= known.end:
                start = known.end + 1
        return start > last

    def learn(self, storm_id: str, executors: Iterable[Tasks], now: float) -> None:
        """Take in what Nimbus says of a topology's executors."""
        tasks = joined(executors)
        self._seen_at[storm_id] = now
        self.is_new |= tasks != self._tasks.get(storm_id, ())
        self._tasks[storm_id] = tasks

    def saw(self, storm_ids: Iterable[str], now: float) -> None:
        """Take in of which topologies workers were read."""
        for storm_id in storm_ids:
            if storm_id in self._tasks:
                self._seen_at[storm_id] = now
                self.is_new |= now - self._written_at.get(storm_id, now) > _DAY_SECS

    def written(self, now: float) -> pa.Table:
        """Return the table to write, without those that were last seen too long ago."""
        self.is_new = False
        newest = sorted(self._seen_at, key=lambda each: self._seen_at[each], reverse=True)
        kept = {
            storm_id
            for storm_id in newest[:MOST_TOPOLOGIES]
            if now - self._seen_at[storm_id] <= self._kept_secs
        }
        self._tasks = {storm_id: t for storm_id, t in self._tasks.items() if storm_id in kept}
        self._seen_at = {storm_id: self._seen_at[storm_id] for storm_id in self._tasks}
        self._written_at = dict(self._seen_at)
        return pa.Table.from_pylist(
            [
                {
                    "storm_id": storm_id,
                    "component": tasks.component,
                    "task_start": tasks.start,
                    "task_end": tasks.end,
                    "seen_at": datetime.fromtimestamp(self._seen_at[storm_id], UTC),
                }
                for storm_id, ranges in self._tasks.items()
                for tasks in ranges
            ],
            COMPONENTS,
        )


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

    def __len__(self) -> int:
        """Of how many topologies names are lacking."""
        return len(self._open)

    def saw(self, tasks: Mapping[str, tuple[int, int]], names: Names, now: float) -> None:
        """Take in which tasks of topologies were read without a name."""
        for storm_id, extent in tasks.items():
            if names.has(storm_id, extent):
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

    def asked(self, storm_id: str, names: Names, now: float) -> None:
        """Take in that Nimbus was asked for a topology, whatever it said."""
        one = self._open[storm_id]
        if names.has(storm_id, one.tasks):
            del self._open[storm_id]
        else:
            pause = min(2 * one.pause_secs, self._longest_secs)
            self._open[storm_id] = one._replace(at=now + one.pause_secs, pause_secs=pause)
