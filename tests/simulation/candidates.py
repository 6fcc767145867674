"""Processes that would lead: each a step function, which faults stop, cut off and mislead."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from simulation.clock import Clock
from simulation.decisions import BATCH, Decisions
from simulation.history import Attempt, History, Outcome
from stormkeeper.errors import NotLeaderError, OutcomeUnknownError, StateError, TransactionError
from stormkeeper.state import leader_lock
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.leader_lock import Lock
from stormkeeper.state.storage import ClusterState, ConnectionState, Operation, Result
from support.interposed import Interposed
from support.leaders import obtain_fence
from support.memory_state import MemoryEnsemble

#: After which silence the server ends a session.
SESSION_SECS: Final = 10.0

#: Makes a leader's handle; a test that wants to be fooled makes another one.
MakeHandle = Callable[..., FencedWriter]


class Candidate:
    """One process with one session. It leads once its lock is the first, and goes on to, as far as
    it knows. Now and then it does not wait for that, and tries to lead before its turn.
    """

    def __init__(
        self,
        ensemble: MemoryEnsemble,
        clock: Clock,
        history: History,
        random: Random,
        make_handle: MakeHandle,
        seen: Counter[str],
        operator: ClusterState,
    ) -> None:
        self._ensemble = ensemble
        self._clock = clock
        self._history = history
        self._random = random
        self._make_handle = make_handle
        self._seen = seen
        self.session = ensemble.session()
        self.session.add_listener(self._hear)
        #: In whose name the server applies what was on its way when a connection broke.
        self._operator = operator
        self._network = Interposed(self.session, commit=self._send)
        self._lock: Lock | None = None
        #: While it believes that it leads.
        self._decisions: Decisions | None = None
        self._queue: deque[Attempt] = deque()
        self._is_stopped = False
        self._is_mending = False
        #: Seconds for which the network keeps the next write, whose answer is lost.
        self._detour_secs: float | None = None

    @property
    def believes_to_lead(self) -> bool:
        return self._decisions is not None

    def live(self) -> None:
        """Take a step now, and others in a while."""
        if not self._is_stopped:
            self._step(self._random.randint(0, 3))
        self._clock.after(self._random.uniform(0.05, 1.0), self.live)

    def stop(self, secs: float) -> None:
        """Stop the process, as SIGSTOP does, for that long."""
        if self._is_stopped:
            return
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

    def delay_next_write(self, secs: float) -> None:
        """Have the next write reach the server after its connection broke, if at all."""
        self._detour_secs = secs

    # What it does.

    def _step(self, writes: int) -> None:
        if self._decisions is not None:
            self._queue.extend(self._decisions.next() for _ in range(self._random.randint(0, 3)))
        for _ in range(min(writes, len(self._queue))):
            self._write(self._queue.popleft())
        # Only now it hears what became of its session meanwhile.
        self._ensemble.deliver(self.session)
        if self._decisions is None:
            with contextlib.suppress(StateError):
                self._stand()
        if self.session.connection is ConnectionState.SUSPENDED:
            self._mend_after(self._random.choice((1.0, 4.0, 1.5 * SESSION_SECS)))

    def _write(self, attempt: Attempt) -> None:
        self._history.carry_out(attempt)
        assert attempt.outcome is not None
        if attempt.outcome is Outcome.REFUSED:
            self._seen["refused to a zombie"] += attempt.is_zombie_s
            if self._lock and self._lock.path == attempt.fence.path:
                self._decisions = None
        self._seen[attempt.outcome.value] += 1

    def _stand(self) -> None:
        """Have one lock, and lead if it is the first."""
        line = leader_lock.queue(self.session)
        for lock in line:
            # Such as those whose making ended as unknown, and those that were revoked.
            if lock.session_id == self.session.session_id and lock != self._lock:
                leader_lock.give_up(self.session, lock)
        if self._lock not in line:
            self._lock = None
            self._lock = leader_lock.take(self._network)
        is_first = leader_lock.before(self.session, self._lock) is None
        if not is_first and self._random.random() < 0.8:
            return
        try:
            fence = obtain_fence(self.session, self._lock)
        except NotLeaderError:
            self._seen["refused before its turn"] += not is_first
            return
        handle = self._make_handle(self._network, fence, batch=BATCH, clock=lambda: self._clock.now)
        self._decisions = Decisions(handle, self._random)
        self._seen["reigns"] += 1

    def _hear(self, state: ConnectionState) -> None:
        if state is ConnectionState.LOST:
            self._seen["sessions lost"] += 1
            self._decisions = self._lock = None

    # What befalls it.

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
        self._step(len(self._queue))

    def _mend_after(self, secs: float) -> None:
        if self._is_mending:
            return
        self._is_mending = True
        self._fall_silent(secs)
        self._clock.after(secs, self._mend)

    def _mend(self) -> None:
        if self._is_stopped:
            self._clock.after(1.0, self._mend)
            return
        self._is_mending = False
        self._ensemble.resume(self.session)

    def _send(self, operations: Sequence[Operation]) -> list[Result]:
        is_connected = self.session.connection is ConnectionState.CONNECTED
        if self._detour_secs is None or not is_connected or self.session.ended:
            return self.session.commit(operations)
        secs, self._detour_secs = self._detour_secs, None
        attempt = self._history.current

        def arrive() -> None:
            # A server takes nothing more of a connection once its session has another one.
            if attempt and self.session.connection is ConnectionState.SUSPENDED:
                with self._history.attempting(attempt):
                    try:
                        self._operator.commit(operations)
                        self._seen["arrived late, and applied"] += 1
                    except TransactionError:
                        self._seen["arrived late, and refused"] += 1

        self._ensemble.suspend(self.session)
        self._clock.after(secs, arrive)
        self._mend_after(secs + 1.0)
        raise OutcomeUnknownError("the connection was lost, and the request is on its way")
