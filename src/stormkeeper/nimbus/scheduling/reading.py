"""A cluster as a plan takes it, out of all that was read of it.

What is there and cannot be read is not taken for absent: nobody is moved, removed or stopped for
that, and what it holds is not free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from stormkeeper import paths
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.deadlines import Due
from stormkeeper.nimbus.scheduling import mapping
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.nimbus.scheduling.mapping import Facts
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim

#: Of a topology of which only the records are known.
_NO_FACTS: Final = Facts(
    queries=(), memory_mb=0, is_shared=False, blocked="its code is not here, and says what to run"
)


def workers(snapshot: ClusterSnapshot) -> Iterator[tuple[str, Launch]]:
    """Yield all workers that one of our leaders has launched, with the ids of their topologies."""
    for storm_id, assignment in snapshot.assignments.items():
        if assignment.launches is not None:
            for launch in mapping.launches(assignment):
                yield storm_id, launch


def cluster(
    snapshot: ClusterSnapshot,
    *,
    facts: Mapping[str, Facts],
    due: Mapping[str, Due],
    statuses: Mapping[Claim, Status],
    refusals: Mapping[str, str],
    now: float,
    epoch: int,
    next_counter: int,
    launch_secs: float,
) -> Cluster:
    """Return a cluster to be planned.

    Parameters
    ----------
    snapshot
        Its records.
    facts
        What else is known of topologies, by their ids. Nothing is decided about one without.
    due
        When kills and rebalances are due, by the ids of their topologies, on the clock of `now`.
    statuses
        What is known of workers, by their claims: `stormkeeper.nimbus.scheduling.watching`.
    refusals
        Why supervisors take no new work, by their ids.
    now, epoch, next_counter, launch_secs
        As in `Cluster`.
    """
    topologies = {
        storm_id: mapping.topology(
            storm_id,
            base,
            snapshot.assignments.get(storm_id),
            facts.get(storm_id, _NO_FACTS),
            due[storm_id].at if storm_id in due else None,
        )
        for storm_id, base in snapshot.bases.items()
    }
    for storm_id in snapshot.assignments.keys() - topologies.keys():
        if paths.storm(storm_id) in snapshot.unreadable:
            topologies[storm_id] = Topology(
                id=storm_id,
                queries=(),
                status=TopologyStatus.ACTIVE,
                launches=mapping.launches(snapshot.assignments[storm_id]),
                blocked="its base cannot be read",
            )
    for storm_id, topology in topologies.items():
        if paths.assignment(storm_id) in snapshot.unreadable:
            topologies[storm_id] = replace(topology, blocked="its assignment cannot be read")
    return Cluster(
        now=now,
        epoch=epoch,
        next_counter=next_counter,
        supervisors=_supervisors(snapshot, topologies, refusals),
        topologies=topologies,
        workers=statuses,
        strays=frozenset(snapshot.assignments.keys() - topologies.keys()),
        launch_secs=launch_secs,
    )


def _supervisors(
    snapshot: ClusterSnapshot, topologies: Mapping[str, Topology], refusals: Mapping[str, str]
) -> dict[str, Supervisor]:
    found = {
        id_: mapping.supervisor(id_, info, refuses=refusals.get(id_))
        for id_, info in snapshot.supervisors.items()
    }
    for path in snapshot.unreadable:
        if paths.parent(path) == paths.SUPERVISORS:
            id_ = path.removeprefix(f"{paths.SUPERVISORS}/")
            slots = (one.slot for each in topologies.values() for one in each.launches)
            # It is there, and so its workers may be.
            ports = frozenset(slot.port for slot in slots if slot.node == id_)
            found[id_] = Supervisor(
                id_, id_, ports, running=ports, refuses="its record cannot be read"
            )
    return found
