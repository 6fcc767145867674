"""The liveness of each launched worker, from heartbeats.

The rules are those of `stormkeeper.heartbeats.liveness`, with two additions. All workers of a slot
share a path, so a pulse from before a launch says nothing about that launch, and a worker without a
pulse of its own is judged only some time after its launch, and after this Nimbus began to watch it.

And a machine with a Pacemaker, a supervisor and workers may die as a whole. Then no server can
vouch for the silence of its workers. But living workers would have moved to another Pacemaker, so
silence on all answering servers is death once the supervisor is lost, too. While the supervisor is
present the worker is unproven: this Nimbus alone may be cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.errors import SerializationError
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
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import WorkerId
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize
from stormkeeper.topology.plan import Claim


class Since(NamedTuple):
    """Since when pulses belong to a launch, and since when this Nimbus watches for pulses."""

    launched: float
    looked: float


@dataclass(frozen=True, slots=True)
class LivenessMemory:
    """A leader's memory of the workers between two reads; initially empty.

    `rows` are those of `liveness.step`, also forgotten ones; `lost_at` is when supervisors of
    workers were first seen missing.
    """

    rows: tuple[WorkerLiveness, ...] = ()
    since: Mapping[Claim, Since] = field(default_factory=dict)
    lost_at: Mapping[str, float] = field(default_factory=dict)


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
    """Return the liveness of each worker, and the memory for the next read.

    The heartbeats must be read after the launches; their values are needed only if a Pacemaker
    reports no ages. `now` is when that read began, on a clock that never jumps. `supervisor_secs`
    is how long a supervisor must be missing to count as lost.
    """
    of = {WorkerId(storm_id, *launch.slot): launch for storm_id, launch in launches}
    since = {
        launch.claim: watch.since.get(launch.claim) or _first_look(launch, now, epoch)
        for launch in of.values()
    }
    servers = {
        name: ServerHorizon(each.is_reachable, each.horizon_secs)
        for name, each in heartbeats.coverage.items()
    }
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
        elif row is None or _is_of_before(row, since[launch.claim].launched):
            silent[worker] = max(since[launch.claim])
        else:
            known[launch.claim] = row.status
    until_first_beat = LivenessLimits(min(limits.late_secs, launch_secs), launch_secs)
    for worker, status in unseen(silent, servers, now=now, limits=until_first_beat).items():
        known[of[worker].claim] = status
    lost_at = {
        worker.node: watch.lost_at.get(worker.node, now)
        for worker in of
        if worker.node not in supervisors
    }
    if _could_be_back(servers.values(), limits):
        for worker in of.keys() - unclear:
            claim = of[worker].claim
            is_lost = now - lost_at.get(worker.node, inf) > supervisor_secs
            if known[claim] is Status.UNPROVEN and is_lost:
                known[claim] = Status.DEAD
    return LivenessMemory((*found.rows, *found.forgotten), since, lost_at), known


def _could_be_back(servers: Iterable[ServerHorizon], limits: LivenessLimits) -> bool:
    horizons = [
        inf if one.horizon_secs is None else one.horizon_secs for one in servers if one.reachable
    ]
    return min(horizons, default=0.0) > limits.timeout_secs


def _first_look(launch: Launch, now: float, epoch: int) -> Since:
    return Since(now if launch.claim.epoch == epoch else min(launch.started_at, now), now)


def _is_of_before(row: WorkerLiveness, launched: float) -> bool:
    # A worker that beats is alive, whatever the clocks say.
    return row.status in (Status.DEAD, Status.COMPLETED) and row.last_seen < launched


def _beats(
    heartbeats: Heartbeats, workers: Iterable[WorkerId], now: float
) -> tuple[list[WorkerBeat], set[WorkerId]]:
    """Return beats of workers, and workers with an age only in the unread value."""
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
                *_said(heartbeat),
            )
        )
    return beats, unclear


def _said(heartbeat: Heartbeat) -> tuple[int | None, int | None, str | None, bool | None]:
    if heartbeat.value is None:
        return None, None, None, None
    try:
        record = deserialize(ClusterWorkerHeartbeat, heartbeat.value)
    except SerializationError as error:
        return None, None, str(error), None
    return record.time_secs, record.uptime_secs, None, record.completed
