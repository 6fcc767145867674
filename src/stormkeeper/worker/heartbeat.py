"""A worker's heartbeat: Storm's ``ClusterWorkerHeartbeat``, with its executors' statistics."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stormkeeper.conf import Conf
from stormkeeper.errors import StormkeeperError
from stormkeeper.heartbeats.protocols import HeartbeatSender
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    QueryActivity,
    SpoutStats,
)
from stormkeeper.topology.plan import Executor
from stormkeeper.worker.executor_counts import Figures

#: The one stream that a component has; Storm's name for a stream without one.
STREAM = "default"

#: Storm samples one tuple in twenty; our counts are of all rows.
RATE = 1.0


def heartbeat(
    storm_id: str,
    executors: Iterable[tuple[Executor, Figures]],
    *,
    time_secs: int,
    uptime_secs: int,
    completed: bool = False,
    inactive: bool = False,
    queries: Sequence[QueryActivity] = (),
    jvm_silent_ms: int | None = None,
    waiting: str | None = None,
) -> ClusterWorkerHeartbeat:
    """Return the record of a heartbeat.

    Parameters
    ----------
    storm_id
        The topology's id.
    executors
        The executors with their statistics; none while the worker is starting.
    time_secs
        Wall-clock time, in seconds since 1970.
    uptime_secs
        Age of the worker.
    completed
        Whether all of its queries have ended by themselves, well.
    inactive
        Whether its queries wait, as the topology is not active.
    queries
        What each query does that runs.
    jvm_silent_ms
        How long the worker's JVM has not answered; None while it answers.
    waiting
        What the worker waits for; None: for nothing.
    """
    return ClusterWorkerHeartbeat(
        storm_id=storm_id,
        executor_stats={
            ExecutorInfo(task_start=executor.task_start, task_end=executor.task_end): stats(
                executor, figures
            )
            for executor, figures in executors
        },
        time_secs=time_secs,
        uptime_secs=uptime_secs,
        completed=completed or None,
        inactive=inactive or None,
        queries=[*queries] or None,
        jvm_silent_ms=jvm_silent_ms,
        waiting=waiting,
    )


def stats(executor: Executor, figures: Figures) -> ExecutorStats:
    """Return the record of one executor's statistics.

    Rows are counted when their micro-batch is committed, and count as acked then. So none ever
    fails. Spark does not measure the time of a single component, so a bolt has no latencies.
    """
    nothing: dict[str, dict[Any, Any]] = {window: {} for window in figures.emitted}
    if executor.component.kind == "spout":
        specific = ExecutorSpecificStats(
            spout=SpoutStats(
                acked=_by_stream(figures.emitted),
                failed=nothing,
                complete_ms_avg={
                    window: {} if ms is None else {STREAM: ms}
                    for window, ms in figures.complete_ms.items()
                },
            )
        )
    else:
        executed = {
            window: {
                GlobalStreamId(componentId=source, streamId=STREAM): rows
                for source, rows in by_source.items()
            }
            for window, by_source in figures.executed.items()
        }
        specific = ExecutorSpecificStats(
            bolt=BoltStats(
                acked=executed,
                failed=nothing,
                process_ms_avg=nothing,
                executed=executed,
                execute_ms_avg=nothing,
            )
        )
    return ExecutorStats(
        emitted=_by_stream(figures.emitted) if executor.emits else nothing,
        transferred=_by_stream(figures.transferred) if executor.emits else nothing,
        specific=specific,
        rate=RATE,
        component=executor.component.id,
        # Left out as long as there is nothing to say, which is nearly always.
        partial_batches=dict(figures.partial) if any(figures.partial.values()) else None,
    )


def _by_stream(totals: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {window: {STREAM: rows} for window, rows in totals.items()}


log = logging.getLogger(__name__)


def next_due(due: float, period: float, now: float) -> float:
    """Return when the beat after the one of `due` is due: always later than `now`.

    The schedule is `due` plus whole periods. A beat whose time has passed, because a call took long
    or the machine slept, is left out. So there is no burst afterwards.
    """
    return due + period * max(1, math.floor((now - due) / period) + 1)


class Beater:
    """A thread that sends a heartbeat at once and then every `period_secs`, until it is closed.

    Parameters
    ----------
    connect
        Returns what sends them; called again after it raised.
    path
        Where a heartbeat goes.
    heartbeat
        Returns the heartbeat of this moment, serialised.
    period_secs
        Time between two heartbeats.
    on_first
        Called once, after the first heartbeat was taken.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        connect: Callable[[], HeartbeatSender],
        path: str,
        heartbeat: Callable[[], bytes],
        *,
        period_secs: float,
        on_first: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._path = path
        self._heartbeat = heartbeat
        self._period = period_secs
        self._on_first: Callable[[], None] | None = on_first
        self._clock = clock
        self._sender: HeartbeatSender | None = None
        self._failing_since: float | None = None
        #: When a beat last came round, taken or not; None before the first one has.
        self.beaten_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-heartbeat", daemon=True)

    def start(self) -> None:
        """Send the first heartbeat now, in the thread."""
        self._thread.start()

    def close(self, timeout_secs: float) -> None:
        """Send one last heartbeat and end, within `timeout_secs`; what takes longer is left."""
        self._closing.set()
        if self._thread.ident is None:  # it never began
            return
        self._thread.join(timeout_secs)
        if self._thread.is_alive():
            log.warning("the last heartbeat was not taken within %.1f s", timeout_secs)

    def _run(self) -> None:
        due = self._clock()
        while not self._closing.is_set():
            self._beat()
            due = next_due(due, self._period, self._clock())
            self._closing.wait(max(0.0, due - self._clock()))
        self._beat()
        if self._sender is not None:
            self._sender.close()

    def _beat(self) -> None:
        try:
            if self._sender is None:
                self._sender = self._connect()
            self._sender.beat(self._path, self._heartbeat())
        except StormkeeperError as error:
            if self._failing_since is None:
                self._failing_since = self._clock()
                log.warning("heartbeats do not go out, the worker goes on without: %s", error)
        except Exception:
            # A fault of ours: said once, and no reason to end a worker that works.
            if self._failing_since is None:
                self._failing_since = self._clock()
                log.exception("heartbeats do not go out, the worker goes on without")
        else:
            self._taken()
        self.beaten_at = self._clock()

    def _taken(self) -> None:
        if self._failing_since is not None:
            log.info("heartbeats go out again after %.1f s", self._clock() - self._failing_since)
            self._failing_since = None
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            try:
                on_first()
            except Exception:
                # Such as a stdout that nobody reads any more: no reason to stop beating.
                log.exception("the first heartbeat was taken, and telling so failed")


#: How often it is asked whether the first beat has come round.
_LOOK_SECS = 0.1


#: Beside the sign of life. The supervisor reads it when the worker has ended.
_ENDED = "ended"


def say_end(alive: Path | None, code: int) -> None:
    """Write the intended exit code of the worker into a file beside its sign of life.

    User code can end the process with any code. So the supervisor counts a worker as completed only
    if the worker has written this file.
    """
    if alive is None:
        return
    try:
        alive.with_name(_ENDED).write_text(str(code))
    except OSError as error:  # the cluster's state also says which queries have ended
        log.warning(
            "cannot write for the supervisor that the worker ends with exit code %d: %s",
            code,
            error,
        )


def alive_file(
    file: Path | None, conf: Conf, beaten_at: Callable[[], float | None]
) -> AliveFile | None:
    """Return what touches a file, None for None.

    It does so as often as Storm's workers tell their supervisors that they are there. A beat may
    take as long as a supervisor waits for that.
    """
    if file is None:
        return None
    return AliveFile(
        file,
        beaten_at,
        period_secs=conf["worker.heartbeat.frequency.secs"],
        stuck_secs=conf["task.heartbeat.frequency.secs"] + conf["supervisor.worker.timeout.secs"],
    )


class AliveFile:
    """A thread that touches a file every `period_secs` as long as another thread gets on.

    That the process is there would show by itself. So what counts is that its heartbeats come
    round, whether they are taken or not: a worker goes on where no Pacemaker answers.

    Parameters
    ----------
    file
        What is touched; made where it is absent.
    beaten_at
        Returns when the beating thread last came round, None before the first time.
    period_secs
        Time between two touches.
    stuck_secs
        How long the beating thread may take for one round.
    clock
        Seconds of a monotonic clock, the same as that of `beaten_at`.
    """

    def __init__(
        self,
        file: Path,
        beaten_at: Callable[[], float | None],
        *,
        period_secs: float,
        stuck_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._beaten_at = beaten_at
        self._period = period_secs
        self._stuck = stuck_secs
        self._clock = clock
        self._is_stuck = False
        self._fails = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-alive", daemon=True)

    def start(self) -> None:
        """Touch the file once the first beat has come round, and then again and again."""
        self._thread.start()

    def close(self) -> None:
        """Touch it no more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> bool:
        """Touch the file if the beating thread gets on; return whether it does."""
        beaten_at = self._beaten_at()
        if beaten_at is None:
            return False
        silence = self._clock() - beaten_at
        if silence > self._stuck:
            if not self._is_stuck:
                log.error("the heartbeats have been stuck for %.0f s", silence)
            self._is_stuck = True
            return False
        self._is_stuck = False
        try:
            self._file.touch(mode=0o600)
        except OSError as error:
            if not self._fails:
                log.warning("the sign of life %s cannot be given: %s", self._file, error)
            self._fails = True
        else:
            self._fails = False
        return True

    def _run(self) -> None:
        # Whoever waits for the first touch need not wait for a whole period more.
        pause = min(self._period, _LOOK_SECS)
        while not self._closing.wait(pause):
            if self.look():
                pause = self._period
