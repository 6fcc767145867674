"""A cluster in lines: of its topologies, supervisors, Nimbuses, and owners; pure.

Memory is in MB. What a topology asks for is what its workers may use, and nothing here is measured
in shares of processors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stormkeeper.nimbus.health import CRASHING, FAILED, STUCK, WorkerHealth
from stormkeeper.nimbus.scheduling.mapping import runs_packages
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.paths import NimbusId, Slot
from stormkeeper.statistics.reports import assigned_counts
from stormkeeper.thrift.nimbus import (
    OwnerResourceSummary,
    SupervisorSummary,
    TopologySummary,
)
from stormkeeper.thrift.records import (
    Assignment,
    NimbusSummary,
    StormBase,
    SupervisorInfo,
    TopologyHealth,
)

_MEMORY = "topology.worker.memory.mb"

#: What Storm says of a supervisor that does not say.
_NO_VERSION = "VERSION_NOT_PROVIDED"

#: The largest number of a field of 32 bits.
_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class View:
    """A topology as it was read.

    Parameters
    ----------
    storm_id, base
        The topology.
    assignment
        Where it runs; None where it does not.
    submitted
        What was submitted; None where its code is not here.
    sched_status
        What scheduling tells of it; None where this Nimbus does not know.
    replication_count
        How many Nimbuses have its code.
    now
        Seconds since 1970.
    workers
        How its workers are that have not completed, by their slots.
    health
        How it does; None where it is not to run, or that is not known.
    """

    storm_id: str
    base: StormBase
    assignment: Assignment | None
    submitted: Submitted | None
    sched_status: str | None
    replication_count: int
    now: float
    workers: Mapping[Slot, WorkerHealth] = field(default_factory=dict)
    health: TopologyHealth | None = None

    @property
    def shown_sched_status(self) -> str | None:
        """Its ``sched_status`` as Storm's UI shows it: with what is wrong with its workers."""
        health = self.health
        if health is None or health.state not in (STUCK, CRASHING, FAILED):
            return self.sched_status
        said = f"{health.state}: {health.text}"
        return said if self.sched_status is None else f"{self.sched_status}; {said}"

    @property
    def conf(self) -> Mapping[str, Any]:
        """Its saved configuration."""
        return {} if self.submitted is None else self.submitted.conf

    @property
    def uptime_secs(self) -> int:
        """How long ago it was submitted."""
        began = self.base.launch_time_secs
        return 0 if began is None else seconds(self.now - began)

    @property
    def storm_version(self) -> str | None:
        """With which release it was submitted."""
        return None if self.submitted is None else self.submitted.topology.storm_version

    @property
    def requested_memory(self) -> float:
        """What all workers may use that it asks for."""
        memory = self.conf.get(_MEMORY)
        return self.base.num_workers * float(memory) if isinstance(memory, int | float) else 0.0

    @property
    def assigned_memory(self) -> float:
        """What its workers may use that it has."""
        return sum(memory_of(self.assignment).values())


def resources(requested_mb: float, assigned_mb: float) -> dict[str, Any]:
    """Return the fields of resources that several records have: only memory is counted here."""
    return {
        "requested_memonheap": requested_mb,
        "requested_memoffheap": 0.0,
        "requested_cpu": 0.0,
        "assigned_memonheap": assigned_mb,
        "assigned_memoffheap": 0.0,
        "assigned_cpu": 0.0,
    }


def topology_summary(view: View) -> TopologySummary:
    """Return a topology's line."""
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


def without_queries(health: TopologyHealth | None) -> TopologyHealth | None:
    """Return a health as lists have it."""
    return health and TopologyHealth(health.state, health.text, health.crashes)


def supervisor_summary(
    supervisor_id: str, info: SupervisorInfo, *, used_workers: int, used_memory: float
) -> SupervisorSummary:
    """Return a supervisor's line.

    Parameters
    ----------
    used_workers, used_memory
        How many of its slots are assigned, and what these workers may use.
    """
    is_ours = runs_packages(info)
    return SupervisorSummary(
        host=info.hostname,
        uptime_secs=seconds(info.uptime_secs or 0),
        # Nothing of ours can run in a slot of Storm's own supervisors: none of them is free.
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
    """Return a line for each Nimbus that is there.

    Parameters
    ----------
    found
        As they have registered: with the time of their start as their uptime.
    leader
        Who leads, if anybody does.
    now
        Seconds since 1970.
    """
    summaries = []
    for each in found:
        summary = copy.copy(each)
        summary.uptime_secs = seconds(now - each.uptime_secs)
        summary.isLeader = leader is not None and (each.host, each.port) == leader[:2]
        summaries.append(summary)
    return summaries


def memory_of(assignment: Assignment | None) -> dict[tuple[str, int], float]:
    """Return what each worker of an assignment may use, by its slot."""
    resources = (None if assignment is None else assignment.worker_resources) or {}
    return {
        (where.node, min(where.port)): each.mem_on_heap or 0.0
        for where, each in resources.items()
        if where.port
    }


def used_memory(assignments: Iterable[Assignment]) -> dict[str, float]:
    """Return what all workers on each supervisor may use, by its id."""
    used: dict[str, float] = {}
    for assignment in assignments:
        for (node, _), memory in memory_of(assignment).items():
            used[node] = used.get(node, 0.0) + memory
    return used


def owner_summaries(
    topologies: Iterable[TopologySummary], owner: str | None
) -> list[OwnerResourceSummary]:
    """Return what the topologies of each owner have; of one owner alone, also if that is nothing.

    Nothing is guaranteed to anybody.
    """
    by_owner: dict[str, list[TopologySummary]] = {owner: []} if owner else {}
    for topology in topologies:
        if not owner or topology.owner == owner:
            by_owner.setdefault(topology.owner or "", []).append(topology)
    summaries = []
    for name, group in sorted(by_owner.items()):
        requested = sum(each.requested_memonheap or 0.0 for each in group)
        assigned = sum(each.assigned_memonheap or 0.0 for each in group)
        summaries.append(
            OwnerResourceSummary(
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
        )
    return summaries


def seconds(value: float) -> int:
    """Return a time as a field of 32 bits has it; clocks differ, so it may be negative."""
    return max(0, min(int(value), _LARGEST))
