"""Counts per executor over Storm's windows: the last 600, 10800 and 86400 seconds, and all time.

Pure: every call is given the time, in seconds of one clock that never goes back. As in Storm, a
window consists of twenty buckets. So it forgets in steps of a twentieth of its length: a count is
in it for 19 to 20 of these steps.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.topology.component import ComponentDescription
from stormkeeper.topology.plan import Edge, Executor, Plan, Query
from stormkeeper.worker.batch_readings import BatchRows
from stormkeeper.worker.failure import readable_text
from stormkeeper.worker.running_queries import ROWS, QueryEvents, QueryRun

log = logging.getLogger(__name__)

#: Lengths of Storm's windows in seconds.
WINDOWS = (600, 10800, 86400)

#: Storm's name of the window that never forgets.
ALL_TIME = ":all-time"

#: Storm's ``NUM_STAT_BUCKETS``.
BUCKETS = 20


class RollingSum:
    """The sum of what was added within the last `window_secs`, to within a bucket."""

    def __init__(self, window_secs: float, buckets: int = BUCKETS) -> None:
        self._bucket_secs = window_secs / buckets
        self._buckets = buckets
        self._sums: deque[tuple[int, float]] = deque()  # (number of the bucket, sum), in order

    def add(self, amount: float, now: float) -> None:
        """Add `amount` at `now`."""
        number = int(now / self._bucket_secs)
        if self._sums and self._sums[-1][0] >= number:
            last, before = self._sums.pop()
            self._sums.append((last, before + amount))
        else:
            self._sums.append((number, amount))
        self._forget(now)

    def total(self, now: float) -> float:
        """Return the sum at `now`; an int where only ints were added."""
        self._forget(now)
        return sum(amount for _, amount in self._sums)

    def _forget(self, now: float) -> None:
        oldest = int(now / self._bucket_secs) - self._buckets + 1
        while self._sums and self._sums[0][0] < oldest:
            self._sums.popleft()


class WindowedSum:
    """A sum over each of Storm's windows and over all time."""

    def __init__(self) -> None:
        self._rolling = {str(secs): RollingSum(secs) for secs in WINDOWS}
        self._all_time: float = 0

    def add(self, amount: float, now: float) -> None:
        """Add `amount` at `now`."""
        self._all_time += amount
        for rolling in self._rolling.values():
            rolling.add(amount, now)

    def totals(self, now: float) -> dict[str, float]:
        """Return the sums at `now` by window: "600", "10800", "86400", ":all-time"."""
        return {w: rolling.total(now) for w, rolling in self._rolling.items()} | {
            ALL_TIME: self._all_time
        }


@dataclass(frozen=True, slots=True)
class ComponentWork:
    """What one executor did in one committed micro-batch, in rows.

    Parameters
    ----------
    emitted
        Rows of its output.
    transferred
        The same, once for each component of the query that took them.
    executed
        Rows that came in, by the component that they came from.
    took_ms
        Duration of the whole micro-batch, from looking for data to the commit.
    partial
        Whether the rows are those of a part of the batch, as nobody has read all of it.
    """

    emitted: int = 0
    transferred: int = 0
    executed: Mapping[str, int] = field(default_factory=dict)
    took_ms: float = 0.0
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """An executor's statistics at one moment, everything by window.

    `executed` is by window and input. `complete_ms` is the mean duration of the micro-batches in
    which the emitted rows went through, weighted by these rows; None where there were none.
    `partial` is the number of micro-batches whose rows were counted in part.
    """

    emitted: Mapping[str, int]
    transferred: Mapping[str, int]
    executed: Mapping[str, Mapping[str, int]]
    complete_ms: Mapping[str, float | None]
    partial: Mapping[str, int]


class ExecutorCounts:
    """The running counts of one executor."""

    def __init__(self, inputs: Iterable[str] = ()) -> None:
        self._emitted = WindowedSum()
        self._transferred = WindowedSum()
        self._row_ms = WindowedSum()
        self._partial = WindowedSum()
        self._executed = {source: WindowedSum() for source in inputs}

    def record(self, work: ComponentWork, now: float) -> None:
        """Add what was done in a batch that ended at `now`."""
        self._emitted.add(work.emitted, now)
        self._transferred.add(work.transferred, now)
        self._row_ms.add(work.emitted * work.took_ms, now)
        self._partial.add(work.partial, now)
        for source, rows in work.executed.items():
            self._executed[source].add(rows, now)

    def figures(self, now: float) -> Figures:
        """Return the counts at `now`."""
        emitted = self._emitted.totals(now)
        row_ms = self._row_ms.totals(now)
        executed = {source: total.totals(now) for source, total in self._executed.items()}
        return Figures(
            emitted=_whole(emitted),
            transferred=_whole(self._transferred.totals(now)),
            executed={
                window: {source: int(totals[window]) for source, totals in executed.items()}
                for window in emitted
            },
            complete_ms={
                window: row_ms[window] / rows if rows else None for window, rows in emitted.items()
            },
            partial=_whole(self._partial.totals(now)),
        )


class WorkerStatistics:
    """The statistics of all executors of a worker; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executors: dict[tuple[str, str], tuple[Executor, ExecutorCounts]] = {}

    def add(self, executor: Executor) -> None:
        """Take in an executor, with all counts zero."""
        with self._lock:
            self._executors[executor.query, executor.component.id] = (
                executor,
                ExecutorCounts(executor.component.inputs),
            )

    def record(self, query: str, work: Mapping[str, ComponentWork], now: float) -> None:
        """Add what the components of `query`, by their ids, did in a batch that ended at `now`."""
        with self._lock:
            for component, done in work.items():
                self._executors[query, component][1].record(done, now)

    def snapshot(self, now: float) -> list[tuple[Executor, Figures]]:
        """Return all executors with their counts at `now`, by task."""
        with self._lock:
            found = [(executor, s.figures(now)) for executor, s in self._executors.values()]
        return sorted(found, key=lambda pair: pair[0].task_start)


def _whole(totals: Mapping[str, float]) -> dict[str, int]:
    return {window: int(total) for window, total in totals.items()}


#: What our observations are named with, so that a user's own stay apart.
_PREFIX = "stormkeeper:"


def observation(edge: Edge) -> str:
    """Return the observation's name: the same at every start, unique in a query."""
    return f"{_PREFIX}{edge.source}>{edge.target}:{edge.position}"


def work(query: Query, seen: BatchRows, took_ms: float) -> dict[str, ComponentWork]:
    """Return what each component of `query` did in a micro-batch.

    Parameters
    ----------
    query
        The query.
    seen
        What its observations saw; one that is missing counts none, as Spark leaves out what it
        found to be empty without running it.
    took_ms
        Duration of the micro-batch.
    """
    rows = {edge: seen.rows.get(observation(edge), 0) for edge in query.edges}
    partial = {
        component
        for edge in query.edges
        if observation(edge) in seen.partial
        for component in (edge.source, edge.target)
    }
    done = {}
    for component in query.components:
        given = [count for edge, count in rows.items() if edge.source == component.id]
        taken: dict[str, int] = {}
        for edge, count in rows.items():
            if edge.target == component.id:
                taken[edge.source] = taken.get(edge.source, 0) + count
        done[component.id] = ComponentWork(
            # Its DataFrame has the rows that the reader of most of them saw.
            emitted=max(given, default=0),
            transferred=sum(given),
            executed=taken,
            took_ms=took_ms,
            partial=component.id in partial,
        )
    return done


class TopologyCounts:
    """Counts the micro-batches of a topology's queries, which Spark knows by the queries' ids."""

    def __init__(
        self,
        plan: Plan,
        statistics: WorkerStatistics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queries = {query.id: query for query in plan.queries}
        self._statistics = statistics
        self._clock = clock
        for executor in plan.executors:
            statistics.add(executor)

    def started(self, run: QueryRun) -> None:
        """Take in that a query starts."""

    def batch(self, run: QueryRun, seen: BatchRows, took_ms: float) -> None:
        """Take in a committed micro-batch."""
        query = self._queries.get(run.name or "")
        if query is not None:
            self._statistics.record(query.id, work(query, seen, took_ms), self._clock())

    def ended(self, run: QueryRun) -> None:
        """Take in the end of a query."""


def counted(frame: DataFrame, name: str) -> DataFrame:
    """Return `frame` with its rows counted in every micro-batch, under `name`."""
    return frame.observe(name, F.count(F.lit(1)).alias(ROWS))


_OBSERVATION = "stormkeeper:sink"


class ScriptQueries:
    """The queries of a plain script, as components with statistics.

    Tasks are numbered in the order in which the queries first start, as they are not known before.

    Parameters
    ----------
    statistics
        Where they are counted.
    one
        The id of the one component that all of them are in a cluster; None: each is its own.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        statistics: WorkerStatistics,
        one: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._statistics = statistics
        self._one = one
        self._clock = clock
        self._lock = threading.Lock()
        self._components: dict[str, str] = {}  # by the query's name, else by its id

    def component(self, run: QueryRun) -> str:
        """Return the component of a query: the same at a restart in this process."""
        with self._lock:
            key = self._one or run.name or run.query_id
            if key not in self._components:
                task = len(self._components) + 1
                name = self._one or run.name or f"query-{task}"
                while name in self._components.values():
                    name += "'"
                self._components[key] = name
                component = ComponentDescription(name, "spout", (), 1)
                self._statistics.add(Executor(component, name, task, task))
            return self._components[key]

    def started(self, run: QueryRun) -> None:
        """Take in that a query starts."""
        self.component(run)

    def batch(self, run: QueryRun, seen: BatchRows, took_ms: float) -> None:
        """Take in a committed micro-batch."""
        rows = sum(n for name, n in seen.rows.items() if name.startswith(_OBSERVATION))
        partial = any(name.startswith(_OBSERVATION) for name in seen.partial)
        name = self.component(run)
        done = ComponentWork(emitted=rows, transferred=rows, took_ms=took_ms, partial=partial)
        self._statistics.record(name, {name: done}, self._clock())

    def ended(self, run: QueryRun) -> None:
        """Take in the end of a query; the script may not look for errors itself."""
        if run.error is not None:
            cause = readable_text(run.error).rpartition("\n")[2]
            name = run.name or self.component(run)
            log.warning("the query %s has ended with an error: %s", name, cause)

    @property
    def any(self) -> bool:
        """Whether a query was ever started."""
        return bool(self._components)


@contextlib.contextmanager
def writes_counted(events: QueryEvents) -> Iterator[None]:
    """Have every streaming frame counted that is written by any code of this process."""
    write_stream = ClassicDataFrame.__dict__["writeStream"]
    numbers = itertools.count(1)

    def counting(frame: DataFrame) -> DataStreamWriter:
        events.attach(frame.sparkSession)
        if frame.isStreaming:
            frame = counted(frame, f"{_OBSERVATION}-{next(numbers)}")
        writer: DataStreamWriter = write_stream.__get__(frame)
        return writer

    ClassicDataFrame.writeStream = property(counting)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        ClassicDataFrame.writeStream = write_stream  # type: ignore[method-assign]
