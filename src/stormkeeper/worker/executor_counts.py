"""Counts of a worker's executors, from rows per micro-batch to Storm's statistics.

An observation on each edge of a query, from a component to a reader, counts rows. Spark computes a
component with two readers twice, once per edge. A plain script's query is a single component, which
emits the rows that reach the sink.

As in Storm, a window has twenty buckets: a count stays for 19 to 20 twentieths.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.daemon import spark_callbacks
from stormkeeper.thrift.records import (
    BoltStats,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from stormkeeper.topology.plan import Edge, Executor, Plan, Query
from stormkeeper.topology.topology import ComponentDescription
from stormkeeper.worker.failure import readable_text
from stormkeeper.worker.query_events import ROWS, BatchCounter, BatchRows, QueryEvents, QueryRun

log = logging.getLogger(__name__)

WINDOWS = (600, 10800, 86400)

ALL_TIME = ":all-time"

#: Storm's ``NUM_STAT_BUCKETS``.
BUCKETS = 20

#: Storm's name of a component's unnamed stream.
STREAM = "default"

#: Share of tuples that are counted; Storm samples one in twenty.
RATE = 1.0

#: Keeps our observations apart from a user's.
_PREFIX = "stormkeeper:"
_SINK_OBSERVATION = f"{_PREFIX}sink"


class RollingSum:
    """A sum over the last `window_secs`, to within a bucket.

    `now` is a monotonic time in seconds.
    """

    def __init__(self, window_secs: float) -> None:
        self._bucket_secs = window_secs / BUCKETS
        self._sums: deque[tuple[int, float]] = deque()  # (number of the bucket, sum), in order

    def add(self, amount: float, now: float) -> None:
        number = int(now / self._bucket_secs)
        if self._sums and self._sums[-1][0] >= number:
            last, before = self._sums.pop()
            self._sums.append((last, before + amount))
        else:
            self._sums.append((number, amount))
        self._forget(now)

    def total(self, now: float) -> float:
        """Return the sum; an int if only ints were added."""
        self._forget(now)
        return sum(amount for _, amount in self._sums)

    def _forget(self, now: float) -> None:
        oldest = int(now / self._bucket_secs) - BUCKETS + 1
        while self._sums and self._sums[0][0] < oldest:
            self._sums.popleft()


class WindowedSum:
    """A sum over each of Storm's windows and over all time."""

    def __init__(self) -> None:
        self._rolling = {str(secs): RollingSum(secs) for secs in WINDOWS}
        self._all_time: float = 0

    def add(self, amount: float, now: float) -> None:
        self._all_time += amount
        for rolling in self._rolling.values():
            rolling.add(amount, now)

    def totals(self, now: float) -> dict[str, float]:
        """Return the sums by window: "600", "10800", "86400", ":all-time"."""
        return {w: rolling.total(now) for w, rolling in self._rolling.items()} | {
            ALL_TIME: self._all_time
        }


@dataclass(frozen=True, slots=True)
class ComponentWork:
    """Rows that an executor processed in a committed micro-batch."""

    emitted: int = 0
    #: Output rows, once for each component of the query that reads them.
    transferred: int = 0
    executed: Mapping[str, int] = field(default_factory=dict)
    #: Duration of the micro-batch, from the look for data to the commit.
    took_ms: float = 0.0
    #: Whether rows are missing, because no action read the whole batch.
    partial: bool = False


class ExecutorCounts:
    """The running counts of an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._emitted = WindowedSum()
        self._transferred = WindowedSum()
        self._row_ms = WindowedSum()
        self._partial = WindowedSum()
        self._executed = {source: WindowedSum() for source in executor.component.inputs}

    def record(self, work: ComponentWork, now: float) -> None:
        """Add a batch that ended at `now`."""
        self._emitted.add(work.emitted, now)
        self._transferred.add(work.transferred, now)
        self._row_ms.add(work.emitted * work.took_ms, now)
        self._partial.add(work.partial, now)
        for source, rows in work.executed.items():
            self._executed[source].add(rows, now)

    def stats(self, now: float) -> ExecutorStats:
        """Return Storm's record of the statistics at `now`.

        The commit of a micro-batch acks its rows, so no row ever fails. Spark does not measure a
        bolt's latencies; a spout has the mean duration of its micro-batches, weighted by rows.
        """
        emitted = self._emitted.totals(now)
        nothing: dict[str, dict[Any, Any]] = {window: {} for window in emitted}
        partial = {window: int(count) for window, count in self._partial.totals(now).items()}
        is_spout, emits = self._executor.component.kind == "spout", self._executor.emits
        return ExecutorStats(
            emitted=_by_stream(emitted) if emits else nothing,
            transferred=_by_stream(self._transferred.totals(now)) if emits else nothing,
            specific=ExecutorSpecificStats(
                spout=self._spout_stats(emitted, now) if is_spout else None,
                bolt=None if is_spout else self._bolt_stats(nothing, now),
            ),
            rate=RATE,
            component=self._executor.component.id,
            partial_batches=partial if any(partial.values()) else None,
        )

    def _spout_stats(self, emitted: Mapping[str, float], now: float) -> SpoutStats:
        row_ms = self._row_ms.totals(now)
        return SpoutStats(
            acked=_by_stream(emitted),
            failed={window: {} for window in emitted},
            complete_ms_avg={
                window: {STREAM: row_ms[window] / rows} if rows else {}
                for window, rows in emitted.items()
            },
        )

    def _bolt_stats(self, nothing: dict[str, dict[Any, Any]], now: float) -> BoltStats:
        totals = {
            GlobalStreamId(componentId=source, streamId=STREAM): total.totals(now)
            for source, total in self._executed.items()
        }
        executed = {
            window: {stream: int(of_it[window]) for stream, of_it in totals.items()}
            for window in nothing
        }
        return BoltStats(
            acked=executed,
            failed=nothing,
            process_ms_avg=nothing,
            executed=executed,
            execute_ms_avg=nothing,
        )


def _by_stream(totals: Mapping[str, float]) -> dict[str, dict[str, int]]:
    return {window: {STREAM: int(rows)} for window, rows in totals.items()}


class WorkerStatistics:
    """The counts of all executors of a worker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executors: dict[tuple[str, str], tuple[Executor, ExecutorCounts]] = {}

    def add(self, executor: Executor) -> None:
        with self._lock:
            key = executor.query, executor.component.id
            self._executors[key] = executor, ExecutorCounts(executor)

    def record(self, query: str, work: Mapping[str, ComponentWork], now: float) -> None:
        """Add a batch that ended at `now`; `work` is by component id."""
        with self._lock:
            for component, done in work.items():
                self._executors[query, component][1].record(done, now)

    def snapshot(self, now: float) -> list[tuple[Executor, ExecutorStats]]:
        with self._lock:
            found = [(executor, counts.stats(now)) for executor, counts in self._executors.values()]
        return sorted(found, key=lambda pair: pair[0].task_start)


def counted(frame: DataFrame, name: str) -> DataFrame:
    """Return `frame` with an observation that counts each batch's rows."""
    return frame.observe(name, F.count(F.lit(1)).alias(ROWS))


def observation(edge: Edge) -> str:
    """Return the name of an edge's observation: unique in a query, the same at each start."""
    return f"{_PREFIX}{edge.source}>{edge.target}:{edge.position}"


def component_work(query: Query, batch: BatchRows, took_ms: float) -> dict[str, ComponentWork]:
    """Return the work of each component of `query` in a micro-batch.

    A missing observation counts no rows: Spark leaves out plans that it knows to be empty.
    """
    rows = {edge: batch.rows.get(observation(edge), 0) for edge in query.edges}
    partial = {
        component
        for edge in query.edges
        if observation(edge) in batch.partial
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
            # The reader with the most rows saw the whole output.
            emitted=max(given, default=0),
            transferred=sum(given),
            executed=taken,
            took_ms=took_ms,
            partial=component.id in partial,
        )
    return done


class TopologyCounts(BatchCounter):
    """Counts the micro-batches of a topology; Spark's query names are the query ids."""

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

    def batch(self, run: QueryRun, batch: BatchRows, took_ms: float) -> None:
        query = self._queries.get(run.name or "")
        if query is not None:
            work = component_work(query, batch, took_ms)
            self._statistics.record(query.id, work, self._clock())


@dataclass(eq=False)
class ScriptCounts(BatchCounter):
    """Counts the queries of a plain script, each as a component with a single task.

    A component has the query's name, or else ``query-N`` in the order of first starts. In a cluster
    all queries are the component `one`.
    """

    statistics: WorkerStatistics
    one: str | None = None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _components: dict[str, str] = field(default_factory=dict, init=False)

    def component(self, run: QueryRun) -> str:
        """Return the component, the same after a restart in this process."""
        with self._lock:
            key = self.one or run.name or run.query_id
            if key not in self._components:
                task = len(self._components) + 1
                name = self.one or run.name or f"query-{task}"
                while name in self._components.values():
                    name += "'"
                self._components[key] = name
                component = ComponentDescription(name, "spout", (), 1)
                self.statistics.add(Executor(component, name, task, task))
            return self._components[key]

    def started(self, run: QueryRun) -> None:
        self.component(run)

    def batch(self, run: QueryRun, batch: BatchRows, took_ms: float) -> None:
        rows = sum(n for name, n in batch.rows.items() if name.startswith(_SINK_OBSERVATION))
        partial = any(name.startswith(_SINK_OBSERVATION) for name in batch.partial)
        name = self.component(run)
        work = ComponentWork(emitted=rows, transferred=rows, took_ms=took_ms, partial=partial)
        self.statistics.record(name, {name: work}, self.clock())

    def ended(self, run: QueryRun) -> None:
        """Log a query's error, which a script may ignore."""
        if run.error is not None:
            cause = readable_text(run.error).rpartition("\n")[2]
            name = run.name or self.component(run)
            log.warning("the query %s has ended with an error: %s", name, cause)

    @property
    def any(self) -> bool:
        """Whether a query was ever started."""
        return bool(self._components)


def count_written_frames(events: QueryEvents) -> AbstractContextManager[None]:
    """Count the rows of every streaming frame that this process writes."""
    write_stream = ClassicDataFrame.__dict__["writeStream"]
    numbers = itertools.count(1)

    def counting(frame: DataFrame) -> DataStreamWriter:
        events.attach(frame.sparkSession)
        if frame.isStreaming:
            frame = counted(frame, f"{_SINK_OBSERVATION}-{next(numbers)}")
        writer: DataStreamWriter = write_stream.__get__(frame)
        return writer

    return spark_callbacks.replaced(ClassicDataFrame, writeStream=property(counting))
