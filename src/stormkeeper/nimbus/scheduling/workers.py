"""The fate of a topology's workers: they stay, stop or are replaced.

- **A worker stays unless proven dead**: pulses take time to return after a Pacemaker's restart, a
  change of leader or a network partition.
- **A worker stays if its supervisor reports it running**: the supervisor restarts a hanging worker.
- **A dead worker leaves a living supervisor** only after the supervisor's time to restart it, and
  only for another machine with room.
- **A query whose checkpoint is on one machine stays there**, however long that machine is gone.
- **A checkpoint that no launch has claimed binds nothing.** An unreleased launch writes the node
  ``<query>-claimed`` before it first takes the checkpoint. So a dead worker without that node is
  released first; if there is still none then, its queries may move.
- **Storm's own supervisors run nothing of ours**: their machines have no checkpoints.
- **No query starts while a released worker of its topology may still run**: either the supervisor
  reports that worker stopped, or the supervisor is gone and the worker is proven dead.
- **A worker stays while one of its queries has not ended**: a worker's set of queries never
  changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.thrift.records import TopologyStatus

TO_RUN: Final = (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE)


class Reason(Enum):
    """Reasons for a worker to stay, for the topology's ``sched_status``."""

    #: Silent, and may be alive.
    UNPROVEN = auto()
    #: Silent, and running as its supervisor reports.
    UNHEARD = auto()
    #: Dead, and its supervisor has yet to restart it.
    RESTARTING = auto()
    #: Dead, and bound to its machine, which is gone.
    NO_MACHINE = auto()
    #: Dead, its machine is gone, and no other machine has room.
    NO_ROOM = auto()
    #: Released, and not known to have stopped.
    STOPPING = auto()


class _Fate(Enum):
    STAYS = auto()
    #: Dead where it cannot be restarted.
    IS_LOST = auto()
    #: Dead, and its supervisor fails to restart it.
    IS_STUCK = auto()
    #: Dead; its queries can move if they claimed nothing until its release.
    IS_RELEASABLE = auto()


@dataclass(slots=True)
class WorkerFates:
    """The fates of a topology's workers, and the queries that need a place."""

    topology: Topology
    supervisors: Mapping[str, Supervisor]
    kept: list[Launch] = field(default_factory=list)
    #: Dead workers whose queries may run elsewhere; without a new place they stay, and run again if
    #: the machine comes back.
    lost: list[Launch] = field(default_factory=list)
    #: Stopped after a release; their slots stay reserved until the topology has others.
    vacated: list[Launch] = field(default_factory=list)
    #: Kept workers that can be released if another machine has room.
    releasable: list[Launch] = field(default_factory=list)
    #: Queries to place, by the machine (supervisor id) that they need; None: any.
    needs: dict[str | None, list[str]] = field(default_factory=dict)
    #: Supervisors that stuck workers' queries avoid, unless bound.
    not_on: Collection[str] = frozenset()
    reasons: list[tuple[Reason, Launch]] = field(default_factory=list)

    @property
    def free_workers(self) -> int:
        """Workers that the topology may have beside the kept ones."""
        return max(0, self.topology.workers - len(self.kept))

    def place_of(self, launch: Launch) -> str | None:
        """Return the machine that a worker's queries need; None: any."""
        node = launch.slot.node
        is_free = self.topology.holds_nothing(launch) or not self._has_checkpoints(node)
        return None if self.topology.is_shared or is_free else node

    def home_of(self, query: str) -> str | None:
        """Return the machine that a query without a worker needs; None: any."""
        node = None if self.topology.is_shared else self.topology.homes.get(query)
        return node if node is not None and self._has_checkpoints(node) else None

    def tells_claims(self, queries: Collection[str]) -> bool:
        """Return whether all launches of these queries so far write ``<query>-claimed``."""
        if self.topology.is_shared:
            return False  # nothing depends on it
        before = [
            each for each in self.topology.launches if not set(each.queries).isdisjoint(queries)
        ]
        launched = {query for each in before for query in each.queries}
        return all(
            each.tells_claims or not self._has_checkpoints(each.slot.node) for each in before
        ) and all(query in launched or self.home_of(query) is None for query in queries)

    def _has_checkpoints(self, node: str) -> bool:
        supervisor = self.supervisors.get(node)
        return supervisor is None or supervisor.is_ours


def worker_fates(topology: Topology, launches: Iterable[Launch], cluster: Cluster) -> WorkerFates:
    found = WorkerFates(topology, cluster.supervisors)
    if topology.blocked is not None or topology.status not in TO_RUN:
        found.kept.extend(launches)
        return found
    stuck: list[Launch] = []
    live = dict.fromkeys(query for query in topology.queries if query not in topology.ended)
    unplaced = dict(live)
    for launch in launches:
        if live.keys().isdisjoint(launch.queries):
            continue  # nothing is left for it to do
        for query in launch.queries:
            unplaced.pop(query, None)
        _add(found, stuck, launch, cluster)
    if any(reason is Reason.STOPPING for reason, _ in found.reasons):
        found.kept += [*found.lost, *found.vacated, *stuck]
        found.lost, found.vacated, found.releasable = [], [], []
        return found
    moving = [*found.lost, *found.vacated]
    if stuck and not moving and not unplaced:
        # All other queries have a place, so stuck workers may move to another machine.
        moving = found.lost = stuck
        found.not_on = frozenset(launch.slot.node for launch in stuck)
    else:
        found.kept += stuck
    places = {query: found.home_of(query) for query in unplaced}
    places |= {q: found.place_of(launch) for launch in moving for q in launch.queries}
    for query in live:
        if query in places:
            found.needs.setdefault(places.get(query), []).append(query)
    return found


def _add(found: WorkerFates, stuck: list[Launch], launch: Launch, cluster: Cluster) -> None:
    if launch.is_released:
        if _has_stopped(launch, cluster):
            found.vacated.append(launch)
        else:
            found.kept.append(launch)
            found.reasons.append((Reason.STOPPING, launch))
        return
    fate, reason = _fate(launch, cluster, found.topology)
    if fate is _Fate.IS_RELEASABLE:
        found.releasable.append(launch)
        fate = _Fate.STAYS
    if fate is _Fate.STAYS:
        found.kept.append(launch)
    else:
        (found.lost if fate is _Fate.IS_LOST else stuck).append(launch)
    if reason is not None:
        found.reasons.append((reason, launch))


def _fate(launch: Launch, cluster: Cluster, topology: Topology) -> tuple[_Fate, Reason | None]:
    status = cluster.workers.get(launch.claim)
    if status is not Status.DEAD:
        return _Fate.STAYS, Reason.UNPROVEN if status is Status.UNPROVEN else None
    node, port = launch.slot
    supervisor = cluster.supervisors.get(node)
    is_shared, is_unclaimed = topology.is_shared, topology.is_unclaimed(launch)
    if supervisor is None:
        if is_shared:
            return _Fate.IS_LOST, None
        return (
            (_Fate.IS_RELEASABLE, Reason.NO_ROOM)
            if is_unclaimed
            else (_Fate.STAYS, Reason.NO_MACHINE)
        )
    if not supervisor.is_ours or port not in supervisor.ports | supervisor.running:
        return _Fate.IS_LOST, None
    if port in supervisor.running:
        return _Fate.STAYS, Reason.UNHEARD
    fate = _Fate.STAYS
    if supervisor.uptime_secs > cluster.launch_secs:
        fate = _Fate.IS_STUCK if is_shared else _Fate.IS_RELEASABLE if is_unclaimed else fate
    return fate, Reason.RESTARTING


def _has_stopped(launch: Launch, cluster: Cluster) -> bool:
    node, port = launch.slot
    supervisor = cluster.supervisors.get(node)
    if supervisor is None:
        return cluster.workers.get(launch.claim) is Status.DEAD
    if not supervisor.is_ours:
        return True
    if port not in supervisor.ports:
        return port not in supervisor.running
    stopped = supervisor.stopped.get(port)
    return stopped is not None and stopped >= launch.claim
