"""A topology's workers: their liveness, by heartbeats, and their fate: stay, stop or be replaced.

Liveness has the rules of `stormkeeper.heartbeats.liveness` and two more. Workers of a slot share a
path, so an older pulse proves nothing about a launch: a worker without its own pulse is judged only
some time after its launch, and after this Nimbus began to watch. And a machine may die with its
Pacemaker and workers, so that no server vouches for their silence. Living workers would have moved
to another Pacemaker. If all Pacemakers that answer could vouch for the silence, and the supervisor
is lost too, the worker is dead. Earlier, the cause may be that this Nimbus alone is cut off.

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
from math import inf
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    WorkerBeat,
    WorkerLiveness,
    step,
    unseen,
)
from stormkeeper.heartbeats.stores import Heartbeat, Heartbeats
from stormkeeper.nimbus.scheduling.assigned_workers import AssignedWorkers, Since, first_look
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.paths import WorkerId
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, TopologyStatus
from stormkeeper.thrift.serialization import deserialize
from stormkeeper.topology.plan import Claim

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


@dataclass(frozen=True, slots=True)
class LivenessMemory:
    """A leader's memory of the workers between two reads; initially empty."""

    #: Of `liveness.step`, also forgotten ones; of followed heartbeats, workers that are not alive.
    rows: tuple[WorkerLiveness, ...] = ()
    #: Of `judge_workers`.
    since: Mapping[Claim, Since] = field(default_factory=dict)
    #: When missing supervisors of workers were first missed.
    lost_at: Mapping[str, float] = field(default_factory=dict)
    #: When the next workers may count as dead; of each server only the first.
    ends: Collection[float] = ()
    #: What `judge_followed` knows of the assignments; updated in place.
    assigned: AssignedWorkers | None = None


def judge_workers(
    watch: LivenessMemory,
    launches: Iterable[tuple[str, Launch]],
    supervisors: Collection[str],
    heartbeats: Heartbeats,
    *,
    now: float,
    epoch: int,
    limits: LivenessLimits,
    launch_secs: float,
    supervisor_secs: float,
) -> tuple[LivenessMemory, dict[Claim, Status]]:
    """Judge everything: return the memory for the next read, and the liveness of each worker.

    The heartbeats must be read after the launches, from `now` on; their values are needed only if a
    Pacemaker reports no ages. A supervisor is lost when missing for `supervisor_secs`.
    """
    of = {WorkerId(storm_id, *launch.slot): launch for storm_id, launch in launches}
    before = watch.since if watch.assigned is None else watch.assigned.since()
    since = {
        launch.claim: before.get(launch.claim) or first_look(launch, now, epoch)
        for launch in of.values()
    }
    servers = horizons(heartbeats.coverage)
    beats, unclear = _beats(heartbeats, of.keys(), now)
    found = step(
        [row for row in watch.rows if row.worker in of], beats, (), servers, now=now, limits=limits
    )
    rows = {row.worker: row for row in found.rows}
    known: dict[Claim, Status] = {}
    silent: dict[WorkerId, float] = {}
    for worker, launch in of.items():
        row = rows.get(worker)
        if worker in unclear:
            known[launch.claim] = Status.UNPROVEN
        elif row is None or is_of_before(row, since[launch.claim].launched):
            silent[worker] = max(since[launch.claim])
        else:
            known[launch.claim] = row.status
    first_beat = until_first_beat(limits, launch_secs)
    for worker, status in unseen(silent, servers, now=now, limits=first_beat).items():
        known[of[worker].claim] = status
    lost_at = {
        worker.node: watch.lost_at.get(worker.node, now)
        for worker in of
        if worker.node not in supervisors
    }
    if could_be_back(servers.values(), limits):
        for worker in of.keys() - unclear:
            claim = of[worker].claim
            is_lost = now - lost_at.get(worker.node, inf) > supervisor_secs
            if known[claim] is Status.UNPROVEN and is_lost:
                known[claim] = Status.DEAD
    all_rows = (*found.rows, *found.forgotten)
    ends = [row.last_seen + limits.timeout_secs for row in all_rows]
    ends += [max(each) + launch_secs for each in since.values()]
    return LivenessMemory(all_rows, since, lost_at, ends), known


def horizons(coverage: Mapping[str, Coverage]) -> dict[str, ServerHorizon]:
    return {
        name: ServerHorizon(each.is_reachable, each.horizon_secs) for name, each in coverage.items()
    }


def until_first_beat(limits: LivenessLimits, launch_secs: float) -> LivenessLimits:
    return LivenessLimits(min(limits.late_secs, launch_secs), launch_secs)


def could_be_back(servers: Iterable[ServerHorizon], limits: LivenessLimits) -> bool:
    horizons = [
        inf if one.horizon_secs is None else one.horizon_secs for one in servers if one.reachable
    ]
    return min(horizons, default=0.0) > limits.timeout_secs


def is_of_before(row: WorkerLiveness, launched: float) -> bool:
    # A worker that beats is alive, whatever the clocks say.
    return row.status in (Status.DEAD, Status.COMPLETED) and row.last_seen < launched


def _beats(
    heartbeats: Heartbeats, workers: Iterable[WorkerId], now: float
) -> tuple[list[WorkerBeat], set[WorkerId]]:
    """Return beats, and workers with an age only in an unread value."""
    beats: list[WorkerBeat] = []
    unclear: set[WorkerId] = set()
    for worker in workers:
        heartbeat = heartbeats.by_path.get(paths.workerbeat(*worker))
        if heartbeat is None:
            continue
        if heartbeat.age_secs is None and heartbeat.value is None:
            unclear.add(worker)
            continue
        coverage = heartbeats.coverage.get(heartbeat.server)
        position = coverage.position if coverage is not None else None
        beats.append(
            WorkerBeat(
                worker,
                heartbeat.server,
                position.instance if position is not None else None,
                heartbeat.revision,
                None if heartbeat.age_secs is None else now - heartbeat.age_secs,
                *_payload_fields(heartbeat),
            )
        )
    return beats, unclear


def _payload_fields(heartbeat: Heartbeat) -> tuple[int | None, int | None, str | None, bool | None]:
    if heartbeat.value is None:
        return None, None, None, None
    try:
        record = deserialize(ClusterWorkerHeartbeat, heartbeat.value)
    except SerializationError as error:
        return None, None, str(error), None
    return record.time_secs, record.uptime_secs, None, record.completed
