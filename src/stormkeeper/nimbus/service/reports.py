"""What supervisors and workers of Storm's send to Nimbus, and ask of it.

Ours beat where `stormkeeper.heartbeats` reads, and watch their assignments. What is sent here says
nothing that decides anything.
"""

# ruff: noqa: N802

from __future__ import annotations

from stormkeeper.nimbus.service.served import Served
from stormkeeper.thrift.nimbus import (
    SupervisorAssignments,
    SupervisorWorkerHeartbeat,
    SupervisorWorkerHeartbeats,
    WorkerMetrics,
)
from stormkeeper.thrift.records import Assignment


class Reports(Served):
    """The methods of supervisors and workers."""

    def getSupervisorAssignments(self, node: str, /) -> SupervisorAssignments:
        """Return the assignments that name a supervisor, by its id."""
        found = self._given.storm.assignments_info()
        return SupervisorAssignments(
            {storm_id: each for storm_id, each in found.items() if _names(each, node)}
        )

    def sendSupervisorWorkerHeartbeats(self, heartbeats: SupervisorWorkerHeartbeats, /) -> None:
        """Take heartbeats of a supervisor's workers, and do nothing with them."""

    def sendSupervisorWorkerHeartbeat(self, heartbeat: SupervisorWorkerHeartbeat, /) -> None:
        """Take a worker's heartbeat, if its topology is there, and do nothing with it."""
        self._base(heartbeat.storm_id)

    def processWorkerMetrics(self, metrics: WorkerMetrics, /) -> None:
        """Take a worker's metrics, as Storm's Nimbus does that is not set to store them."""


def _names(assignment: Assignment, node: str) -> bool:
    places = (assignment.executor_node_port or {}).values()
    return any(place.node == node for place in places) or any(
        launch.node == node for launch in assignment.launches or ()
    )
