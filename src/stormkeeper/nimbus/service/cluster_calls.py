"""Calls that read the cluster: Nimbuses, supervisors, and a line for each topology.

Any Nimbus answers. Reports of Storm's supervisors are accepted and decide nothing: Stormkeeper's
workers beat to Pacemakers, and its supervisors watch their assignments.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable
from typing import Final

import stormkeeper
from stormkeeper.errors import CallerError, CallRefusedError, NoLeaderError, StateUnavailableError
from stormkeeper.nimbus.service.context import CallGroup, ServiceContext
from stormkeeper.nimbus.service.page_calls import worker_summaries
from stormkeeper.nimbus.service.summaries import TopologySummaries, topology_summary
from stormkeeper.nimbus.service.supervisor_summaries import SupervisorSummaries
from stormkeeper.nimbus.service.topology_checks import without_secrets
from stormkeeper.nimbus.service.views import ViewReader, seconds
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.thrift.nimbus import (
    ClusterSummary,
    OwnerResourceSummary,
    SupervisorAssignments,
    SupervisorPageInfo,
    SupervisorWorkerHeartbeat,
    SupervisorWorkerHeartbeats,
    TopologyHistoryInfo,
    TopologySummary,
    WorkerMetrics,
)
from stormkeeper.thrift.records import Assignment, NimbusSummary

#: For a lost ZooKeeper to return: less than a client waits.
_RECONNECT_SECS: Final = 2.0
_POLL_SECS: Final = 0.05


class ClusterCalls(CallGroup):
    """The calls that read the cluster."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._views = ViewReader(context)
        self._topologies = TopologySummaries(context)
        self._supervisors = SupervisorSummaries()

    def close(self) -> None:
        """End the refreshes; not a method of Storm's."""
        self._topologies.close()

    def getLeader(self) -> NimbusSummary:
        self._check_zookeeper()
        try:
            leader = self._context.elector.leader_address()
        except NoLeaderError as error:
            raise CallRefusedError(str(error)) from error
        records, now = self._context.storm.view.caught_up(), self._context.clock()
        for each in nimbus_summaries(records, leader, now):
            if each.isLeader:
                return each
        # The leader is not registered yet, or no longer.
        version = stormkeeper.__version__
        return NimbusSummary(leader.host, leader.port, 0, True, version, stormkeeper=version)

    def getClusterInfo(self) -> ClusterSummary:
        found = self._topologies.newest()
        records = found.sources.records
        first = next(iter(records.locks), None)
        leader = None if first is None or first.revoked else first.nimbus
        return ClusterSummary(
            supervisors=self._supervisors.encoded(records),
            topologies=self._topologies.encoded(found),
            nimbuses=nimbus_summaries(records, leader, self._context.clock()),
        )

    def getTopologySummaries(self) -> list[TopologySummary]:
        return self._topologies.encoded(self._topologies.newest())

    def count_health(self) -> tuple[dict[str, int], float | None]:
        """Return the number of topologies by health, and the heartbeats' age in seconds."""
        return self._topologies.count_health()

    def getTopologySummaryByName(self, name: str, /) -> TopologySummary:
        return topology_summary(self._views.read_with_heartbeats(*self._topology_by_name(name))[0])

    def getTopologySummary(self, storm_id: str, /) -> TopologySummary:
        return topology_summary(self._views.read_with_heartbeats(storm_id, self._base(storm_id))[0])

    def getOwnerResourceSummaries(self, owner: str | None, /) -> list[OwnerResourceSummary]:
        kept = self._topologies.newest().kept
        return owner_summaries((each.summary for each in kept.values()), owner)

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
        storm_ids = [
            storm_id
            for storm_id, assignment in records.assignments.items()
            if storm_id in records.bases
            and not chosen.keys().isdisjoint(_supervisor_ids(assignment))
        ]
        return SupervisorPageInfo(
            supervisor_summaries=self._supervisors.encoded(records, chosen),
            worker_summaries=[
                worker
                for storm_id in storm_ids
                for worker in worker_summaries(
                    *self._views.read_with_heartbeats(storm_id, records.bases[storm_id]),
                    include_sys=include_sys,
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


def nimbus_summaries(
    records: ClusterRecords, leader: NimbusId | None, now: float
) -> list[NimbusSummary]:
    """Return a line for each registered Nimbus; registrations have the start time as uptime."""
    summaries = []
    for each in records.nimbuses.values():
        summary = copy.copy(each)
        summary.uptime_secs = seconds(now - each.uptime_secs)
        summary.isLeader = leader is not None and (each.host, each.port) == leader[:2]
        summaries.append(summary)
    return summaries


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


def _supervisor_ids(assignment: Assignment) -> set[str]:
    return {place.node for place in (assignment.executor_node_port or {}).values()}


def _names(assignment: Assignment, node: str) -> bool:
    return node in _supervisor_ids(assignment) or any(
        launch.node == node for launch in assignment.launches or ()
    )
