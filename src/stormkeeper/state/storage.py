"""`ClusterState`, the interface of a store of the cluster's state, with operations and guarantees.

A store is a tree of nodes. A node has a value of bytes, a version that counts changes of the value,
and children; an ephemeral node belongs to a session and ends with it. Paths are absolute and
relative to ``storm.zookeeper.root``. A `StateReader` changes nothing, a `StateWriter` makes
persistent nodes and deletes, and a `ClusterState` does both and has nodes of its own session.

**Deadlines.** Every call ends. A call that cannot reach the store raises `StateUnavailableError` by
its deadline (``storm.zookeeper.connection.timeout``), also while the connection is suspended.

**Outcomes.** A call returns once its effect is applied. If the connection or the time ends after
the request was sent, the call raises `OutcomeUnknownError`: the write was applied, or not, or will
be in a moment, and the caller must read again. Any other `StateUnavailableError` means that the
request was never sent and never will be. Reads, `mkdirs`, `delete_node` and `set_ephemeral_node`
are repeated after a lost connection, until their deadline. `set_data`, `create_sequential` and
transactions are not: a second application could undo another session's later write, or make a
second node.

**Watches.** A read with ``watch=True`` leaves a watch: every registered callback gets the next
change of what was read, once, with the path. Two watches for the same thing give one event. A watch
outlives a broken connection and a lost session: changes in between are reported when the connection
is back, several as one. So an event means "look again".

**Callbacks.** Events and connection states come one at a time, in the store's order, on one thread
of the store. A callback may use the store; an exception in a callback is logged. Before a read
returns what an event announced, the event has been queued.

**Sessions.** After a lost session the store begins a new session by itself. Nodes of
`set_ephemeral_node` are made again in it; nodes of `create_sequential` and of transactions never
are. Then every callback gets `EventType.EVENTS_MISSED` once, with the path ``/``.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, Self

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError, StateError

#: Any version.
ANY_VERSION: Final = -1


class Check(NamedTuple):
    """Refuses the transaction unless the node exists and has the version."""

    path: str
    version: int = ANY_VERSION


class Create(NamedTuple):
    """Makes a node; the path of a sequential node is `path` and ten digits."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False

    #: The `stormkeeper.state.access.digest_id` of the topology's workers, whose access follows
    #: Storm's rules; None: the workers that the configuration names, if any.
    workers: str | None = None


class SetData(NamedTuple):
    """Sets the value of an existing node."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Deletes an existing node that has no children."""

    path: str
    version: int = ANY_VERSION


Operation = Check | Create | SetData | Delete

#: The path of a `Create`, the new version of a `SetData`, None otherwise.
Result = str | int | None

#: Applies operations, all or nothing: `StateWriter.commit`.
Commit = Callable[[Sequence[Operation]], list[Result]]


class Transaction:
    """Collects operations to be applied together; made by `StateWriter.transaction`.

    Adding an operation returns the transaction, and asks the store nothing. A transaction is used
    once, by one thread.

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
        """Make a node, whose parent must exist; the node is no registration.

        `workers` is as in `StateWriter.set_data`.
        """
        return self.add(Create(path, data, ephemeral, sequential, workers))

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Self:
        """Set a node's value if the node has `version`."""
        return self.add(SetData(path, data, version))

    def delete(self, path: str, version: int = ANY_VERSION) -> Self:
        """Delete a node if the node has `version`; a registration of this session is given up."""
        return self.add(Delete(path, version))

    def add(self, operation: Operation) -> Self:
        """Add any operation. Raises `StateError` after `commit`."""
        if self._committed:
            raise StateError(f"cannot add {operation}: the transaction was committed already")
        self._operations.append(operation)
        return self

    def commit(self) -> list[Result]:
        """Apply all operations, or none; return a result for each, in order.

        Does not ask the store if there are no operations. Raises `StateError` at a second commit,
        or as `StateWriter.commit`.
        """
        if self._committed:
            raise StateError("the transaction was committed already: begin another one")
        self._committed = True
        return self._commit(tuple(self._operations)) if self._operations else []


def check_paths(operations: Sequence[Operation]) -> None:
    """Raise `InvalidPathError` if a path is invalid, or the root is to be deleted."""
    for operation in operations:
        paths.check(operation.path)
        if operation.path == "/" and isinstance(operation, Delete):
            raise InvalidPathError("the root of the cluster's state is not deleted")


#: Storm's value of a node that is a directory.
DIRECTORY = b"\x07"


class EventType(enum.Enum):
    """A change of a watched node, or the loss of events."""

    NODE_CREATED = "created"
    NODE_DELETED = "deleted"
    NODE_DATA_CHANGED = "data changed"
    NODE_CHILDREN_CHANGED = "children changed"

    #: A new session follows a lost session: reported to every callback, with the path ``/``, after
    #: ``CONNECTED`` and before the events that its watches missed. Uses up no watch.
    EVENTS_MISSED = "events missed"


class ConnectionState(enum.Enum):
    """State of a session's connection to the store."""

    CONNECTED = "connected"

    #: The store is not reached; the session, and its ephemeral nodes, may live on.
    SUSPENDED = "suspended"

    #: The session has ended, with its ephemeral nodes.
    LOST = "lost"


class VersionedData(NamedTuple):
    """A node's value and version: 0 when created, plus 1 with each change."""

    data: bytes
    version: int


class NodeStat(NamedTuple):
    """A node's metadata.

    The counts of changes are those of the store (ZooKeeper's zxids): a later change has a greater
    count, and all changes of a transaction have the same.
    """

    #: Changes of the value since the node was made.
    version: int

    #: The change that made the node (ZooKeeper's czxid).
    created: int

    #: The last change that made the node or set the value (mzxid).
    modified: int

    #: The last change that made the node, or made or deleted a child (pzxid).
    children_modified: int

    #: Session id of an ephemeral node; 0 for a persistent node.
    owner: int

    #: Number of children.
    children: int


class NodeData(NamedTuple):
    """A node's value and metadata at one moment."""

    data: bytes
    stat: NodeStat


EventCallback = Callable[[EventType, str], None]

ConnectionListener = Callable[[ConnectionState], None]


class StateReader(Protocol):
    """A session with a store that changes nothing. Safe for many threads.

    Every operation may raise:

    - `InvalidPathError`: the path is invalid (see `stormkeeper.paths.check`);
    - `StateUnavailableError`: the store did not answer before the deadline; `OutcomeUnknownError`
      if something may have been written;
    - `StateClosedError`: this session was closed;
    - `AccessDeniedError`: an ACL forbids the operation;
    - `StateError`: the store refused for another reason.
    """

    @property
    def connection(self) -> ConnectionState:
        """The present state, even if listeners have not received the change yet."""
        ...

    @property
    def session_id(self) -> int | None:
        """The id of the newest session, as in `NodeStat.owner`; None before the first."""
        ...

    @property
    def session_timeout_secs(self) -> float | None:
        """The session timeout that the store granted, in seconds; None before the first session."""
        ...

    @property
    def recovery_defects(self) -> int:
        """How often the recovery of a session failed of a defect and was retried."""
        ...

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's value, None if the node is absent.

        A watch fires when the node is created, deleted, or its value set.
        """
        ...

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """Return a node's value and version, None if absent; watch as `get_data`."""
        ...

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """Return a node's version, None if absent; watch as `get_data`."""
        ...

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        """Return a node's metadata, None if absent; watch as `get_data`."""
        ...

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """Return whether the node exists; watch as `get_data`."""
        ...

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the sorted names of a node's children.

        A watch fires when a child is created or deleted, or the node itself deleted. An absent node
        raises `NoNodeError`, as in Storm, and gets no watch: to wait for the node, call
        `node_exists` with a watch.
        """
        ...

    def read_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeData | None]:
        """Return the nodes at `paths`, in order, None for an absent node.

        Takes one round trip, and a second for watches of absent nodes; watch as `get_data`. The
        result is no snapshot: nodes may change meanwhile.
        """
        ...

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the sorted names of each node's children, None for an absent node.

        Takes one round trip, and is no snapshot.
        """
        ...

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        """Return a node's children by name, sorted, without any that is deleted meanwhile.

        Takes two round trips; watch and `NoNodeError` as `get_children`.
        """
        ...

    def sync_path(self, path: str) -> None:
        """Make later reads see every earlier write of any session."""
        ...

    def register(self, callback: EventCallback) -> int:
        """Call `callback` with every event of this session's watches; return an id."""
        ...

    def unregister(self, registration: int) -> None:
        """Remove the callback of that id; an unknown id is fine."""
        ...

    def add_listener(self, listener: ConnectionListener) -> None:
        """Call `listener` with every change of the connection from now on.

        After ``CONNECTED`` come the events that were missed meanwhile.
        """
        ...

    def remove_listener(self, listener: ConnectionListener) -> None:
        """Remove `listener`; an unknown listener is fine."""
        ...

    def close(self) -> None:
        """End the session with its ephemeral nodes; a second time does nothing.

        Afterwards no callback starts, and every other call fails. A callback may close the session.
        """
        ...


class StateWriter(Protocol):
    """Makes persistent nodes, and deletes. Safe for many threads.

    A session is a writer; a leader writes through a `stormkeeper.state.leader_lock.FencedWriter`.
    Every operation may raise the errors of `StateReader`, and `OutcomeUnknownError`.
    """

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply operations, all or none; return a result for each, in order.

        Each operation sees the effects of those before it. Ancestors are not made. A transaction is
        never repeated: after `OutcomeUnknownError` the caller reads what happened.

        Raises
        ------
        InvalidPathError
            A path is invalid, or the root would be deleted; nothing was sent.
        TransactionError
            An operation was refused, and nothing was applied; says which operation and why.
        StateError
            The store refused the whole, for example because of its size.
        """
        ...

    def transaction(self) -> Transaction:
        """Begin a transaction, which collects operations for `commit`."""
        return Transaction(self.commit)

    def set_data(self, path: str, data: bytes, *, workers: str | None = None) -> None:
        """Set a node's value; make an absent node, persistent, with absent ancestors.

        `workers` is the `stormkeeper.state.access.digest_id` of the topology's workers: the ACL of
        a new node gives them the access of Storm's rules. None: the workers that the configuration
        names, if any. Stores without ACLs ignore it. Raises `StateError` if the parent is
        ephemeral.
        """
        ...

    def mkdirs(self, path: str, *, workers: str | None = None) -> None:
        """Make a directory with absent ancestors; existing nodes stay as they are.

        The node's value is `DIRECTORY`; absent ancestors are made empty, as in Storm. `workers` and
        errors are as in `set_data`.
        """
        ...

    def delete_node(self, path: str) -> None:
        """Delete a node and everything below; an absent node is fine.

        Nodes that other sessions add below meanwhile are deleted too; `StateError` if they keep
        adding. The deletion has several steps: a failure may leave a part, which a second call
        deletes. Registrations of this session at or below the path are given up.
        """
        ...


class ClusterState(StateReader, StateWriter, Protocol):
    """A session with a store, and with ephemeral nodes."""

    @property
    def unregistered(self) -> list[str]:
        """Sorted paths of registrations that could not be made again so far."""
        ...

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Register: make an ephemeral node of this session, and absent ancestors.

        A node of this session gets the value. A node of another session, left over from an earlier
        life of this process, or a persistent node is replaced in one step; `NotEmptyError` if it
        has children. After a lost session the node is made again, but then another session's node
        at the path is never replaced. If the store refuses, the registration is retried until it
        succeeds or is withdrawn by `withdraw_registration`, `delete_node` or a transaction.
        """
        ...

    def withdraw_registration(self, path: str) -> None:
        """Stop making the node of `set_ephemeral_node` again; does not delete the node.

        A path without a registration is fine.
        """
        ...

    def create_sequential(self, path: str, data: bytes) -> str:
        """Make an ephemeral node named `path` and ten growing digits; return the whole path.

        The digits count the nodes made under the parent so far. Absent ancestors are made. Storm,
        too, makes these nodes ephemeral.
        """
        ...
