"""The leader's lock: the queue of candidates, the fence of the first, and its fenced writes.

A lock is an ephemeral node below ``/leader-lock`` that is never made twice: its name has a GUID and
a number, as Curator's, by which Storm's Nimbuses queue. It is gone for good with its session. Locks
are ordered by the changes that created them (zxids):

- A later lock has a greater zxid, so no lock gets in before another. The first stays the first
  until it is gone, and each leadership has a greater epoch.
- An old list of locks lacks none that is before a lock in it. It may have some that are gone: then
  its reader waits a moment longer.

The number in a name says the same while it rises, but it has 32 bits, restarts when
``/leader-lock`` is made anew, and an operator can give a node any name.

A process that was stopped or cut off for longer than its session believes that it still leads,
while another process does. So every write of a leader, through a `FencedWriter`, is a transaction
whose first operation checks that the lock node exists, untouched. The store applies both or
neither. Nothing depends on what the process believes, or on how long an answer takes.
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

#: Between GUID and number: Curator's name for a leader latch.
_LATCH: Final = "-latch-"

#: Names of locks. ZooKeeper's number has at least ten characters, and a sign once it has wrapped.
_NAME: Final = re.compile(r"(?:.*-)?latch-(?P<number>[0-9]{10}|-[0-9]{9,10})")


@dataclass(frozen=True, slots=True)
class Lock:
    """A place in the queue."""

    path: str

    #: The change that made the node (creation zxid).
    created: int

    session_id: int

    #: The node's value at creation: the holder.
    holder: bytes

    #: Whether the value was set since: a revoked lock keeps its place, and lets no write through.
    revoked: bool = False

    @property
    def nimbus(self) -> NimbusId | None:
        """The holder as a Nimbus, None if the value is no Nimbus id."""
        return paths.parse_nimbus_id(self.holder.decode(errors="replace"))


def take(state: ClusterState, holder: bytes = b"") -> Lock:
    """Make a lock of this session, the last in the queue.

    A Nimbus writes its `stormkeeper.paths.NimbusId` as `holder`. A session may have several locks.

    Raises
    ------
    OutcomeUnknownError
        A lock may have been made, and could not be found, read or deleted. It ends with the
        session, and may be the first until then: look for the session's locks, or end the session,
        before taking another.
    NotLeaderError
        The lock is gone already, with its session.
    """
    prefix = f"{paths.LEADER_LOCK}/_c_{uuid.uuid4()}{_LATCH}"
    try:
        path = state.create_sequential(prefix, holder)
    except OutcomeUnknownError as error:
        # A second lock would leave the first one without an owner that deletes it.
        path = _find(state, prefix, error)
    try:
        stat = state.get_stat(path)
    except StateError as error:
        # A lock of unknown place would keep others from leading.
        try:
            state.delete_node(path)
        except StateUnavailableError:
            # The read's own error would claim that nothing was sent, and so that there is no lock.
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
    """Delete the lock, and so end the holder's writes; fine if the lock is gone."""
    state.delete_node(lock.path)


def queue(state: StateReader) -> list[Lock]:
    """Return all locks, the first at the front: the leader's, or the next leader's."""
    return in_line(nodes(state))


def before(state: StateReader, lock: Lock, watch: bool = False) -> Lock | None:
    """Return the lock right before `lock`, None if `lock` is the first.

    With `watch`, leave a watch on the returned lock. When it fires, the lock is gone or revoked:
    ask again, as other locks may still be before `lock`. Raises `NotLeaderError` if `lock` is gone.
    """
    while True:
        ahead = predecessor(queue(state), lock)
        # A lock that has gone meanwhile is not watched; the loop ends as there are fewer each time.
        if ahead is None or not watch or state.node_exists(ahead.path, watch=True):
            return ahead


def nodes(state: StateReader) -> dict[str, NodeData]:
    """Return the nodes below ``/leader-lock`` by name, after a sync: locks and others."""
    try:
        # The server may lag behind.
        state.sync_path(paths.LEADER_LOCK)
        return state.children_data(paths.LEADER_LOCK)
    except NoNodeError:
        return {}


def in_line(nodes: Mapping[str, NodeData]) -> list[Lock]:
    """Return the locks among the nodes below ``/leader-lock``, the first at the front.

    A persistent node is no lock, whatever its name: no process would ever lead by it.
    """
    numbered = []
    for name, (data, stat) in nodes.items():
        if stat.owner and (match := _NAME.fullmatch(name)):
            path = f"{paths.LEADER_LOCK}/{name}"
            lock = Lock(path, stat.created, stat.owner, data, stat.version != 0)
            numbered.append((stat.created, int(match["number"]), path, lock))
    # Locks of one transaction have the same zxid.
    return [lock for *_, lock in sorted(numbered, key=lambda each: each[:3])]


def predecessor(line: Sequence[Lock], lock: Lock) -> Lock | None:
    """Return the lock right before `lock` in `line`, None if `lock` is the first.

    Raises `NotLeaderError` if `lock` is not in `line`.
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
    """The first lock of the queue: lets the holder's writes through."""

    #: Where the lock is, or was.
    path: str

    #: The lock's creation zxid, which grows with every leadership.
    epoch: int


def obtain_fence(state: StateReader, lock: Lock) -> Fence:
    """Return the fence of `lock`, which must be the first and this session's.

    Raises `NotLeaderError`, which says why, otherwise.
    """
    fence = Fence(lock.path, lock.created)
    verify_fence(state, fence)
    return fence


def verify_fence(state: StateReader, fence: Fence) -> None:
    """Check that `fence` is a lock that this session has taken, still has, and leads by.

    A write needs only an untouched node at the fence's path. So the path must be that of the
    leading lock, and not of a waiting lock or a persistent node; and the epoch, which records get,
    must be the lock's own. Raises `NotLeaderError`, which says why, otherwise.
    """
    if not isinstance(fence, Fence):
        raise TypeError(
            f"a leader has a Fence, as leader_lock.obtain_fence returns it, not a"
            f" {type(fence).__name__}"
        )
    if paths.parent(paths.check(fence.path)) != paths.LEADER_LOCK:
        raise NotLeaderError(f"{fence.path} is no lock: locks are directly below /leader-lock")
    if why := _refusal(nodes(state), fence, state.session_id):
        raise NotLeaderError(f"{fence.path} does not lead in this session: {why}")


def _refusal(nodes: Mapping[str, NodeData], fence: Fence, session_id: int | None) -> str | None:
    """Return why the holder of `fence` does not lead, with advice; None for the leader."""
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


#: Attempts at a write while other sessions make and delete nodes in its way.
ROUNDS: Final = 20

#: Deletions in one transaction, and bytes of their paths: far below ZooKeeper's limit for a request
#: (1 MiB), and short enough to delay no other write.
BATCH: Final = 250
BATCH_BYTES: Final = 256 * 1024

#: Seconds for which `FencedWriter.delete_node` repeats lost steps.
DELETE_SECS: Final = 60.0

#: The version of a lock that is not revoked.
_UNTOUCHED = 0


class FencedWriter(StateWriter):
    """A leader's `StateWriter`: every write is applied only while the lock exists, untouched.

    It makes no ephemeral nodes: these belong to a session, not to a leader. Reads are those of
    `session`, which its opener closes. Safe for many threads. The constructor verifies `fence`.
    When the lock is gone or revoked, every write raises `NotLeaderError`, for ever: no lock is made
    twice. The step that raised it wrote nothing. After `OutcomeUnknownError` a later answer does
    not tell what became of the earlier write: read again.

    `batch` is the most nodes that one transaction deletes; `clock` gives seconds, for the deadline
    of deletions.
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
        self.session = session
        self.fence = fence
        self._lock_check = Check(fence.path, _UNTOUCHED)
        self._batch = batch
        self._clock = clock

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """See `StateWriter.commit`; indexes of operations leave out the lock's check."""
        try:
            return self.session.commit([self._lock_check, *operations])[1:]
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

        Nodes below are deleted in batches, each one transaction. After a lost answer the rest is
        listed anew and deleted, for a minute; then the call raises `OutcomeUnknownError`, and also
        if the connection is gone after a part was deleted.
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
                    # Deletions or additions by other sessions end the round early.
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
                # An unknown earlier step may still delete a part.
                raise (unknown or error) from error
        raise unknown or _contended("delete", path)

    def _create(self, node: Create, *, parent: bytes) -> bool:
        """Make a node, with absent ancestors, in one step; False if the node exists.

        Ancestors are empty, but the nearest has the value `parent`, as in Storm. Each refusal adds
        one ancestor: a read beforehand could come from a server that lags.
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
        """Delete nodes in one step; return a refusal that other sessions caused."""
        try:
            self.commit(list(map(Delete, nodes)))
        except TransactionError as error:
            if isinstance(error.reason, NoNodeError | NotEmptyError):
                return error.reason
            raise error.reason from error
        return None

    def _below(self, path: str) -> list[str]:
        """Return the paths of all nodes below a node, the deepest first."""
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
        f"cannot {what} {path}: other sessions made and deleted it, its parents or its children"
        f" {ROUNDS} times meanwhile"
    )
