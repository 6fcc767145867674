"""The rules of liveness: which workers are alive, late, dead, unproven or completed. Pure.

`stormkeeper.pipeline.liveness_columns` applies the same rules to columns.

- **A pulse is as old as its receipt**, by the age on the server's monotonic clock. The worker's
  clock counts only without an age (a Java Pacemaker). Of copies on several servers the newest wins.
- **Ages travel between machines, times do not**: clocks may differ by more than the timeout. Times
  in a table are on the judge's clock.
- **Death needs proof.** A worker writes to one server, which, if it answers now, proves silence for
  its horizon. Silent workers of a server that is down or just restarted are *unproven*, and must
  not count as dead. But once a worker has moved from an unreachable server to another, workers have
  noticed the loss: those that have not moved since are judged by the servers that answer.
- **A completed worker is not missed**: by the last pulse, all queries have ended.
- **Only a newer pulse ends death or completion**, not a server that goes down later.
- **A tombstone proves a deletion**, as for a killed topology, not death. From the server with the
  newest pulse, it removes the worker's row.
- **Workers that can never be proven dead are forgotten**, like dead ones: those of a Java
  Pacemaker, which does not report deletions, and of a server that is no longer read.

The rules hold for one fault at a time: a worker that moves to a server which cannot be reached from
here looks silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from stormkeeper.paths import WorkerId

#: For dead, completed or for ever unproven workers.
FORGET_SECS: Final = 3600.0


class Status(StrEnum):
    """The status of a worker."""

    ALIVE = "alive"
    LATE = "late"
    #: Silent for longer than the timeout, without proof.
    UNPROVEN = "unproven"
    DEAD = "dead"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """Ages at which a worker's status changes, in seconds.

    `timeouts` has the ``topology.worker.timeout.secs`` of topologies; as in Storm's Nimbus, the
    longer timeout wins. Rows go after `forget_secs`.
    """

    late_secs: float
    timeout_secs: float
    forget_secs: float = FORGET_SECS
    timeouts: Mapping[str, float] = field(default_factory=dict)

    def timeout_of(self, storm_id: str) -> float:
        return max(self.timeout_secs, self.timeouts.get(storm_id, 0.0))


class WorkerBeat(NamedTuple):
    """A worker's newest pulse on a server.

    `received_at`, in seconds since the epoch on the reader's clock, is None without an age.
    `time_secs` is the worker's clock, None if unreadable (`error`).
    """

    worker: WorkerId
    server: str
    instance: str | None
    revision: int | None
    received_at: float | None
    time_secs: int | None = None
    uptime_secs: int | None = None
    error: str | None = None
    completed: bool | None = None


class Tombstone(NamedTuple):
    """The deletion of a worker's pulse on a server."""

    worker: WorkerId
    server: str
    instance: str | None
    revision: int | None


class ServerHorizon(NamedTuple):
    """The silence that a server can prove at the time of a reading; None of a Java Pacemaker.

    `ahead_secs` is how far the reader's clock is ahead of the judge's.
    """

    reachable: bool
    horizon_secs: float | None
    ahead_secs: float = 0.0

    @property
    def is_java(self) -> bool:
        return self.reachable and self.horizon_secs is None


class WorkerLiveness(NamedTuple):
    """The row of a worker in the liveness table; times are seconds since the epoch.

    `server` received the newest pulse at `last_seen`, and the first after the move from
    `moved_from` at `moved_at`.
    """

    worker: WorkerId
    server: str
    instance: str | None
    revision: int | None
    last_seen: float
    age_secs: float
    status: Status
    time_secs: int | None
    uptime_secs: int | None
    error: str | None
    moved_from: str | None
    moved_at: float | None


def status(age_secs: float, limits: LivenessLimits, storm_id: str) -> Status:
    """Return the status after a proven silence."""
    if age_secs > limits.timeout_of(storm_id):
        return Status.DEAD
    return Status.LATE if age_secs > limits.late_secs else Status.ALIVE


def newest(
    previous: Iterable[WorkerLiveness],
    beats: Sequence[WorkerBeat],
    tombstones: Iterable[Tombstone],
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
) -> tuple[dict[WorkerId, WorkerLiveness], dict[WorkerId, int]]:
    """Return each worker's newest pulse, and the positions of new pulses in `beats`."""
    known = {row.worker: row for row in previous}
    taken: dict[WorkerId, int] = {}
    for place, beat in enumerate(beats):
        row = known.get(beat.worker)
        newer = after_beat(row, beat, servers.get(beat.server), now)
        if newer is not row:
            known[beat.worker] = newer
            taken[beat.worker] = place
    for tombstone in tombstones:
        row = known.get(tombstone.worker)
        if row is not None and _is_buried_by(row, tombstone):
            del known[tombstone.worker]
            taken.pop(tombstone.worker, None)
    return known, taken


def unseen(
    expected: Mapping[WorkerId, float],
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
    limits: LivenessLimits,
) -> dict[WorkerId, Status]:
    """Return the status of workers that should beat and have no pulse on any server.

    `expected` has the later of launch and beginning of the search. Such a worker may write to any
    server: death needs proof by all. A Java Pacemaker that answers, read as a whole, is trusted.
    """
    vouched = min((_vouches_secs(server) for server in servers.values()), default=0.0)
    found = {}
    for worker, since in expected.items():
        found[worker] = status(max(0.0, now - since), limits, worker.storm_id)
        proven = status(vouched, limits, worker.storm_id)
        if found[worker] is Status.DEAD and proven is not Status.DEAD:
            found[worker] = Status.UNPROVEN
    return found


def _vouches_secs(server: ServerHorizon) -> float:
    if not server.reachable:
        return 0.0
    return inf if server.horizon_secs is None else server.horizon_secs


def longest_horizon(servers: Mapping[str, ServerHorizon]) -> float:
    horizons = [server.horizon_secs for server in servers.values() if server.reachable]
    return max((secs for secs in horizons if secs is not None), default=0.0)


def after_beat(
    row: WorkerLiveness | None, beat: WorkerBeat, server: ServerHorizon | None, now: float
) -> WorkerLiveness:
    """Return the worker's row after a beat: another row if the beat is newer."""
    seen = _seen(beat, row, server, now)
    return _row(beat, seen, row) if row is None or _is_newer(beat, seen, row) else row


def _seen(
    beat: WorkerBeat, row: WorkerLiveness | None, server: ServerHorizon | None, now: float
) -> float:
    if beat.received_at is not None:
        return beat.received_at - (server.ahead_secs if server else 0.0)
    if row is not None and row.server == beat.server:
        return now  # a newer pulse came since the last batch
    # Only the worker's clock is left, limited to the past.
    return now if beat.time_secs is None else max(0.0, min(float(beat.time_secs), now))


def _is_newer(beat: WorkerBeat, seen: float, row: WorkerLiveness) -> bool:
    if beat.received_at is None:
        if beat.time_secs is None:
            return False
        if row.time_secs is None:  # unreadable, or not read from a server with ages
            return row.revision is None or seen > row.last_seen
        # A worker's clock, right or wrong, ranks its own pulses; on one server any other pulse is
        # newer, as the clock may be set back.
        if beat.server == row.server:
            return beat.time_secs != row.time_secs
        return beat.time_secs > row.time_secs
    if beat.revision is not None and row.revision is not None and _same_instance(beat, row):
        return beat.revision > row.revision
    return seen > row.last_seen


def _same_instance(found: WorkerBeat | Tombstone, row: WorkerLiveness) -> bool:
    return (found.server, found.instance) == (row.server, row.instance)


def _is_buried_by(row: WorkerLiveness, tombstone: Tombstone) -> bool:
    if row.server != tombstone.server:
        return False
    if not _same_instance(tombstone, row) or row.revision is None or tombstone.revision is None:
        return True
    return tombstone.revision > row.revision


def _row(beat: WorkerBeat, seen: float, before: WorkerLiveness | None) -> WorkerLiveness:
    moved_from, moved_at = (before.moved_from, before.moved_at) if before else (None, None)
    if before is not None and before.server != beat.server:
        moved_from, moved_at = before.server, seen
    return WorkerLiveness(
        worker=beat.worker,
        server=beat.server,
        instance=beat.instance,
        revision=beat.revision,
        last_seen=seen,
        age_secs=0.0,
        status=Status.COMPLETED if beat.completed else Status.ALIVE,
        time_secs=beat.time_secs,
        uptime_secs=beat.uptime_secs,
        error=beat.error,
        moved_from=moved_from,
        moved_at=moved_at,
    )


def judged(
    row: WorkerLiveness, watched_secs: float, now: float, limits: LivenessLimits
) -> WorkerLiveness:
    age = max(0.0, now - row.last_seen)
    if row.status is Status.COMPLETED:
        return row._replace(age_secs=age)
    found = status(age, limits, row.worker.storm_id)
    watched = status(watched_secs, limits, row.worker.storm_id)
    is_proven = Status.DEAD in (row.status, watched)
    unproven = found is Status.DEAD and not is_proven
    return row._replace(age_secs=age, status=Status.UNPROVEN if unproven else found)


def is_forgotten(row: WorkerLiveness, server: ServerHorizon | None, limits: LivenessLimits) -> bool:
    if row.age_secs <= limits.forget_secs:
        return False
    if row.status is Status.UNPROVEN:
        return server is None or server.is_java
    return row.status in (Status.DEAD, Status.COMPLETED)
