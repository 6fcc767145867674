"""Fences: the proof of who leads, and since when; and the writer that only a leader has.

Whose lock is the first in the queue (see `stormkeeper.state.locks`) gets a `Fence`. The first stays
the first until it is gone, and a lock is never made twice. So what is written on the condition
that the lock is there is written by the one leader of that time, or not at all.

A process that was stopped, or cut off, for longer than its session lasts believes that it leads
when it goes on, while another one does. So whatever a leader writes, through a `FencedWriter`, is a
transaction whose first operation checks that its lock node is there, untouched. The store applies
both or neither, and nothing depends on what the process believes, or on how long an answer takes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    InvalidPathError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotLeaderError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
    TransactionError,
)
from stormkeeper.state import locks
from stormkeeper.state.locks import Lock
from stormkeeper.state.storage import DIRECTORY, ClusterState, NodeData, StateReader, StateWriter
from stormkeeper.state.transactions import Check, Create, Delete, Operation, Result, SetData


@dataclass(frozen=True, slots=True)
class Fence:
    """A lock that was found to be the first: by it, its holder's writes are let through."""

    #: Where the lock is, or was.
    path: str

    #: The store's count of changes when the lock was made: grows from reign to reign.
    epoch: int


def obtain(state: StateReader, lock: Lock) -> Fence:
    """Return the fence of the lock that is the first.

    Parameters
    ----------
    state
        The session that the lock ends with.
    lock
        As `stormkeeper.state.locks.take` returned it.

    Raises
    ------
    NotLeaderError
        `lock` is not the first, or no lock of this session any more; it says why.
    """
    fence = Fence(lock.path, lock.created)
    verify(state, fence)
    return fence


def verify(state: StateReader, fence: Fence) -> None:
    """Fail unless `fence` is a lock that this session has taken, has still, and leads by.

    What is written by a fence is let through while there is a node at its path. So whoever would
    lead by a fence that names another node, such as a lock that waits, or a persistent one that is
    always there, would not be fenced; and the epoch that is written into records has to be the
    lock's own.

    Raises
    ------
    TypeError
        `fence` is no `Fence`.
    NotLeaderError
        There is no such lock: the node is gone, is no lock, is another session's, was revoked, or
        was made by another change than the epoch says. Or another lock is before it.
    """
    if not isinstance(fence, Fence):
        raise TypeError(
            f"whoever leads has a Fence, as fences.obtain returns it, not a {type(fence).__name__}"
        )
    if paths.parent(paths.check(fence.path)) != paths.LEADER_LOCK:
        raise NotLeaderError(f"{fence.path} is no lock: locks are directly below /leader-lock")
    if why := _refusal(locks.nodes(state), fence, state.session_id):
        raise NotLeaderError(f"nobody leads in this session by {fence.path}: {why}")


def _refusal(nodes: Mapping[str, NodeData], fence: Fence, session_id: int | None) -> str | None:
    """Return why whoever has `fence` does not lead, None when he does, and what to do."""
    line = locks.in_line(nodes)
    lock = next((lock for lock in line if lock.path == fence.path), None)
    if lock is None:
        found = nodes.get(fence.path.rpartition("/")[2])
        if found is None:
            why = "it is gone, or never was there"
        elif not found.stat.owner:
            why = "it is persistent, and would not end with any session"
        else:
            why = "its name is none of a lock"
    elif lock.session_id != session_id:
        why = "another session made it"
    elif lock.created != fence.epoch:
        why = f"its epoch is {lock.created}, not {fence.epoch}"
    elif lock.revoked:
        why = "it was revoked: its value was set"
    elif ahead := locks.predecessor(line, lock):
        holder = ahead.holder.decode(errors="replace")
        return f"{ahead.path} ({holder!r}) is before it; wait until it is gone (locks.before)"
    else:
        return None
    return f"{why}; take a lock (locks.take)"


#: How often a write is tried again when others make and delete nodes in its way.
ROUNDS: Final = 20

#: Deletions in one transaction, and the bytes of their paths: far below what a ZooKeeper takes in
#: one request (1 MiB), and short enough to hold nobody up.
BATCH: Final = 250
BATCH_BYTES: Final = 256 * 1024

#: Seconds for which `FencedWriter.delete_node` goes on where answers are lost.
DELETE_SECS: Final = 60.0

#: The version of a lock whose value nobody has set.
_UNTOUCHED = 0


class FencedWriter(StateWriter):
    """A leader's `StateWriter`: what it writes is written while its lock is there, or not at all.

    It makes no ephemeral nodes, as those are a session's and not a leader's. Reads are those of
    `session`. Safe for many threads.

    Parameters
    ----------
    session
        The session that the lock ends with; closing it is for whoever opened it.
    fence
        The leader's, which is verified once. When its lock is gone, or anybody has set the lock's
        value, every write raises `NotLeaderError`, for ever: no lock is made twice.
    batch
        How many nodes one transaction deletes at most.
    clock
        Seconds, for the deadline of deletions.

    Raises
    ------
    TypeError, NotLeaderError
        Whoever has `fence` does not lead: see `verify`.
    StateUnavailableError
        The store could not be asked.

    Notes
    -----
    Beside the errors of `StateWriter`, every write may raise `NotLeaderError`, whose step wrote
    nothing. After `OutcomeUnknownError` a later answer does not tell what became of the write
    before it: read again.
    """

    def __init__(
        self,
        session: ClusterState,
        fence: Fence,
        *,
        batch: int = BATCH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        verify(session, fence)
        #: The session that the lock ends with.
        self.session = session
        #: The lock that lets writes through.
        self.fence = fence
        self._lock = Check(fence.path, _UNTOUCHED)
        self._batch = batch
        self._clock = clock

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """See `StateWriter.commit`; operations are counted without the lock's check."""
        try:
            return self.session.commit([self._lock, *operations])[1:]
        except TransactionError as error:
            if error.index > 0:
                raise TransactionError(error.index - 1, error.reason) from error
            if isinstance(error.reason, NoNodeError | BadVersionError):
                raise NotLeaderError(
                    f"this process does not lead any more, and nothing was written: its lock"
                    f" {self.fence.path} (epoch {self.fence.epoch}) is gone or was revoked: stop"
                    f" leading, and take another lock (locks.take) to lead again"
                ) from error
            raise error.reason from error

    def set_data(self, path: str, data: bytes, *, workers: str | None = None) -> None:
        """See `StateWriter.set_data`."""
        for _ in range(ROUNDS):
            try:
                self.commit([SetData(path, data)])
            except TransactionError as error:
                if not isinstance(error.reason, NoNodeError):
                    raise error.reason from error
            else:
                return
            if self._create(Create(path, data, workers=workers), parent=DIRECTORY):
                return
        raise _contended("write", path)

    def mkdirs(self, path: str, *, workers: str | None = None) -> None:
        """See `StateWriter.mkdirs`."""
        self._create(Create(path, DIRECTORY, workers=workers), parent=b"")

    def delete_node(self, path: str) -> None:
        """See `StateWriter.delete_node`.

        What is below the node goes in batches, each one transaction. Where an answer was lost, the
        rest is listed anew and deleted, for a minute; then that is `OutcomeUnknownError`. So is a
        connection that is away when a part has been deleted.
        """
        if paths.check(path) == "/":
            raise InvalidPathError("the root of the cluster's state is not deleted")
        deadline = self._clock() + DELETE_SECS
        unknown: OutcomeUnknownError | None = None
        begun = False
        for _ in range(ROUNDS):
            try:
                if not isinstance(self._delete_all([path]), NotEmptyError):
                    return
                for batch in _batches(self._below(path), self._batch):
                    # Others who delete or add at the same time end the round early.
                    if self._delete_all(batch) is not None:
                        break
                    begun = True
            except OutcomeUnknownError as error:
                unknown = error
                if self._clock() > deadline:
                    raise
            except StateUnavailableError as error:
                if begun:
                    raise OutcomeUnknownError(f"{error}; a part is deleted already") from error
                # Of what could not be listed, a part may be deleted yet.
                raise (unknown or error) from error
        raise unknown or _contended("delete", path)

    def _create(self, node: Create, *, parent: bytes) -> bool:
        """Make a node, and what ancestors it lacks, in one step; False if there is one already.

        Ancestors are empty, but the nearest has the value `parent`, as in Storm. The store is not
        asked beforehand, as a server that lags could answer with what was: an ancestor is added
        for each refusal.
        """
        for _ in range(ROUNDS):
            creates = [node]
            while True:
                try:
                    self.commit(creates)
                except TransactionError as error:
                    top = creates[0].path
                    if isinstance(error.reason, NodeExistsError):
                        if len(creates) == 1:
                            return False
                        break
                    if not isinstance(error.reason, NoNodeError) or top == "/":
                        raise error.reason from error
                    value = parent if len(creates) == 1 else b""
                    above = Create(paths.parent(top), value, workers=node.workers)
                    creates.insert(0, above)
                else:
                    return True
        raise _contended("create", node.path)

    def _delete_all(self, nodes: Sequence[str]) -> NoNodeError | NotEmptyError | None:
        """Delete nodes in one step; returns why not, where others were in the way."""
        try:
            self.commit(list(map(Delete, nodes)))
        except TransactionError as error:
            if isinstance(error.reason, NoNodeError | NotEmptyError):
                return error.reason
            raise error.reason from error
        return None

    def _below(self, path: str) -> list[str]:
        """Return the paths of all that is below a node, the deepest first."""
        levels = [[path]]
        while levels[-1]:
            listed = zip(levels[-1], self.session.children_many(levels[-1]), strict=True)
            levels.append([f"{above}/{name}" for above, names in listed for name in names or ()])
        return [node for level in reversed(levels[1:]) for node in level]


def _batches(nodes: Sequence[str], most: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for node in nodes:
        length = len(node.encode())
        if batch and (len(batch) == most or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(node)
        size += length
    if batch:
        yield batch


def _contended(what: str, path: str) -> StateError:
    return StateError(
        f"cannot {what} {path}: others made and deleted it, its parents or its children"
        f" {ROUNDS} times meanwhile"
    )
