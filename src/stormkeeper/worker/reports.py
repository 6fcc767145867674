"""What a worker tells the cluster's state besides its heartbeats, and asks of it.

Only a worker that a supervisor runs does so. Any other one needs no ZooKeeper, and its topology
counts as active.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable, Mapping

import psutil

from stormkeeper.conf import Conf
from stormkeeper.conf.address import hostname
from stormkeeper.errors import (
    ClaimedError,
    StateUnavailableError,
    StormkeeperError,
    WorkerError,
)
from stormkeeper.state import factory
from stormkeeper.state.access import Role
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.codec import Codec
from stormkeeper.state.storm.errors import ErrorLimits
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, LaunchClaim, LogConfig
from stormkeeper.worker.claims import Owner
from stormkeeper.worker.cluster_link import ClusterLink
from stormkeeper.worker.deadlines import CLOSE_SECS, REPORT_SECS, STATUS_SECS
from stormkeeper.worker.job import Job

log = logging.getLogger(__name__)

_LOOK_SECS = 0.1

#: By how much the time of a process's start may be off.
_CLOCK_SECS = 2.0

#: Wait for ZooKeeper before the log says that a query waits for it.
_PATIENCE_SECS = 5.0


class Reports:
    """The reports of one worker. Safe for many threads.

    Parameters
    ----------
    conf
        The configuration.
    job
        Whose reports these are.
    beat_of
        Returns the heartbeat of a query's executors, by the query's id.
    on_log_config
        As of a `ClusterLink`.
    """

    def __init__(
        self,
        conf: Conf,
        job: Job,
        beat_of: Callable[[str], ClusterWorkerHeartbeat],
        on_log_config: Callable[[LogConfig | None], None] = lambda _: None,
    ) -> None:
        self._job = job
        self._beat_of = beat_of
        self._host = hostname(conf)
        servers = ",".join(map(str, conf["storm.zookeeper.servers"]))
        port, root = conf["storm.zookeeper.port"], conf["storm.zookeeper.root"]
        self._cluster = f"{servers}:{port}{root}"
        # What is run again whenever it has ended has no end.
        self._has_end = conf["topology.restart"] != "always"
        self._link: ClusterLink | None = None
        if job.package is not None:
            self._link = ClusterLink(lambda: _connect(conf), job.storm_id, on_log_config)

    @property
    def is_active(self) -> bool:
        """Whether the topology's queries are to run."""
        return self._link is None or self._link.is_active

    @property
    def hints(self) -> dict[str, int]:
        """The parallelism of components, by their ids, as a rebalance may have left it."""
        return {} if self._link is None else self._link.hints

    @property
    def credentials(self) -> Mapping[str, str]:
        """The topology's credentials by name; none before `wait_known`."""
        return {} if self._link is None else self._link.credentials

    def start(self) -> None:
        """Begin to follow whether the topology is active."""
        if self._link is not None:
            self._link.start()

    def wait_known(self, stopping: Callable[[], bool]) -> None:
        """Wait until it is known whether the topology is active, or for as long as makes sense."""
        deadline = time.monotonic() + STATUS_SECS
        while self._link is not None and not stopping() and time.monotonic() < deadline:
            if self._link.wait_known(_LOOK_SECS):
                return

    def failed(self, text: str, component: str | None = None) -> None:
        """Report what the worker ends with, of the component that it happened in.

        What is of no single one is reported of all sinks.
        """
        if self._link is None:
            return
        for reported in [component] if component is not None else self._job.reported:
            self._report_error(self._link, reported, text)
        self._link.settle(REPORT_SECS)

    def noted(self, text: str) -> None:
        """Report what is wrong while the worker runs on."""
        if self._link is not None:
            for component in self._job.reported:
                self._report_error(self._link, component, text)

    @property
    def owner(self) -> Owner:
        """Who makes the claims of a script's checkpoints."""
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
        """Return whether the topology of an owner is known to be gone, or to have ended.

        Of an owner in another cluster it is known if its process was on this machine.
        """
        if owner.cluster != self._cluster:
            return owner.host == self._host and not _is_running(owner)
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def look(storm: StormClusterState) -> None:
            gone = False
            with contextlib.suppress(StormkeeperError):
                gone = storm.storm_base(owner.topology) is None
                gone = gone or owner.query in storm.ended_queries(owner.topology)
            answers.put(gone)

        if self._link is None:
            return False
        self._link.report(look)
        try:
            return answers.get(timeout=REPORT_SECS)
        except queue.Empty:
            return False

    def begin_claim(self, query: str, stopping: Callable[[], bool]) -> None:
        """Tell the cluster that this launch claims a query's checkpoint, as the first launch.

        It waits until that is written, also while ZooKeeper is not reached: a query of which
        nothing was told may be moved to another machine.

        Raises
        ------
        ClaimedError
            The launch was taken back.
        WorkerError
            It cannot be written, or the worker is to stop.
        """
        if self._link is None:
            return
        claim, storm_id = self._job.claims[query], self._job.storm_id
        launch = LaunchClaim(claim.epoch, claim.counter)
        answers: queue.SimpleQueue[bool | StormkeeperError] = queue.SimpleQueue()

        def write(storm: StormClusterState) -> None:
            try:
                answers.put(storm.begin_claim(storm_id, query, launch))
            except StateUnavailableError:
                raise  # it is written later
            except StormkeeperError as error:
                answers.put(error)

        self._link.report(write)
        began, is_logged = time.monotonic(), False
        while not stopping():
            with contextlib.suppress(queue.Empty):
                answer = answers.get(timeout=_LOOK_SECS)
                if isinstance(answer, StormkeeperError):
                    raise WorkerError(
                        f"that the query {query!r} begins cannot be written: {answer}", query
                    ) from answer
                if not answer:
                    raise ClaimedError(f"the query {query!r} was given to another launch")
                return
            if not is_logged and time.monotonic() > began + _PATIENCE_SECS:
                log.warning("%s begins when ZooKeeper is reached: it is told there first", query)
                is_logged = True
        raise WorkerError(f"the worker stops before the query {query!r} has begun")

    def ended(self, query: str) -> None:
        """Have it said that a query has ended by itself."""
        if self._link is not None and self._has_end:
            beat, storm_id = self._beat_of(query), self._job.storm_id
            self._link.report(lambda storm: storm.set_query_ended(storm_id, query, beat))

    def completed(self) -> None:
        """Have it said that all has ended by itself, and wait until that is written."""
        if self._link is None:
            return
        if self._job.script_id is not None:
            self.ended(self._job.script_id)
        self._link.settle(REPORT_SECS)

    def close(self) -> None:
        """End the session with the cluster's state."""
        if self._link is not None:
            self._link.close(CLOSE_SECS)

    def _report_error(self, link: ClusterLink, component: str, text: str) -> None:
        job, host = self._job, self._host
        link.report(
            lambda storm: storm.report_error(
                job.storm_id, component, text, host=host, port=job.port
            )
        )


def _is_running(owner: Owner) -> bool:
    """Return whether the process of an owner on this machine runs, and is not a later one."""
    try:
        return psutil.Process(owner.pid).create_time() <= owner.since + _CLOCK_SECS
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _connect(conf: Conf) -> StormClusterState:
    """Connect as a worker; heartbeats go their own way."""
    codec, limits = Codec.from_conf(conf), ErrorLimits.from_conf(conf)
    state = factory.connect(conf, role=Role.WORKER)
    return StormClusterState(state, codec, limits=limits)
