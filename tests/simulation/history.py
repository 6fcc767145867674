"""What leaders tried to write and what was written, as the store itself saw it."""

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.leader_lock import Fence
from stormkeeper.state.storage import Check, Operation
from support.memory_tree import MemoryTree


class Outcome(enum.Enum):
    """What the caller of a write was told."""

    DONE = "done"
    REFUSED = "NotLeaderError"
    NOT_SENT = "StateUnavailableError"
    UNKNOWN = "OutcomeUnknownError"
    FAILED = "another StateError"


@dataclass
class Attempt:
    """One decision of a leader, to be written when its turn comes."""

    fence: Fence
    what: str
    write: Callable[[], None]
    #: Whether it is so, in the store.
    holds: Callable[[MemoryTree], bool]
    #: Whether it is one transaction, and so leaves nothing behind when it fails.
    is_one_step: bool
    #: Whether it changes the store even if that is as it should be already.
    always_changes: bool = True
    outcome: Outcome | None = None
    #: Whether it held when the caller was told that it was done.
    held: bool = False
    #: The newest epoch of which anything had been written when it was begun.
    newest_before: int = 0
    changes: list[int] = field(default_factory=list)

    @property
    def is_zombie_s(self) -> bool:
        """Whether a newer leader had written before it was begun."""
        return self.newest_before > self.fence.epoch


class Applied(NamedTuple):
    """A leader's write that was applied."""

    change: int
    attempt: Attempt
    #: Whether it began with a check of its leader's lock.
    was_checked: bool
    #: Whether that lock was there, untouched, and no other one was before it.
    was_in_reign: bool

    @property
    def epoch(self) -> int:
        return self.attempt.fence.epoch


class History:
    """All attempts, and all writes that came of them, in order."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.applied: list[Applied] = []
        #: Set once there is one.
        self.tree: MemoryTree
        #: On whose behalf the store is written to; None for what is no leader's.
        self.current: Attempt | None = None
        self._newest = 0

    @contextmanager
    def attempting(self, attempt: Attempt) -> Iterator[None]:
        """Take all that is written meanwhile for what came of `attempt`."""
        before, self.current = self.current, attempt
        try:
            yield
        finally:
            self.current = before

    def carry_out(self, attempt: Attempt) -> None:
        """Write it now, and note what its caller was told."""
        attempt.newest_before = self._newest
        self.attempts.append(attempt)
        with self.attempting(attempt):
            try:
                attempt.write()
            except NotLeaderError:
                attempt.outcome = Outcome.REFUSED
            except OutcomeUnknownError:
                attempt.outcome = Outcome.UNKNOWN
            except StateUnavailableError:
                attempt.outcome = Outcome.NOT_SENT
            except StateError:
                attempt.outcome = Outcome.FAILED
            else:
                attempt.outcome = Outcome.DONE
                attempt.held = attempt.holds(self.tree)

    def committed(self, change: int, _session_id: int, operations: Sequence[Operation]) -> None:
        """Take note; the store calls this."""
        attempt = self.current
        if attempt is None:
            return
        path = attempt.fence.path
        lock = self.tree.find(path)
        self.applied.append(
            Applied(
                change,
                attempt,
                was_checked=operations[0] == Check(path, 0),
                was_in_reign=lock is not None and lock.version == 0 and path == self._first(),
            )
        )
        attempt.changes.append(change)
        self._newest = max(self._newest, attempt.fence.epoch)

    def _first(self) -> str:
        """Return the path of the first lock, by their numbers: those do not wrap around here."""
        names = self.tree.get(paths.LEADER_LOCK).children
        return f"{paths.LEADER_LOCK}/{min(names, key=lambda name: name[-10:], default='')}"

    def overlaps(self) -> list[str]:
        """Return where an older leader's write follows a newer one's."""
        return [
            f"change {late.change} ({late.attempt.what}) is of epoch {late.epoch}, and"
            f" {early.change} ({early.attempt.what}) was of {early.epoch} already"
            for early, late in itertools.pairwise(self.applied)
            if late.epoch < early.epoch
        ]

    def past_the_lock(self) -> list[str]:
        """Return the writes without a check of their leader's lock, or not made in its reign."""
        return [
            f"change {each.change} ({each.attempt.what}) of epoch {each.epoch}:"
            f" checked {each.was_checked}, in its reign {each.was_in_reign}"
            for each in self.applied
            if not (each.was_checked and each.was_in_reign)
        ]

    def broken_promises(self) -> list[str]:
        """Return the attempts whose outcome was not what their caller was told."""
        return [
            f"{attempt.what} of epoch {attempt.fence.epoch} ended as {attempt.outcome}, with"
            f" changes {attempt.changes} (held: {attempt.held}, a newer leader:"
            f" {attempt.is_zombie_s})"
            for attempt in self.attempts
            if not _is_true(attempt)
        ]


def _is_true(attempt: Attempt) -> bool:
    match attempt.outcome:
        case Outcome.DONE:
            written = bool(attempt.changes) or not attempt.always_changes
            return attempt.held and written and not attempt.is_zombie_s
        case Outcome.UNKNOWN:
            return len(attempt.changes) <= 1 or not attempt.is_one_step
        case Outcome.REFUSED | Outcome.NOT_SENT | Outcome.FAILED:
            return not (attempt.is_one_step and attempt.changes)
    return False
