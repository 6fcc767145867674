"""Watches a worker's JVM, and the driver's executors on other machines.

A call into the JVM has no deadline. So one thread polls, and another (`JvmWatch.look`) measures the
silence, without the time in which this process did not run, as on a sleeping laptop.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.daemon import spark as engine
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import WorkerError
from stormkeeper.thrift.records import QueryActivity
from stormkeeper.worker.query_events import QueryEvents, QueryRun, find_query

log = logging.getLogger(__name__)

_PERIOD_SECS = 2.0

_LOOK_SECS = 1.0

#: Running triggers by run id, each as its start and its batch; None if the JVM has ended the run.
#: Runs between two triggers are missing.
States = dict[str, tuple[int, int] | None]

#: Time after the loss of all executors that ends the driver. Meanwhile their machines may restart
#: in turn.
LOST_SECS: Final = 20.0

#: Time without executors before the worker reports it. With free cores an executor registers within
#: 2 to 5 s.
WAIT_SECS: Final = 15.0


def is_running(session: SparkSession | None) -> bool:
    """Return whether the session and the JVM run."""
    return (
        session is not None
        and session.sparkContext._jsc is not None
        and engine.jvm_exit(session) is None
    )


def check_jvm(sessions: Iterable[SparkSession], timeout_secs: float = 0.0) -> None:
    """Raise `WorkerError` if a session's JVM has ended, or ends within `timeout_secs`."""
    for session in sessions:
        status = engine.jvm_exit(session, timeout_secs)
        if status is not None:
            raise WorkerError(_ended_with(status))


def _ended_with(status: int) -> str:
    if status == -signal.SIGKILL:
        return (
            "Spark's JVM ended with SIGKILL, and all queries with it: if the kernel killed it for "
            "want of memory, which its log tells, give the host or container more, or the JVM less "
            "(spark.driver.memory)"
        )
    what = f"status {status}" if status >= 0 else f"signal {-status}"
    return (
        f"Spark's JVM ended with {what}, and all queries with it: what it wrote on stderr may say "
        "why; where that is an OutOfMemoryError, give it more spark.driver.memory"
    )


@dataclass(frozen=True, slots=True)
class _Trigger:
    """A running trigger: Spark's start time, the batch, and the time of discovery."""

    started: int
    batch: int
    seen: float


class JvmWatch(PeriodicThread):
    """Polls the JVM on a thread, for silence and the running batches.

    Heartbeats report a silence of `reported_secs`. `ask` returns the states of all runs, and may
    hang, so a close must not wait.
    """

    def __init__(
        self,
        events: QueryEvents,
        reported_secs: float,
        ask: Callable[[QueryEvents], States] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            "worker-jvm",
            self._poll,
            period_secs=_PERIOD_SECS,
            first_secs=_PERIOD_SECS,
            streak=FailureStreak(_PERIOD_SECS, _PERIOD_SECS),
            failure="the JVM cannot be asked for the states of its queries",
            clock=clock,
        )
        self._events = events
        self._reported_secs = reported_secs
        self._ask = ask or _states
        self._lock = threading.Lock()
        self._is_asking = False
        self._looked = clock()
        self._silence = 0.0
        self._triggers: dict[str, _Trigger] = {}
        self._ended: dict[str, float] = {}

    def look(self) -> float:
        """Return the silence in seconds; to be called several times a second."""
        with self._lock:
            now = self._clock()
            if self._is_asking:
                self._silence += min(now - self._looked, _LOOK_SECS)
            self._looked = now
            return self._silence

    @property
    def silent_ms(self) -> int | None:
        """The silence; None while the JVM answers in time."""
        with self._lock:
            return int(self._silence * 1000) if self._silence >= self._reported_secs else None

    def find_unreported_end(self, secs: float) -> QueryRun | None:
        """Return a run that the JVM ended at least `secs` ago, without an event."""
        with self._lock:
            late = {run for run, since in self._ended.items() if self._clock() - since >= secs}
        return next((run for run in self._events.running() if run.run_id in late), None)

    def activities(self, name: Callable[[QueryRun], str | None]) -> list[QueryActivity]:
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
            # An error is an answer, too; the end of the JVM is noticed elsewhere.
            log.debug("the JVM did not report the states of its queries: %s", error)
        finally:
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
                self._triggers[run_id] = _Trigger(started, batch, seen)


def _states(events: QueryEvents) -> States:
    # Names of Spark 4.3: a running batch's number has no public interface.
    gateway = SparkContext._gateway
    if gateway is None:
        return {}
    gateway.jvm.System.nanoTime()  # a sign of life, even without queries
    sessions = [each for each in events.sessions if each.sparkContext._jsc is not None]
    found: States = {}
    for run in events.running() if sessions else ():
        query = find_query(sessions, run.query_id)
        if query is None:
            found[run.run_id] = None
            continue
        context = query.streamingQuery().getLatestExecutionContext()
        if context is not None and context.currentStatus().isTriggerActive():
            found[run.run_id] = (context.currentTriggerStartTimestamp(), context.batchId())
    return found


def _activity(query: str, run: QueryRun, trigger: _Trigger | None, now: float) -> QueryActivity:
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
    others = sum(other == name or other.startswith(f"{name}-") for other in taken)
    return f"{name}-{others + 1}" if others else name


class ExecutorWatch(PeriodicThread):
    """Counts the executors of a driver with a standalone master, on a thread.

    After `wait_secs` without an executor, `waiting` is the text of `wanted`. `limit_secs` after the
    loss of all executors, `has_lost` is true: the driver registers with its master once, and a
    restarted master does not know it. A driver that never had executors goes on waiting. `count`
    may hang, so a close must not wait.
    """

    def __init__(
        self,
        count: Callable[[], int],
        wanted: Callable[[], str],
        *,
        limit_secs: float = LOST_SECS,
        wait_secs: float = WAIT_SECS,
        look_secs: float = _LOOK_SECS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("executor-watch", self.look, period_secs=look_secs, clock=clock)
        self._count = count
        self._wanted = wanted
        self._limit_secs = limit_secs
        self._wait_secs = wait_secs
        self._had_one = False
        self._absent_since: float | None = None
        self.waiting: str | None = None
        self.has_lost = False

    def look(self) -> None:
        try:
            count = self._count()
        except (Py4JError, OSError):
            return  # the worker notices the end of the JVM elsewhere
        now = self._clock()
        if count:
            self._had_one, self._absent_since, self.waiting = True, None, None
            return
        if self._absent_since is None:
            self._absent_since = now
        secs = now - self._absent_since
        self.has_lost = self.has_lost or (self._had_one and secs >= self._limit_secs)
        if secs >= self._wait_secs and self.waiting is None and not self.has_lost:
            self.waiting = self._wanted()
            log.warning("%s", self.waiting)


def watch_executors(session: SparkSession, values: Mapping[str, Any]) -> ExecutorWatch | None:
    """Start to watch the executors of a new session.

    Only executors of a standalone master are watched, and none with
    ``spark.dynamicAllocation.enabled``, with which Spark ends idle executors.
    """
    context = session.sparkContext
    if not str(values.get("spark.master")).startswith("spark://"):
        return None
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    tracker = context._jsc.sc().statusTracker()
    # Spark counts the driver, too.
    watch = ExecutorWatch(
        lambda: len(tracker.getExecutorInfos()) - 1, lambda: wanted(context.getConf().get)
    )
    watch.start()
    return watch


def wanted(conf: Callable[[str, str], str | None]) -> str:
    """Say why a driver has no executors; `conf` returns a setting of Spark, or a default."""
    return (
        f"no executor has come from spark.master={conf('spark.master', '')}: others have its cores"
        f" or memory (this driver asks for spark.cores.max={conf('spark.cores.max', 'all')} and"
        f" spark.executor.memory={conf('spark.executor.memory', '1g')}), or executors cannot reach"
        f" the driver at spark.driver.host={conf('spark.driver.host', '')}; the logs of executors"
        " are in the work folders of Spark's workers"
    )
