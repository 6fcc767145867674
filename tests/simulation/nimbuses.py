"""Simulated Nimbuses: the real election and the real calls, with time and threads made up.

Each of an election's two threads is a chain of events here: an instruction is carried out after a
while, and its answer is told after another. A Nimbus that was told that it leads writes until it is
told that it does not, whatever `is_leader` says meanwhile.

Its disk is a `Shelf`, which can be lost, full or gone. It is probed now and then, and code that is
not there is copied from the others, as `BlobSync` does.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

from simulation.clock import Clock
from simulation.decisions import BATCH, CODEC, Decisions
from simulation.history import History, Outcome
from stormkeeper import paths
from stormkeeper.errors import OutcomeUnknownError, StateError
from stormkeeper.nimbus.election import (
    ConnectionChanged,
    Election,
    Event,
    GiveUp,
    Instruction,
    Look,
    QueueChanged,
    Recheck,
    Stand,
    Take,
    TimePassed,
    Withdraw,
)
from stormkeeper.nimbus.elector import LockQueue
from stormkeeper.nimbus.readiness import LOOK_SECS, Candidate, DiskWatch
from stormkeeper.paths import NimbusId
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.storage import ConnectionState, Create, EventType
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.thrift.records import NimbusSummary
from support.interposed import Interposed
from support.memory_state import MemoryEnsemble
from support.nimbuses import Shelf

#: After which silence the server ends a session.
SESSION_SECS: Final = 10.0

MakeElection = Callable[[], Election]


class _SimulatedWatch(DiskWatch):
    """Looks at a shelf, without a thread."""

    def __init__(self, shelf: Shelf, on_fault: Callable[[str | None], None]) -> None:
        super().__init__(lambda _: None, on_fault)
        self._shelf = shelf

    def _result(self, is_write: bool) -> str | None:  # noqa: ARG002
        return self._shelf.fault


class SimulatedNimbus:
    """One Nimbus with one session, and what befalls it."""

    def __init__(
        self,
        number: int,
        ensemble: MemoryEnsemble,
        clock: Clock,
        history: History,
        random: Random,
        seen: Counter[str],
        make_election: MakeElection,
    ) -> None:
        self._ensemble = ensemble
        self._clock = clock
        self._history = history
        self._random = random
        self._seen = seen
        self.address = NimbusId(f"nimbus{number}", 6627, 0)
        self.shelf = Shelf()
        self.session = ensemble.session()
        network = Interposed(
            self.session, session_timeout_secs=SESSION_SECS, create_sequential=self._create
        )
        self.election = make_election()
        self._queueing = LockQueue(network, self.address, self._now)
        storm = StormClusterState(network, CODEC)
        self.shelf.topologies = storm.active_storms
        self._storm = storm
        self._reigning = Candidate(
            storm,
            self.shelf,
            elected=self._on_elected,
            deposed=self._on_deposed,
            nimbus=self.address,
            disk_fault=lambda: self._disk.fault,
        )
        self._disk = _SimulatedWatch(self.shelf, self._on_disk_fault)
        self._is_registered = False
        self.session.register(self._on_event)
        self.session.add_listener(self._on_connection)
        #: What it decides, while it was told that it leads.
        self.decisions: Decisions | None = None
        self._is_stopped = False
        self._is_mending = False
        #: How often a connection was made again.
        self._connections = 0
        self._has_detour = False

    @property
    def is_leader(self) -> bool:
        """As `stormkeeper.nimbus.elector.Elector.is_leader`."""
        lock = self.election.lock
        return (
            lock is not None
            and self.election.leads(self._clock.now)
            and self.session.connection is ConnectionState.CONNECTED
            and self.session.session_id == lock.session_id
        )

    def begin(self) -> None:
        self.tell(ConnectionChanged(True))
        self.tell(Stand())
        self._live()
        self._look_at_disk()

    # What it does.

    def _live(self) -> None:
        """Write, hear what happened, and do so again in a while."""
        if not self._is_stopped:
            for _ in range(self._random.randint(0, 3)):
                if self.decisions is not None:
                    self._write(self.decisions)
            # Only now it hears what became of its session meanwhile.
            self._ensemble.deliver(self.session)
            if self._clock.now >= self.election.alarm:
                self.tell(TimePassed())
            if self.session.connection is ConnectionState.SUSPENDED:
                self._mend_after(self._random.choice((1.0, 4.0, 1.5 * SESSION_SECS)))
        self._clock.after(self._random.uniform(0.1, 1.0), self._live)

    def _look_at_disk(self) -> None:
        if not self._is_stopped:
            with suppress(StateError):
                if not self._is_registered:
                    self._register(None)
                    self._is_registered = True
                if self._random.random() < 0.2:
                    self.shelf.fetch(1.0)
            self._disk.look()
        self._clock.after(LOOK_SECS, self._look_at_disk)

    def _on_disk_fault(self, fault: str | None) -> None:
        self._register(fault)
        self.tell(Recheck())

    def _register(self, fault: str | None) -> None:
        summary = NimbusSummary(*self.address[:2], 0, False, "1", disk_fault=fault)
        self._storm.add_nimbus_host(summary)

    def _write(self, decisions: Decisions) -> None:
        attempt = decisions.next()
        if attempt.what.startswith("activate "):
            # What is submitted to it, it has.
            self.shelf.storm_ids.add(attempt.what.split()[1])
        self._history.carry_out(attempt)
        assert attempt.outcome is not None
        self._seen[attempt.outcome.value] += 1
        self._seen["refused to a zombie"] += (
            attempt.outcome is Outcome.REFUSED and attempt.is_zombie_s
        )

    def _now(self) -> float:
        return self._clock.now

    def tell(self, event: Event) -> None:
        for instruction in self.election.handle(event, self._clock.now):
            self._seen[type(instruction).__name__] += 1
            self._clock.after(self._delay(), lambda each=instruction: self._carry_out(each))

    def _carry_out(self, instruction: Instruction) -> None:
        if self._is_stopped:
            self._clock.after(0.1, lambda: self._carry_out(instruction))
            return
        if isinstance(instruction, Look | Take | GiveUp):
            answer: Event = self._queueing.carry_out(instruction)
        else:
            answer = self._reigning.carry_out(instruction)
        self._clock.after(self._delay(), lambda: self._take(answer))

    def _take(self, answer: Event) -> None:
        if self._is_stopped:
            self._clock.after(0.1, lambda: self._take(answer))
        else:
            self.tell(answer)

    def _delay(self) -> float:
        """Return how long something takes: now and then as long as a call may."""
        return self._random.choice((0.0, 0.01, 0.1)) if self._random.random() < 0.97 else 8.0

    def _on_elected(self, leader: LeaderClusterState) -> None:
        # An assertion would be taken for an error of the Nimbus.
        self._seen["told out of turn"] += self.decisions is not None
        self._seen["reigns"] += 1
        writer = FencedWriter(self.session, leader.fence, batch=BATCH, clock=self._now)
        self.decisions = Decisions(writer, self._random)

    def _on_deposed(self) -> None:
        self._seen["told out of turn"] += self.decisions is None
        self.decisions = None

    def _on_event(self, _event: EventType, path: str) -> None:
        if paths.parent(path) == paths.LEADER_LOCK:
            self.tell(QueueChanged())

    def _on_connection(self, state: ConnectionState) -> None:
        self._seen["sessions lost"] += state is ConnectionState.LOST
        self.tell(ConnectionChanged(state is ConnectionState.CONNECTED))

    # What befalls it.

    def lose_disk(self, fault: str | None, secs: float | None) -> None:
        """Lose all code; or have a disk that takes nothing more, for that long or for good."""
        self.shelf.fault = fault
        if fault in (None, "gone"):
            self.shelf.storm_ids.clear()
            self.tell(Recheck())
        if secs is not None:
            self._clock.after(secs, self._mend_disk)

    def _mend_disk(self) -> None:
        self.shelf.fault = None

    def stop(self, secs: float) -> None:
        """Stop the process, as SIGSTOP does, for that long."""
        if not self._is_stopped:
            self._is_stopped = True
            self._fall_silent(secs)
            self._clock.after(secs, self._go_on)

    def cut_off(self, secs: float) -> None:
        """Break its connection for that long."""
        self._ensemble.suspend(self.session)
        self._mend_after(secs)

    def lose_next_answer(self, *, applied: bool) -> None:
        """Have the next write's connection break, before or after it is applied."""
        self._ensemble.lose_answer(self.session, applied=applied)

    def delay_next_lock(self) -> None:
        """Have the next lock be made after the connection broke over it, if at all."""
        self._has_detour = True

    def leave(self, secs: float) -> None:
        """Leave the queue for that long."""
        self.tell(Withdraw())
        self._clock.after(secs, lambda: self.tell(Stand()))

    def _create(self, path: str, data: bytes) -> str:
        is_connected = self.session.connection is ConnectionState.CONNECTED
        if not self._has_detour or not is_connected or self.session.ended:
            return self.session.create_sequential(path, data)
        self._has_detour = False
        session_id, connections = self.session.session_id, self._connections

        def arrive() -> None:
            # A server takes nothing more of a connection once its session has another one.
            is_newest = (session_id, connections) == (self.session.session_id, self._connections)
            if is_newest and not self.session.ended:
                _, events = self._ensemble.tree.create_sequential(path, data, session_id)
                operation = Create(path, data, ephemeral=True, sequential=True)
                self._ensemble.commit(self.session, [operation], events)
                self._seen["arrived late"] += 1

        self._ensemble.suspend(self.session)
        secs = self._random.uniform(0.1, 4.0)
        self._clock.after(secs, arrive)
        self._mend_after(self._random.choice((0.5, 2.0)) * secs)
        raise OutcomeUnknownError("the connection was lost, and the request is on its way")

    def _fall_silent(self, secs: float) -> None:
        """Have the server end its session when it has not heard of it for too long."""
        former = self.session.session_id

        def end() -> None:
            if self.session.session_id == former:
                self._ensemble.end_session(self.session)

        if secs > SESSION_SECS:
            self._clock.after(SESSION_SECS, end)

    def _go_on(self) -> None:
        self._is_stopped = False
        if self.session.ended and self._random.random() < 0.5:
            # Its client has a new session before it has come to anything; it has not heard so.
            self._ensemble.suspend(self.session)
            self._ensemble.resume(self.session)

    def _mend_after(self, secs: float) -> None:
        if not self._is_mending:
            self._is_mending = True
            self._fall_silent(secs)
            self._clock.after(secs, self._mend)

    def _mend(self) -> None:
        if self._is_stopped:
            self._clock.after(1.0, self._mend)
            return
        self._is_mending = False
        self._connections += 1
        self._ensemble.resume(self.session)
