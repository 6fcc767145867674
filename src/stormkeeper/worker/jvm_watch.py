"""Asks a worker's JVM for a sign of life, and what its queries do, on a thread of its own.

A call into a JVM has no deadline. So one thread calls, and another one (`JvmWatch.look`) counts for
how long the call has had no answer. The count leaves out the time in which this process did not
run itself: after the sleep of a laptop or of a container, the JVM gets its time as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.thrift.records import QueryActivity
from stormkeeper.worker.query_events import QueryEvents, Run

log = logging.getLogger(__name__)

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

    def unheard(self, secs: float) -> Run | None:
        """Return a run that the JVM ended so long ago, and of whose end no event has come."""
        with self._lock:
            late = {run for run, since in self._ended.items() if self._clock() - since >= secs}
        return next((run for run in self._events.running() if run.run_id in late), None)

    def activities(self, name: Callable[[Run], str | None]) -> list[QueryActivity]:
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


def _activity(query: str, run: Run, trigger: Trigger | None, now: float) -> QueryActivity:
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
