"""A leader's writes, each applied only while the leader's lock exists.

A process that was stopped or cut off for longer than its session still believes that it leads,
while another process does. So every write's transaction begins with a check that the lock node
exists, untouched.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

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
from stormkeeper.state.leader_lock import Fence, verify_fence
from stormkeeper.state.storage import (
    DIRECTORY,
    Check,
    ClusterState,
    Create,
    Delete,
    Operation,
    Result,
    SetData,
    StateWriter,
)

#: Attempts beside other sessions' changes.
ROUNDS: Final = 20

T = TypeVar("T")

#: Deletions in one transaction, and bytes of one: far below ZooKeeper's 1 MiB, and short enough to
#: delay no other write.
BATCH: Final = 250
BATCH_BYTES: Final = 256 * 1024

#: Seconds for which `FencedWriter.delete_node` repeats lost steps.
DELETE_SECS: Final = 60.0

#: Version of a lock that is not revoked.
_UNTOUCHED: Final = 0


class FencedWriter(StateWriter):
    """A leader's `StateWriter`, whose constructor verifies `fence`. Safe for many threads.

    When the lock is gone or revoked, every write raises `NotLeaderError`, for ever. The failed step
    wrote nothing, but an earlier write with an unknown outcome may have: read again. `session`
    serves the reads. `batch` is the most deletions in one transaction.
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

    def set_data(self, path: str, data: bytes, *, workers_digest: str | None = None) -> None:
        for _ in range(ROUNDS):
            try:
                self.commit([SetData(path, data)])
            except TransactionError as error:
                if not isinstance(error.reason, NoNodeError):
                    raise error.reason from error
            else:
                return
            if self._create(Create(path, data, workers_digest=workers_digest), parent=DIRECTORY):
                return
        raise _contended("write", path)

    def mkdirs(self, path: str, *, workers_digest: str | None = None) -> None:
        self._create(Create(path, DIRECTORY, workers_digest=workers_digest), parent=b"")

    def delete_node(self, path: str) -> None:
        """Delete a node and everything below.

        Nodes below go in batches, each one transaction. After a lost answer the rest is listed anew
        and deleted, for a minute.
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
                for batch in batches(self._below(path), _path_size, self._batch):
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

        The nearest ancestor has the value `parent`, as in Storm. Each refusal adds an ancestor: a
        read beforehand could come from a server that lags.
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
                    above = Create(paths.parent(top), value, workers_digest=node.workers_digest)
                    creates.insert(0, above)
                else:
                    return True
        raise _contended("create", node.path)

    def _delete_all(self, nodes: Sequence[str]) -> NoNodeError | NotEmptyError | None:
        """Delete nodes in one step; return a refusal by other sessions' changes."""
        try:
            self.commit(list(map(Delete, nodes)))
        except TransactionError as error:
            if isinstance(error.reason, NoNodeError | NotEmptyError):
                return error.reason
            raise error.reason from error
        return None

    def _below(self, path: str) -> list[str]:
        levels = [[path]]
        while levels[-1]:
            listed = zip(levels[-1], self.session.children_many(levels[-1]), strict=True)
            levels.append([f"{above}/{name}" for above, names in listed for name in names or ()])
        return [node for level in reversed(levels[1:]) for node in level]


def batches(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield items for one transaction each: at most `most`, and `BATCH_BYTES` unless one alone."""
    batch: list[T] = []
    left = BATCH_BYTES
    for item in items:
        size = size_of(item)
        if batch and (len(batch) == most or size > left):
            yield batch
            batch, left = [], BATCH_BYTES
        batch.append(item)
        left -= size
    if batch:
        yield batch


def _path_size(path: str) -> int:
    return len(path.encode())


def _contended(what: str, path: str) -> StateError:
    return StateError(
        f"cannot {what} {path}: other sessions made and deleted it, its parents or its children"
        f" {ROUNDS} times meanwhile"
    )
