"""Calls that read: the cluster, topologies, supervisors; and the reports of Storm's supervisors.

Any Nimbus answers them. Stormkeeper's own workers beat to Pacemakers, and supervisors watch their
assignments: what Storm's supervisors report here is accepted and decides nothing.
"""

# ruff: noqa: N802

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import stormkeeper
from stormkeeper.errors import (
    CallerError,
    CallRefusedError,
    NoLeaderError,
    StateError,
    StateUnavailableError,
    UnknownComponentError,
)
from stormkeeper.nimbus import health
from stormkeeper.nimbus.service import topology_pages, views
from stormkeeper.nimbus.service.context import CallGroup, ServiceContext
from stormkeeper.nimbus.service.topology_conf import without_secrets
from stormkeeper.nimbus.service.views import ViewReader
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import ConnectionState
from stormkeeper.statistics.executor_reports import used_workers
from stormkeeper.thrift.nimbus import (
    ClusterSummary,
    ComponentPageInfo,
    GetInfoOptions,
    NumErrorsChoice,
    OwnerResourceSummary,
    StormTopology,
    SupervisorAssignments,
    SupervisorPageInfo,
    SupervisorSummary,
    SupervisorWorkerHeartbeat,
    SupervisorWorkerHeartbeats,
    TopologyHistoryInfo,
    TopologyInfo,
    TopologyPageInfo,
    TopologySummary,
    WorkerMetrics,
)
from stormkeeper.thrift.records import Assignment, NimbusSummary, StormBase, SupervisorInfo

#: How long a call waits for a lost connection to ZooKeeper, in seconds: less than a client waits.
_RECONNECT_SECS: Final = 2.0
_POLL_SECS: Final = 0.05

#: How long a caller waits for a shared read, in seconds: longer than a read's own deadlines.
_SHARED_READ_SECS: Final = 60.0

Value = TypeVar("Value")


class SharedRead(Generic[Value]):
    """A read that concurrent callers share. Safe for many threads.

    A caller never gets a read that began before its call. Calls that come during a read wait for
    its end and share the next one, also its error; after `patience_secs` a caller reads by itself.
    The result must not be changed.
    """

    def __init__(
        self, read: Callable[[], Value], *, patience_secs: float = _SHARED_READ_SECS
    ) -> None:
        self._read = read
        self._patience_secs = patience_secs
        self._turn = threading.Condition()
        self._is_reading = False
        self._begun = 0
        self._ended: _EndedRead | None = None

    def __call__(self) -> Value:
        """Return the result of a read that begins after this call."""
        with self._turn:
            ended = self._read_by_others(self._begun + 1)
            is_shared = ended is None and not self._is_reading
            if is_shared:
                self._is_reading = True
                self._begun += 1
            number = self._begun
        if ended is None:
            ended = self._outcome(number)
            if is_shared:
                with self._turn:
                    self._is_reading, self._ended = False, ended
                    self._turn.notify_all()
        if ended.error is not None:
            raise ended.error
        value: Value = ended.value
        return value

    def _read_by_others(self, wanted: int) -> _EndedRead | None:
        """Wait for a read of at least this number; None if the caller has to read."""
        until = time.monotonic() + self._patience_secs
        while self._is_reading and self._turn.wait(until - time.monotonic()):
            if self._ended is not None and self._ended.number >= wanted:
                return self._ended
        return None

    def _outcome(self, number: int) -> _EndedRead:
        try:
            return _EndedRead(number, self._read())
        except BaseException as error:
            return _EndedRead(number, error=error)


class _EndedRead(NamedTuple):
    number: int
    value: Any = None
    error: BaseException | None = None


class StatusCalls(CallGroup):
    """The calls that read."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._views = ViewReader(context)
        self._cluster = SharedRead(self._read_cluster)
        self._topologies = SharedRead(self._read_topologies)

    # --- the cluster ---

    def getLeader(self) -> NimbusSummary:
        """Return the leading Nimbus."""
        self._check_zookeeper()
        try:
            leader = self._context.elector.leader_address()
        except NoLeaderError as error:
            raise CallRefusedError(str(error)) from error
        now = self._context.clock()
        for each in views.nimbus_summaries(self._context.storm.nimbuses(), leader, now):
            if each.isLeader:
                return each
        # The leader is not registered yet, or no longer.
        version = stormkeeper.__version__
        return NimbusSummary(leader.host, leader.port, 0, True, version, stormkeeper=version)

    def getClusterInfo(self) -> ClusterSummary:
        """Return all supervisors, topologies and Nimbuses."""
        return self._cluster()

    def _read_cluster(self) -> ClusterSummary:
        storm = self._context.storm
        infos = storm.all_supervisor_info()
        assignments = storm.assignments_info()
        found = self._views.read(storm.storm_bases(), assignments)
        return ClusterSummary(
            supervisors=_supervisors(infos, assignments),
            topologies=[views.topology_summary(view) for view in found],
            nimbuses=views.nimbus_summaries(
                storm.nimbuses(), self._leader_or_none(), self._context.clock()
            ),
        )

    def getTopologySummaries(self) -> list[TopologySummary]:
        """Return all topologies."""
        return self._topologies()

    def _read_topologies(self) -> list[TopologySummary]:
        return [views.topology_summary(view) for view in self._views.read_all()]

    def count_health(self) -> dict[str, int]:
        """Return the number of topologies in each state of health; not a method of Storm's."""
        return health.counts(view.health for view in self._views.read_all())

    def getTopologySummaryByName(self, name: str, /) -> TopologySummary:
        """Return the topology of a name."""
        return views.topology_summary(self._views.read_one(*self._topology_by_name(name)))

    def getTopologySummary(self, storm_id: str, /) -> TopologySummary:
        """Return the topology of an id."""
        return views.topology_summary(self._views.read_one(storm_id, self._base(storm_id)))

    def getOwnerResourceSummaries(self, owner: str | None, /) -> list[OwnerResourceSummary]:
        """Return the resources of each owner's topologies, or of a single owner's."""
        return views.owner_summaries(self.getTopologySummaries(), owner)

    def getTopologyHistory(self, user: str | None, /) -> TopologyHistoryInfo:
        """Return the ids of present and past topologies, of a user or of all users.

        As in Storm, a Nimbus knows only those past topologies that it has removed itself.
        """
        bases = self._context.storm.storm_bases()
        living = [id_ for id_, base in bases.items() if not user or base.owner == user]
        return TopologyHistoryInfo(list(dict.fromkeys([*living, *self._context.removed(user)])))

    def getSupervisorPageInfo(
        self, supervisor_id: str | None, host: str | None, include_sys: bool, /
    ) -> SupervisorPageInfo:
        """Return a supervisor, or all supervisors of a host, with their workers."""
        storm = self._context.storm
        infos = storm.all_supervisor_info()
        if supervisor_id:
            if supervisor_id not in infos:
                raise CallerError(f"there is no supervisor {supervisor_id}")
            chosen = {supervisor_id: infos[supervisor_id]}
        else:
            chosen = {id_: info for id_, info in infos.items() if info.hostname == host}
        assignments = storm.assignments_info()
        touching = {
            storm_id: assignment
            for storm_id, assignment in assignments.items()
            if not chosen.keys().isdisjoint(_supervisor_ids(assignment))
        }
        bases = storm.storm_bases() if touching else {}
        bases = {storm_id: base for storm_id, base in bases.items() if storm_id in touching}
        return SupervisorPageInfo(
            supervisor_summaries=_supervisors(chosen, assignments),
            worker_summaries=[
                worker
                for view in self._views.read(bases, touching)
                for worker in topology_pages.worker_summaries(
                    view, self._views.read_heartbeats(view), include_sys=include_sys
                )
                if worker.supervisor_id in chosen
            ],
        )

    def getNimbusConf(self) -> str:
        """Return this Nimbus's configuration as JSON, without possible secrets."""
        return json.dumps(without_secrets(self._context.conf), sort_keys=True)

    # --- one topology ---

    def getTopologyInfo(self, storm_id: str, /) -> TopologyInfo:
        """Return a topology's executors and errors, by id."""
        return self.getTopologyInfoWithOpts(storm_id, GetInfoOptions())

    def getTopologyInfoByName(self, name: str, /) -> TopologyInfo:
        """Return a topology's executors and errors, by name."""
        return self.getTopologyInfoByNameWithOpts(name, GetInfoOptions())

    def getTopologyInfoByNameWithOpts(self, name: str, options: GetInfoOptions, /) -> TopologyInfo:
        """Return executors and a chosen number of errors, by the topology's name."""
        return self._info(*self._topology_by_name(name), options)

    def getTopologyInfoWithOpts(self, storm_id: str, options: GetInfoOptions, /) -> TopologyInfo:
        """Return executors and a chosen number of errors, by the topology's id."""
        return self._info(storm_id, self._base(storm_id), options)

    def getTopologyPageInfo(
        self, storm_id: str, window: str | None, include_sys: bool, /
    ) -> TopologyPageInfo:
        """Return a topology's page."""
        view = self._views.read_one(storm_id, self._base(storm_id))
        return topology_pages.topology_page(
            view,
            self._views.read_heartbeats(view),
            self._context.storm.topology_errors(storm_id),
            window or topology_pages.ALL_TIME,
            include_sys=include_sys,
        )

    def getComponentPageInfo(
        self, storm_id: str, component: str, window: str | None, include_sys: bool, /
    ) -> ComponentPageInfo:
        """Return a component's page."""
        view = self._views.read_one(storm_id, self._base(storm_id))
        try:
            return topology_pages.component_page(
                view,
                component,
                self._views.read_heartbeats(view),
                self._context.storm.topology_errors(storm_id),
                window or topology_pages.ALL_TIME,
                include_sys=include_sys,
            )
        except UnknownComponentError as error:
            raise CallerError(str(error)) from error

    def getTopologyConf(self, storm_id: str, /) -> str:
        """Return a topology's saved configuration as JSON.

        Storm's Nimbus saves the cluster's secrets with the conf, and may have saved this conf.
        """
        self._base(storm_id)
        return json.dumps(without_secrets(self._submitted(storm_id).conf), sort_keys=True)

    def getTopology(self, storm_id: str, /) -> StormTopology:
        """Return a running topology: here without components of Storm's own."""
        return self.getUserTopology(storm_id)

    def getUserTopology(self, storm_id: str, /) -> StormTopology:
        """Return a submitted topology."""
        self._base(storm_id)
        return self._submitted(storm_id).topology

    def _info(self, storm_id: str, base: StormBase, options: GetInfoOptions) -> TopologyInfo:
        choice = options.num_err_choice
        choice = NumErrorsChoice.ALL if choice is None else choice
        view = self._views.read_one(storm_id, base)
        has_errors = choice != NumErrorsChoice.NONE
        errors = self._context.storm.topology_errors(storm_id) if has_errors else {}
        return topology_pages.topology_info(view, self._views.read_heartbeats(view), errors, choice)

    # --- reports of Storm's supervisors and workers ---

    def getSupervisorAssignments(self, node: str, /) -> SupervisorAssignments:
        """Return the assignments that name a supervisor."""
        found = self._context.storm.assignments_info()
        return SupervisorAssignments(
            {storm_id: each for storm_id, each in found.items() if _names(each, node)}
        )

    def sendSupervisorWorkerHeartbeats(self, heartbeats: SupervisorWorkerHeartbeats, /) -> None:
        """Accept and ignore heartbeats of a supervisor's workers."""

    def sendSupervisorWorkerHeartbeat(self, heartbeat: SupervisorWorkerHeartbeat, /) -> None:
        """Accept and ignore the heartbeat of an existing topology's worker."""
        self._base(heartbeat.storm_id)

    def processWorkerMetrics(self, metrics: WorkerMetrics, /) -> None:
        """Accept and ignore a worker's metrics, as Storm's Nimbus does without a metrics store."""

    def _check_zookeeper(self) -> None:
        """Raise an error before the client gives up, if ZooKeeper is away."""
        state, until = self._context.storm.state, time.monotonic() + _RECONNECT_SECS
        while state.connection is not ConnectionState.CONNECTED:
            if time.monotonic() >= until:
                servers = ", ".join(self._context.conf["storm.zookeeper.servers"])
                raise StateUnavailableError(
                    f"see that a majority of the servers runs ({servers};"
                    " storm.zookeeper.servers there)"
                )
            time.sleep(_POLL_SECS)

    def _leader_or_none(self) -> NimbusId | None:
        try:
            return self._context.elector.leader_address()
        except StateError:
            return None


def _supervisors(
    infos: dict[str, SupervisorInfo], assignments: dict[str, Assignment]
) -> list[SupervisorSummary]:
    workers = used_workers(assignments.values())
    memory = views.used_memory(assignments.values())
    return [
        views.supervisor_summary(
            id_, info, used_workers=workers[id_], used_memory=memory.get(id_, 0.0)
        )
        for id_, info in infos.items()
    ]


def _supervisor_ids(assignment: Assignment) -> set[str]:
    return {place.node for place in (assignment.executor_node_port or {}).values()}


def _names(assignment: Assignment, node: str) -> bool:
    return node in _supervisor_ids(assignment) or any(
        launch.node == node for launch in assignment.launches or ()
    )
