"""What each executor of a topology has reported: its assignment and its worker's heartbeat, joined.

The statistics stay the records that the heartbeats brought, and nothing here changes them:
``TopologyInfo`` hands them on as they are, and most of them are summed up once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorStats,
    NodeInfo,
)

Kind = Literal["spout", "bolt"]

#: A supervisor's id and a port of it.
Slot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Component:
    """A component as its topology declares it.

    Parameters
    ----------
    kind
        "spout" or "bolt"; Storm's own components are bolts.
    num_executors, num_tasks
        How many it is meant to have, whether or not they are assigned.
    """

    kind: Kind
    num_executors: int
    num_tasks: int


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """An executor, where it is assigned to, and what it reported last.

    Parameters
    ----------
    task_start, task_end
        Its tasks, both included.
    component_id
        The component whose tasks these are.
    supervisor_id, host, port
        Its slot, and the name of the supervisor's host.
    uptime_secs
        Age of its worker; 0 where the executor has not reported.
    stats
        What it counted; None where it has not reported.
    """

    task_start: int
    task_end: int
    component_id: str
    supervisor_id: str
    host: str
    port: int
    uptime_secs: int = 0
    stats: ExecutorStats | None = None

    @property
    def num_tasks(self) -> int:
        """How many tasks it runs."""
        return self.task_end - self.task_start + 1

    @property
    def slot(self) -> Slot:
        """Where it runs."""
        return self.supervisor_id, self.port


@dataclass(frozen=True, slots=True)
class AssignedCounts:
    """How much of a topology is assigned, whether or not it runs; ``TopologySummary`` has these."""

    num_tasks: int
    num_executors: int
    num_workers: int


def reports(
    assignment: Assignment | None,
    tasks: Mapping[int, str],
    heartbeats: Mapping[Slot, ClusterWorkerHeartbeat],
) -> tuple[ExecutorReport, ...]:
    """Return the topology's assigned executors, by task, with what they reported.

    What a heartbeat says of an executor that is assigned to another slot, or to none, does not
    count. An executor whose tasks no component has is left out: its assignment was made for other
    components.

    Parameters
    ----------
    assignment
        The topology's; None while it has none.
    tasks
        The component of each task, as `components_of_tasks` returns them.
    heartbeats
        The newest of each worker of the topology, by its slot.
    """
    if assignment is None:
        return ()
    hosts = assignment.node_host or {}
    found = []
    for (start, end), place in (assignment.executor_node_port or {}).items():
        slot = _slot(place)
        if start not in tasks or slot is None:
            continue
        beat = heartbeats.get(slot)
        stats = beat.executor_stats.get(ExecutorInfo(start, end)) if beat is not None else None
        found.append(
            ExecutorReport(
                task_start=start,
                task_end=end,
                component_id=tasks[start],
                supervisor_id=place.node,
                # Without its host, the supervisor's id at least says where to look.
                host=hosts.get(place.node, place.node),
                port=slot[1],
                uptime_secs=beat.uptime_secs if beat is not None and stats is not None else 0,
                stats=stats,
            )
        )
    return tuple(sorted(found, key=lambda report: report.task_start))


def assigned_counts(assignment: Assignment | None) -> AssignedCounts:
    """Return how much of a topology is assigned; zeros where it has no assignment."""
    places = (assignment.executor_node_port if assignment is not None else None) or {}
    return AssignedCounts(
        num_tasks=sum(end - start + 1 for start, end in places),
        num_executors=len(places),
        num_workers=len({slot for slot in map(_slot, places.values()) if slot is not None}),
    )


def used_workers(assignments: Iterable[Assignment]) -> Counter[str]:
    """Return how many slots are assigned on each supervisor that has any, by its id."""
    slots = {
        _slot(place)
        for assignment in assignments
        for place in (assignment.executor_node_port or {}).values()
    }
    return Counter(slot[0] for slot in slots if slot is not None)


def _slot(place: NodeInfo) -> Slot | None:
    # The record has a set of ports; an executor's has one.
    return (place.node, min(place.port)) if place.port else None
