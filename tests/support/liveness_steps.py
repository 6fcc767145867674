"""The rules of liveness for all workers at once, from everything that was read.

The rules that look only at what has changed are compared with these.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    Tombstone,
    WorkerBeat,
    WorkerLiveness,
    is_forgotten,
    judged,
    longest_horizon,
    newest,
    unseen,
)
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.nimbus.scheduling.followed_workers import (
    Since,
    could_be_back,
    first_look,
    is_of_before,
)
from stormkeeper.paths import WorkerId
from stormkeeper.topology.plan import Claim


class LivenessStep(NamedTuple):
    """The workers after a batch, and the positions of their newest pulses among the beats.

    The `forgotten` have no row, but must be remembered: without ages, their pulses would look like
    a new worker's.
    """

    rows: list[WorkerLiveness]
    taken: list[int]
    forgotten: list[WorkerLiveness]


def step(
    previous: Iterable[WorkerLiveness],
    beats: Sequence[WorkerBeat],
    tombstones: Iterable[Tombstone],
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
    limits: LivenessLimits,
) -> LivenessStep:
    """Return all workers after a batch; `now` is on the judge's clock.

    `previous` includes forgotten workers; `beats` has only changes of a server with ages.
    """
    known, taken = newest(previous, beats, tombstones, servers, now=now)
    held = {(beat.worker, beat.server) for beat in beats}
    watch = _Watch(known.values(), servers, held)
    may_return = {beat.worker for beat in beats if beat.received_at is None}
    rows, forgotten = [], []
    for row in (judged(row, watch.secs(row), now, limits) for row in known.values()):
        server = servers.get(row.server)
        if not is_forgotten(row, server, limits):
            rows.append(row)
            continue
        taken.pop(row.worker, None)
        if row.worker in may_return or (server is not None and not server.reachable):
            forgotten.append(row)
    return LivenessStep(rows, sorted(taken.values()), forgotten)


class _Watch:
    """For how long each worker's next pulse could not have been missed."""

    def __init__(
        self,
        rows: Iterable[WorkerLiveness],
        servers: Mapping[str, ServerHorizon],
        held: set[tuple[WorkerId, str]],
    ) -> None:
        self._servers = servers
        self._held = held
        self._best = longest_horizon(servers)
        self._left_at: dict[str, float] = {}
        for row in rows:
            if row.moved_from is not None and row.moved_at is not None:
                before = self._left_at.get(row.moved_from, -inf)
                self._left_at[row.moved_from] = max(before, row.moved_at)

    def secs(self, row: WorkerLiveness) -> float:
        server = self._servers.get(row.server)
        if server is None:  # no longer read: the worker must be elsewhere
            return self._best
        if not server.reachable:
            return self._best if self._left_at.get(row.server, -inf) > row.last_seen else 0.0
        if server.horizon_secs is None:  # read as a whole, with the same pulse
            return inf if (row.worker, row.server) in self._held else 0.0
        return server.horizon_secs


@dataclass
class WholeMemory:
    """What a leader remembers who looks at every worker."""

    rows: Sequence[WorkerLiveness] = ()
    since: Mapping[Claim, Since] = field(default_factory=dict)
    lost_at: Mapping[str, float] = field(default_factory=dict)


def judge_all(
    watch: WholeMemory,
    of: Mapping[WorkerId, Launch],
    supervisors: Collection[str],
    beats: Sequence[WorkerBeat],
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
    epoch: int,
    limits: LivenessLimits,
    launch_secs: float,
    supervisor_secs: float,
) -> tuple[WholeMemory, dict[Claim, Status]]:
    """Return the memory for the next look, and the liveness of each worker.

    `beats` has every known pulse of the workers.
    """
    since = {
        launch.claim: watch.since.get(launch.claim) or first_look(launch, now, epoch)
        for launch in of.values()
    }
    before = {row.worker: row for row in watch.rows if row.worker in of}
    found = step(before.values(), beats, (), servers, now=now, limits=limits)
    # That a worker has moved to a Java Pacemaker is seen when that is read.
    ageless = {beat.worker for beat in beats if beat.received_at is None}
    all_rows = [
        row._replace(moved_at=now)
        if row.worker in ageless and row.server != getattr(before.get(row.worker), "server", None)
        else row
        for row in (*found.rows, *found.forgotten)
    ]
    rows = {row.worker: row for row in found.rows}
    known: dict[Claim, Status] = {}
    silent: dict[WorkerId, float] = {}
    for worker, launch in of.items():
        row = rows.get(worker)
        if row is None or is_of_before(row, since[launch.claim].launched):
            silent[worker] = max(since[launch.claim])
        else:
            known[launch.claim] = row.status
    first_beat = LivenessLimits(min(limits.late_secs, launch_secs), launch_secs)
    for worker, status in unseen(silent, servers, now=now, limits=first_beat).items():
        known[of[worker].claim] = status
    lost_at = {
        worker.node: watch.lost_at.get(worker.node, now)
        for worker in of
        if worker.node not in supervisors
    }
    if could_be_back(servers.values(), limits):
        for worker, launch in of.items():
            is_lost = now - lost_at.get(worker.node, inf) > supervisor_secs
            if known[launch.claim] is Status.UNPROVEN and is_lost:
                known[launch.claim] = Status.DEAD
    return WholeMemory(all_rows, since, lost_at), known
