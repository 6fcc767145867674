"""A worker's heartbeats: the record, the sending thread, and the sign of life for the supervisor.

Heartbeats go out on a fixed schedule. An unsent heartbeat is dropped, as the next holds newer
counts; a failure never ends the worker.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from stormkeeper.conf import Conf
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import StormkeeperError
from stormkeeper.heartbeats.stores import HeartbeatSender
from stormkeeper.state import backends
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo
from stormkeeper.thrift.serialization import Codec
from stormkeeper.worker.executor_counts import WorkerStatistics
from stormkeeper.worker.query_events import QueryRun
from stormkeeper.worker.spark_watch import JvmWatch

log = logging.getLogger(__name__)

_FIRST_LOOK_SECS = 0.1

_ENDED = "ended"


@dataclass(eq=False, repr=False)
class HeartbeatBuilder:
    """Builds a worker's heartbeats from counts, queries and the JVM.

    `name_of` returns a query's name in heartbeats, `waiting` why the worker waits.
    """

    storm_id: str
    statistics: WorkerStatistics
    jvm: JvmWatch
    codec: Codec
    _: KW_ONLY
    name_of: Callable[[QueryRun], str | None]
    waiting: Callable[[], str | None]
    _began: float = field(default_factory=time.monotonic, init=False)
    is_inactive: bool = field(default=False, init=False)
    has_completed: bool = field(default=False, init=False)

    def encoded(self) -> bytes:
        return self.codec.write(self.current())

    def current(self) -> ClusterWorkerHeartbeat:
        return self._record(
            completed=self.has_completed or None,
            queries=self.jvm.activities(self.name_of) or None,
            jvm_silent_ms=self.jvm.silent_ms,
        )

    def last_of(self, query: str) -> ClusterWorkerHeartbeat:
        """Return the final heartbeat of a query's executors."""
        return self._record(query, completed=True)

    def _record(self, query: str | None = None, **more: Any) -> ClusterWorkerHeartbeat:
        now = time.monotonic()
        return ClusterWorkerHeartbeat(
            storm_id=self.storm_id,
            executor_stats={
                ExecutorInfo(executor.task_start, executor.task_end): stats
                for executor, stats in self.statistics.snapshot(now)
                if query is None or executor.query == query
            },
            time_secs=int(time.time()),
            uptime_secs=int(now - self._began),
            inactive=self.is_inactive or None,
            waiting=self.waiting(),
            **more,
        )


def next_due(due: float, period: float, now: float) -> float:
    """Return when the heartbeat after `due` is due, always later than `now`.

    Missed heartbeats are skipped, so that no burst follows a long call or a sleep of the machine.
    """
    return due + period * max(1, math.floor((now - due) / period) + 1)


class Beater:
    """A thread that sends a heartbeat at once and then every `period_secs`, until closed.

    `connect` is called until it succeeds; `on_first` once, after the first accepted heartbeat.
    """

    def __init__(
        self,
        connect: Callable[[], HeartbeatSender],
        path: str,
        heartbeat: Callable[[], bytes],
        *,
        period_secs: float,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._path = path
        self._heartbeat = heartbeat
        self._period = period_secs
        self._on_first: Callable[[], None] | None = on_first
        self._sender: HeartbeatSender | None = None
        self._failing_since: float | None = None
        #: Time of the last attempt, accepted or not.
        self.beaten_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_secs: float) -> None:
        """Send a last heartbeat and end, within `timeout_secs`."""
        self._closing.set()
        if self._thread.ident is None:
            return
        self._thread.join(timeout_secs)
        if self._thread.is_alive():
            log.warning("the last heartbeat was not accepted within %.1f s", timeout_secs)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closing.is_set():
            self._beat()
            due = next_due(due, self._period, time.monotonic())
            self._closing.wait(max(0.0, due - time.monotonic()))
        self._beat()
        if self._sender is not None:
            self._sender.close()

    def _beat(self) -> None:
        try:
            if self._sender is None:
                self._sender = self._connect()
            self._sender.beat(self._path, self._heartbeat())
        except Exception as error:  # a defect of this program must not end a worker that works
            if self._failing_since is None:
                self._failing_since = time.monotonic()
                is_defect = not isinstance(error, StormkeeperError)
                log.warning(
                    "heartbeats cannot be sent, and the worker goes on: %s",
                    error,
                    exc_info=error if is_defect else None,
                )
        else:
            self._record_success()
        self.beaten_at = time.monotonic()

    def _record_success(self) -> None:
        if self._failing_since is not None:
            secs = time.monotonic() - self._failing_since
            log.info("heartbeats are sent again after %.1f s", secs)
            self._failing_since = None
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            try:
                on_first()
            except Exception:  # such as a closed stdout
                log.exception("the first heartbeat was accepted, and announcing it failed")


class AliveFile(PeriodicThread):
    """A file that is touched every `period_secs` as long as the heartbeat thread makes progress.

    Progress is an attempt to beat within `stuck_secs`, accepted or not, as a worker goes on without
    Pacemakers. `beaten_at` returns the last attempt's time.
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
        # The supervisor waits for the first touch.
        self._pause = min(period_secs, _FIRST_LOOK_SECS)
        super().__init__("worker-alive", self._look, first_secs=self._pause, clock=clock)
        self._file = file
        self._beaten_at = beaten_at
        self._stuck = stuck_secs
        self._period = period_secs
        self._is_stuck = False
        self._fails = False

    @classmethod
    def from_conf(
        cls, file: Path | None, conf: Conf, beaten_at: Callable[[], float | None]
    ) -> AliveFile | None:
        """Return a sign of life with the periods of Storm's workers; None without a file."""
        if file is None:
            return None
        timeout = conf["supervisor.worker.timeout.secs"]
        return cls(
            file,
            beaten_at,
            period_secs=conf["worker.heartbeat.frequency.secs"],
            stuck_secs=conf["task.heartbeat.frequency.secs"] + timeout,
        )

    def touch(self) -> bool:
        """Touch the file, and return True, if the heartbeat thread makes progress."""
        beaten_at = self._beaten_at()
        if beaten_at is None:
            return False
        silence = self._clock() - beaten_at
        if silence > self._stuck:
            if not self._is_stuck:
                log.error("the heartbeat thread has been stuck for %.0f s", silence)
            self._is_stuck = True
            return False
        self._is_stuck = False
        try:
            self._file.touch(mode=0o600)
        except OSError as error:
            if not self._fails:
                log.warning("the sign of life %s cannot be touched: %s", self._file, error)
            self._fails = True
        else:
            self._fails = False
        return True

    def _look(self) -> float:
        if self.touch():
            self._pause = self._period
        return self._pause


def write_exit_code(alive: Path | None, code: int) -> None:
    """Write the intended exit code beside the sign of life.

    User code can end the process with any code; only this file shows a completion.
    """
    if alive is None:
        return
    try:
        alive.with_name(_ENDED).write_text(str(code))
    except OSError as error:  # Nimbus takes ended queries away from the slot
        log.warning("the intended exit code %d cannot be written: %s", code, error)


def warn_of_silent_pacemakers(conf: Conf) -> None:
    store = conf["storm.cluster.state.store"]
    if store == backends.ZOOKEEPER_STORE and conf["pacemaker.servers"]:
        log.warning(
            "heartbeats go to ZooKeeper, and not to pacemaker.servers; to send them there, set "
            "storm.cluster.state.store=%s",
            backends.PACEMAKER_STORES[0],
        )
