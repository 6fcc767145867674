"""A worker's session with the cluster's state: the topology's status, and the worker's reports.

A single thread makes all calls, as a worker runs on without ZooKeeper. Only a supervisor's worker
has a session; for any other the topology counts as active.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from stormkeeper.conf import Conf
from stormkeeper.conf.address import hostname
from stormkeeper.errors import (
    ClaimedError,
    StateClosedError,
    StateError,
    StateUnavailableError,
    StormkeeperError,
    WorkerError,
)
from stormkeeper.state import backends
from stormkeeper.state.storage import Role
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.worker_reports import ErrorLimits
from stormkeeper.state.watches import Stream
from stormkeeper.thrift.records import (
    Credentials,
    LaunchClaim,
    LogConfig,
    StormBase,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from stormkeeper.worker.driver_log import LogLevels
from stormkeeper.worker.heartbeat import HeartbeatBuilder
from stormkeeper.worker.job import Job, Owner
from stormkeeper.worker.shutdown import CLOSE_SECS, REPORT_SECS, STATUS_SECS

log = logging.getLogger(__name__)

Report = Callable[[StormClusterState], object]

Value = TypeVar("Value")

RETRY_SECS = 2.0

_LOOK_SECS = 0.1
_ANSWER_SECS = 0.1

_CLOCK_SECS = 2.0

_PATIENCE_SECS = 5.0


@dataclass(eq=False, repr=False)  # it has the credentials
class ClusterLink:
    """Follows a topology's base, log levels and credentials, and writes reports in order.

    `connect` is called again after a failure.
    """

    connect: Callable[[], StormClusterState]
    storm_id: str
    on_log_config: Callable[[LogConfig | None], None] = lambda _: None
    _unread: set[str] = field(default_factory=set, init=False)
    _status: TopologyStatus | None = field(default=None, init=False)
    _hints: dict[str, int] = field(default_factory=dict, init=False)
    #: As first read.
    credentials: Mapping[str, str] = field(default_factory=dict, init=False)
    _newest: Mapping[str, str] = field(default_factory=dict, init=False)
    _known: threading.Event = field(default_factory=threading.Event, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _reports: deque[Report] = field(default_factory=deque, init=False)
    _failing: bool = field(default=False, init=False)
    _closing: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="worker-cluster", daemon=True)

    @property
    def is_active(self) -> bool:
        """Whether the status is active or unknown."""
        return self._status in (None, TopologyStatus.ACTIVE)

    @property
    def hints(self) -> dict[str, int]:
        """Parallelism that a rebalance has set, by component."""
        return dict(self._hints)

    def start(self) -> None:
        self._thread.start()

    def wait_known(self, timeout_secs: float) -> bool:
        """Wait for the first read of base and credentials; return False after the timeout."""
        return self._known.wait(timeout_secs)

    def report(self, report: Report) -> None:
        """Queue a report until ZooKeeper is reached."""
        with self._changed:
            self._reports.append(report)

    def ask(self, question: Callable[[StormClusterState], Value]) -> Future[Value]:
        """Queue a question like a report; return the future answer, or `StormkeeperError`."""
        answer: Future[Value] = Future()

        def answering(storm: StormClusterState) -> None:
            try:
                answer.set_result(question(storm))
            except StateUnavailableError:
                raise  # retried
            except StormkeeperError as error:
                answer.set_exception(error)

        self.report(answering)
        return answer

    def flush(self, timeout_secs: float) -> bool:
        """Wait until all reports are written; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._reports, timeout_secs)

    def close(self, timeout_secs: float = CLOSE_SECS) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_secs)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._connect_and_follow()
            except StormkeeperError as error:
                self._record_failure(error)
            except Exception:
                # Even after a defect, the worker must learn of an activation.
                log.exception("the cluster's state cannot be followed; trying again")
                self._closing.wait(RETRY_SECS)

    def _connect_and_follow(self) -> None:
        storm = self.connect()
        try:
            self._follow(storm)
        finally:
            with contextlib.suppress(StateError):
                storm.disconnect()

    def _follow(self, storm: StormClusterState) -> None:
        storm_id = self.storm_id
        with (
            storm.watch(lambda again: storm.storm_base(storm_id, again)) as bases,
            storm.watch(lambda again: storm.topology_log_config(storm_id, again)) as levels,
            storm.watch(lambda again: storm.credentials(storm_id, again)) as credentials,
        ):
            while not self._closing.is_set():
                try:
                    self._write_reports(storm)
                    if not self._known.is_set():
                        self._read_credentials(storm)
                    else:
                        self._poll("log levels", levels, self.on_log_config)
                        self._poll("credentials", credentials, self._log_new_credentials)
                    self._update(bases.next(_LOOK_SECS))
                except TimeoutError:
                    continue
                except StateClosedError:
                    return
                except StormkeeperError as error:
                    self._record_failure(error)

    def _read_credentials(self, storm: StormClusterState) -> None:
        try:
            given = storm.credentials(self.storm_id)
        except StateUnavailableError:
            raise  # retried
        except StormkeeperError as error:
            log.warning("the topology's credentials cannot be read: %s", error)
        else:
            self.credentials = self._newest = dict(given.creds) if given is not None else {}

    def _poll(
        self, what: str, stream: Stream[Value | None], update: Callable[[Value | None], None]
    ) -> None:
        if what in self._unread:
            return
        try:
            update(stream.next(0))
        except TimeoutError:
            pass
        except (StateUnavailableError, StateClosedError):
            raise
        except StormkeeperError as error:
            log.warning("new %s of the topology cannot be read: %s", what, error)
            self._unread.add(what)

    def _log_new_credentials(self, given: Credentials | None) -> None:
        new = dict(given.creds) if given is not None else {}
        names = {name for name, _ in new.items() ^ self._newest.items()}
        self._newest = new
        if names:
            log.info(
                "new credentials (%s) count from the next start of this worker: `storm rebalance`"
                " starts it again",
                ", ".join(sorted(names)),
            )

    def _update(self, base: StormBase | None) -> None:
        if self._failing:
            log.info("the cluster's state can be read again")
            self._failing = False
        # A missing base means that the topology was killed: its status stays.
        if base is not None and base.status is not self._status:
            if self._status is not None or base.status is not TopologyStatus.ACTIVE:
                log.info("the topology is %s", base.status.name)
            self._status = base.status
        if base is not None:
            self._hints = base.component_executors or {}
        self._known.set()

    def _write_reports(self, storm: StormClusterState) -> None:
        while self._reports and not self._closing.is_set():
            try:
                self._reports[0](storm)
            except StateUnavailableError:
                raise  # retried
            except StormkeeperError as error:
                log.warning("a report is dropped: %s", error)
            except Exception:
                log.exception("a report is dropped, by a defect of Stormkeeper")
            with self._changed:
                self._reports.popleft()
                self._changed.notify_all()

    def _record_failure(self, error: StormkeeperError) -> None:
        if not self._failing:
            log.warning("the cluster's state cannot be read, the worker goes on: %s", error)
            self._failing = True
        self._closing.wait(RETRY_SECS)


class WorkerReports(ClusterLink):
    """The worker's reports and questions to the cluster's state. Thread-safe.

    Does nothing without a supervisor.
    """

    def __init__(
        self, conf: Conf, job: Job, heartbeats: HeartbeatBuilder, log_levels: LogLevels
    ) -> None:
        super().__init__(lambda: _connect(conf), job.storm_id, log_levels.update)
        self._job = job
        self._heartbeats = heartbeats
        self._host = hostname(conf)
        servers = ",".join(map(str, conf["storm.zookeeper.servers"]))
        port, root = conf["storm.zookeeper.port"], conf["storm.zookeeper.root"]
        self._cluster = f"{servers}:{port}{root}"
        # A topology that always restarts has no end.
        self._has_end = conf["topology.restart"] != "always"
        self._is_supervised = job.package is not None

    def start(self) -> None:
        if self._is_supervised:
            super().start()

    def report(self, report: Report) -> None:
        if self._is_supervised:
            super().report(report)

    def wait_status(self, stopping: Callable[[], bool]) -> None:
        """Wait at most `STATUS_SECS` for the topology's status."""
        deadline = time.monotonic() + STATUS_SECS
        while self._is_supervised and not stopping() and time.monotonic() < deadline:
            if self.wait_known(_ANSWER_SECS):
                return

    def report_failure(self, text: str, component: str | None = None) -> None:
        """Report the error that ends the worker, of `component` or else of all sinks."""
        for reported in [component] if component is not None else self._job.reported:
            self._report_error(reported, text)
        self.flush(REPORT_SECS)

    def report_problem(self, text: str) -> None:
        """Report an error of all sinks."""
        for component in self._job.reported:
            self._report_error(component, text)

    @property
    def owner(self) -> Owner:
        return Owner(
            topology=self._job.storm_id,
            query=self._job.script_id or "",
            host=self._host,
            port=self._job.port,
            pid=os.getpid(),
            cluster=self._cluster,
            since=time.time(),
        )

    def is_gone(self, owner: Owner) -> bool:
        """Return whether an owner's topology is known to be gone, or to have ended.

        In another cluster that is known only of this machine's processes.
        """
        if owner.cluster != self._cluster:
            return owner.host == self._host and not _is_running(owner)
        if not self._is_supervised:
            return False

        def is_gone(storm: StormClusterState) -> bool:
            is_killed = storm.storm_base(owner.topology) is None
            return is_killed or owner.query in storm.ended_queries(owner.topology)

        try:
            return self.ask(is_gone).result(REPORT_SECS)
        except (TimeoutError, StormkeeperError):
            return False

    def begin_claim(self, query: str, stopping: Callable[[], bool]) -> None:
        """Record that this worker claims a checkpoint first, and wait for the write.

        A query without that record may move to another machine. Raises `ClaimedError` if the query
        was given to another worker, `WorkerError` if the write fails or the worker stops.
        """
        if not self._is_supervised:
            return
        claim, storm_id = self._job.claims[query], self._job.storm_id
        launch = LaunchClaim(claim.epoch, claim.counter)
        answer = self.ask(lambda storm: storm.begin_claim(storm_id, query, launch))
        began, is_logged = time.monotonic(), False
        while not stopping():
            with contextlib.suppress(TimeoutError):
                if error := answer.exception(_ANSWER_SECS):
                    raise WorkerError(
                        f"the begin of the query {query!r} cannot be recorded: {error}", query
                    ) from error
                if not answer.result():
                    raise ClaimedError(f"the query {query!r} was given to another worker")
                return
            if not is_logged and time.monotonic() > began + _PATIENCE_SECS:
                log.warning("the query %s waits for ZooKeeper, which records its start", query)
                is_logged = True
        raise WorkerError(f"the worker stops before the query {query!r} has begun")

    def report_end(self, query: str) -> None:
        if self._has_end:
            beat, storm_id = self._heartbeats.last_of(query), self._job.storm_id
            self.report(lambda storm: storm.set_query_ended(storm_id, query, beat))

    def report_completion(self) -> None:
        """Report that all queries have ended by themselves, and wait for the write."""
        if self._job.script_id is not None:
            self.report_end(self._job.script_id)
        self.flush(REPORT_SECS)

    def _report_error(self, component: str, text: str) -> None:
        job, host = self._job, self._host
        self.report(
            lambda storm: storm.report_error(
                job.storm_id, component, text, host=host, port=job.port
            )
        )


def _is_running(owner: Owner) -> bool:
    try:
        return psutil.Process(owner.pid).create_time() <= owner.since + _CLOCK_SECS
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _connect(conf: Conf) -> StormClusterState:
    """Connect with a worker's rights; heartbeats have a separate connection."""
    codec, limits = Codec.from_conf(conf), ErrorLimits.from_conf(conf)
    state = backends.connect(conf, role=Role.WORKER)
    return StormClusterState(state, codec, limits=limits)
