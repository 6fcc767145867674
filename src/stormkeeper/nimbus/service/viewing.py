"""Reads what is told of topologies: each request with one bulk read of each kind.

Any Nimbus reads it: out of ZooKeeper, the code on its disk, and heartbeats. Only what scheduling
tells is known to the leader alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stormkeeper import paths
from stormkeeper.code import keys
from stormkeeper.errors import CodeError, PacemakerError
from stormkeeper.nimbus.service.served import Served
from stormkeeper.nimbus.service.summaries import View
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.statistics.reports import Slot
from stormkeeper.thrift.records import Assignment, ClusterWorkerHeartbeat, StormBase

log = logging.getLogger(__name__)


class Viewing(Served):
    """What the methods have in common that tell something."""

    def _view(self, storm_id: str, base: StormBase) -> View:
        """Return a topology."""
        assignment = self._given.storm.assignment_info(storm_id)
        found = {} if assignment is None else {storm_id: assignment}
        return self._views({storm_id: base}, found)[0]

    def _views(
        self, bases: Mapping[str, StormBase], assignments: Mapping[str, Assignment]
    ) -> list[View]:
        """Return topologies, by their bases and assignments."""
        codes = {storm_id: _code_key(storm_id) for storm_id in bases}
        holders = self._given.storm.blob_holders(list(codes.values()))
        told, now = self._given.sched_status(), self._given.clock()
        return [
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

    def _all(self) -> list[View]:
        """Return all topologies."""
        storm = self._given.storm
        return self._views(storm.storm_bases(), storm.assignments_info())

    def _heartbeats(self, view: View) -> dict[Slot, ClusterWorkerHeartbeat]:
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


def _launched(assignment: Assignment) -> dict[paths.Slot, float]:
    """Return when the worker of each slot was launched, in seconds since 1970."""
    times, found = assignment.executor_start_time_secs or {}, dict[paths.Slot, float]()
    for tasks, place in (assignment.executor_node_port or {}).items():
        for slot in (paths.Slot(place.node, port) for port in place.port):
            if tasks in times:
                found[slot] = min(times[tasks], found.get(slot, times[tasks]))
    return found


def _code_key(storm_id: str) -> str:
    """Return the blob by whose copies Storm counts those of a topology's code."""
    return keys.of_topology(storm_id)[1]
