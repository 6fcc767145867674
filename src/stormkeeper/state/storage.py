"""`ClusterState`, the interface of a store of the cluster's state.

A store is a tree of nodes; paths are absolute, below ``storm.zookeeper.root``.

**Outcomes.** Every call ends by its deadline (``storm.zookeeper.connection.timeout``). Without an
answer to a sent request, the call raises `OutcomeUnknownError`: the write was applied, or not, or
will be in a moment; read again. After any other `StateUnavailableError` the request never was and
never will be sent. Reads, `mkdirs`, `delete_node` and `set_ephemeral_node` are repeated after a
lost connection; `set_data`, `create_sequential` and `commit` are not: a second application could
undo another session's later write, or make a second node.

**Watches.** A read with ``watch=True`` leaves a watch: every registered callback gets the next
change of the result, once. A lost connection ends all watches: every callback gets
`EventType.EVENTS_MISSED` after the next connection. An event means "read again".

**Callbacks.** Events and connection states come one at a time, in the store's order, on one thread.
A callback may use the store; exceptions are logged. A change's event is queued before a read
returns the change.

**Sessions.** A new session makes the nodes of `set_ephemeral_node` again, and no other ephemeral
nodes, before `EventType.EVENTS_MISSED`.
"""

import base64
import enum
import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from stormkeeper import paths
from stormkeeper.errors import ConfigError, InvalidPathError

ANY_VERSION: Final = -1


class Role(enum.Enum):
    """Kind of a process: decides credentials and ACLs."""

    #: A daemon or tool, with the daemons' credentials.
    SERVER = "server"
    #: Has only the topology's credentials.
    WORKER = "worker"


def digest_id(payload: str) -> str:
    """Return the ACL id of ``user:password``, as ZooKeeper's ``DigestAuthenticationProvider``.

    Without a colon raises `ConfigError`, which does not contain `payload`.

    Examples
    --------
    >>> digest_id("storm:secret")
    'storm:jTZg6y+meeRlzuZs+/JjMmmZIlk='
    """
    # Unvalidated in a topology's configuration.
    user, colon, _ = payload.partition(":") if isinstance(payload, str) else ("", "", "")
    if not colon:
        raise ConfigError("a digest is of user:password, and what is configured has no colon")
    try:
        digest = hashlib.sha1(payload.encode()).digest()
    except UnicodeEncodeError:
        raise ConfigError("a digest is of text, and what is configured is not Unicode") from None
    return f"{user}:{base64.b64encode(digest).decode()}"


class Check(NamedTuple):
    """Refuses the transaction unless the node has the version."""

    path: str
    version: int = ANY_VERSION


class Create(NamedTuple):
    """Makes a node; a sequential node's path gets ten more digits."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False
    #: Of the topology's workers, which get access by Storm's rules; None: the configured workers',
    #: if any.
    workers_digest: str | None = None


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


def check_paths(operations: Sequence[Operation]) -> None:
    """Raise `InvalidPathError` for an invalid path, or a deletion of the root."""
    for operation in operations:
        paths.check(operation.path)
        if operation.path == "/" and isinstance(operation, Delete):
            raise InvalidPathError("the root of the cluster's state is not deleted")


#: Storm's value of a directory.
DIRECTORY = b"\x07"


class EventType(enum.Enum):
    """A change of a watched node, or a loss of events."""

    NODE_CREATED = "created"
    NODE_DELETED = "deleted"
    NODE_DATA_CHANGED = "data changed"
    NODE_CHILDREN_CHANGED = "children changed"
    #: A lost connection ended all watches. For callbacks: after ``CONNECTED``, with the path ``/``.
    EVENTS_MISSED = "events missed"


class ConnectionState(enum.Enum):
    """State of a session's connection."""

    CONNECTED = "connected"
    #: Disconnected; the session, and its ephemeral nodes, may live on.
    SUSPENDED = "suspended"
    #: The session ended, with its ephemeral nodes.
    LOST = "lost"


class VersionedData(NamedTuple):
    """A node's value and version: 0 at creation, plus 1 with each change."""

    data: bytes
    version: int


class NodeStat(NamedTuple):
    """A node's metadata; changes are zxids."""

    version: int
    #: Creation (czxid).
    created: int
    #: Creation or last change of the value (mzxid).
    modified: int
    #: Creation, or last creation or deletion of a child (pzxid).
    children_modified: int
    #: Session id; 0 for a persistent node.
    owner: int
    children: int


class NodeData(NamedTuple):
    """A node's value and metadata."""

    data: bytes
    stat: NodeStat


EventCallback = Callable[[EventType, str], None]

ConnectionListener = Callable[[ConnectionState], None]


class StateReader(Protocol):
    """A read-only session with a store. Safe for many threads.

    Operations raise `InvalidPathError`, or `StateError`: `StateUnavailableError`,
    `AccessDeniedError`, and `StateClosedError` after `close`.
    """

    @property
    def connection(self) -> ConnectionState:
        """Present state."""

    @property
    def session_id(self) -> int | None:
        """Id of the newest session, as in `NodeStat.owner`."""

    @property
    def session_timeout_secs(self) -> float | None:
        """Granted session timeout."""

    @property
    def call_timeout_secs(self) -> float:
        """Longest wait of a call: ``storm.zookeeper.connection.timeout``."""

    @property
    def recovery_defects(self) -> int:
        """Number of session recoveries that failed by a defect."""

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's value, None if absent.

        A watch fires when the node is created, deleted, or the value set.
        """

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """Return value and version, as `get_data`."""

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """Return the version, as `get_data`."""

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        """Return the metadata, as `get_data`."""

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """Return whether a node exists; watch as `get_data`."""

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the sorted names of a node's children.

        A watch fires when a child is created or deleted, or the node deleted. An absent node raises
        `NoNodeError`, as in Storm, and gets no watch: use `node_exists`.
        """

    def read_many(
        self, paths: Sequence[str], watch: bool = False, *, watch_absent: bool = True
    ) -> list[NodeData | None]:
        """Return the nodes at `paths`, in order, None if absent; watch as `get_data`.

        Takes one round trip, and a second for watches of absent nodes. A watch of a node that is
        never made stays on client and server as long as the session. No snapshot.
        """

    def stat_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeStat | None]:
        """Return the metadata of the nodes at `paths`, in order; as `read_many`."""

    def children_many(self, paths: Sequence[str], watch: bool = False) -> list[list[str] | None]:
        """Return each node's children's sorted names, None if absent; watch as `get_children`."""

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        """Return a node's children by name, sorted; watch and `NoNodeError` as `get_children`.

        Takes two round trips.
        """

    def watch_tree(self, path: str, observer: EventCallback) -> bool:
        """Call `observer` with every change of a node or value at and below `path`.

        The store's own thread calls `observer`, which must not block, before a read returns the
        change. A lost connection ends the watch: `observer` gets ``EVENTS_MISSED`` with `path`, as
        also from `close`, and must call `watch_tree` again. Returns False from a server without
        such watches (ZooKeeper before 3.6), where `observer` gets only the events of watches that
        reads leave.
        """

    def unwatch_tree(self, path: str, observer: EventCallback) -> None:
        """Stop calling `observer`; fine if unknown."""

    def sync_path(self, path: str) -> None:
        """Make later reads see every earlier write."""

    def register(self, callback: EventCallback) -> int:
        """Call `callback` with every event; return an id."""

    def unregister(self, registration: int) -> None:
        """Remove a callback by id."""

    def add_listener(self, listener: ConnectionListener) -> None:
        """Call `listener` with every change of the connection.

        Missed events follow ``CONNECTED``.
        """

    def remove_listener(self, listener: ConnectionListener) -> None:
        """Remove `listener`; fine if unknown."""

    def close(self) -> None:
        """End the session with all ephemeral nodes; a callback may do so.

        Afterwards no callback starts, and other calls fail.
        """


class StateWriter(Protocol):
    """Makes persistent nodes, and deletes. Safe for many threads.

    Errors are those of `StateReader`. `workers_digest` is as in `Create`; stores without ACLs
    ignore it.
    """

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply operations, all or none; return a result for each, in order.

        Makes no ancestors. Raises `TransactionError` if an operation was refused, `StateError` if
        the whole was, as for its size.
        """

    def set_data(self, path: str, data: bytes, *, workers_digest: str | None = None) -> None:
        """Set a node's value; make an absent node, persistent, with absent ancestors.

        Raises `StateError` below an ephemeral node.
        """

    def mkdirs(self, path: str, *, workers_digest: str | None = None) -> None:
        """Make a directory and absent ancestors, empty as in Storm."""

    def delete_node(self, path: str) -> None:
        """Delete a node and everything below, also what other sessions add meanwhile.

        A failure may leave a part: call again. Withdraws this session's registrations there.
        """


class ClusterState(StateReader, StateWriter, Protocol):
    """A session with ephemeral nodes."""

    @property
    def unregistered(self) -> list[str]:
        """Sorted paths of missing registrations."""

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Register: make an ephemeral node of this session, and absent ancestors.

        Replaces any node in one step; `NotEmptyError` if it has children. A new session makes the
        node again, but never replaces another session's. A refused registration is retried until
        `withdraw_registration`, `delete_node` or `commit` withdraws it.
        """

    def withdraw_registration(self, path: str) -> None:
        """Stop making the node of `set_ephemeral_node` again."""

    def create_sequential(self, path: str, data: bytes) -> str:
        """Make an ephemeral node named `path` and ten digits; return the whole path.

        The digits count the nodes made under the parent. Makes absent ancestors.
        """
