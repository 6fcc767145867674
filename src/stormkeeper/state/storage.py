"""``ClusterState``: what every store of the cluster's state can do, and what may be relied on.

It comes in three parts, for those who need less: a `StateReader` changes nothing, a `StateWriter`
makes persistent nodes and deletes, and a `ClusterState` is both and has nodes of its own session
besides.

A store is a tree of nodes. A node has a value of bytes, a version that counts the changes of its
value, and children; an ephemeral node belongs to a session and ends with it. Paths are absolute
and relative to ``storm.zookeeper.root``, which is made if absent.

**Deadlines.** Every call ends. One that cannot reach the store ends in `StateUnavailableError` by
its deadline (``storm.zookeeper.connection.timeout``), also while the connection is suspended.

**Outcomes.** A call returns when what it says is done, and applied. When its connection or its time
ends after it was sent, that is `OutcomeUnknownError`: it has been applied, or not, or will be a
moment later, and whoever must know reads again. Any other `StateUnavailableError` says that it was
never sent, and never will be. Reads, `mkdirs`, `delete_node` and `set_ephemeral_node` are repeated
after a lost connection, by themselves, within their deadline; `set_data`, `create_sequential` and
transactions are not, since a second application could undo a later write of somebody else, or make
a second node.

**Watches.** A read with ``watch=True`` leaves a watch: the next change of what was read is told
once to every registered callback, with the path. Two watches for the same thing, or two reasons
at one path for one change, are told once. A watch outlives a broken connection and a lost session:
whatever changed in between is told when the connection is back. As several changes while nobody
looked are told as one, an event means "look again", and nothing about how often.

**Callbacks.** Events and connection states come one at a time, in the order in which the store
made them, on one thread of the store's own. A callback may use the store. One that raises is
logged, and ends nothing. Before a read returns what an event announced, the event has been queued.

**Sessions.** A lost session is followed by a new one by itself. Nodes that `set_ephemeral_node`
made are made again in it; those of `create_sequential` and of transactions never are. Then every
callback is told once, with the path ``/``, that it may have missed events: no watch was left for
some of what it had learned otherwise.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, Self

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


#: Value of a node that is only a directory: what Storm writes.
DIRECTORY = b"\x07"


class EventType(enum.Enum):
    """What happened to a watched node, or to all that is watched."""

    NODE_CREATED = "created"
    NODE_DELETED = "deleted"
    NODE_DATA_CHANGED = "data changed"
    NODE_CHILDREN_CHANGED = "children changed"

    #: Told to every callback, with the path ``/``, when a new session follows a lost one: after
    #: ``CONNECTED``, and before the events that its watches missed. No watch is used up by it.
    EVENTS_MISSED = "events missed"


class ConnectionState(enum.Enum):
    """How a session stands with the store."""

    #: Calls are answered.
    CONNECTED = "connected"

    #: The store cannot be reached; the session, and its ephemeral nodes, may live on.
    SUSPENDED = "suspended"

    #: The session has ended, and its ephemeral nodes with it.
    LOST = "lost"


class VersionedData(NamedTuple):
    """A node's value and version: 0 when created, one more with each change of the value."""

    data: bytes
    version: int


class NodeStat(NamedTuple):
    """What a store knows of a node beside its value.

    The three counts are those of the store's changes (ZooKeeper's zxids): a later change of
    anything has a greater one, and all changes of one transaction have the same.
    """

    #: How often the value was set since the node was made.
    version: int

    #: The change that made the node.
    created: int

    #: The change that made it, or set its value last.
    modified: int

    #: The change that made it, or made or deleted a child of it last.
    children_modified: int

    #: The id of the session that an ephemeral node belongs to; 0 for a persistent one.
    owner: int

    #: How many children there are.
    children: int


class NodeData(NamedTuple):
    """A node's value, and the rest of what there is to know of it at that moment."""

    data: bytes
    stat: NodeStat


#: Takes an event's type and path.
EventCallback = Callable[[EventType, str], None]

#: Takes the new state of the connection.
ConnectionListener = Callable[[ConnectionState], None]


class StateReader(Protocol):
    """A session with a store of the cluster's state that changes nothing. Safe for many threads.

    Notes
    -----
    Errors that every operation may raise:

    - `InvalidPathError`: the path is not one (see `stormkeeper.paths.check`);
    - `StateUnavailableError`: the store was not reached, or did not answer, before the deadline;
      `OutcomeUnknownError` where something may have been written;
    - `StateClosedError`: this session was closed;
    - `AccessDeniedError`: an ACL does not allow it;
    - `StateError`: the store refused for another reason.
    """

    @property
    def connection(self) -> ConnectionState:
        """How the session stands now, whatever listeners have been told so far."""
        ...

    @property
    def session_id(self) -> int | None:
        """The id of the newest session, as `NodeStat.owner` has it; None before the first."""
        ...

    @property
    def session_timeout_secs(self) -> float | None:
        """How long the store keeps the newest session without hearing of this process, in seconds.

        It may be another time than was asked for. None before the first session.
        """
        ...

    @property
    def recovery_defects(self) -> int:
        """How often putting back what a session had failed of a defect, and was tried again."""
        ...

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's value, None when there is no node.

        A watch fires when the node is created, deleted, or its value set.
        """
        ...

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """Return a node's value and version, None when there is no node; watch as `get_data`."""
        ...

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """Return a node's version, None when there is no node; watch as `get_data`."""
        ...

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        """Return all that is known of a node, None when there is none; watch as `get_data`."""
        ...

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """Return whether there is a node; watch as `get_data`."""
        ...

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the names of a node's children, sorted.

        A watch fires when a child is created or deleted, or the node itself deleted.

        Raises
        ------
        NoNodeError
            There is no node, as in Storm; no watch is left then. To wait for one to appear, ask
            `node_exists` with a watch.
        """
        ...

    def read_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeData | None]:
        """Return what is at each path, in their order, None where there is no node.

        It takes the time of one read, not of many, and of a second one for the watches of absent
        nodes; watch as `get_data`. What is read is no snapshot: one node may change meanwhile.
        """
        ...

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the sorted names of each node's children, None where there is no node.

        It takes the time of one read, and is no snapshot, as `read_many`.
        """
        ...

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        """Return a node's children by their names, sorted; one deleted meanwhile is left out.

        It takes the time of two reads. The watch is that of `get_children`.

        Raises
        ------
        NoNodeError
            There is no node; no watch is left then.
        """
        ...

    def sync_path(self, path: str) -> None:
        """Make the next reads see every write, of anybody, that was done before this call."""
        ...

    def register(self, callback: EventCallback) -> int:
        """Have `callback` told every event of this session's watches; returns an id."""
        ...

    def unregister(self, registration: int) -> None:
        """Tell the callback of that id no more events; an unknown id is fine."""
        ...

    def add_listener(self, listener: ConnectionListener) -> None:
        """Have `listener` told every change of the connection from now on.

        After ``CONNECTED`` follow the events that were missed while it was not.
        """
        ...

    def remove_listener(self, listener: ConnectionListener) -> None:
        """Tell `listener` no more; an unknown one is fine."""
        ...

    def close(self) -> None:
        """End the session and with it its ephemeral nodes; a second time does nothing.

        No callback starts after it, and every other call fails. A callback may call it.
        """
        ...


class StateWriter(Protocol):
    """Makes persistent nodes, and deletes. Safe for many threads.

    A session writes so in its own name, and a leader through a
    `stormkeeper.state.leader_lock.FencedWriter`.

    Notes
    -----
    Errors that every operation may raise: those of `StateReader`, and `OutcomeUnknownError`.
    """

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply operations, at least one: all of them, or none; one result for each, in order.

        They are applied in order, each seeing what those before it did. Ancestors are not made.
        Nothing repeats it: after `OutcomeUnknownError` the caller reads what happened.

        Raises
        ------
        InvalidPathError
            A path is none, or the root is to be deleted; nothing was sent.
        TransactionError
            An operation was refused, and nothing was done; it says which and why.
        OutcomeUnknownError
            The connection was lost, or the deadline passed, while the store was at it: all was
            done, or nothing, or will be in a moment.
        StateUnavailableError
            The store was not reached before the deadline; nothing was done.
        StateError
            They were refused as a whole, as too many are.
        """
        ...

    def transaction(self) -> Transaction:
        """Begin a transaction, which collects operations for `commit`."""
        return Transaction(self.commit)

    def set_data(self, path: str, data: bytes, *, workers: str | None = None) -> None:
        """Give a node a value; make it, persistent, and its ancestors if they are absent.

        Parameters
        ----------
        path
            The node.
        data
            Its value.
        workers
            The `stormkeeper.state.access.digest_id` of the topology's own workers. If the node is
            made, its ACL lets them do what Storm's rules allow at that path. None: those that the
            configuration names, if any. Stores without ACLs ignore it.

        Raises
        ------
        StateError
            Its parent is ephemeral and so can have no children.
        """
        ...

    def mkdirs(self, path: str, *, workers: str | None = None) -> None:
        """Make a node that is a directory, and its ancestors; those that exist stay as they are.

        The node's value is `DIRECTORY`; ancestors made on the way are empty, as in Storm. `workers`
        is as in `set_data`.

        Raises
        ------
        StateError
            An ancestor is ephemeral and so can have no children.
        """
        ...

    def delete_node(self, path: str) -> None:
        """Delete a node and everything below it; an absent one is fine.

        What others add below it meanwhile is deleted too. It is not one step: a failure may leave
        a part, and a second call deletes the rest. Registrations of this session at or below the
        path are given up.

        Raises
        ------
        StateError
            Others kept adding nodes for as long as was tried.
        """
        ...


class ClusterState(StateReader, StateWriter, Protocol):
    """A session with a store of the cluster's state, and with nodes of its own."""

    @property
    def unregistered(self) -> list[str]:
        """The paths of registrations that could not be made again so far, sorted."""
        ...

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Make an ephemeral node of this session; make its ancestors if they are absent.

        This is for registrations: the node is this session's afterwards, whoever had it. If it
        is this session's already, its value is set. If it is another's, which is to say left over
        from an earlier life of this process, or persistent, it is replaced in one step. After a
        lost session it is made again. Where that cannot be, as another session has the path by
        then, or the store refuses it, nothing is replaced, and it is tried again until the node is
        there, or is withdrawn: by `withdraw_registration`, `delete_node` or a transaction.

        Raises
        ------
        NotEmptyError
            There is a node that has children.
        StateError
            Its parent is ephemeral and so can have no children.
        """
        ...

    def withdraw_registration(self, path: str) -> None:
        """Have the node of `set_ephemeral_node` at a path, whoever has it by now, not made again.

        It is not deleted; one that is no registration is fine.
        """
        ...

    def create_sequential(self, path: str, data: bytes) -> str:
        """Make an ephemeral node, named by `path` and ten digits that grow, and return its path.

        The digits count the nodes made under the parent so far. Absent ancestors are made. Its
        being ephemeral is Storm's choice.

        Raises
        ------
        StateError
            Its parent is ephemeral and so can have no children.
        """
        ...
