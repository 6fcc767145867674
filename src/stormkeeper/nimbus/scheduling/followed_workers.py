"""The liveness of workers by followed heartbeats: what costs time is what may not be alive.

A worker is alive if its pulse is young, whatever its server says now. So only these are looked at:
workers with a silent pulse, which stand first in the follower, workers without a pulse, workers
that were not alive at the last look, and all with a pulse of a Java Pacemaker, which has no age.

The rules are those of `stormkeeper.heartbeats.liveness` and two more. Workers of a slot share a
path, so an older pulse proves nothing about a launch: a worker without its own pulse is judged only
some time after its launch, and after this Nimbus began to watch. And a machine may die with its
Pacemaker and workers, so that no server vouches for their silence. Living workers would have moved
to another Pacemaker. If all Pacemakers that answer could vouch for the silence, and the supervisor
is lost too, the worker is dead. Earlier, the cause may be that this Nimbus alone is cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.heartbeats.follower import FollowedHeartbeats, HeartbeatFollower, Pulse
from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    WorkerBeat,
    WorkerLiveness,
    after_beat,
    is_forgotten,
    judged,
    longest_horizon,
    unseen,
)
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import WorkerId
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize
from stormkeeper.topology.plan import Claim

Launches = tuple[Launch, ...]


class BeatFacts(NamedTuple):
    """What judging needs of a heartbeat from a Java Pacemaker."""

    time_secs: int
    uptime_secs: int
    completed: bool | None


def beat_facts(data: bytes) -> BeatFacts:
    """Decode a heartbeat; raises `SerializationError`."""
    beat = deserialize(ClusterWorkerHeartbeat, data)
    return BeatFacts(beat.time_secs, beat.uptime_secs, beat.completed)


class Since(NamedTuple):
    """Since when pulses belong to a launch, and since when this Nimbus watches for pulses."""

    launched: float
    looked: float


def first_look(launch: Launch, now: float, epoch: int) -> Since:
    return Since(now if launch.claim.epoch == epoch else min(launch.started_at, now), now)


class AssignedWorker(NamedTuple):
    """The newest launch of a slot in a topology."""

    id: WorkerId
    launch: Launch
    since: Since


class AssignedWorkers:
    """Stormkeeper's workers by the path of their pulses, kept up by assignments that changed."""

    def __init__(self) -> None:
        self.by_path: dict[str, AssignedWorker] = {}
        #: Workers on each machine.
        self.nodes: Counter[str] = Counter()
        #: Paths without a pulse at the last look, with the pulse that was deleted since they are
        #: assigned.
        self.unheard: dict[str, Pulse[BeatFacts] | None] = {}
        #: The launches seen by topology, each with its workers' paths.
        self._seen: dict[str, tuple[Launches, list[str]]] = {}
        self._all_seen: Mapping[str, Launches] | None = None
        self._deleted_count = 0

    def update(
        self,
        launches: Mapping[str, Launches],
        follower: HeartbeatFollower[BeatFacts],
        *,
        now: float,
        epoch: int,
    ) -> None:
        """Take launches that are other objects, and paths that got or lost their pulse."""
        for path, deletion in follower.deleted_after(self._deleted_count):
            if path in self.by_path:
                self.unheard[path] = deletion.last
        self._take(launches, now, epoch)
        self._deleted_count = follower.deleted_count
        for path in [path for path in self.unheard if follower.get(path) is not None]:
            del self.unheard[path]

    def starting(self, after: float) -> dict[str, float]:
        """Return, by path, when the wait for a worker's first pulse began, if after a moment."""
        since = {
            path: max(self.by_path[path].since)
            for path, pulse in self.unheard.items()
            if pulse is None
        }
        return {path: at for path, at in since.items() if at >= after}

    def _take(self, all_launches: Mapping[str, Launches], now: float, epoch: int) -> None:
        if all_launches is self._all_seen:
            return
        self._all_seen, seen = all_launches, self._seen
        changed = [
            storm_id
            for storm_id, launches in all_launches.items()
            if (last := seen.get(storm_id)) is None or last[0] is not launches
        ]
        gone = [storm_id for storm_id in seen if storm_id not in all_launches]
        known = dict[WorkerId, str]()
        before, deleted = dict[Claim, Since](), dict[str, Pulse[BeatFacts] | None]()
        for storm_id in (*gone, *(each for each in changed if each in seen)):
            for path in seen.pop(storm_id)[1]:
                worker = self.by_path.pop(path)
                before[worker.launch.claim], known[worker.id] = worker.since, path
                deleted[path] = self.unheard.pop(path, None)
                node = worker.id.node
                self.nodes[node] -= 1
                if not self.nodes[node]:
                    del self.nodes[node]
        for storm_id in changed:
            launches = all_launches[storm_id]
            of = dict[str, tuple[WorkerId, Launch]]()
            for launch in launches:
                # The launches of Storm's Nimbus have no queries.
                if launch.queries:
                    worker_id = WorkerId(storm_id, *launch.slot)
                    of[known.get(worker_id) or paths.workerbeat(*worker_id)] = worker_id, launch
            for path, (worker_id, launch) in of.items():
                since = before.get(launch.claim) or first_look(launch, now, epoch)
                self.by_path[path] = AssignedWorker(worker_id, launch, since)
                self.nodes[launch.slot.node] += 1
                self.unheard[path] = deleted.get(path)
            seen[storm_id] = launches, list(of)


@dataclass(frozen=True, slots=True)
class LivenessMemory:
    """A leader's memory of the workers between two looks; initially empty."""

    #: Of workers that are not alive, or whose pulses have no age.
    rows: tuple[WorkerLiveness, ...] = ()
    #: When missing supervisors of workers were first missed.
    lost_at: Mapping[str, float] = field(default_factory=dict)
    #: When the next workers may count as dead; of each server only the first.
    ends: Collection[float] = ()
    #: Updated in place.
    assigned: AssignedWorkers = field(default_factory=AssignedWorkers)


def judge_workers(
    watch: LivenessMemory,
    launches: Mapping[str, Launches],
    supervisors: Collection[str],
    heartbeats: FollowedHeartbeats,
    *,
    now: float,
    epoch: int,
    limits: LivenessLimits,
    launch_secs: float,
    supervisor_secs: float,
) -> tuple[LivenessMemory, dict[Claim, Status]]:
    """Return the memory for the next look, and the liveness of each worker that is not alive.

    `launches` are by topology id; unchanged ones must be the same objects as at the last look, and
    so must the follower, with `beat_facts` as values. `now` and `heartbeats.at` are the same moment
    by two clocks, after the launches were read. A supervisor is lost when missing for
    `supervisor_secs`.
    """
    follower, workers = heartbeats.follower, watch.assigned
    servers = {
        name: ServerHorizon(each.is_reachable, each.horizon_secs)
        for name, each in heartbeats.coverage.items()
    }
    before = {row.worker: row for row in watch.rows}
    with follower.lock:
        workers.update(launches, follower, now=now, epoch=epoch)
        starting = workers.starting(now - min(limits.late_secs, launch_secs))
        look = _Look(workers, heartbeats, servers, limits, now)
        rows = {path: look.row(path, before) for path in look.candidates(before, starting)}
        ends = [row.last_seen + limits.timeout_secs for row in rows.values() if row is not None]
        ends += [seen + limits.timeout_secs for seen in look.oldest_others(rows)]
        ageless = rows.keys() & follower.ageless
    known: dict[Claim, Status] = {}
    kept: list[WorkerLiveness] = []
    silent: dict[WorkerId, tuple[Claim, float]] = {}
    for path, row in rows.items():
        worker, launch, since = workers.by_path[path]
        counts = row
        if row is not None:
            server, has_no_age = servers.get(row.server), path in ageless
            if is_forgotten(row, server, limits):
                counts = None
            # Without ages, a forgotten worker's pulse would look like a new worker's.
            is_down = server is not None and not server.reachable
            is_news = row.status is not Status.ALIVE or path in workers.unheard
            if has_no_age or (is_news and (counts is not None or is_down)):
                kept.append(row)
        if counts is None or is_of_before(counts, since.launched):
            silent[worker] = launch.claim, max(since)
        elif counts.status is not Status.ALIVE:
            known[launch.claim] = counts.status
    ends += [since + launch_secs for _, since in silent.values()]
    ends.append(min(starting.values(), default=inf) + launch_secs)
    found = unseen(
        {worker: since for worker, (_, since) in silent.items()},
        servers,
        now=now,
        limits=LivenessLimits(min(limits.late_secs, launch_secs), launch_secs),
    )
    known |= {silent[one][0]: each for one, each in found.items() if each is not Status.ALIVE}
    lost_at = {node: watch.lost_at.get(node, now) for node in workers.nodes.keys() - {*supervisors}}
    if Status.UNPROVEN in known.values() and could_be_back(servers.values(), limits):
        for path in rows:
            worker, launch, _ = workers.by_path[path]
            is_lost = now - lost_at.get(worker.node, inf) > supervisor_secs
            if known.get(launch.claim) is Status.UNPROVEN and is_lost:
                known[launch.claim] = Status.DEAD
    return LivenessMemory(tuple(kept), lost_at, ends, workers), known


def could_be_back(servers: Iterable[ServerHorizon], limits: LivenessLimits) -> bool:
    horizons = [
        inf if one.horizon_secs is None else one.horizon_secs for one in servers if one.reachable
    ]
    return min(horizons, default=0.0) > limits.timeout_secs


def is_of_before(row: WorkerLiveness, launched: float) -> bool:
    # A worker that beats is alive, whatever the clocks say.
    return row.status in (Status.DEAD, Status.COMPLETED) and row.last_seen < launched


class _Look:
    """A look at followed heartbeats, whose lock is held."""

    def __init__(
        self,
        workers: AssignedWorkers,
        heartbeats: FollowedHeartbeats,
        servers: Mapping[str, ServerHorizon],
        limits: LivenessLimits,
        now: float,
    ) -> None:
        self._workers = workers
        self._follower: HeartbeatFollower[BeatFacts] = heartbeats.follower
        self._at = heartbeats.at
        self._servers = servers
        self._best = longest_horizon(servers)
        self._limits = limits
        self._now = now
        self._left: dict[str, float] = {}
        self._young_secs = min(limits.late_secs, limits.timeout_secs)

    def candidates(
        self, before: Mapping[WorkerId, WorkerLiveness], starting: Mapping[str, float]
    ) -> set[str]:
        """Return the paths of the workers that may not be alive."""
        by_path = self._workers.by_path
        found = {path for path, _ in self._follower.silent(self._young_secs, self._at)}
        found.update(self._follower.ageless, (paths.workerbeat(*worker) for worker in before))
        return (found & by_path.keys()) | (self._workers.unheard.keys() - starting.keys())

    def row(self, path: str, before: Mapping[WorkerId, WorkerLiveness]) -> WorkerLiveness | None:
        """Return the judged row of the newest pulse; None if none is known."""
        worker = self._workers.by_path[path].id
        row, pulse = before.get(worker), self._follower.get(path)
        held_by = None if pulse is None else pulse.server
        if pulse is None and row is None:
            pulse = self._workers.unheard.get(path)
        # Server, instance and revision: of a pulse that is known already.
        if pulse is not None and (row is None or pulse.id != row[1:4] or pulse.revision is None):
            server = self._servers.get(pulse.server)
            row = after_beat(row, self._beat(worker, pulse), server, self._now)
        if row is None:
            return None
        return judged(row, self._watched(row, held_by), self._now, self._limits)

    def oldest_others(self, looked_at: Collection[str]) -> Iterator[float]:
        """Yield when the oldest pulse on each server came, but for those looked at."""
        for order in self._follower.by_receipt():
            for path, pulse in order:
                if path in self._workers.by_path and path not in looked_at:
                    assert pulse.received_at is not None
                    yield self._seen(pulse.received_at)
                    break

    def _seen(self, received_at: float) -> float:
        return self._now - max(0.0, self._at - received_at)

    def _beat(self, worker: WorkerId, pulse: Pulse[BeatFacts]) -> WorkerBeat:
        received_at, value = pulse.received_at, pulse.value
        beat = WorkerBeat(
            worker,
            pulse.server,
            pulse.instance,
            pulse.revision,
            None if received_at is None else self._seen(received_at),
        )
        if isinstance(value, SerializationError):
            return beat._replace(error=str(value))
        return beat if value is None else beat._replace(**value._asdict())

    def _watched(self, row: WorkerLiveness, held_by: str | None) -> float:
        """Return for how long the worker's next pulse could not have been missed."""
        server = self._servers.get(row.server)
        if server is None:  # no longer read: the worker must be elsewhere
            return self._best
        if not server.reachable:
            return self._best if self._left_at(row.server) > row.last_seen else 0.0
        if server.horizon_secs is None:  # read as a whole, with the same pulse
            return inf if held_by == row.server else 0.0
        return server.horizon_secs

    def _left_at(self, server: str) -> float:
        """Return when a worker last moved away from a server."""
        if server not in self._left:
            moved = self._follower.left(server)
            ours = (moved[path] for path in moved if path in self._workers.by_path)
            self._left[server] = self._now - (self._at - max(ours, default=-inf))
        return self._left[server]
