"""Elects the leader among Nimbuses, by the queue of locks in the cluster state.

`stormkeeper.nimbus.election` decides. The thread *nimbus election* calls the store, within the
store's deadlines; *nimbus leadership* calls the Nimbus, and may block. Meanwhile the other thread
renews or ends the lease, and gives up the lock if need be. Any thread may run the state machine,
under a mutex: a blocked thread does not delay the news of a lost connection.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, assert_never

from stormkeeper import paths
from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.errors import NoLeaderError, NotLeaderError, StateError, StateUnavailableError
from stormkeeper.nimbus import election
from stormkeeper.nimbus.election import Election
from stormkeeper.nimbus.readiness import Candidate
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Lock
from stormkeeper.state.storage import ClusterState, ConnectionState, EventType
from stormkeeper.state.storm.cluster import StormClusterState

log = logging.getLogger(__name__)

#: Longest sleep of a thread, in seconds: then a missed event is noticed.
BACKSTOP_SECS: Final = 5.0

#: For `Elector.close` to give up the lock and depose the Nimbus.
CLOSE_SECS: Final = 10.0

#: The same without ZooKeeper: calls end by their own deadline, and locks with the session.
UNREACHED_SECS: Final = 1.0


class Elector:
    """Has a candidate take part in the election. Safe for many threads; must be closed.

    Call `recheck` when the candidate's `disk_fault` changes. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        storm: StormClusterState,
        nimbus: NimbusId,
        candidate: Candidate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = storm.state
        self._nimbus = nimbus
        self._clock = clock
        self._election = Election()
        # Guards the election and the open instructions.
        self._changed = threading.Condition()
        self._closed = False
        lock_queue = LockQueue(self._state, nimbus, clock)
        self._store_slot = _InstructionSlot(lock_queue.carry_out)
        self._nimbus_slot = _InstructionSlot(candidate.carry_out)
        self._registration = self._state.register(self._on_event)
        self._state.add_listener(self._on_connection)
        self._on_connection(self._state.connection)
        self._threads = [
            threading.Thread(target=self._run, args=[slot], name=name, daemon=True)
            for name, slot in (
                ("nimbus election", self._store_slot),
                ("nimbus leadership", self._nimbus_slot),
            )
        ]
        for thread in self._threads:
            thread.start()

    def add_to_leader_lock_queue(self) -> None:
        """Queue for leadership once the code of all topologies is here; returns at once."""
        self._handle(election.Stand())

    def remove_from_leader_lock_queue(self) -> None:
        """Leave the queue; returns at once, and `is_leader` is False from then on."""
        self._handle(election.Withdraw())

    def recheck(self) -> None:
        self._handle(election.Recheck())

    @property
    def is_leader(self) -> bool:
        """Whether this Nimbus leads now; False while the store cannot be reached.

        This may end before the caller acts; writes are fenced all the same.
        """
        with self._changed:
            lock = self._election.lock
            # The threads may not have heard of a change yet.
            return (
                lock is not None
                and self._election.leads(self._clock())
                and self._state.connection is ConnectionState.CONNECTED
                and self._state.session_id == lock.session_id
            )

    def leader_address(self) -> NimbusId:
        """Return the address of the present or next leader.

        Raises `NoLeaderError`, and `StateUnavailableError` if the store was not reached.
        """
        queue = leader_lock.queue(self._state)
        if not queue or queue[0].revoked:
            raise NoLeaderError("no Nimbus leads at present: ask again in a moment")
        nimbus = queue[0].nimbus
        if nimbus is None:
            raise NoLeaderError(
                f"no Nimbus leads: {queue[0].holder.decode(errors='replace')!r} has the lock"
                f" {queue[0].path}; ask again when it is gone"
            )
        return nimbus

    def is_next(self) -> bool:
        """Return whether this Nimbus's lock is first: other Nimbuses send clients here."""
        try:
            return self.leader_address() == self._nimbus
        except StateError:
            return False

    def close(self) -> None:
        """Leave the queue, depose a leading Nimbus, and end the threads.

        Takes at most ten seconds; about one without the store: then the lock ends with the session,
        which must be closed, too. Callbacks may call this.
        """
        deadline = self._clock() + CLOSE_SECS
        self._handle(election.Withdraw())
        is_own = threading.current_thread() in self._threads
        with self._changed:
            self._changed.wait_for(lambda: self._is_left(is_own), CLOSE_SECS)
            self._closed = True
            self._changed.notify_all()
        self._state.unregister(self._registration)
        self._state.remove_listener(self._on_connection)
        is_reached = self._state.connection is ConnectionState.CONNECTED
        if not is_reached:
            deadline = min(deadline, self._clock() + UNREACHED_SECS)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - self._clock()))
                if thread.is_alive() and is_reached:
                    log.warning(
                        "the thread %s still runs after the Nimbus left the election", thread.name
                    )

    def _is_left(self, is_own: bool) -> bool:
        can_wait = self._state.connection is not ConnectionState.CONNECTED
        is_out = self._election.is_out or can_wait
        return self._closed or (is_out and (self._election.is_over or is_own))

    # The store's callback thread calls these two.

    def _on_connection(self, state: ConnectionState) -> None:
        self._handle(election.ConnectionChanged(state is ConnectionState.CONNECTED))

    def _on_event(self, _event: EventType, path: str) -> None:
        # A reconnect causes a look, so missed events need no handling.
        if paths.parent(path) == paths.LEADER_LOCK:
            self._handle(election.QueueChanged())

    def _handle(self, event: election.Event) -> None:
        with self._changed:
            if self._closed:
                return
            for instruction in self._election.handle(event, self._clock()):
                is_for_store = isinstance(
                    instruction, election.Look | election.Take | election.GiveUp
                )
                slot = self._store_slot if is_for_store else self._nimbus_slot
                slot.instruction = instruction
            self._changed.notify_all()

    def _run(self, slot: "_InstructionSlot") -> None:
        while (instruction := self._next(slot)) is not None:
            self._handle(slot.carry_out(instruction))

    def _next(self, slot: "_InstructionSlot") -> election.Instruction | None:
        with self._changed:
            while not self._closed:
                instruction, slot.instruction = slot.instruction, None
                if instruction is not None:
                    return instruction
                until = min(self._election.alarm - self._clock(), BACKSTOP_SECS)
                self._changed.wait(max(0.0, until))
                if self._clock() >= self._election.alarm:
                    self._handle(election.TimePassed())
        return None


class _InstructionSlot:
    def __init__(self, carry_out: Callable[[Any], election.Event]) -> None:
        self.carry_out = carry_out
        self.instruction: election.Instruction | None = None


#: How often a look starts over because locks came or went.
ROUNDS: Final = 20


class LockQueue:
    """A Nimbus's place in the queue of locks. Each call ends by the store's deadlines."""

    def __init__(self, state: ClusterState, nimbus: NimbusId, clock: Callable[[], float]) -> None:
        self._state = state
        self._holder = str(nimbus).encode()
        self._clock = clock
        self._failures = FailureStreak()

    def carry_out(self, instruction: election.StoreInstruction) -> election.StoreAnswer:
        try:
            answer: election.StoreAnswer = self._perform(instruction)
        except Exception as error:
            self._failures.record()
            self._log_failure(instruction, error)
            return election.StoreFailed()
        self._failures.reset()
        return answer

    def _perform(self, instruction: election.StoreInstruction) -> election.StoreAnswer:
        match instruction:
            case election.Look():
                return self._look()
            case election.Take():
                # The lock may be gone again, with its session.
                with contextlib.suppress(NotLeaderError):
                    leader_lock.take(self._state, self._holder)
            case election.GiveUp(lock):
                leader_lock.give_up(self._state, lock)
            case _:
                assert_never(instruction)
        return election.Wrote()

    def _look(self) -> election.Looked:
        began_at = self._clock()
        session_id, timeout_secs = self._state.session_id, self._state.session_timeout_secs
        assert session_id is not None
        assert timeout_secs is not None
        for _ in range(ROUNDS):
            queue = leader_lock.queue(self._state)
            if self._is_watched(watched(queue, session_id)):
                break
        else:
            raise StateError(f"the queue of locks changed {ROUNDS} times while it was read")
        if self._state.session_id != session_id:
            raise StateUnavailableError("the session has ended while the queue was read")
        return election.Looked(tuple(queue), session_id, timeout_secs, began_at)

    def _is_watched(self, seen: list[Lock]) -> bool:
        nodes = self._state.read_many([lock.path for lock in seen], watch=True)
        return all(
            node is not None and (node.stat.version != 0) == lock.revoked
            for node, lock in zip(nodes, seen, strict=True)
        )

    def _log_failure(self, instruction: election.StoreInstruction, error: Exception) -> None:
        if not isinstance(error, StateError):
            log.exception("a defect of Stormkeeper in the election, which continues")
            return
        is_away = isinstance(error, StateUnavailableError)
        level = logging.WARNING if self._failures.should_log and not is_away else logging.DEBUG
        log.log(level, "election: %s failed: %s", type(instruction).__name__, error)


def watched(queue: list[Lock], session_id: int) -> list[Lock]:
    """Return the session's first lock and the lock before: changes elsewhere wake no Nimbus."""
    for at, lock in enumerate(queue):
        if lock.session_id == session_id:
            return queue[max(0, at - 1) : at + 1]
    return []
