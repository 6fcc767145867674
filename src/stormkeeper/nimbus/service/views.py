"""Topologies as read from ZooKeeper, blobs and heartbeats.

Any Nimbus reads them; only the leader knows the scheduler's text. Memory is in MB, as workers may
use it. Shares of processors are not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stormkeeper.blobs import keys
from stormkeeper.errors import CodeError, PacemakerError
from stormkeeper.nimbus import health
from stormkeeper.nimbus.health import CRASHING, FAILED, STUCK, WorkerHealth
from stormkeeper.nimbus.service.context import ServiceContext
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.paths import Slot
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.statistics.executor_reports import Slot as ReportSlot
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    StormBase,
    TopologyHealth,
)
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
    def conf(self) -> Mapping[str, Any]:
        return {} if self.submitted is None else self.submitted.conf

    @property
    def uptime_secs(self) -> int:
        """Seconds since the submission."""
        began = self.base.launch_time_secs
        return 0 if began is None else seconds(self.now - began)

    @property
    def storm_version(self) -> str | None:
        """The release with which the topology was submitted."""
        return None if self.submitted is None else self.submitted.topology.storm_version

    @property
    def requested_memory(self) -> float:
        memory = self.conf.get(_MEMORY)
        return self.base.num_workers * float(memory) if isinstance(memory, int | float) else 0.0

    @property
    def assigned_memory(self) -> float:
        return sum(memory_of(self.assignment).values())


class ViewReader:
    """Reads views of topologies, each kind of record with a single bulk read."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def read_one(self, storm_id: str, base: StormBase) -> View:
        records = self._context.storm.view.caught_up()
        return self.read(records, {storm_id: base}, only=storm_id)[0]

    def read(
        self,
        records: ClusterRecords,
        bases: Mapping[str, StormBase] | None = None,
        *,
        only: str | None = None,
    ) -> list[View]:
        """Return views of topologies, by default all; heartbeats are read of `only`, or of all."""
        bases = records.bases if bases is None else bases
        texts, now = self._context.sched_status(), self._context.clock()
        views = [
            View(
                storm_id=storm_id,
                base=base,
                assignment=records.assignments.get(storm_id),
                submitted=self._read_code(storm_id, base.component_executors or {}),
                sched_status=texts.get(storm_id),
                replication_count=_copies(records, storm_id),
                now=now,
            )
            for storm_id, base in bases.items()
        ]
        return self._with_health(records, views, only)

    def _with_health(
        self, records: ClusterRecords, views: Sequence[View], only: str | None
    ) -> list[View]:
        found, crashing = [], 0
        for view, workers in zip(views, self._worker_health(records, views, only), strict=True):
            hosts = (view.assignment.node_host if view.assignment is not None else None) or {}
            topology = health.of_topology(view.base.status, view.sched_status, workers, hosts)
            if topology is not None and topology.crashes is not None and crashing < _ERRORS_READ:
                crashing += 1
                topology = health.with_error(topology, self._read_last_error(view.storm_id) or "")
            found.append(replace(view, workers=workers, health=topology))
        return found

    def _worker_health(
        self, records: ClusterRecords, views: Sequence[View], only: str | None
    ) -> Iterator[dict[Slot, WorkerHealth]]:
        conf, beats = self._context.conf, self._read_beats(only)
        for view in views:
            stuck = view.conf.get(_STUCK)
            limits = health.Limits(
                beat_secs=conf["nimbus.task.timeout.secs"],
                launch_secs=conf["nimbus.task.launch.secs"],
                batch_secs=stuck if isinstance(stuck, int | float) else conf[_STUCK],
            )
            own = None if beats is None else beats.get(view.storm_id, {})
            is_script = view.submitted is None or view.submitted.is_script
            is_one = only is not None and not is_script
            ended = records.ended.get(view.storm_id, frozenset()) if is_one else None
            yield health.workers(
                view.assignment, records.supervisors, own, limits, view.now, ended=ended
            )

    def _read_beats(self, only: str | None) -> dict[str, dict[Slot, health.Beat]] | None:
        """Return heartbeats by topology and slot; None if no Pacemaker answers."""
        beats: dict[str, dict[Slot, health.Beat]] = {}
        try:
            activities = self._context.storm.activities(only, hurried=True)
        except PacemakerError as error:
            log.debug("health is shown without heartbeats: %s", error)
            return None
        for worker, (activity, age) in activities.items():
            slot = Slot(worker.node, worker.port)
            beats.setdefault(worker.storm_id, {})[slot] = health.Beat(activity, age)
        return beats

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

    def read_all(self) -> list[View]:
        return self.read(self._context.storm.view.caught_up())

    def read_heartbeats(self, view: View) -> dict[ReportSlot, ClusterWorkerHeartbeat]:
        """Return the heartbeats of a topology's workers; none if no Pacemaker answers."""
        if view.assignment is None:
            return {}
        try:
            launched = _launched(view.assignment)
            found = self._context.storm.worker_heartbeats(view.storm_id, launched, hurried=True)
        except PacemakerError as error:
            log.debug("%s is shown without statistics: %s", view.storm_id, error)
            return {}
        return {(slot.node, slot.port): beat for slot, beat in found.items()}

    def _read_code(self, storm_id: str, hints: Mapping[str, int]) -> Submitted | None:
        try:
            found = self._context.submitted.get(storm_id)
            return None if found is None else found.spread(hints)
        except CodeError as error:
            log.debug("%s is shown without its code: %s", storm_id, error)
            return None


def _copies(records: ClusterRecords, storm_id: str) -> int:
    """Return the number of Nimbuses that have a topology's code."""
    _, code, _ = keys.of_topology(storm_id)
    return len({holder.nimbus for holder in records.holders.get(code, ())})


def _launched(assignment: Assignment) -> dict[Slot, float]:
    times, found = assignment.executor_start_time_secs or {}, dict[Slot, float]()
    for tasks, place in (assignment.executor_node_port or {}).items():
        for slot in (Slot(place.node, port) for port in place.port):
            if tasks in times:
                found[slot] = min(times[tasks], found.get(slot, times[tasks]))
    return found


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
