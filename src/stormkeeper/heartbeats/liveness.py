"""Which workers are alive, late, dead or unproven: a function of what was known and what was read.

The rules, and why:

- **A pulse is as old as its receipt.** The server that took it tells its age on its own monotonic
  clock; the worker's clock counts only where the server (a Java Pacemaker) tells no age. Of copies
  of one worker's pulse on several servers the newest wins, so one that a worker left behind when
  it went over to another server means nothing.
- **Ages go from machine to machine, times do not.** Servers are read on several machines, whose
  clocks may differ by more than the timeout. What a table keeps is on one clock, the judge's.
- **Dead needs proof.** A worker writes to one server. Its silence is proven for as long as that
  server, which must answer now, can vouch: its horizon. A server that
  is down, or restarted a moment ago, proves nothing: its workers that are silent for longer than
  the timeout are *unproven*, and nobody may act as if they were dead. Once somebody else has gone
  over from a silent server to another one, workers have noticed its loss themselves; whoever has
  not turned up elsewhere since is then judged by the servers that do answer.
- **Who has said that it is done is not missed.** The last pulse of a worker whose queries have
  ended by themselves says so; it is completed, however long it is silent.
- **Only a newer pulse ends death, or completion.** A server that goes down later does not raise
  the dead.
- **A tombstone is no evidence of death.** It says that somebody deleted the pulse, as happens when
  a topology is killed. When it comes from the server with the worker's newest pulse, the worker is
  no longer looked for, and its row goes.
- **What nothing will ever prove is forgotten**, as a death is. A Java Pacemaker tells of no
  deletion, and a server that is not read any more of nothing. Workers of one that is down stay: it
  may come back.

The rules stand one fault at a time. A worker that goes over from one server to another, which
cannot be reached from here, looks silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from stormkeeper.paths import WorkerId

#: How long a worker is shown that is dead or completed, or of which no more will be known, in
#: seconds.
FORGET_SECS: Final = 3600.0


class Status(StrEnum):
    """What is known of a worker."""

    ALIVE = "alive"
    LATE = "late"
    #: Silent for longer than the timeout, which no server can vouch for: dead, or not seen.
    UNPROVEN = "unproven"
    DEAD = "dead"
    #: Its queries have all ended by themselves, as its last pulse says.
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """Ages at which a worker's status changes, in seconds.

    Parameters
    ----------
    late_secs
        The oldest pulse of a worker that is alive: ``pipeline.late.secs``.
    timeout_secs
        The longest silence of one that is not dead: ``nimbus.task.timeout.secs``.
    forget_secs
        The longest silence after which a worker still has a row that is dead or completed, or
        unproven for ever.
    timeouts
        The ``topology.worker.timeout.secs`` of topologies that have one, by id. As in Storm's
        Nimbus, the longer one holds of that and `timeout_secs`.
    """

    late_secs: float
    timeout_secs: float
    forget_secs: float = FORGET_SECS
    timeouts: Mapping[str, float] = field(default_factory=dict)

    def timeout_of(self, storm_id: str) -> float:
        """Return the longest silence of a topology's worker that is not dead."""
        return max(self.timeout_secs, self.timeouts.get(storm_id, 0.0))


class WorkerBeat(NamedTuple):
    """A worker's newest pulse on one server, as read there.

    `received_at` is None from a server that tells no age; `instance` and `revision` are None from
    one that has none. `time_secs` is the worker's own clock, None if the pulse was not readable
    (`error` says why). Times are seconds since the epoch, on the clock of the server's reader.
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
    """The deletion of a worker's pulse on one server."""

    worker: WorkerId
    server: str
    instance: str | None
    revision: int | None


class ServerHorizon(NamedTuple):
    """A server as it was when the batch was read; no `horizon_secs` from a Java Pacemaker.

    `ahead_secs` is by how much its reader's clock is ahead of the one on which workers are judged.
    """

    reachable: bool
    horizon_secs: float | None
    ahead_secs: float = 0.0


class WorkerLiveness(NamedTuple):
    """What the liveness table says of a worker.

    `last_seen` is when its newest pulse was received, by `server`. `moved_from` is the server at
    which the one before was, `moved_at` when its first pulse arrived at the present one. Times are
    seconds since the epoch.
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


class LivenessStep(NamedTuple):
    """The workers after a batch, and which of its beats are their newest (positions).

    The `forgotten` are no longer shown. They are to be known again by a pulse that a server without
    ages still has of them: it would be taken for that of a worker that has just come.
    """

    rows: list[WorkerLiveness]
    taken: list[int]
    forgotten: list[WorkerLiveness]


def status(age_secs: float, limits: LivenessLimits, storm_id: str) -> Status:
    """Return the status of a topology's worker whose silence of `age_secs` is proven."""
    if age_secs > limits.timeout_of(storm_id):
        return Status.DEAD
    return Status.LATE if age_secs > limits.late_secs else Status.ALIVE


def step(
    previous: Iterable[WorkerLiveness],
    beats: Sequence[WorkerBeat],
    tombstones: Iterable[Tombstone],
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
    limits: LivenessLimits,
) -> LivenessStep:
    """Return what is known of every worker after a batch.

    Parameters
    ----------
    previous
        What was known before, of those who are forgotten too.
    beats, tombstones
        What the batch read, in any order; of a server with ages only what is new to the reader.
    servers
        Every server that is read, by name.
    now
        When the batch was read: seconds since the epoch, on the clock of the rows' times.
    """
    known, taken = newest(previous, beats, tombstones, servers, now=now)
    held = {(beat.worker, beat.server) for beat in beats}
    watch = _Watch(known.values(), servers, held)
    may_return = {beat.worker for beat in beats if beat.received_at is None}
    rows, forgotten = [], []
    for row in (_judged(row, watch.secs(row), now, limits) for row in known.values()):
        server = servers.get(row.server)
        if not _is_forgotten(row, server, limits):
            rows.append(row)
            continue
        taken.pop(row.worker, None)
        if row.worker in may_return or (server is not None and not server.reachable):
            forgotten.append(row)
    return LivenessStep(rows, sorted(taken.values()), forgotten)


def newest(
    previous: Iterable[WorkerLiveness],
    beats: Sequence[WorkerBeat],
    tombstones: Iterable[Tombstone],
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
) -> tuple[dict[WorkerId, WorkerLiveness], dict[WorkerId, int]]:
    """Return each worker's newest pulse, and of those that are new the positions in `beats`.

    The arguments are those of `step`, of which this is the first half: nobody is judged yet.
    """
    known = {row.worker: row for row in previous}
    taken: dict[WorkerId, int] = {}
    for place, beat in enumerate(beats):
        row = known.get(beat.worker)
        seen = _seen(beat, row, servers.get(beat.server), now)
        if row is None or _is_newer(beat, seen, row):
            known[beat.worker] = _row(beat, seen, row)
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
    """Return the status of workers that are to beat and of which no server has a pulse.

    Nobody knows to which server such a worker writes. So it is dead only if each can vouch for the
    silence: one that is down, or was started a moment ago, may have been its own. A Java Pacemaker
    that answers is believed, as it was read as a whole.

    Parameters
    ----------
    expected
        Since when each is to beat: when it was launched, or when the reader began to look for it,
        whichever is later, in seconds since the epoch.
    servers
        Every server that is read, by name.
    now
        When they were read, on the clock of `expected`.
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


class _Watch:
    """For how long a pulse of a worker could not have escaped us."""

    def __init__(
        self,
        rows: Iterable[WorkerLiveness],
        servers: Mapping[str, ServerHorizon],
        held: set[tuple[WorkerId, str]],
    ) -> None:
        self._servers = servers
        self._held = held
        horizons = (server.horizon_secs for server in servers.values() if server.reachable)
        self._best = max((secs for secs in horizons if secs is not None), default=0.0)
        self._left_at: dict[str, float] = {}
        for row in rows:
            if row.moved_from is not None and row.moved_at is not None:
                before = self._left_at.get(row.moved_from, -inf)
                self._left_at[row.moved_from] = max(before, row.moved_at)

    def secs(self, row: WorkerLiveness) -> float:
        server = self._servers.get(row.server)
        if server is None:  # no longer read: its workers have to be elsewhere
            return self._best
        if not server.reachable:
            return self._best if self._left_at.get(row.server, -inf) > row.last_seen else 0.0
        if server.horizon_secs is None:  # read as a whole: the pulse is there, and is the same one
            return inf if (row.worker, row.server) in self._held else 0.0
        return server.horizon_secs


def _seen(
    beat: WorkerBeat, row: WorkerLiveness | None, server: ServerHorizon | None, now: float
) -> float:
    if beat.received_at is not None:
        return beat.received_at - (server.ahead_secs if server else 0.0)
    if row is not None and row.server == beat.server:
        return now  # if it is a newer one, it came since the batch before
    # The worker's clock is all there is, as far as it does not say that the pulse is yet to come.
    return now if beat.time_secs is None else max(0.0, min(float(beat.time_secs), now))


def _is_newer(beat: WorkerBeat, seen: float, row: WorkerLiveness) -> bool:
    if beat.received_at is None:
        if beat.time_secs is None:
            return False
        if row.time_secs is None:  # not readable, or, of a server that tells ages, not read
            return row.revision is None or seen > row.last_seen
        # One worker's clock ranks its own pulses, whether it is right or wrong. In one place a
        # pulse that is another one is the newer one, for the clock may have been set back.
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


def _judged(
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


def _is_forgotten(
    row: WorkerLiveness, server: ServerHorizon | None, limits: LivenessLimits
) -> bool:
    if row.age_secs <= limits.forget_secs:
        return False
    if row.status is Status.UNPROVEN:
        return server is None or (server.reachable and server.horizon_secs is None)
    return row.status in (Status.DEAD, Status.COMPLETED)
