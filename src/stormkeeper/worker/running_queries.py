"""The streaming queries that run in this process: events from Spark, and a poll of the JVM.

Spark calls listeners from a single thread, and the end of a query follows all of its micro-batches.
A call into the JVM has no deadline, so one thread polls, and another (`JvmWatch.look`) measures the
silence, without the time in which this process did not run, as on a sleeping laptop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.thrift.records import QueryActivity
from stormkeeper.worker.batch_readings import BatchReadings, BatchRows

log = logging.getLogger(__name__)

ROWS = "rows"

_PERIOD_SECS = 2.0

_LOOK_SECS = 1.0

#: Running triggers by run id, each as its start and its batch; None if the JVM has ended the run. A
#: run between two triggers is missing.
States = dict[str, tuple[int, int] | None]


class StoppingError(Exception):
    """The worker stops; the batch that raises this is repeated after the restart."""


def is_stop(text: str) -> bool:
    """Return whether the text of a query's exception names `StoppingError`."""
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
    #: Text of the exception that ended the run, pages long; None without one.
    error: str | None = None


class Counter(Protocol):
    """Counts the batches of queries; called from Spark's listener thread."""

    def started(self, run: QueryRun) -> None:
        """Record the start of a query."""

    def batch(self, run: QueryRun, batch: BatchRows, took_ms: float) -> None:
        """Record a committed micro-batch."""

    def ended(self, run: QueryRun) -> None:
        """Record the end of a run."""


class QueryEvents:
    """The runs of all queries in the attached sessions."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._changed = threading.Condition()
        self._runs: dict[str, QueryRun] = {}
        self._listener = _Listener(self)
        self._sessions: list[SparkSession] = []
        self.readings = BatchReadings(lambda: self._sessions)

    def attach(self, session: SparkSession) -> None:
        """Listen to the queries of `session`; a second call does nothing."""
        with self._changed:
            if any(known._jsparkSession == session._jsparkSession for known in self._sessions):
                return
            self._sessions.append(session)
        session.streams.addListener(self._listener)

    @property
    def sessions(self) -> list[SparkSession]:
        """The attached sessions."""
        return list(self._sessions)

    def run(self, run_id: str) -> QueryRun | None:
        """Return a run by id; None before the event of the start."""
        return self._runs.get(run_id)

    def running_as(self, query_id: str | None) -> QueryRun | None:
        """Return the running run of a query, by Spark's id of the query."""
        return next((run for run in self.running() if run.query_id == query_id), None)

    def running(self) -> list[QueryRun]:
        """Return the runs that have not ended; lock-free, for heartbeats."""
        return [run for run in list(self._runs.values()) if not run.ended]

    def wait(self, condition: Callable[[], bool], timeout_secs: float) -> bool:
        """Wait until `condition` holds, checked at every event; return False after the timeout.

        `condition` must not call the JVM, which may be waiting for this listener.
        """
        with self._changed:
            return self._changed.wait_for(condition, timeout_secs)

    def _started(self, run: QueryRun) -> None:
        with self._changed:
            self._runs[run.run_id] = run
            self._changed.notify_all()
        self.counter.started(run)

    def _batch(self, run_id: str, number: int, observed: Mapping[str, int], took_ms: float) -> None:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None or number <= run.last_batch:
                return
            run.last_batch, run.last_at = number, time.monotonic()
        rows = self.readings.take(run.query_id, number).with_last(observed)
        self.counter.batch(run, rows, took_ms)
        with self._changed:
            run.batches += 1
            self._changed.notify_all()

    def _ended(self, run_id: str, error: str | None) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        if error is not None and not is_stop(error):
            run.error = error
        self.counter.ended(run)
        with self._changed:
            run.ended = True
            self._changed.notify_all()


class _Listener(StreamingQueryListener):
    """Turns Spark's events into calls, none of which raises into the JVM."""

    def __init__(self, events: QueryEvents) -> None:
        super().__init__()
        self._events = events

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  (Spark's name)
        _safely(self._events._started, QueryRun(str(event.runId), str(event.id), event.name))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        observed = {
            name: row[ROWS] or 0
            for name, row in progress.observedMetrics.items()
            if row is not None and ROWS in row
        }
        took_ms = float(progress.durationMs.get("triggerExecution", 0))
        _safely(self._events._batch, str(progress.runId), progress.batchId, observed, took_ms)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        _safely(self._events._ended, str(event.runId), event.exception)


def _safely(call: Callable[..., None], *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception:
        log.exception("an event of a query could not be handled")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A running trigger of a query: Spark's start time, the batch, and the first poll's time."""

    started: int
    batch: int
    seen: float


class JvmWatch:
    """Polls the JVM on a thread, for the JVM's silence and the running batches.

    Heartbeats report a silence of `reported_secs`. `ask` returns the states of all runs.
    """

    def __init__(
        self,
        events: QueryEvents,
        reported_secs: float,
        ask: Callable[[QueryEvents], States] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._reported_secs = reported_secs
        self._ask = ask or _states
        self._clock = clock
        self._lock = threading.Lock()
        self._is_asking = False
        self._is_failing = False
        self._looked = clock()
        self._silence = 0.0
        self._triggers: dict[str, Trigger] = {}
        self._ended: dict[str, float] = {}
        self._thread = PeriodicThread(
            "worker-jvm", self._poll, period_secs=_PERIOD_SECS, first_secs=_PERIOD_SECS
        )

    def start(self) -> None:
        """Start the poll."""
        self._thread.start()

    def close(self) -> None:
        """End the poll, without waiting for a call that runs."""
        self._thread.close(0.0)

    def look(self) -> float:
        """Return the JVM's silence in seconds; to be called several times a second."""
        with self._lock:
            now = self._clock()
            if self._is_asking:
                self._silence += min(now - self._looked, _LOOK_SECS)
            self._looked = now
            return self._silence

    @property
    def silent_ms(self) -> int | None:
        """The JVM's silence in milliseconds; None while the JVM answers in time."""
        with self._lock:
            return int(self._silence * 1000) if self._silence >= self._reported_secs else None

    def find_unreported_end(self, secs: float) -> QueryRun | None:
        """Return a run that the JVM ended at least `secs` ago, without an event."""
        with self._lock:
            late = {run for run, since in self._ended.items() if self._clock() - since >= secs}
        return next((run for run in self._events.running() if run.run_id in late), None)

    def activities(self, name: Callable[[QueryRun], str | None]) -> list[QueryActivity]:
        """Return the activity of each running query that `name` names."""
        with self._lock:
            triggers = self._triggers
        now = self._clock()
        found: dict[str, QueryActivity] = {}
        for run in self._events.running():
            query = name(run)
            if query is not None:
                query = _distinct(query, found)
                found[query] = _activity(query, run, triggers.get(run.run_id), now)
        return [*found.values()]

    def _poll(self) -> None:
        with self._lock:
            self._is_asking = True
        states: States = {}
        try:
            states = self._ask(self._events)
        except (Py4JError, PySparkException, OSError) as error:
            # An error is an answer, too; the worker notices the end of the JVM elsewhere.
            if not self._is_failing:
                log.debug("the JVM did not report the states of its queries: %s", error)
            self._is_failing = True
        except Exception:
            if not self._is_failing:
                log.exception("the JVM cannot be asked for the states of its queries")
            self._is_failing = True
        else:
            self._is_failing = False
        self._record(states)

    def _record(self, states: States) -> None:
        with self._lock:
            self._is_asking, self._silence = False, 0.0
            now, before, ended = self._clock(), self._triggers, self._ended
            self._triggers, self._ended = {}, {}
            for run_id, state in states.items():
                if state is None:
                    self._ended[run_id] = ended.get(run_id, now)
                    continue
                started, batch = state
                known = before.get(run_id)
                seen = known.seen if known is not None and known.started == started else now
                self._triggers[run_id] = Trigger(started, batch, seen)


def _states(events: QueryEvents) -> States:
    # Spark has no public interface for the number of a running batch. These are names of Spark 4.3.
    gateway = SparkContext._gateway
    if gateway is None:
        return {}
    gateway.jvm.System.nanoTime()  # a sign of life, even without queries
    sessions = [each for each in events.sessions if each.sparkContext._jsc is not None]
    found: States = {}
    for run in events.running() if sessions else ():
        query = _query(sessions, run.query_id)
        if query is None:
            found[run.run_id] = None
            continue
        context = query.streamingQuery().getLatestExecutionContext()
        if context is not None and context.currentStatus().isTriggerActive():
            found[run.run_id] = (context.currentTriggerStartTimestamp(), context.batchId())
    return found


def _query(sessions: Iterable[SparkSession], query_id: str) -> Any:
    for session in sessions:
        query = session._jsparkSession.streams().get(query_id)
        if query is not None:
            return query
    return None


def _activity(query: str, run: QueryRun, trigger: Trigger | None, now: float) -> QueryActivity:
    activity = QueryActivity(query)
    if run.last_at is not None:
        activity.last_batch = run.last_batch
        activity.since_last_ms = max(0, int((now - run.last_at) * 1000))
    # Spark's progress may arrive before the next poll.
    if trigger is not None and trigger.batch > run.last_batch:
        activity.running_batch = trigger.batch
        activity.running_ms = max(0, int((now - trigger.seen) * 1000))
    return activity


def _distinct(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number if an earlier query has the same name."""
    others = sum(other == name or other.startswith(f"{name}-") for other in taken)
    return f"{name}-{others + 1}" if others else name
