"""What Spark reports of the running queries: starts, micro-batches that are done, ends.

Spark calls from a thread of its own, one event after the other, and keeps each query's order. So
the end of a query is reported after all of its micro-batches.
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

from stormkeeper.thrift.records import QueryActivity
from stormkeeper.worker.batch_readings import BatchReadings, BatchRows

log = logging.getLogger(__name__)


@dataclass
class QueryRun:
    """One run of a query, from a start to its end."""

    run_id: str
    query_id: str
    name: str | None
    batches: int = 0
    last_batch: int = -1
    #: When the last batch was reported, in seconds of a monotonic clock; None before the first.
    last_at: float | None = None
    ended: bool = False
    #: Text of the exception that ended it, pages of it; None where there was none.
    error: str | None = None


class Counter(Protocol):
    """Takes what there is to count."""

    def started(self, run: QueryRun) -> None:
        """Take in that a query starts."""

    def batch(self, run: QueryRun, seen: BatchRows, took_ms: float) -> None:
        """Take in a committed micro-batch."""

    def ended(self, run: QueryRun) -> None:
        """Take in the end of a query's run."""


class QueryEvents:
    """Keeps account of the runs of all queries of the sessions that it is attached to."""

    def __init__(self, counter: Counter) -> None:
        #: Takes the counts from the next event on.
        self.counter = counter
        self._changed = threading.Condition()
        self._runs: dict[str, QueryRun] = {}
        self._listener = _Listener(self)
        self._sessions: list[SparkSession] = []
        #: What ``foreachBatch`` functions read; they are watched once it is installed.
        self.readings = BatchReadings(lambda: self._sessions)

    def attach(self, session: SparkSession) -> None:
        """Listen to the queries of `session` from now on; a second time does nothing."""
        with self._changed:
            if any(known._jsparkSession == session._jsparkSession for known in self._sessions):
                return
            self._sessions.append(session)
        session.streams.addListener(self._listener)

    @property
    def sessions(self) -> list[SparkSession]:
        """The sessions that are listened to."""
        return list(self._sessions)

    def run(self, run_id: str) -> QueryRun | None:
        """Return a run by its id, None before its start was told."""
        return self._runs.get(run_id)

    def running_as(self, query_id: str | None) -> QueryRun | None:
        """Return the run of a query that has not ended, by Spark's id of the query."""
        return next((run for run in self.running() if run.query_id == query_id), None)

    def running(self) -> list[QueryRun]:
        """Return the runs that have not ended; without a lock, as heartbeats ask for them."""
        return [run for run in list(self._runs.values()) if not run.ended]

    def wait(self, condition: Callable[[], bool], timeout_secs: float) -> bool:
        """Wait until `condition` holds, looking at every event; return whether it does.

        `condition` must not call the JVM: events would wait for the answer as well.
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
        seen = self.readings.take(run.query_id, number).with_last(observed)
        self.counter.batch(run, seen, took_ms)
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
    """Turns Spark's events into calls, none of which may raise into the JVM."""

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
        log.exception("an event of a query was not taken in")


#: Time between two calls to the JVM.
_PERIOD_SECS = 2.0

#: The most that one look adds to the silence.
_LOOK_SECS = 1.0


#: By the id of a run: the start and the batch of the trigger that runs; None: the JVM has ended the
#: run. A run that waits for its trigger is not there.
States = dict[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A query's trigger that runs: Spark's number for it, its batch, and when it was first seen."""

    started: int
    batch: int
    seen: float


class JvmWatch:
    """Knows for how long the JVM of this process has not answered, and which batches run.

    Parameters
    ----------
    events
        The queries that run.
    said_secs
        Seconds of silence of the JVM after which heartbeats report it.
    ask
        Calls the JVM; returns what `_states` returns.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        events: QueryEvents,
        said_secs: float,
        ask: Callable[[QueryEvents], States] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._said_secs = said_secs
        self._ask = ask or _states
        self._clock = clock
        self._lock = threading.Lock()
        self._is_asking = False
        self._looked = clock()
        self._silence = 0.0
        self._triggers: dict[str, Trigger] = {}
        #: When each run was first seen to have ended in the JVM, by the run's id.
        self._ended: dict[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-jvm", daemon=True)

    def start(self) -> None:
        """Begin to ask, in the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more; a call that runs is left behind."""
        self._closing.set()

    def look(self) -> float:
        """Return for how many seconds the JVM has not answered; call it several times a second."""
        with self._lock:
            now = self._clock()
            if self._is_asking:
                self._silence += min(now - self._looked, _LOOK_SECS)
            self._looked = now
            return self._silence

    @property
    def silent_ms(self) -> int | None:
        """For how long the JVM has not answered; None while it answers in time."""
        with self._lock:
            return int(self._silence * 1000) if self._silence >= self._said_secs else None

    def unheard(self, secs: float) -> QueryRun | None:
        """Return a run that the JVM ended so long ago, and of whose end no event has come."""
        with self._lock:
            late = {run for run, since in self._ended.items() if self._clock() - since >= secs}
        return next((run for run in self._events.running() if run.run_id in late), None)

    def activities(self, name: Callable[[QueryRun], str | None]) -> list[QueryActivity]:
        """Return what each query does that runs and has a name."""
        with self._lock:
            triggers = self._triggers
        now = self._clock()
        found: dict[str, QueryActivity] = {}
        for run in self._events.running():
            query = name(run)
            if query is not None:
                query = _unlike(query, found)
                found[query] = _activity(query, run, triggers.get(run.run_id), now)
        return [*found.values()]

    def _run(self) -> None:
        failing = False
        while not self._closing.wait(_PERIOD_SECS):
            with self._lock:
                self._is_asking = True
            try:
                states = self._ask(self._events)
                failing = False
            except (Py4JError, PySparkException, OSError) as error:
                states = {}  # it is an answer; the worker sees for itself when the JVM has ended
                if not failing:
                    log.debug("the JVM does not say what its queries do: %s", error)
                failing = True
            except Exception:
                states = {}
                if not failing:
                    log.exception("the JVM cannot be asked what its queries do")
                failing = True
            self._answered(states)

    def _answered(self, states: States) -> None:
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
    """Ask the JVM for the states of all runs.

    Spark has no public interface for the number of a batch that runs. The names are those of
    Spark 4.3.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return {}
    gateway.jvm.System.nanoTime()  # a sign of life, also where no query runs
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
    # Spark's progress may be known before the next answer of the JVM.
    if trigger is not None and trigger.batch > run.last_batch:
        activity.running_batch = trigger.batch
        activity.running_ms = max(0, int((now - trigger.seen) * 1000))
    return activity


def _unlike(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number where a query before it has the same one."""
    others = sum(other == name or other.startswith(f"{name}-") for other in taken)
    return f"{name}-{others + 1}" if others else name


class StoppingError(Exception):
    """The worker is stopping; the batch that this is raised in will be done after the restart."""


def is_stop(text: str) -> bool:
    """Return whether the text of a query's exception says that it ended at a gate."""
    return StoppingError.__name__ in text


#: Column of an observation that holds the number of rows.
ROWS = "rows"
