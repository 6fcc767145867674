"""Reads what is told of topologies: each request with one bulk read of each kind.

Any Nimbus reads it: out of ZooKeeper, the code on its disk, and heartbeats. Only what scheduling
tells is known to the leader alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from stormkeeper.blobs import keys
from stormkeeper.errors import CodeError, PacemakerError
from stormkeeper.nimbus import health
from stormkeeper.nimbus.health import WorkerHealth
from stormkeeper.nimbus.service.served import Served
from stormkeeper.nimbus.service.summaries import View
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.paths import Slot
from stormkeeper.statistics import reports
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    StormBase,
    SupervisorInfo,
)
from stormkeeper.topology.faults import is_crash, newest_line

log = logging.getLogger(__name__)

_STUCK: Final = "topology.stuck.batch.secs"

#: Supervisors that are read one by one; of more, all are read in one go.
_SUPERVISORS_READ: Final = 8
#: Crashing topologies of a list whose errors are read; the others have their supervisor's word.
_ERRORS_READ: Final = 20


class Viewing(Served):
    """What the methods have in common that tell something."""

    def _view(self, storm_id: str, base: StormBase) -> View:
        """Return a topology."""
        assignment = self._given.storm.assignment_info(storm_id)
        found = {} if assignment is None else {storm_id: assignment}
        return self._views({storm_id: base}, found, only=storm_id)[0]

    def _views(
        self,
        bases: Mapping[str, StormBase],
        assignments: Mapping[str, Assignment],
        *,
        only: str | None = None,
    ) -> list[View]:
        """Return topologies, by their bases and assignments.

        Parameters
        ----------
        only
            The topology whose heartbeats are read; None: those of all are.
        """
        codes = {storm_id: _code_key(storm_id) for storm_id in bases}
        holders = self._given.storm.blob_holders(list(codes.values()))
        told, now = self._given.sched_status(), self._given.clock()
        views = [
            View(
                storm_id=storm_id,
                base=base,
                assignment=assignments.get(storm_id),
                submitted=self._code(storm_id, base.component_executors or {}),
                sched_status=told.get(storm_id),
                replication_count=len({holder.nimbus for holder in holders[codes[storm_id]]}),
                now=now,
            )
            for storm_id, base in bases.items()
        ]
        return self._with_health(views, only)

    def _with_health(self, views: Sequence[View], only: str | None) -> list[View]:
        """Return views with how their topologies do; the values of heartbeats are read for it."""
        found, crashing = [], 0
        for view, workers in zip(views, self._workers(views, only), strict=True):
            hosts = (view.assignment.node_host if view.assignment is not None else None) or {}
            told = health.of_topology(view.base.status, view.sched_status, workers, hosts)
            if told is not None and told.crashes is not None and crashing < _ERRORS_READ:
                crashing += 1
                told = health.with_error(told, self._last_error(view.storm_id) or "")
            found.append(replace(view, workers=workers, health=told))
        return found

    def _workers(
        self, views: Sequence[View], only: str | None
    ) -> Iterator[dict[Slot, WorkerHealth]]:
        """Yield how the workers of each topology are."""
        conf = self._given.conf
        supervisors, beats = self._supervisors(views, only), self._beats(only)
        for view in views:
            stuck = view.conf.get(_STUCK)
            limits = health.Limits(
                beat_secs=conf["nimbus.task.timeout.secs"],
                launch_secs=conf["nimbus.task.launch.secs"],
                batch_secs=stuck if isinstance(stuck, int | float) else conf[_STUCK],
            )
            of_it = None if beats is None else beats.get(view.storm_id, {})
            is_script = view.submitted is None or view.submitted.is_script
            is_one = only is not None and not is_script
            ended = self._given.storm.ended_queries(view.storm_id) if is_one else None
            yield health.workers(view.assignment, supervisors, of_it, limits, view.now, ended=ended)

    def _beats(self, only: str | None) -> dict[str, dict[Slot, health.Beat]] | None:
        """Return heartbeats by topology and slot; None where no Pacemaker answers."""
        beats: dict[str, dict[Slot, health.Beat]] = {}
        try:
            activities = self._given.storm.activities(only, hurried=True)
        except PacemakerError as error:
            log.debug("health is told without heartbeats: %s", error)
            return None
        for worker, (activity, age) in activities.items():
            slot = Slot(worker.node, worker.port)
            beats.setdefault(worker.storm_id, {})[slot] = health.Beat(activity, age)
        return beats

    def _supervisors(self, views: Sequence[View], only: str | None) -> Mapping[str, SupervisorInfo]:
        """Return the supervisors that have workers of topologies, by their ids."""
        launches = [
            one
            for view in views
            for one in (view.assignment.launches if view.assignment is not None else None) or ()
        ]
        nodes = {one.node for one in launches}
        if only is None or len(nodes) > _SUPERVISORS_READ:
            return self._given.storm.all_supervisor_info()
        found = {node: self._given.storm.supervisor_info(node) for node in sorted(nodes)}
        return {node: info for node, info in found.items() if info is not None}

    def _last_error(self, storm_id: str) -> str | None:
        errors = self._given.storm.topology_errors(storm_id).values()
        newest = max(
            (each for of_it in errors for each in of_it[:1]),
            key=lambda each: each.error_time_secs,
            default=None,
        )
        line = "" if newest is None else newest_line(newest.error)
        # Of a crash without a cause the supervisor's word says the same, in short.
        return None if is_crash(line) else line

    def _all(self) -> list[View]:
        """Return all topologies."""
        storm = self._given.storm
        return self._views(storm.storm_bases(), storm.assignments_info())

    def _heartbeats(self, view: View) -> dict[reports.Slot, ClusterWorkerHeartbeat]:
        """Return the heartbeats of a topology's workers; none where no Pacemaker tells any."""
        if view.assignment is None:
            return {}
        try:
            launched = _launched(view.assignment)
            found = self._given.storm.worker_heartbeats(view.storm_id, launched, hurried=True)
        except PacemakerError as error:
            log.debug("%s is shown without statistics: %s", view.storm_id, error)
            return {}
        return {(slot.node, slot.port): beat for slot, beat in found.items()}

    def _code(self, storm_id: str, hints: Mapping[str, int]) -> Submitted | None:
        try:
            found = self._given.submitted.get(storm_id)
            return None if found is None else found.spread(hints)
        except CodeError as error:
            log.debug("%s is shown without its code: %s", storm_id, error)
            return None


def _launched(assignment: Assignment) -> dict[Slot, float]:
    """Return when the worker of each slot was launched, in seconds since 1970."""
    times, found = assignment.executor_start_time_secs or {}, dict[Slot, float]()
    for tasks, place in (assignment.executor_node_port or {}).items():
        for slot in (Slot(place.node, port) for port in place.port):
            if tasks in times:
                found[slot] = min(times[tasks], found.get(slot, times[tasks]))
    return found


def _code_key(storm_id: str) -> str:
    """Return the blob by whose copies Storm counts those of a topology's code."""
    return keys.of_topology(storm_id)[1]
