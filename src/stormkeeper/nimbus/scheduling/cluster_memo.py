"""A plan's input from a snapshot of the records; what did not change is not converted again.

An unreadable record counts as present: nothing is moved, removed or stopped for it, and its slots
are not free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from operator import attrgetter, is_not
from types import MappingProxyType
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling.cluster import (
    Cluster,
    Launch,
    Supervisor,
    Topology,
    launches_from_record,
    supervisor_from_record,
    topology_from_records,
)
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.thrift.records import Assignment, SupervisorInfo, TopologyStatus
from stormkeeper.topology.plan import Claim

_NO_FACTS: Final = Topology(id="", queries=(), blocked="its code is not here, and says what to run")

#: What a plan takes from a supervisor's record, but for the uptime and the slots' crashes.
_PLANNED: Final = attrgetter(
    *("hostname", "meta", "used_ports", "stopped_workers", "resources_map", "refuses"),
    *("version", "stormkeeper", "http_port"),
)


class ClusterMemo:
    """Keeps what was made of a snapshot's records while these are the same objects.

    Only the time that a conversion takes depends on it. Not safe for threads.
    """

    def __init__(self) -> None:
        self._launches: dict[str, tuple[Assignment, tuple[Launch, ...]]] = {}
        #: By topology id, the record's list and the launches of a written assignment.
        self._written: dict[str, tuple[object, tuple[Launch, ...]]] = {}
        self._topologies: dict[str, tuple[tuple[Any, ...], Topology]] = {}
        self._supervisors: dict[str, tuple[SupervisorInfo, tuple[Any, ...], Supervisor]] = {}
        #: The last results, which are returned again if nothing in them is another object.
        self._last: dict[str, Mapping[str, Any]] = {}

    def launches(self, snapshot: ClusterSnapshot) -> Mapping[str, tuple[Launch, ...]]:
        """Return the launches of all assignments, by topology id."""
        known = self._launches
        self._launches = {
            storm_id: last
            if (last := known.get(storm_id)) is not None and last[0] is assignment
            else (assignment, self._read(storm_id, assignment))
            for storm_id, assignment in snapshot.assignments.items()
        }
        self._written.clear()
        return self._same("launches", {id_: made for id_, (_, made) in self._launches.items()})

    def expect_launches(
        self, storm_id: str, assignment: Assignment, launches: tuple[Launch, ...]
    ) -> None:
        """Take the launches of a written assignment; a snapshot's record has the same list."""
        self._written[storm_id] = assignment.launches, launches

    def _read(self, storm_id: str, assignment: Assignment) -> tuple[Launch, ...]:
        written, launches = self._written.get(storm_id, (None, ()))
        is_ours = written is not None and written is assignment.launches
        return launches if is_ours else launches_from_record(assignment)

    def topologies(
        self, snapshot: ClusterSnapshot, facts: Mapping[str, Topology], due: Mapping[str, float]
    ) -> Mapping[str, Topology]:
        launches, known, made = self.launches(snapshot), self._topologies, {}
        for storm_id, base in snapshot.bases.items():
            assignment, at = snapshot.assignments.get(storm_id), due.get(storm_id)
            sources = (base, assignment, facts.get(storm_id, _NO_FACTS), at)
            last = known.get(storm_id)
            if last is None or any(map(is_not, last[0], sources)):
                launched = launches.get(storm_id, ())
                last = (sources, topology_from_records(storm_id, *sources, launched=launched))
            made[storm_id] = last
        self._topologies = made
        topologies = {storm_id: topology for storm_id, (_, topology) in made.items()}
        if snapshot.unreadable:
            _block_unreadable(topologies, snapshot, launches)
        return self._same("topologies", topologies)

    def supervisors(
        self, snapshot: ClusterSnapshot, launch_secs: float
    ) -> Mapping[str, Supervisor]:
        """Return the readable supervisors.

        A supervisor's uptime, which changes all the time, counts only as more than `launch_secs` or
        not, and stays the same meanwhile.
        """
        known, made = self._supervisors, {}
        for id_, info in snapshot.supervisors.items():
            last = known.get(id_)
            if last is None or last[0] is not info:
                planned = _PLANNED(info)
                uptime_secs = inf if info.uptime_secs is None else info.uptime_secs
                if (
                    last is not None
                    and last[1] == planned
                    and (uptime_secs > launch_secs) == (last[2].uptime_secs > launch_secs)
                    and not last[2].crashes
                    and (info.slots is None) == (last[0].slots is None)
                    and not any(one.crashes is not None for one in (info.slots or {}).values())
                ):
                    last = (info, planned, last[2])
                else:
                    last = (info, planned, supervisor_from_record(id_, info))
            made[id_] = last
        self._supervisors = made
        return self._same("supervisors", {id_: one for id_, (_, _, one) in made.items()})

    def _same(self, name: str, found: dict[str, Any]) -> Mapping[str, Any]:
        last = self._last.get(name, {})
        if last.keys() == found.keys() and not any(map(is_not, last.values(), found.values())):
            return last
        self._last[name] = MappingProxyType(found)
        return self._last[name]


def cluster_from_snapshot(
    snapshot: ClusterSnapshot,
    *,
    facts: Mapping[str, Topology],
    due: Mapping[str, float],
    statuses: Mapping[Claim, Status],
    now: float,
    epoch: int,
    next_counter: int,
    launch_secs: float,
    memo: ClusterMemo,
) -> Cluster:
    """Return a plan's input; a topology without facts is blocked.

    `due` is when kills and rebalances are due.
    """
    topologies = memo.topologies(snapshot, facts, due)
    supervisors = memo.supervisors(snapshot, launch_secs)
    if snapshot.unreadable:
        supervisors = {**supervisors, **_unreadable_supervisors(snapshot, topologies)}
    return Cluster(
        now=now,
        epoch=epoch,
        next_counter=next_counter,
        supervisors=supervisors,
        topologies=topologies,
        workers=statuses,
        strays=frozenset(snapshot.assignments.keys() - topologies.keys()),
        launch_secs=launch_secs,
    )


def _block_unreadable(
    topologies: dict[str, Topology],
    snapshot: ClusterSnapshot,
    launches: Mapping[str, tuple[Launch, ...]],
) -> None:
    for storm_id in snapshot.assignments.keys() - topologies.keys():
        if paths.storm(storm_id) in snapshot.unreadable:
            topologies[storm_id] = Topology(
                id=storm_id,
                queries=(),
                status=TopologyStatus.ACTIVE,
                launches=launches[storm_id],
                blocked="its base cannot be read",
            )
    for storm_id, topology in topologies.items():
        if paths.assignment(storm_id) in snapshot.unreadable:
            topologies[storm_id] = replace(topology, blocked="its assignment cannot be read")


def _unreadable_supervisors(
    snapshot: ClusterSnapshot, topologies: Mapping[str, Topology]
) -> dict[str, Supervisor]:
    found = {}
    for path in snapshot.unreadable:
        if paths.parent(path) == paths.SUPERVISORS:
            id_ = path.removeprefix(f"{paths.SUPERVISORS}/")
            slots = (one.slot for each in topologies.values() for one in each.launches)
            # The supervisor exists, so its workers may run.
            ports = frozenset(slot.port for slot in slots if slot.node == id_)
            found[id_] = Supervisor(
                id_, id_, ports, running=ports, refuses="its record cannot be read"
            )
    return found
