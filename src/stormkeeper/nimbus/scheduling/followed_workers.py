"""The liveness of workers by followed heartbeats: what costs time is what may not be alive.

A worker is alive if its pulse is young, whatever its server says now. So only these are looked at:
workers with a silent pulse, which stand first in the follower, workers without a pulse, and workers
that were not alive at the last look. The rules, and the result, are those of
`workers.judge_workers`, without the workers that are alive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf

from stormkeeper import paths
from stormkeeper.heartbeats.follower import FollowedHeartbeats, Pulse
from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    WorkerLiveness,
    is_forgotten,
    judged,
    longest_horizon,
    unseen,
)
from stormkeeper.nimbus.scheduling.assigned_workers import AssignedWorkers, Launches
from stormkeeper.nimbus.scheduling.workers import (
    LivenessMemory,
    could_be_back,
    horizons,
    is_of_before,
    until_first_beat,
)
from stormkeeper.paths import WorkerId
from stormkeeper.topology.plan import Claim


def judge_followed(
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

    `launches` are by topology id; unchanged ones must be the same objects as at the last look.
    `now` and `heartbeats.at` are the same moment by two clocks; the other arguments are those of
    `judge_workers`. All pulses must have ages.
    """
    follower = heartbeats.follower
    workers = watch.assigned or AssignedWorkers(watch.since)
    servers = horizons(heartbeats.coverage)
    before = {row.worker: row for row in watch.rows}
    with follower.lock:
        workers.update(launches, follower, now=now, epoch=epoch)
        look = _Look(workers, heartbeats, servers, limits, now)
        rows = {path: look.row(path, before) for path in look.candidates(before)}
        ends = [row.last_seen + limits.timeout_secs for row in rows.values() if row is not None]
        ends += [seen + limits.timeout_secs for seen in look.oldest_others(rows)]
    known: dict[Claim, Status] = {}
    kept: list[WorkerLiveness] = []
    silent: dict[WorkerId, tuple[Claim, float]] = {}
    for path, row in rows.items():
        worker, launch, since = workers.by_path[path]
        counts = row
        if row is not None:
            server = servers.get(row.server)
            if is_forgotten(row, server, limits):
                counts = None
            is_kept = counts is not None or (server is not None and not server.reachable)
            if is_kept and (row.status is not Status.ALIVE or path in workers.unheard):
                kept.append(row)
        if counts is None or is_of_before(counts, since.launched):
            silent[worker] = launch.claim, max(since)
        elif counts.status is not Status.ALIVE:
            known[launch.claim] = counts.status
    ends += [since + launch_secs for _, since in silent.values()]
    found = unseen(
        {worker: since for worker, (_, since) in silent.items()},
        servers,
        now=now,
        limits=until_first_beat(limits, launch_secs),
    )
    known |= {silent[one][0]: each for one, each in found.items() if each is not Status.ALIVE}
    lost_at = {node: watch.lost_at.get(node, now) for node in workers.nodes.keys() - {*supervisors}}
    if Status.UNPROVEN in known.values() and could_be_back(servers.values(), limits):
        for path in rows:
            worker, launch, _ = workers.by_path[path]
            is_lost = now - lost_at.get(worker.node, inf) > supervisor_secs
            if known.get(launch.claim) is Status.UNPROVEN and is_lost:
                known[launch.claim] = Status.DEAD
    return LivenessMemory(tuple(kept), {}, lost_at, ends, workers), known


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
        self._follower = heartbeats.follower
        self._at = heartbeats.at
        self._servers = servers
        self._best = longest_horizon(servers)
        self._limits = limits
        self._now = now
        self._left: dict[str, float] = {}
        self._young_secs = min(limits.late_secs, limits.timeout_secs)

    def candidates(self, before: Mapping[WorkerId, WorkerLiveness]) -> set[str]:
        """Return the paths of the workers that may not be alive."""
        by_path = self._workers.by_path
        silent = self._follower.silent(self._young_secs, self._at)
        found = {path for path, _ in silent if path in by_path} | self._workers.unheard.keys()
        others = (paths.workerbeat(*worker) for worker in before)
        found.update(path for path in others if path in by_path)
        return found

    def row(self, path: str, before: Mapping[WorkerId, WorkerLiveness]) -> WorkerLiveness | None:
        """Return the judged row of the newest pulse; None if none is known."""
        worker = self._workers.by_path[path].id
        row = before.get(worker)
        pulse = self._follower.get(path)
        if pulse is None and row is None:
            pulse = self._workers.unheard.get(path)
        if pulse is not None and not self._is_known(row, pulse):
            row = self._new_row(worker, pulse)
        return None if row is None else judged(row, self._watched(row), self._now, self._limits)

    def _is_known(self, row: WorkerLiveness | None, pulse: Pulse[object]) -> bool:
        return row is not None and row[1:4] == pulse[:3]  # server, instance and revision

    def oldest_others(self, looked_at: Collection[str]) -> Iterator[float]:
        """Yield when the oldest pulse on each server came, but for those looked at."""
        for order in self._follower.by_receipt():
            for path, pulse in order:
                if path in self._workers.by_path and path not in looked_at:
                    yield self._seen(pulse)
                    break

    def _seen(self, pulse: Pulse[object]) -> float:
        received_at = self._at if pulse.received_at is None else pulse.received_at
        return self._now - max(0.0, self._at - received_at)

    def _new_row(self, worker: WorkerId, pulse: Pulse[object]) -> WorkerLiveness:
        return WorkerLiveness(
            worker=worker,
            server=pulse.server,
            instance=pulse.instance,
            revision=pulse.revision,
            last_seen=self._seen(pulse),
            age_secs=0.0,
            status=Status.ALIVE,
            time_secs=None,
            uptime_secs=None,
            error=None,
            moved_from=None,
            moved_at=None,
        )

    def _watched(self, row: WorkerLiveness) -> float:
        """Return for how long the worker's next pulse could not have been missed."""
        server = self._servers.get(row.server)
        if server is None:  # no longer read: the worker must be elsewhere
            return self._best
        if not server.reachable:
            return self._best if self._left_at(row.server) > row.last_seen else 0.0
        return 0.0 if server.horizon_secs is None else server.horizon_secs

    def _left_at(self, server: str) -> float:
        """Return when a worker last moved away from a server."""
        if server not in self._left:
            moved = self._follower.left(server)
            ours = (moved[path] for path in moved if path in self._workers.by_path)
            self._left[server] = self._now - (self._at - max(ours, default=-inf))
        return self._left[server]
