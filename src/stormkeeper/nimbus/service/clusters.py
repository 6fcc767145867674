"""What is told of the cluster as a whole."""

# ruff: noqa: N802

from __future__ import annotations

import json
import time
from typing import Final

import stormkeeper
from stormkeeper.errors import (
    CallerError,
    CallRefusedError,
    NoLeaderError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.nimbus import health
from stormkeeper.nimbus.service import pages, summaries
from stormkeeper.nimbus.service.given import Given
from stormkeeper.nimbus.service.sharing import SharedRead
from stormkeeper.nimbus.service.topology_conf import without_secrets
from stormkeeper.nimbus.service.viewing import Viewing
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import ConnectionState
from stormkeeper.statistics.reports import used_workers
from stormkeeper.thrift.nimbus import (
    ClusterSummary,
    OwnerResourceSummary,
    SupervisorPageInfo,
    SupervisorSummary,
    TopologyHistoryInfo,
    TopologySummary,
)
from stormkeeper.thrift.records import Assignment, NimbusSummary, SupervisorInfo

#: Seconds in which a lost connection to ZooKeeper should be back, fewer than a client waits.
_RECONNECT_SECS: Final = 2.0
_LOOK_SECS: Final = 0.05


class Clusters(Viewing):
    """The methods that tell of the cluster."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._cluster = SharedRead(self._read_cluster)
        self._topologies = SharedRead(self._read_topologies)

    def getLeader(self) -> NimbusSummary:
        """Return the Nimbus that leads."""
        self._check_zookeeper()
        try:
            leader = self._given.leadership.leader_address()
        except NoLeaderError as error:
            raise CallRefusedError(str(error)) from error
        now = self._given.clock()
        for each in summaries.nimbus_summaries(self._given.storm.nimbuses(), leader, now):
            if each.isLeader:
                return each
        # It leads, and is not registered yet, or not any more.
        version = stormkeeper.__version__
        return NimbusSummary(leader.host, leader.port, 0, True, version, stormkeeper=version)

    def getClusterInfo(self) -> ClusterSummary:
        """Return all supervisors, topologies and Nimbuses."""
        return self._cluster()

    def _read_cluster(self) -> ClusterSummary:
        storm = self._given.storm
        infos = storm.all_supervisor_info()
        assignments = storm.assignments_info()
        views = self._views(storm.storm_bases(), assignments)
        return ClusterSummary(
            supervisors=_supervisors(infos, assignments),
            topologies=[summaries.topology_summary(view) for view in views],
            nimbuses=summaries.nimbus_summaries(
                storm.nimbuses(), self._leader_or_none(), self._given.clock()
            ),
        )

    def getTopologySummaries(self) -> list[TopologySummary]:
        """Return all topologies."""
        return self._topologies()

    def _read_topologies(self) -> list[TopologySummary]:
        return [summaries.topology_summary(view) for view in self._all()]

    def healths(self) -> dict[str, int]:
        """Return how many topologies are in each state of health; no method of Storm's."""
        return health.counts(view.health for view in self._all())

    def getTopologySummaryByName(self, name: str, /) -> TopologySummary:
        """Return the topology of a name."""
        return summaries.topology_summary(self._view(*self._named(name)))

    def getTopologySummary(self, storm_id: str, /) -> TopologySummary:
        """Return the topology of an id."""
        return summaries.topology_summary(self._view(storm_id, self._base(storm_id)))

    def getOwnerResourceSummaries(self, owner: str | None, /) -> list[OwnerResourceSummary]:
        """Return what each owner's topologies have, or those of one."""
        return summaries.owner_summaries(self.getTopologySummaries(), owner)

    def getTopologyHistory(self, user: str | None, /) -> TopologyHistoryInfo:
        """Return the ids of all topologies, or of one user's: that there are, and were.

        As in Storm, each Nimbus knows of those that are gone which it has removed itself.
        """
        bases = self._given.storm.storm_bases()
        living = [id_ for id_, base in bases.items() if not user or base.owner == user]
        return TopologyHistoryInfo(list(dict.fromkeys([*living, *self._given.removed(user)])))

    def getSupervisorPageInfo(
        self, supervisor_id: str | None, host: str | None, include_sys: bool, /
    ) -> SupervisorPageInfo:
        """Return a supervisor, or all of a host, and what runs there."""
        storm = self._given.storm
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
            if not chosen.keys().isdisjoint(_nodes(assignment))
        }
        bases = storm.storm_bases() if touching else {}
        bases = {storm_id: base for storm_id, base in bases.items() if storm_id in touching}
        return SupervisorPageInfo(
            supervisor_summaries=_supervisors(chosen, assignments),
            worker_summaries=[
                worker
                for view in self._views(bases, touching)
                for worker in pages.worker_summaries(
                    view, self._heartbeats(view), include_sys=include_sys
                )
                if worker.supervisor_id in chosen
            ],
        )

    def getNimbusConf(self) -> str:
        """Return this Nimbus's configuration as JSON, without what may be a secret."""
        return json.dumps(without_secrets(self._given.conf), sort_keys=True)

    def _check_zookeeper(self) -> None:
        """Raise an error before a client's patience is over, if there is no ZooKeeper."""
        state, until = self._given.storm.state, time.monotonic() + _RECONNECT_SECS
        while state.connection is not ConnectionState.CONNECTED:
            if time.monotonic() >= until:
                servers = ", ".join(self._given.conf["storm.zookeeper.servers"])
                raise StateUnavailableError(
                    f"see that a majority of the servers runs ({servers};"
                    " storm.zookeeper.servers there)"
                )
            time.sleep(_LOOK_SECS)

    def _leader_or_none(self) -> NimbusId | None:
        try:
            return self._given.leadership.leader_address()
        except StateError:
            return None


def _supervisors(
    infos: dict[str, SupervisorInfo], assignments: dict[str, Assignment]
) -> list[SupervisorSummary]:
    workers = used_workers(assignments.values())
    memory = summaries.used_memory(assignments.values())
    return [
        summaries.supervisor_summary(
            id_, info, used_workers=workers[id_], used_memory=memory.get(id_, 0.0)
        )
        for id_, info in infos.items()
    ]


def _nodes(assignment: Assignment) -> set[str]:
    """Return the supervisors that an assignment names."""
    return {place.node for place in (assignment.executor_node_port or {}).values()}
