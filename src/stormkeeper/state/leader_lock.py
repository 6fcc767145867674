"""Fences: the proof of who leads, and since when; and the writer that only a leader has.

Whose lock is the first in the queue gets a `Fence`. The first stays
the first until it is gone, and a lock is never made twice. So what is written on the condition
that the lock is there is written by the one leader of that time, or not at all.

A process that was stopped, or cut off, for longer than its session lasts believes that it leads
when it goes on, while another one does. So whatever a leader writes, through a `FencedWriter`, is a
transaction whose first operation checks that its lock node is there, untouched. The store applies
both or neither, and nothing depends on what the process believes, or on how long an answer takes.
"""

import re
import time
import uuid
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
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import (
    DIRECTORY,
    Check,
    ClusterState,
    Create,
    Delete,
    NodeData,
    Operation,
    Result,
    SetData,
    StateReader,
    StateWriter,
)

#: What is between the GUID and the number in a lock's name: Curator's for a leader latch.
_LATCH: Final = "-latch-"

#: Names of locks: ZooKeeper's number has at least ten characters, and a sign once it has wrapped.
_NAME: Final = re.compile(r"(?:.*-)?latch-(?P<number>[0-9]{10}|-[0-9]{9,10})")


@dataclass(frozen=True, slots=True)
class Lock:
    """A place in the queue."""

    #: Where the node is, or was.
    path: str

    #: The store's count of changes when it was made (its creation zxid).
    created: int

    #: The id of the session that it ends with.
    session_id: int

    #: Who says to hold it.
    holder: bytes

    #: Whether its value was set since: then it keeps its place, and lets no write through.
    revoked: bool = False

    @property
    def nimbus(self) -> NimbusId | None:
        """The Nimbus that says to hold it, None where its value is none of a Nimbus."""
        return paths.parse_nimbus_id(self.holder.decode(errors="replace"))


def take(state: ClusterState, holder: bytes = b"") -> Lock:
    """Make a lock of this session, the last in the queue; it may be one of several.

    Parameters
    ----------
    state
        The session that the lock is to end with.
    holder
        The node's value: who this is. A Nimbus writes its `stormkeeper.paths.NimbusId`.

    Raises
    ------
    OutcomeUnknownError
        A lock may have been made, and was not found, or could not be looked for, or could not be
        deleted again. If it was, it ends with the session, and may be the first of all until then:
        look for locks of the session's own, or end it, before another one is taken.
    NotLeaderError
        The lock was made and is gone already, with its session.
    """
    prefix = f"{paths.LEADER_LOCK}/_c_{uuid.uuid4()}{_LATCH}"
    try:
        path = state.create_sequential(prefix, holder)
    except OutcomeUnknownError as error:
        # A second one would be this session's too, and nobody would ever delete the first.
        path = _find(state, prefix, error)
    try:
        stat = state.get_stat(path)
    except StateError as error:
        # Its place is not known, and it would keep others from leading.
        try:
            state.delete_node(path)
        except StateUnavailableError:
            # What the read raised says that nothing was sent, and so that there is no lock.
            raise OutcomeUnknownError(
                f"the lock {path} was made, and could be neither read nor deleted: {error}"
            ) from error
        except StateError:
            pass
        raise
    if stat is None:
        raise NotLeaderError(f"the lock {path} is gone already: its session ended; take another")
    return Lock(path, stat.created, stat.owner, holder, stat.version != 0)


def give_up(state: ClusterState, lock: Lock) -> None:
    """Delete the lock, and so end what its holder may write; one that is gone is fine."""
    state.delete_node(lock.path)


def queue(state: StateReader) -> list[Lock]:
    """Return all locks as they are now, the first one's first: it is the leader's, or will be."""
    return in_line(nodes(state))


def before(state: StateReader, lock: Lock, watch: bool = False) -> Lock | None:
    """Return the lock that is right before `lock`, None when `lock` is the first.

    Parameters
    ----------
    state
        Any session.
    lock
        A lock that is in the queue.
    watch
        Leave a watch on what is returned: it tells that it is gone, or was revoked. Then ask
        again, as others may be before `lock` still.

    Raises
    ------
    NotLeaderError
        `lock` is gone.
    """
    while True:
        ahead = predecessor(queue(state), lock)
        # One that has gone meanwhile is not watched: then there are fewer of them.
        if ahead is None or not watch or state.node_exists(ahead.path, watch=True):
            return ahead


def nodes(state: StateReader) -> dict[str, NodeData]:
    """Return what is below ``/leader-lock`` by name, as it is now: locks, and anything else."""
    try:
        # The server that is asked may lag behind.
        state.sync_path(paths.LEADER_LOCK)
        return state.children_data(paths.LEADER_LOCK)
    except NoNodeError:
        return {}


def in_line(nodes: Mapping[str, NodeData]) -> list[Lock]:
    """Return the locks among the nodes below ``/leader-lock``, the first one's first.

    A persistent node is none, whatever its name: nobody would ever lead by it.
    """
    numbered = []
    for name, (data, stat) in nodes.items():
        if stat.owner and (match := _NAME.fullmatch(name)):
            path = f"{paths.LEADER_LOCK}/{name}"
            lock = Lock(path, stat.created, stat.owner, data, stat.version != 0)
            numbered.append((stat.created, int(match["number"]), path, lock))
    # What one transaction made has the same zxid.
    return [lock for *_, lock in sorted(numbered, key=lambda each: each[:3])]


def predecessor(line: Sequence[Lock], lock: Lock) -> Lock | None:
    """Return which of the locks in `line` is right before `lock`, None when it is the first.

    Raises
    ------
    NotLeaderError
        It is not in `line`.
    """
    ahead = None
    for each in line:
        if (each.path, each.created) == (lock.path, lock.created):
            return ahead
        ahead = each
    raise NotLeaderError(
        f"the lock {lock.path} is gone, with its session or by hand: take another"
        " (leader_lock.take)"
    )


def _find(state: ClusterState, prefix: str, unknown: OutcomeUnknownError) -> str:
    try:
        state.sync_path(paths.LEADER_LOCK)
        names = state.get_children(paths.LEADER_LOCK)
    except NoNodeError:
        names = []
    except StateUnavailableError as error:
        raise unknown from error
    for name in names:
        if (path := f"{paths.LEADER_LOCK}/{name}").startswith(prefix):
            return path
    raise unknown


@dataclass(frozen=True, slots=True)
class Fence:
    """A lock that was found to be the first: by it, its holder's writes are let through."""

    #: Where the lock is, or was.
    path: str

    #: The store's count of changes when the lock was made: grows from reign to reign.
    epoch: int


def obtain_fence(state: StateReader, lock: Lock) -> Fence:
    """Return the fence of the lock that is the first.

    Parameters
    ----------
    state
        The session that the lock ends with.
    lock
        As `stormkeeper.state.leader_lock.take` returned it.

    Raises
    ------
    NotLeaderError
        `lock` is not the first, or no lock of this session any more; it says why.
    """
    fence = Fence(lock.path, lock.created)
    verify_fence(state, fence)
    return fence


def verify_fence(state: StateReader, fence: Fence) -> None:
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
            f"a leader has a Fence, as leader_lock.obtain_fence returns it, not a"
            f" {type(fence).__name__}"
        )
    if paths.parent(paths.check(fence.path)) != paths.LEADER_LOCK:
        raise NotLeaderError(f"{fence.path} is no lock: locks are directly below /leader-lock")
    if why := _refusal(nodes(state), fence, state.session_id):
        raise NotLeaderError(f"nobody leads in this session by {fence.path}: {why}")


def _refusal(nodes: Mapping[str, NodeData], fence: Fence, session_id: int | None) -> str | None:
    """Return why whoever has `fence` does not lead, None when he does, and what to do."""
    line = in_line(nodes)
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
    elif ahead := predecessor(line, lock):
        holder = ahead.holder.decode(errors="replace")
        return f"{ahead.path} ({holder!r}) is before it; wait until it is gone (leader_lock.before)"
    else:
        return None
    return f"{why}; take a lock (leader_lock.take)"


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
        Whoever has `fence` does not lead: see `verify_fence`.
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
        verify_fence(session, fence)
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
                    f" leading, and take another lock (leader_lock.take) to lead again"
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
