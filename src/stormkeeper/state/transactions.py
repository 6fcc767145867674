"""Several changes of the cluster's state as one: all of them happen, or none does.

A `Transaction` collects operations and hands them to the store at `Transaction.commit`. The store
applies them in order, each seeing what those before it did, and nobody else ever sees a part.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError, StateError

#: Whatever version the node has.
ANY_VERSION: Final = -1


class Check(NamedTuple):
    """Refuse the transaction unless the node has that version; any: unless there is the node."""

    path: str
    version: int = ANY_VERSION


class Create(NamedTuple):
    """Make a node; where it is sequential, `path` and ten digits are its path."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False

    #: The `stormkeeper.state.access.digest_id` of the topology's own workers, who may use the node
    #: as Storm's rules allow; None: those that the configuration names, if any.
    workers: str | None = None


class SetData(NamedTuple):
    """Set the value of a node that there is."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node that there is, and that has no children."""

    path: str
    version: int = ANY_VERSION


Operation = Check | Create | SetData | Delete

#: Of a `Create` the path made, of a `SetData` the new version, of the others None.
Result = str | int | None

#: Applies operations, at least one, all or nothing: `StateWriter.commit`.
Commit = Callable[[Sequence[Operation]], list[Result]]


class Transaction:
    """Operations to be applied together; made by `StateWriter.transaction`.

    Not safe for concurrent use, and used once. Adding an operation returns the transaction, and
    asks the store nothing.

    Parameters
    ----------
    commit
        Has the store apply them.

    Examples
    --------
    >>> applied = []
    >>> transaction = Transaction(lambda operations: applied.extend(operations) or [None, 1])
    >>> transaction.check("/leader-lock/me", 0).set_data("/storms/wc-1", b"base").commit()
    [None, 1]
    >>> applied[0]
    Check(path='/leader-lock/me', version=0)
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._operations: list[Operation] = []
        self._committed = False

    def check(self, path: str, version: int = ANY_VERSION) -> Self:
        """Refuse all unless the node at `path` has `version`."""
        return self.add(Check(path, version))

    def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        workers: str | None = None,
    ) -> Self:
        """Make a node, whose parent must be there; it is no registration, and not made again.

        `workers` is as in `StateWriter.set_data`.
        """
        return self.add(Create(path, data, ephemeral, sequential, workers))

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Self:
        """Set a node's value, if it has `version`."""
        return self.add(SetData(path, data, version))

    def delete(self, path: str, version: int = ANY_VERSION) -> Self:
        """Delete a node, if it has `version`; a registration of this session is given up."""
        return self.add(Delete(path, version))

    def add(self, operation: Operation) -> Self:
        """Add any operation.

        Raises
        ------
        StateError
            The transaction was committed already.
        """
        if self._committed:
            raise StateError(f"cannot add {operation}: the transaction was committed already")
        self._operations.append(operation)
        return self

    def commit(self) -> list[Result]:
        """Apply all operations, or none; one result for each, in order.

        Without operations the store is not asked.

        Raises
        ------
        StateError
            It was committed already; or as `StateWriter.commit`.
        """
        if self._committed:
            raise StateError("the transaction was committed already: begin another one")
        self._committed = True
        return self._commit(tuple(self._operations)) if self._operations else []


def check_paths(operations: Sequence[Operation]) -> None:
    """Fail unless operations are for paths that nodes can have, and none deletes the root.

    Raises
    ------
    InvalidPathError
        One is not.
    """
    for operation in operations:
        paths.check(operation.path)
        if operation.path == "/" and isinstance(operation, Delete):
            raise InvalidPathError("the root of the cluster's state is not deleted")
