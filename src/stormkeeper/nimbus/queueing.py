"""Carries out what an election asks of the store: to look at the queue, and to stand in it."""

import contextlib
import logging
from collections.abc import Callable
from typing import Final, assert_never

from stormkeeper.errors import NotLeaderError, StateError, StateUnavailableError
from stormkeeper.nimbus.election_events import (
    GiveUp,
    Look,
    Saw,
    StoreAnswer,
    StoreFailed,
    StoreInstruction,
    Take,
    Wrote,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Lock
from stormkeeper.state.storage import ClusterState

log = logging.getLogger(__name__)

#: How often a look begins anew as locks came or went meanwhile.
ROUNDS: Final = 20


class Queueing:
    """One Nimbus's place in the queue. Each call ends by the deadlines of the store.

    Parameters
    ----------
    state
        The session that its locks end with. No other lock is taken in it.
    nimbus
        What its locks say who it is.
    clock
        Seconds, monotonic.
    """

    def __init__(self, state: ClusterState, nimbus: NimbusId, clock: Callable[[], float]) -> None:
        self._state = state
        self._holder = str(nimbus).encode()
        self._clock = clock
        self._failures = 0

    def carry_out(self, instruction: StoreInstruction) -> StoreAnswer:
        """Do it, and return what came of it."""
        try:
            answer: StoreAnswer = self._done(instruction)
        except Exception as error:
            self._failures += 1
            self._tell(instruction, error)
            return StoreFailed()
        self._failures = 0
        return answer

    def _done(self, instruction: StoreInstruction) -> StoreAnswer:
        match instruction:
            case Look():
                return self._look()
            case Take():
                # One may be gone again, with its session.
                with contextlib.suppress(NotLeaderError):
                    leader_lock.take(self._state, self._holder)
            case GiveUp(lock):
                leader_lock.give_up(self._state, lock)
            case _:
                assert_never(instruction)
        return Wrote()

    def _look(self) -> Saw:
        began_at = self._clock()
        session_id, timeout_secs = self._state.session_id, self._state.session_timeout_secs
        assert session_id is not None
        assert timeout_secs is not None
        for _ in range(ROUNDS):
            line = leader_lock.queue(self._state)
            if self._is_watched(watched(line, session_id)):
                break
        else:
            raise StateError(f"the queue of locks changed {ROUNDS} times while it was read")
        if self._state.session_id != session_id:
            raise StateUnavailableError("the session has ended while the queue was read")
        return Saw(tuple(line), session_id, timeout_secs, began_at)

    def _is_watched(self, seen: list[Lock]) -> bool:
        """Leave watches on locks; returns whether they are still as they were seen."""
        nodes = self._state.read_many([lock.path for lock in seen], watch=True)
        return all(
            node is not None and (node.stat.version != 0) == lock.revoked
            for node, lock in zip(nodes, seen, strict=True)
        )

    def _tell(self, instruction: StoreInstruction, error: Exception) -> None:
        if not isinstance(error, StateError):
            log.exception("a defect of Stormkeeper in the election, which goes on")
            return
        is_told = self._failures & (self._failures - 1) == 0
        # A store that is away says so itself.
        is_away = isinstance(error, StateUnavailableError)
        level = logging.WARNING if is_told and not is_away else logging.DEBUG
        log.log(level, "election: %s failed: %s", type(instruction).__name__, error)


def watched(line: list[Lock], session_id: int) -> list[Lock]:
    """Return what to watch of the queue: the session's first lock, and the one before it.

    Nobody is woken by what happens further ahead, or behind.
    """
    for at, lock in enumerate(line):
        if lock.session_id == session_id:
            return line[max(0, at - 1) : at + 1]
    return []
