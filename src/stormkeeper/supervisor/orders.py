"""What the slots of a supervisor are to run, out of the cluster's assignments; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from stormkeeper.supervisor.assignments import Assigned
from stormkeeper.supervisor.records import CrashSeries, Restart, SlotAssignment, SlotRecord
from stormkeeper.thrift.records import Assignment, LaunchClaim, WorkerLaunch
from stormkeeper.topology.claims import Claim

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Orders:
    """What a leader has ordered of one supervisor.

    Parameters
    ----------
    wanted
        What each slot is to run, by its port. A port that is missing is to run nothing.
    released
        By port, the newest launch that is to stop, or has stopped.
    storm_ids
        The topologies that have a launch here, be it a released one: their workers may come back.
    foreign
        The topologies that another Nimbus, such as Java's, has placed here: none that we can run.
    """

    wanted: Mapping[int, SlotAssignment] = field(default_factory=dict)
    released: Mapping[int, Claim] = field(default_factory=dict)
    storm_ids: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()


def orders(
    assignments: Assigned,
    node: str,
    ports: Collection[int],
    restart: Callable[[str], Restart],
    before: Mapping[int, SlotAssignment] = MappingProxyType({}),
) -> Orders:
    """Return what is ordered of a supervisor.

    Where two launches have one port, as one was read before the other was taken back, the newer one
    counts. An assignment without ``launches`` is another Nimbus's.

    Parameters
    ----------
    assignments
        Of all topologies, by their ids.
    node
        The supervisor's id.
    ports
        Its slots.
    restart
        Returns what a topology says of workers that end by themselves, as far as that is known.
    before
        What each slot was to run. It still is, where the assignment of that topology cannot be
        read.
    """
    newest: dict[int, tuple[Claim, str, WorkerLaunch]] = {}
    released: dict[int, Claim] = {}
    storm_ids = set()
    known = {storm_id: each for storm_id, each in assignments.items() if each is not None}
    for storm_id, assignment in known.items():
        for launch in assignment.launches or ():
            if launch.node != node:
                continue
            storm_ids.add(storm_id)
            claim = _claim(launch)
            if launch.released:
                released[launch.port] = max(claim, released.get(launch.port, claim))
            elif launch.port in ports and launch.queries:
                other = newest.get(launch.port)
                if other is None or other[0] < claim:
                    newest[launch.port] = claim, storm_id, launch
    wanted = {
        port: SlotAssignment(
            storm_id,
            claims=dict.fromkeys(sorted(launch.queries), str(claim)),
            memory_bytes=int(launch.memory_mb * _MIB) if launch.memory_mb > 0 else None,
            restart=restart(storm_id),
            crashes=_crashes(launch),
        )
        for port, (claim, storm_id, launch) in newest.items()
    }
    for port, last in before.items():
        if last.storm_id in assignments.keys() - known and port in ports:
            wanted.setdefault(port, last)
            storm_ids.add(last.storm_id)
    foreign = {
        storm_id
        for storm_id, assignment in known.items()
        if assignment.launches is None and _is_placed_on(assignment, node)
    }
    return Orders(wanted, released, frozenset(storm_ids), frozenset(foreign))


def stopped(given: Orders, slots: Mapping[int, SlotRecord]) -> dict[int, LaunchClaim]:
    """Return, by port, the newest launch of which it is certain that nothing runs any more.

    Parameters
    ----------
    given
        What was ordered, and what the slots know by now.
    slots
        What is known of each slot. A port that is no slot here has nothing that runs.
    """
    found = {}
    for port, claim in given.released.items():
        record = slots.get(port)
        worker = record.worker if record is not None else None
        if worker is None or _is_later(worker.assignment, claim):
            found[port] = LaunchClaim(claim.epoch, claim.counter)
    return found


def started(assignment: SlotAssignment, number: int) -> dict[str, str]:
    """Return the claims of one start of a worker, which has that number."""
    claims = {query: Claim.parse(text) for query, text in assignment.claims.items()}
    return {query: str(claim._replace(launch=number)) for query, claim in claims.items()}


def _is_placed_on(assignment: Assignment, node: str) -> bool:
    executors = (assignment.executor_node_port or {}).values()
    return any(place.node == node for place in (*executors, *(assignment.worker_resources or {})))


def _crashes(launch: WorkerLaunch) -> CrashSeries | None:
    found = launch.crashes
    return None if found is None else CrashSeries(found.count, found.since_secs, found.error)


def _claim(launch: WorkerLaunch) -> Claim:
    return Claim(launch.claim.epoch, launch.claim.counter)


def _is_later(assignment: SlotAssignment, claim: Claim) -> bool:
    """Return whether a worker's launch is later than `claim`: two never run in one slot."""
    return all(Claim.parse(text) > claim for text in assignment.claims.values())
