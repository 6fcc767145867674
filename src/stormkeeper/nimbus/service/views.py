"""Topologies as read from ZooKeeper, blobs and heartbeats.

Any Nimbus reads them; only the leader knows the scheduler's text. Memory is in MB, as workers may
use it. Shares of processors are not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from stormkeeper.blobs import keys
from stormkeeper.errors import CodeError, PacemakerError
from stormkeeper.nimbus import health
from stormkeeper.nimbus.health import CRASHING, FAILED, STUCK, WorkerHealth
from stormkeeper.nimbus.service.context import ServiceContext
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.paths import Slot
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.state.storm.heartbeat_records import AgedHeartbeat
from stormkeeper.statistics.executor_reports import Slot as ReportSlot
from stormkeeper.thrift.nimbus import StormTopology
from stormkeeper.thrift.records import Assignment, ClusterWorkerHeartbeat, StormBase, TopologyHealth
from stormkeeper.thrift.serialization import activity_in
from stormkeeper.topology.faults import is_crash, newest_line

log = logging.getLogger(__name__)

_STUCK: Final = "topology.stuck.batch.secs"
_MEMORY: Final = "topology.worker.memory.mb"

_LARGEST: Final = 2**31 - 1

#: Crashing topologies of a list whose errors are read; others show the supervisor's reason.
_ERRORS_READ: Final = 20


@dataclass(frozen=True, kw_only=True)
class View:
    """A topology as read."""

    storm_id: str
    base: StormBase
    #: None while the topology does not run.
    assignment: Assignment | None
    #: None if the code is not on this Nimbus.
    submitted: Submitted | None
    #: The scheduler's text; None if unknown to this Nimbus.
    sched_status: str | None
    #: Nimbuses that have the code.
    replication_count: int
    now: float
    #: Only workers that have not completed.
    workers: Mapping[Slot, WorkerHealth] = field(default_factory=dict)
    #: None if the topology should not run, or its health is unknown.
    health: TopologyHealth | None = None

    @property
    def shown_sched_status(self) -> str | None:
        """The ``sched_status`` for Storm's UI, with faults of workers."""
        health = self.health
        if health is None or health.state not in (STUCK, CRASHING, FAILED):
            return self.sched_status
        fault = f"{health.state}: {health.text}"
        return fault if self.sched_status is None else f"{self.sched_status}; {fault}"

    @property
    def requested_memory(self) -> float:
        memory = None if self.submitted is None else self.submitted.conf.get(_MEMORY)
        return self.base.num_workers * float(memory) if isinstance(memory, int | float) else 0.0

    @property
    def assigned_memory(self) -> float:
        return sum(memory_of(self.assignment).values())

    @property
    def common_fields(self) -> dict[str, Any]:
        """The fields that a topology's summary, information and page have in common."""
        return {
            "id": self.storm_id,
            "name": self.base.name,
            "uptime_secs": uptime_secs(self.base, self.now),
            "status": self.base.status.name,
            "storm_version": self.submitted and self.submitted.topology.storm_version,
            "sched_status": self.shown_sched_status,
            "owner": self.base.owner,
            "replication_count": self.replication_count,
            "health": without_queries(self.health),
            **resources(self.requested_memory, self.assigned_memory),
        }


class ViewReader:
    """Reads views of topologies, each kind of record with a single bulk read."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def read_with_heartbeats(
        self, storm_id: str, base: StormBase
    ) -> tuple[View, dict[ReportSlot, ClusterWorkerHeartbeat]]:
        """Read a topology's view, and the heartbeats of its workers."""
        records = self._context.storm.view.with_holders()
        texts, now = self._context.sched_status(), self._context.clock()
        found = self._read_heartbeats(storm_id, records.assignments.get(storm_id))
        view = self.view(
            records,
            storm_id,
            base,
            submitted=self.read_code(storm_id, base),
            text=texts.get(storm_id),
            beats=None
            if found is None
            else {
                slot: health.Beat(activity_in(each.heartbeat), each.age_secs)
                for slot, each in found.items()
            },
            now=now,
            is_one=True,
        )
        error = self.read_errors([view]).get(storm_id)
        return replace(view, health=health.with_error(view.health, error)), _of_launches(found)

    def view(
        self,
        records: ClusterRecords,
        storm_id: str,
        base: StormBase,
        *,
        submitted: Submitted | None,
        text: str | None,
        beats: Mapping[Slot, health.Beat] | None,
        now: float,
        is_one: bool = False,
    ) -> View:
        """Return a topology's view with the health at `now`; reads nothing."""
        assignment = records.assignments.get(storm_id)
        conf = self._context.conf
        stuck = None if submitted is None else submitted.conf.get(_STUCK)
        limits = health.Limits(
            beat_secs=conf["nimbus.task.timeout.secs"],
            launch_secs=conf["nimbus.task.launch.secs"],
            batch_secs=stuck if isinstance(stuck, int | float) else conf[_STUCK],
        )
        is_script = submitted is None or submitted.is_script
        ended = records.ended.get(storm_id, frozenset()) if is_one and not is_script else None
        workers = health.workers(assignment, records.supervisors, beats, limits, now, ended=ended)
        hosts = (assignment.node_host if assignment is not None else None) or {}
        return View(
            storm_id=storm_id,
            base=base,
            assignment=assignment,
            submitted=submitted,
            sched_status=text,
            replication_count=copies(records, storm_id),
            now=now,
            workers=workers,
            health=health.of_topology(base.status, text, workers, hosts),
        )

    def read_errors(self, views: Iterable[View]) -> dict[str, str]:
        """Return the newest errors of crashing topologies in a line; only of the first ones."""
        crashing = (view.storm_id for view in views if view.health and view.health.crashes)
        return {
            storm_id: self._read_last_error(storm_id) or ""
            for storm_id in islice(crashing, _ERRORS_READ)
        }

    def _read_last_error(self, storm_id: str) -> str | None:
        errors = self._context.storm.topology_errors(storm_id).values()
        newest = max(
            (each for own in errors for each in own[:1]),
            key=lambda each: each.error_time_secs,
            default=None,
        )
        line = "" if newest is None else newest_line(newest.error)
        # The supervisor's reason says the same of a crash without a cause, shorter.
        return None if is_crash(line) else line

    def _read_heartbeats(
        self, storm_id: str, assignment: Assignment | None
    ) -> dict[Slot, AgedHeartbeat] | None:
        """Return heartbeats by slot, also of earlier workers; None if no Pacemaker answers."""
        if assignment is None:
            return {}
        try:
            launched = _launched(assignment)
            return self._context.storm.aged_heartbeats(storm_id, launched, hurried=True)
        except PacemakerError as error:
            log.debug("%s is shown without heartbeats: %s", storm_id, error)
            return None

    def code_version(self, storm_id: str) -> tuple[str, ...] | None:
        return self._context.submitted.version(storm_id)

    def read_code(self, storm_id: str, base: StormBase) -> Submitted | None:
        try:
            found = self._context.submitted.get(storm_id)
            return None if found is None else found.spread(base.component_executors or {})
        except CodeError as error:
            log.debug("%s is shown without its code: %s", storm_id, error)
            return None


def copies(records: ClusterRecords, storm_id: str) -> int:
    """Return the number of Nimbuses that have a topology's code."""
    _, code, _ = keys.of_topology(storm_id)
    return len({holder.nimbus for holder in records.holders.get(code, ())})


def _of_launches(
    found: Mapping[Slot, AgedHeartbeat] | None,
) -> dict[ReportSlot, ClusterWorkerHeartbeat]:
    return {
        (slot.node, slot.port): each.heartbeat
        for slot, each in (found or {}).items()
        if not each.is_former
    }


def _launched(assignment: Assignment) -> dict[Slot, float]:
    times, found = assignment.executor_start_time_secs or {}, dict[Slot, float]()
    for tasks, place in (assignment.executor_node_port or {}).items():
        for slot in (Slot(place.node, port) for port in place.port):
            if tasks in times:
                found[slot] = min(times[tasks], found.get(slot, times[tasks]))
    return found


def uptime_secs(base: StormBase, now: float) -> int:
    began = base.launch_time_secs
    return 0 if began is None else seconds(now - began)


def outline(submitted: Submitted) -> Submitted:
    """Return what a summary needs of a topology's code, without the rest."""
    topology = StormTopology({}, {}, {}, storm_version=submitted.topology.storm_version)
    conf = {key: submitted.conf[key] for key in (_STUCK, _MEMORY) if key in submitted.conf}
    return Submitted(topology, conf, None)


def resources(requested_mb: float, assigned_mb: float) -> dict[str, Any]:
    return {
        "requested_memonheap": requested_mb,
        "requested_memoffheap": 0.0,
        "requested_cpu": 0.0,
        "assigned_memonheap": assigned_mb,
        "assigned_memoffheap": 0.0,
        "assigned_cpu": 0.0,
    }


def without_queries(health: TopologyHealth | None) -> TopologyHealth | None:
    return health and TopologyHealth(health.state, health.text, health.crashes)


def memory_of(assignment: Assignment | None) -> dict[tuple[str, int], float]:
    """Return the workers' memory in MB by slot."""
    resources = (None if assignment is None else assignment.worker_resources) or {}
    return {
        (where.node, min(where.port)): each.mem_on_heap or 0.0
        for where, each in resources.items()
        if where.port
    }


def seconds(value: float) -> int:
    """Return a duration as a field of 32 bits; 0 if negative, as clocks differ."""
    return max(0, min(int(value), _LARGEST))
