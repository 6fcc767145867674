"""Calls that read the cluster: Nimbuses, supervisors, and a line for each topology.

Any Nimbus answers. Reports of Storm's supervisors are accepted and decide nothing: Stormkeeper's
workers beat to Pacemakers, and its supervisors watch their assignments.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

import stormkeeper
from stormkeeper.errors import (
    CallerError,
    CallRefusedError,
    NoLeaderError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.nimbus import health
from stormkeeper.nimbus.scheduling.cluster import runs_packages
from stormkeeper.nimbus.service.context import CallGroup, ServiceContext
from stormkeeper.nimbus.service.page_calls import worker_summaries
from stormkeeper.nimbus.service.topology_checks import without_secrets
from stormkeeper.nimbus.service.views import (
    View,
    ViewReader,
    memory_of,
    resources,
    seconds,
    without_queries,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import ConnectionState
from stormkeeper.statistics.executor_reports import assigned_counts, used_workers
from stormkeeper.thrift.nimbus import (
    ClusterSummary,
    OwnerResourceSummary,
    SupervisorAssignments,
    SupervisorPageInfo,
    SupervisorSummary,
    SupervisorWorkerHeartbeat,
    SupervisorWorkerHeartbeats,
    TopologyHistoryInfo,
    TopologySummary,
    WorkerMetrics,
)
from stormkeeper.thrift.records import Assignment, NimbusSummary, SupervisorInfo

#: For a lost ZooKeeper to return: less than a client waits.
_RECONNECT_SECS: Final = 2.0
_POLL_SECS: Final = 0.05

#: For a shared read: longer than a read's own deadlines.
_SHARED_READ_SECS: Final = 60.0

_NO_VERSION: Final = "VERSION_NOT_PROVIDED"

Value = TypeVar("Value")


class SharedRead(Generic[Value]):
    """A read that concurrent callers share. Safe for many threads.

    Calls during a read share the next one, also its error, so no read began before its call. After
    `patience_secs` a caller reads by itself. The result must not be changed.
    """

    def __init__(
        self, read: Callable[[], Value], *, patience_secs: float = _SHARED_READ_SECS
    ) -> None:
        self._read = read
        self._patience_secs = patience_secs
        self._lock = threading.Lock()
        #: Number of reads begun, and the newest one's outcome.
        self._begun = 0
        self._outcome: Future[Value] = Future()

    def __call__(self) -> Value:
        before = self._begun
        if not self._lock.acquire(timeout=self._patience_secs):
            return self._read()
        try:
            if self._begun == before:
                self._begun += 1
                self._outcome = Future()
                try:
                    self._outcome.set_result(self._read())
                except BaseException as error:
                    self._outcome.set_exception(error)
            outcome = self._outcome
        finally:
            self._lock.release()
        return outcome.result()


class ClusterCalls(CallGroup):
    """The calls that read the cluster."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._views = ViewReader(context)
        self._cluster = SharedRead(self._read_cluster)
        self._topologies = SharedRead(self._read_topologies)

    def getLeader(self) -> NimbusSummary:
        self._check_zookeeper()
        try:
            leader = self._context.elector.leader_address()
        except NoLeaderError as error:
            raise CallRefusedError(str(error)) from error
        records, now = self._context.storm.view.caught_up(), self._context.clock()
        for each in nimbus_summaries(records.nimbuses.values(), leader, now):
            if each.isLeader:
                return each
        # The leader is not registered yet, or no longer.
        version = stormkeeper.__version__
        return NimbusSummary(leader.host, leader.port, 0, True, version, stormkeeper=version)

    def getClusterInfo(self) -> ClusterSummary:
        return self._cluster()

    def _read_cluster(self) -> ClusterSummary:
        records = self._context.storm.view.caught_up()
        return ClusterSummary(
            supervisors=_supervisors(records.supervisors, records.assignments),
            topologies=[topology_summary(view) for view in self._views.read(records)],
            nimbuses=nimbus_summaries(
                records.nimbuses.values(), self._leader_or_none(), self._context.clock()
            ),
        )

    def getTopologySummaries(self) -> list[TopologySummary]:
        return self._topologies()

    def _read_topologies(self) -> list[TopologySummary]:
        return [topology_summary(view) for view in self._views.read_all()]

    def count_health(self) -> dict[str, int]:
        """Return the number of topologies by health; not a method of Storm's."""
        return health.counts(view.health for view in self._views.read_all())

    def getTopologySummaryByName(self, name: str, /) -> TopologySummary:
        return topology_summary(self._views.read_one(*self._topology_by_name(name)))

    def getTopologySummary(self, storm_id: str, /) -> TopologySummary:
        return topology_summary(self._views.read_one(storm_id, self._base(storm_id)))

    def getOwnerResourceSummaries(self, owner: str | None, /) -> list[OwnerResourceSummary]:
        return owner_summaries(self.getTopologySummaries(), owner)

    def getTopologyHistory(self, user: str | None, /) -> TopologyHistoryInfo:
        """Return the ids of present topologies and, as in Storm, of topologies removed here."""
        bases = self._context.storm.view.caught_up().bases
        living = [id_ for id_, base in bases.items() if not user or base.owner == user]
        return TopologyHistoryInfo(list(dict.fromkeys([*living, *self._context.removed(user)])))

    def getSupervisorPageInfo(
        self, supervisor_id: str | None, host: str | None, include_sys: bool, /
    ) -> SupervisorPageInfo:
        """Return a supervisor, or all supervisors of a host, with their workers."""
        records = self._context.storm.view.caught_up()
        infos = records.supervisors
        if supervisor_id:
            if supervisor_id not in infos:
                raise CallerError(f"there is no supervisor {supervisor_id}")
            chosen = {supervisor_id: infos[supervisor_id]}
        else:
            chosen = {id_: info for id_, info in infos.items() if info.hostname == host}
        bases = {
            storm_id: records.bases[storm_id]
            for storm_id, assignment in records.assignments.items()
            if storm_id in records.bases
            and not chosen.keys().isdisjoint(_supervisor_ids(assignment))
        }
        return SupervisorPageInfo(
            supervisor_summaries=_supervisors(chosen, records.assignments),
            worker_summaries=[
                worker
                for view in self._views.read(records, bases)
                for worker in worker_summaries(
                    view, self._views.read_heartbeats(view), include_sys=include_sys
                )
                if worker.supervisor_id in chosen
            ],
        )

    def getNimbusConf(self) -> str:
        return json.dumps(without_secrets(self._context.conf), sort_keys=True)

    def getSupervisorAssignments(self, node: str, /) -> SupervisorAssignments:
        found = self._context.storm.view.caught_up().assignments
        return SupervisorAssignments(
            {storm_id: each for storm_id, each in found.items() if _names(each, node)}
        )

    def sendSupervisorWorkerHeartbeats(self, heartbeats: SupervisorWorkerHeartbeats, /) -> None:
        """Accept and ignore heartbeats of a supervisor's workers."""

    def sendSupervisorWorkerHeartbeat(self, heartbeat: SupervisorWorkerHeartbeat, /) -> None:
        """Accept and ignore the heartbeat of an existing topology's worker."""
        self._base(heartbeat.storm_id)

    def processWorkerMetrics(self, metrics: WorkerMetrics, /) -> None:
        """Accept and ignore metrics, as Storm's Nimbus does without a metrics store."""

    def _check_zookeeper(self) -> None:
        """Raise an error if ZooKeeper stays out of reach for `_RECONNECT_SECS`."""
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


def topology_summary(view: View) -> TopologySummary:
    counts = assigned_counts(view.assignment)
    return TopologySummary(
        id=view.storm_id,
        name=view.base.name,
        num_tasks=counts.num_tasks,
        num_executors=counts.num_executors,
        num_workers=counts.num_workers,
        uptime_secs=view.uptime_secs,
        status=view.base.status.name,
        storm_version=view.storm_version,
        topology_version=view.base.topology_version,
        sched_status=view.shown_sched_status,
        owner=view.base.owner,
        replication_count=view.replication_count,
        **resources(view.requested_memory, view.assigned_memory),
        health=without_queries(view.health),
    )


def supervisor_summary(
    supervisor_id: str, info: SupervisorInfo, *, used_workers: int, used_memory: float
) -> SupervisorSummary:
    is_ours = runs_packages(info)
    return SupervisorSummary(
        host=info.hostname,
        uptime_secs=seconds(info.uptime_secs or 0),
        # Storm's own supervisors have no free slot for our queries.
        num_workers=len(info.meta or ()) if is_ours else used_workers,
        num_used_workers=used_workers,
        supervisor_id=supervisor_id,
        version=info.version or _NO_VERSION,
        total_resources=dict(info.resources_map or {}),
        used_mem=used_memory,
        used_cpu=0.0,
        blacklisted=False,
        refuses=info.refuses,
        java_only=None if is_ours else True,
    )


def nimbus_summaries(
    found: Iterable[NimbusSummary], leader: NimbusId | None, now: float
) -> list[NimbusSummary]:
    """Return a line for each registered Nimbus; registrations have the start time as uptime."""
    summaries = []
    for each in found:
        summary = copy.copy(each)
        summary.uptime_secs = seconds(now - each.uptime_secs)
        summary.isLeader = leader is not None and (each.host, each.port) == leader[:2]
        summaries.append(summary)
    return summaries


def used_memory(assignments: Iterable[Assignment]) -> dict[str, float]:
    """Return the workers' memory by supervisor id."""
    used: dict[str, float] = {}
    for assignment in assignments:
        for (node, _), memory in memory_of(assignment).items():
            used[node] = used.get(node, 0.0) + memory
    return used


def owner_summaries(
    topologies: Iterable[TopologySummary], owner: str | None
) -> list[OwnerResourceSummary]:
    """Return the resources of topologies by owner; of `owner` even without topologies."""
    by_owner: dict[str, list[TopologySummary]] = {owner: []} if owner else {}
    for topology in topologies:
        if not owner or topology.owner == owner:
            by_owner.setdefault(topology.owner or "", []).append(topology)
    return [_owner_summary(name, group) for name, group in sorted(by_owner.items())]


def _owner_summary(name: str, group: list[TopologySummary]) -> OwnerResourceSummary:
    requested = sum(each.requested_memonheap or 0.0 for each in group)
    assigned = sum(each.assigned_memonheap or 0.0 for each in group)
    return OwnerResourceSummary(
        owner=name,
        total_topologies=len(group),
        total_executors=sum(each.num_executors for each in group),
        total_workers=sum(each.num_workers for each in group),
        memory_usage=assigned,
        cpu_usage=0.0,
        total_tasks=sum(each.num_tasks for each in group),
        requested_on_heap_memory=requested,
        requested_off_heap_memory=0.0,
        requested_total_memory=requested,
        requested_cpu=0.0,
        assigned_on_heap_memory=assigned,
        assigned_off_heap_memory=0.0,
    )


def _supervisors(
    infos: Mapping[str, SupervisorInfo], assignments: Mapping[str, Assignment]
) -> list[SupervisorSummary]:
    workers = used_workers(assignments.values())
    memory = used_memory(assignments.values())
    return [
        supervisor_summary(id_, info, used_workers=workers[id_], used_memory=memory.get(id_, 0.0))
        for id_, info in infos.items()
    ]


def _supervisor_ids(assignment: Assignment) -> set[str]:
    return {place.node for place in (assignment.executor_node_port or {}).values()}


def _names(assignment: Assignment, node: str) -> bool:
    return node in _supervisor_ids(assignment) or any(
        launch.node == node for launch in assignment.launches or ()
    )
