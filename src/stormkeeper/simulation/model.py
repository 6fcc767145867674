"""The simulated cluster at work: which heartbeats are due, who ends and who starts.

Pure: every call is given the time, in seconds since 1970, by a clock that never goes back; a seed
decides the rest. Who sends the heartbeats is told here what servers answered.

Each worker has a *seat*: its place in the period. A worker that starts in a seat beats when the one
before it would have.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.simulation.cluster import Cluster, Executor, Topology
from stormkeeper.simulation.workers import Beat, Tell, Worker, Writer

#: Workers are that old when a simulation begins, at most: half of them have all windows full.
_OLDEST_SECS: Final = 2 * 86400.0

#: Seconds by which a worker's clock is fast or slow, on a machine that is well.
_CLOCK_SECS: Final = 2

#: A worker that is not heard for so many periods has paused.
_PAUSE_PERIODS: Final = 3


@dataclass(slots=True)
class Seat:
    """A place in the period, and who has it; nobody: its worker has ended."""

    phase: float
    worker: Worker | None
    #: In which of so many periods its counters are new, so that they are not all new in the same.
    turn: int = 0


@dataclass(slots=True)
class Tally:
    """Numbers of heartbeats so far.

    `left_out` were due and not sent, as the one before was unanswered or its time was long past.
    """

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    left_out: int = 0
    bytes: int = 0


class Simulation:
    """A cluster at work.

    Parameters
    ----------
    cluster
        What it consists of; changed from now on by what is planted.
    writer
        Makes the heartbeats' bytes.
    period_secs
        From one heartbeat of a worker to the next.
    count_every
        A worker's counters are new in every so-manyth heartbeat; its times are always.
    seed
        Decides what the cluster leaves open.
    now
        When it begins.
    tell
        Takes what happens, for the truth; None: nobody wants to know.
    tells_counters
        Whether it says what workers have counted, which is nearly all there is to say.
    """

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        *,
        period_secs: float,
        count_every: int,
        seed: int,
        now: float,
        tell: Tell | None,
        tells_counters: bool = True,
    ) -> None:
        self.cluster = cluster
        self.tally = Tally()
        self._writer = writer
        self._period = period_secs
        self._count_every = count_every
        self._tell = tell
        self._tells_counters = tells_counters
        random = Random(f"workers {seed}")
        self._fast = {node: random.randint(-_CLOCK_SECS, _CLOCK_SECS) for node in cluster.nodes}
        #: When the period that is now under way began, its number, and the next seat in it.
        self._round_at = now
        self._round = 0
        self._place = 0
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        #: Paths that are to be deleted on every server.
        self.deletions: list[str] = []
        seats = [self._first(random, t, *worker, now) for t, worker in _each(cluster)]
        #: In the order of the period.
        self.seats = sorted(seats, key=lambda seat: seat.phase)
        for turn, seat in enumerate(self.seats):
            seat.turn = turn

    def _first(
        self,
        random: Random,
        topology: Topology,
        slot: paths.Slot,
        executors: tuple[Executor, ...],
        now: float,
    ) -> Seat:
        worker = self._new(topology, slot, executors, now - random.uniform(60.0, _OLDEST_SECS))
        self._started(worker, now)
        return Seat(random.uniform(0.0, self._period), worker)

    def _new(
        self, topology: Topology, slot: paths.Slot, executors: tuple[Executor, ...], at: float
    ) -> Worker:
        worker = Worker(topology, slot, executors, at)
        worker.fast_secs = self._fast[slot.node]
        return worker

    # --- the schedule ----------------------------------------------------------------------------

    def prepare(self, now: float) -> Iterator[None]:
        """Make every worker's first body, one at each step."""
        for seat in self.seats:
            if seat.worker is not None:
                self._writer.count(seat.worker, now)
            yield

    def begin(self, now: float) -> None:
        """Begin the first period; else it began when the simulation was made."""
        self._round_at = now

    def at(self, when: float, act: Callable[[float], None]) -> None:
        """Have `act` called with the time, once `when` has come."""
        heapq.heappush(self._agenda, (when, next(self._numbers), act))

    def due(self, now: float) -> Iterator[Beat]:
        """Yield the heartbeats that are due by `now`, and do what else is.

        A heartbeat whose time is more than a period past is left out: there is no burst.
        """
        while self._agenda and self._agenda[0][0] <= now:
            heapq.heappop(self._agenda)[2](now)
        while True:
            seat = self.seats[self._place]
            due = self._round_at + seat.phase
            if due > now:
                return
            self._place += 1
            if self._place == len(self.seats):
                self._place = 0
                self._round += 1
                self._round_at += self._period
            worker = seat.worker
            if worker is None or now < worker.silent_until:
                continue
            if worker.under_way is not None or due < now - self._period:
                self.tally.left_out += 1
                continue
            if worker.opened is None or (self._round + seat.turn) % self._count_every == 0:
                self._writer.count(worker, now)
            yield self._beat(worker, due, now)

    def _beat(self, worker: Worker, due: float, now: float) -> Beat:
        assert worker.opened is not None
        time_secs = int(now) + worker.fast_secs
        uptime_secs = int(now - worker.started)
        start, end = worker.opened.start, worker.opened.end(time_secs, uptime_secs)
        beat = Beat(worker, start, end, due, now, worker.counted_at, time_secs, uptime_secs)
        worker.under_way = beat
        self.tally.sent += 1
        self.tally.bytes += len(start) + len(end)
        return beat

    def acknowledged(self, beat: Beat, server: str, now: float) -> None:
        """Note that a server took a heartbeat."""
        self.tally.acknowledged += 1
        worker = beat.worker
        before, worker.taken = worker.taken, beat
        beat.server, beat.acknowledged_at = server, now
        worker.taken_beats += 1
        if self._tell is not None and before is not None:
            if now - before.acknowledged_at > _PAUSE_PERIODS * self._period:
                pause = {"since": before.acknowledged_at, "until": now}
                self._tell({"event": "worker_paused", "at": now, **named(worker), **pause})
            if before.server != server:
                moved = {"from_server": before.server, "server": server}
                self._tell({"event": "server_changed", "at": now, **named(worker), **moved})
        self._settled(worker, now)

    def failed(self, beat: Beat, now: float) -> None:
        """Note that no server is known to have taken a heartbeat; one may have nevertheless."""
        self.tally.failed += 1
        beat.worker.failed += 1
        self._settled(beat.worker, now)

    def _settled(self, worker: Worker, now: float) -> None:
        worker.under_way = None
        if worker.ending:
            self._tell_end(worker, now)

    # --- who starts and ends ---------------------------------------------------------------------

    def start(self, seat: Seat, worker: Worker, now: float) -> None:
        """Have a new worker, of `another`, in a seat whose worker has ended."""
        seat.worker = worker
        self._started(worker, now)

    def another(self, worker: Worker, slot: paths.Slot, now: float) -> Worker:
        """Return a new worker that runs what `worker` did: counters and uptime begin at `now`."""
        return self._new(worker.topology, slot, worker.executors, now)

    def stop(self, seat: Seat, why: str, now: float) -> Worker | None:
        """End a seat's worker; return it, or None where there is none."""
        worker, seat.worker = seat.worker, None
        if worker is not None:
            worker.ending = why
            if worker.under_way is None:
                self._tell_end(worker, now)
        return worker

    def finish(self, now: float) -> None:
        """Tell of every worker that is alive what it last said."""
        for seat in self.seats:
            self.stop(seat, "end of the simulation", now)

    def unanswered(self) -> int:
        """Return how many heartbeats no server has answered yet."""
        return self.tally.sent - self.tally.acknowledged - self.tally.failed

    def _started(self, worker: Worker, now: float) -> None:
        if self._tell is None:
            return
        started = {"event": "worker_started", "at": now, **named(worker)}
        self._tell(started | {"started_at": worker.started, "fast_secs": worker.fast_secs})

    def _tell_end(self, worker: Worker, now: float) -> None:
        if self._tell is None:
            return  # counting again all that a worker has said takes its time
        taken = worker.taken
        last: dict[str, Any] | None = None
        if taken is not None:
            last = {
                "server": taken.server,
                "acknowledged_at": taken.acknowledged_at,
                "sent_at": taken.sent_at,
                "time_secs": taken.time_secs,
                "uptime_secs": taken.uptime_secs,
            }
            if self._tells_counters:
                last["executors"] = worker.counters(taken.counted_at)
        self._tell(
            {
                "event": "worker_ended",
                "at": now,
                **named(worker),
                "started_at": worker.started,
                "why": worker.ending,
                "acknowledged": worker.taken_beats,
                "failed": worker.failed,
                "last": last,
            }
        )


def named(worker: Worker) -> dict[str, Any]:
    """Return what names a worker in the truth."""
    return {
        "storm_id": worker.topology.storm_id,
        "node": worker.slot.node,
        "port": worker.slot.port,
    }


def _each(
    cluster: Cluster,
) -> Iterator[tuple[Topology, tuple[paths.Slot, tuple[Executor, ...]]]]:
    for topology in cluster.topologies:
        for worker in zip(topology.slots, topology.workers(), strict=True):
            yield topology, worker
