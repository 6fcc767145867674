"""Spark's events of this process's queries, with the rows of batches.

Each action of a ``foreachBatch`` function computes the batch and counts its rows again, and Spark's
progress reports only the last action. So Spark's accumulators give the counts of all actions, and
the fullest reading counts. An action such as ``show(1)`` stops early, which its plan tells; if no
action reads the whole batch, the count is partial. The names are those of Spark 4.3, without a
public interface; if they change, the progress counts.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark_callbacks import BatchFunction

log = logging.getLogger(__name__)

ROWS = "rows"

_STOPPING = frozenset({"CollectLimit", "CollectTail", "GlobalLimit", "LocalLimit"})

_EXHAUSTING = (
    "BroadcastExchange",
    "Exchange",
    "HashAggregate",
    "ObjectHashAggregate",
    "ShuffleQueryStage",
    "Sort",
    "TakeOrderedAndProject",
    "Window",
)

_BATCH = "Scan ExistingRDD"
_OPERATOR = re.compile(r"^(?P<indent>[ :+-]*)(?:\* )?(?P<name>[A-Z].*?)(?: \(\d+\)|,|$)")

_READING = re.compile(
    r"rddId=(\d+),.*?lastSqlExecutionId=(?:Some\((\d+)\)|None),"
    r"\s*partitionPartialVals=\[(.*?)\],\s*stageIds",
    re.DOTALL,
)
_RDDS = "org$apache$spark$util$LastAttemptAccumulator$$lastAttemptRddsMap"

_OBSERVES = "CollectMetrics"
_EXECUTION_ID = "spark.sql.execution.id"

#: Longest wait for a finished action's plan, which Spark stores from another thread.
_PLAN_SECS = 0.1
_PLAN_LOOK_SECS = 0.02

_KEPT = 100


class StoppingError(Exception):
    """The worker stops; the batch that raises this is repeated after the restart."""


def is_stop(text: str) -> bool:
    return StoppingError.__name__ in text


@dataclass
class QueryRun:
    """A run of a query, from start to end."""

    run_id: str
    query_id: str
    name: str | None
    batches: int = 0
    last_batch: int = -1
    last_at: float | None = None
    ended: bool = False
    #: Text of the exception, pages long; None without an exception.
    error: str | None = None


class BatchCounter:
    """Counts the batches of queries; called from Spark's listener thread."""

    def started(self, run: QueryRun) -> None:
        """Record the start of a query."""

    def batch(self, run: QueryRun, batch: BatchRows, took_ms: float) -> None:
        """Record a committed micro-batch."""

    def ended(self, run: QueryRun) -> None:
        """Record the end of a run."""


def _logged(handle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Log an exception of a listener's method, which must not reach the JVM."""

    @functools.wraps(handle)
    def handling(listener: Any, event: Any) -> None:
        try:
            handle(listener, event)
        except Exception:
            log.exception("an event of a query could not be handled")

    return handling


class QueryEvents(StreamingQueryListener):
    """The runs of all queries in the attached sessions."""

    def __init__(self, counter: BatchCounter) -> None:
        super().__init__()
        self.counter = counter
        self._changed = threading.Condition()
        self._runs: dict[str, QueryRun] = {}
        self._sessions: list[SparkSession] = []
        self.readings = BatchReadings(lambda: self._sessions)

    def attach(self, session: SparkSession) -> None:
        """Listen to `session`; a second call does nothing."""
        with self._changed:
            if any(known._jsparkSession == session._jsparkSession for known in self._sessions):
                return
            self._sessions.append(session)
        session.streams.addListener(self)

    @property
    def sessions(self) -> list[SparkSession]:
        return list(self._sessions)

    def run(self, run_id: str) -> QueryRun | None:
        """Return a run; None before the event of the start."""
        return self._runs.get(run_id)

    def running_as(self, query_id: str | None) -> QueryRun | None:
        """Return the running run of a query, by Spark's query id."""
        return next((run for run in self.running() if run.query_id == query_id), None)

    def running(self) -> list[QueryRun]:
        """Return the runs that have not ended; lock-free, for heartbeats."""
        return [run for run in list(self._runs.values()) if not run.ended]

    def wait(self, condition: Callable[[], bool], timeout_secs: float) -> bool:
        """Wait until `condition` holds, checked at every event; return False after the timeout.

        `condition` must not call the JVM, which may wait for this listener.
        """
        with self._changed:
            return self._changed.wait_for(condition, timeout_secs)

    @_logged
    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  (Spark's name)
        run = QueryRun(str(event.runId), str(event.id), event.name)
        with self._changed:
            self._runs[run.run_id] = run
            self._changed.notify_all()
        self.counter.started(run)

    @_logged
    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        with self._changed:
            run = self._runs.get(str(progress.runId))
            if run is None or progress.batchId <= run.last_batch:
                return
            run.last_batch, run.last_at = progress.batchId, time.monotonic()
        observed = {
            name: row[ROWS] or 0
            for name, row in progress.observedMetrics.items()
            if row is not None and ROWS in row
        }
        rows = self.readings.take(run.query_id, progress.batchId).with_last(observed)
        self.counter.batch(run, rows, float(progress.durationMs.get("triggerExecution", 0)))
        with self._changed:
            run.batches += 1
            self._changed.notify_all()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    @_logged
    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        run = self._runs.get(str(event.runId))
        if run is None:
            return
        if event.exception is not None and not is_stop(event.exception):
            run.error = event.exception
        self.counter.ended(run)
        with self._changed:
            run.ended = True
            self._changed.notify_all()


def find_query(sessions: Iterable[SparkSession], query_id: str) -> Any:
    """Return the JVM's object of an active query, by Spark's id."""
    for session in sessions:
        query = session._jsparkSession.streams().get(query_id)
        if query is not None:
            return query
    return None


@dataclass(frozen=True)
class BatchReading:
    """A pass over a batch or a part."""

    rows: tuple[int, ...]
    #: Spark's number of the action, which may have stopped early. None for a pass that reads all:
    #: in a stage before a shuffle, or the micro-batch's own.
    action: int | None = None


@dataclass(frozen=True)
class BatchRows:
    """Rows of a batch by observation, and the observations that counted only a part."""

    rows: Mapping[str, int] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()

    def with_last(self, observed: Mapping[str, int]) -> BatchRows:
        """Return the larger of these rows and `observed`, which Spark's progress reports."""
        names = {**self.rows, **observed}
        rows = {name: max(self.rows.get(name, 0), observed.get(name, 0)) for name in names}
        return BatchRows(rows, self.partial)


def fullest(readings: Iterable[BatchReading]) -> int:
    """Return the rows of the fullest reading.

    The first action that needs a partition of a persisted batch computes the partition. So readings
    of equally many partitions are combined, partition by partition.
    """
    by_size: dict[int, list[BatchReading]] = {}
    for reading in readings:
        by_size.setdefault(len(reading.rows), []).append(reading)
    return max(
        (
            sum(map(max, zip(*(reading.rows for reading in alike), strict=True)))
            for alike in by_size.values()
        ),
        default=0,
    )


def stops_early(plan: str) -> bool:
    """Return whether an action with this plan (Spark's formatted text) may leave rows unread.

    A limit above the batch does, unless an operator between reads all input first.
    """
    above: list[tuple[int, str]] = []
    for line in plan.split("\n\n", 1)[0].splitlines():
        found = _OPERATOR.match(line)
        if found is None:
            continue
        depth = len(found["indent"])
        above = [operator for operator in above if operator[0] < depth]
        if found["name"].startswith(_BATCH) and _stopped(name for _, name in reversed(above)):
            return True
        above.append((depth, found["name"]))
    return False


def _stopped(operators: Iterable[str]) -> bool:
    for name in operators:
        if name in _STOPPING:
            return True
        if name.startswith(_EXHAUSTING):
            return False
    return False


def parsed(text: str, batch_rdd: int, own_action: int | None) -> list[BatchReading]:
    """Parse the readings in an accumulator's text (Spark 4.3).

    RDDs older than `batch_rdd` are of stages in front of the batch; `own_action`, the micro-batch
    itself, has no plan.
    """
    readings = []
    for rdd, action, partitions in _READING.findall(text):
        rows = tuple(
            int(value.strip("[]") or 0) for value in partitions.replace("null", "").split(",")
        )
        number = int(action) if action and int(rdd) > batch_rdd else None
        readings.append(BatchReading(rows, number if number != own_action else None))
    return readings


class BatchReadings:
    """Readings of ``foreachBatch`` functions, kept until Spark reports the ends of the batches."""

    def __init__(self, sessions: Callable[[], Sequence[SparkSession]]) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._batches: dict[tuple[str, int], dict[str, list[BatchReading]]] = {}
        self._places: dict[str, dict[str, int]] = {}
        self._failed = False

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Watch every ``foreachBatch`` function of this process."""
        return spark_callbacks.wrapped(self._watched)

    def take(self, query_id: str, number: int) -> BatchRows:
        """Return a batch's rows, and forget the batch."""
        with self._lock:
            readings = self._batches.pop((query_id, number), {})
            for key in [k for k in self._batches if k[0] == query_id and k[1] < number]:
                del self._batches[key]
        rows = {name: fullest(of_it) for name, of_it in readings.items()}
        stopped_early = functools.cache(self._stopped_early)

        def whole(reading: BatchReading) -> bool:
            return reading.action is None or not stopped_early(reading.action)

        partial = {name for name, of_it in readings.items() if of_it and not any(map(whole, of_it))}
        return BatchRows(rows, frozenset(partial))

    def _watched(self, function: BatchFunction) -> BatchFunction:
        @functools.wraps(function)
        def watched(batch: Any, number: int) -> Any:
            returned = function(batch, number)
            self._gather(batch, number)
            return returned

        return watched

    def _gather(self, batch: Any, number: int) -> None:
        try:
            context = batch.sparkSession.sparkContext
            query_id = spark_callbacks.query_id(batch)
            own = context.getLocalProperty(_EXECUTION_ID)
            query = None if query_id is None else find_query(self._sessions(), query_id)
            if query_id is None or query is None:
                return
            execution = query.streamingQuery().lastExecution()
            readings = self._read(context, query_id, execution, int(own) if own else None)
        except (
            Py4JError,
            PySparkException,
            AttributeError,
            OSError,
            TypeError,
            ValueError,
        ) as error:
            # An inexact count must not fail the user's batch.
            if not self._failed:
                self._failed = True
                log.warning(
                    "rows that foreachBatch functions read cannot be counted exactly: %s", error
                )
            return
        with self._lock:
            self._batches[query_id, number] = readings
            while len(self._batches) > _KEPT:
                del self._batches[next(iter(self._batches))]

    def _read(
        self, context: Any, query_id: str, execution: Any, own: int | None
    ) -> dict[str, list[BatchReading]]:
        plan, batch_rdd = execution.executedPlan(), execution.toRdd().id()
        accumulators = context._jvm.org.apache.spark.util.AccumulatorContext
        readings: dict[str, list[BatchReading]] = {}
        # If a name occurs twice in the plan, Spark reports one of them.
        for name, operator in self._observations(query_id, plan).items():
            accumulator = accumulators.get(operator.accumulatorId()).get()
            text = getattr(accumulator, _RDDS)().toString()
            readings[name] = parsed(text, batch_rdd, own)
        return readings

    def _observations(self, query_id: str, plan: Any) -> dict[str, Any]:
        """Find the observations' operators by name.

        Positions are remembered, as a walk through a large plan takes long.
        """
        known = self._places.get(query_id, {})
        found = {name: plan.apply(place) for name, place in known.items()}
        if known and all(_is(operator, name) for name, operator in found.items()):
            return found
        found, places, place = {}, {}, 0
        while (operator := plan.apply(place)) is not None:
            if operator.nodeName() == _OBSERVES:
                name = operator.name()
                found[name], places[name] = operator, place
            place += 1
        self._places[query_id] = places
        return found

    def _stopped_early(self, action: int) -> bool:
        deadline = time.monotonic() + _PLAN_SECS
        while True:
            for session in self._sessions():
                store = session._jsparkSession.sharedState().statusStore()
                known = store.execution(action)
                if known.isDefined():
                    return stops_early(known.get().physicalPlanDescription())
            if time.monotonic() > deadline:
                return False
            time.sleep(_PLAN_LOOK_SECS)


def _is(operator: Any, name: str) -> bool:
    try:
        return operator is not None and bool(operator.name() == name)
    except Py4JError:  # an operator of another kind has no name
        return False
