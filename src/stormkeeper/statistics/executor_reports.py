"""The newest report of each executor: an assignment joined with the workers' heartbeats.

Storm's workers report by task; the component of a task follows from the topology.
"""

from __future__ import annotations

from collections.abc import Mapping
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

#: A supervisor's id and a port.
Slot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DeclaredComponent:
    """A component as declared; Storm's own components are bolts."""

    kind: Kind
    num_executors: int
    num_tasks: int


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """An executor with slot and newest report; without a report, uptime 0 and no `stats`."""

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
        return self.task_end - self.task_start + 1

    @property
    def slot(self) -> Slot:
        return self.supervisor_id, self.port


@dataclass(frozen=True, slots=True)
class AssignedCounts:
    """Assigned parts of a topology, running or not, for ``TopologySummary``."""

    num_tasks: int
    num_executors: int
    num_workers: int


def reports(
    assignment: Assignment | None,
    tasks: Mapping[int, str],
    heartbeats: Mapping[Slot, ClusterWorkerHeartbeat],
) -> tuple[ExecutorReport, ...]:
    """Return a topology's assigned executors, by task, with reports.

    A report of an executor assigned to another slot does not count. An executor with unknown tasks
    is left out: the assignment was made for other components.
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
                # Without a host name, the supervisor's id shows where to look.
                host=hosts.get(place.node, place.node),
                port=slot[1],
                uptime_secs=beat.uptime_secs if beat is not None and stats is not None else 0,
                stats=stats,
            )
        )
    return tuple(sorted(found, key=lambda report: report.task_start))


def assigned_counts(assignment: Assignment | None) -> AssignedCounts:
    """Count the assigned parts; zeros without an assignment."""
    places = (assignment.executor_node_port if assignment is not None else None) or {}
    return AssignedCounts(
        num_tasks=sum(end - start + 1 for start, end in places),
        num_executors=len(places),
        num_workers=len(assigned_slots(assignment)),
    )


def assigned_slots(assignment: Assignment | None) -> set[Slot]:
    places = (assignment.executor_node_port if assignment is not None else None) or {}
    return {slot for slot in map(_slot, places.values()) if slot is not None}


def _slot(place: NodeInfo) -> Slot | None:
    # The record has a set of ports; an executor's has one.
    return (place.node, min(place.port)) if place.port else None


def components_of_tasks(num_tasks: Mapping[str, int]) -> dict[int, str]:
    """Return the component of each task: tasks are numbered from 1, over the components by id.

    `num_tasks` includes Storm's own components; ``__system`` may have none.
    """
    owners = (id_ for id_ in sorted(num_tasks, key=_java_order) for _ in range(num_tasks[id_]))
    return dict(enumerate(owners, start=1))


def is_system(id_: str) -> bool:
    return id_.startswith("__")


def _java_order(text: str) -> bytes:
    # Java compares strings by units of 16 bits, so an emoji comes before some other characters.
    return text.encode("utf-16-be", "surrogatepass")
