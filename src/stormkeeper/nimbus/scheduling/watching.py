"""Which of a cluster's workers are alive, by what their heartbeats say of their newest launch.

The rules are those of `stormkeeper.heartbeats.liveness`. What is added here is that a worker has
predecessors in its slot, whose pulses have the same path: a pulse from before a launch says nothing
of it. Nor has a worker said anything that was launched a moment ago, or at which this Nimbus has
not looked for long.

And a machine may end with a Pacemaker, a supervisor and workers on it. Then nobody can vouch for
the silence of workers that wrote to that Pacemaker. But their supervisor's session has ended, too,
and workers that live would have gone over to a Pacemaker that answers. So whoever is silent for as
long as that takes, on all servers that answer, is dead once its supervisor is lost, too. While the
supervisor is there it is not: this Nimbus may be cut off from that Pacemaker alone, and if the
worker is dead indeed, its supervisor starts it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.heartbeats.liveness import Beat, Limits, Row, Server, Status, step, unseen
from stormkeeper.heartbeats.protocols import Heartbeat, Heartbeats
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import WorkerId
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize
from stormkeeper.topology.plan import Claim


class Since(NamedTuple):
    """Since when pulses are those of a launch, and since when this Nimbus looks for them."""

    launched: float
    looked: float


@dataclass(frozen=True, slots=True)
class Watch:
    """What a leader remembers of the workers from one read to the next; it starts with nothing.

    Parameters
    ----------
    rows
        Of `liveness.step`, the forgotten ones too.
    since
        By claim.
    lost_at
        When it was seen first that supervisors of workers are gone, by their ids.
    """

    rows: tuple[Row, ...] = ()
    since: Mapping[Claim, Since] = field(default_factory=dict)
    lost_at: Mapping[str, float] = field(default_factory=dict)


def judge(
    watch: Watch,
    launches: Iterable[tuple[str, Launch]],
    supervisors: Collection[str],
    heartbeats: Heartbeats,
    *,
    now: float,
    epoch: int,
    limits: Limits,
    launch_secs: float,
    supervisor_secs: float,
) -> tuple[Watch, dict[Claim, Status]]:
    """Return what is known of each worker, and what to remember for the next time.

    Parameters
    ----------
    watch
        What was returned the last time.
    launches
        The workers with the ids of their topologies.
    supervisors
        The ids of those that are registered.
    heartbeats
        Read after these. Values need to be read only where a Pacemaker tells no ages.
    now
        When the read of the heartbeats began, in seconds since 1970, on a clock that never jumps.
    epoch
        The leader's. What its predecessors have launched was launched when their records say.
    limits
        Ages at which a worker's status changes.
    launch_secs
        The time a worker has until its first heartbeat.
    supervisor_secs
        For how long a supervisor has to be gone to count as lost.
    """
    of = {WorkerId(storm_id, *launch.slot): launch for storm_id, launch in launches}
    since = {
        launch.claim: watch.since.get(launch.claim) or _first_look(launch, now, epoch)
        for launch in of.values()
    }
    servers = {
        name: Server(each.is_reachable, each.horizon_secs)
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
    until_first_beat = Limits(min(limits.late_secs, launch_secs), launch_secs)
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
    return Watch((*found.rows, *found.forgotten), since, lost_at), known


def _could_be_back(servers: Iterable[Server], limits: Limits) -> bool:
    """Return whether a living worker would have beaten on one of the servers that answer."""
    horizons = [
        inf if one.horizon_secs is None else one.horizon_secs for one in servers if one.reachable
    ]
    return min(horizons, default=0.0) > limits.timeout_secs


def _first_look(launch: Launch, now: float, epoch: int) -> Since:
    """Return since when a worker is looked for that was not known before.

    The clock of the Nimbus that launched it may be another one: it counts only for the past.
    """
    return Since(now if launch.claim.epoch == epoch else min(launch.started_at, now), now)


def _is_of_before(row: Row, launched: float) -> bool:
    # Whoever beats is alive, whatever the clocks say.
    return row.status in (Status.DEAD, Status.COMPLETED) and row.last_seen < launched


def _beats(
    heartbeats: Heartbeats, workers: Iterable[WorkerId], now: float
) -> tuple[list[Beat], set[WorkerId]]:
    """Return the beats of workers, and those of whom only a value would say when they beat."""
    beats: list[Beat] = []
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
            Beat(
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
    """Return a worker's clock and age, why its value cannot be read, and whether it is done."""
    if heartbeat.value is None:
        return None, None, None, None
    try:
        record = deserialize(ClusterWorkerHeartbeat, heartbeat.value)
    except SerializationError as error:
        return None, None, str(error), None
    return record.time_secs, record.uptime_secs, None, record.completed
