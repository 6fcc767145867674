"""`ClusterState`, the interface of a store of the cluster's state.

A store is a tree of nodes with a value of bytes, a version and children; an ephemeral node ends
with its session. Paths are absolute, below ``storm.zookeeper.root``.

**Outcomes.** Every call ends by its deadline (``storm.zookeeper.connection.timeout``). If no answer
came after the request was sent, it raises `OutcomeUnknownError`: the write was applied, or not, or
will be in a moment, and the caller must read again. After any other `StateUnavailableError` the
request was never sent and never will be. Reads, `mkdirs`, `delete_node` and `set_ephemeral_node`
are repeated after a lost connection. `set_data`, `create_sequential` and `commit` are not: a second
application could undo another session's later write, or make a second node.

**Watches.** A read with ``watch=True`` leaves a watch: every registered callback gets the next
change of the read's result, once. Changes during a broken connection or a lost session are reported
later, several as one. So an event means "read again".

**Callbacks.** Events and connection states come one at a time, in the store's order, on one thread
of the store. A callback may use the store; its exceptions are logged. Before a read returns what an
event announced, the event has been queued.

**Sessions.** In a new session after a lost one, nodes of `set_ephemeral_node` are made again, other
ephemeral nodes never. Then every callback gets `EventType.EVENTS_MISSED` once, with the path ``/``.
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
    """The kind of a process, which decides its credentials and ACLs."""

    #: Nimbus, a supervisor, a tool: a process with the daemons' credentials.
    SERVER = "server"
    #: A worker, which has only the topology's credentials.
    WORKER = "worker"


def digest_id(payload: str) -> str:
    """Return the ACL id of a user, from ``user:password``.

    As ZooKeeper's ``DigestAuthenticationProvider``: the user, and the SHA-1 of the whole in base64.
    Raises `ConfigError`, which does not contain `payload`, without a colon.

    Examples
    --------
    >>> digest_id("storm:secret")
    'storm:jTZg6y+meeRlzuZs+/JjMmmZIlk='
    """
    # May come from a topology's configuration, which is not validated.
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
    """Makes a node; the path of a sequential node is `path` and ten digits."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False
    #: The `digest_id` of the topology's workers, which get the access of Storm's rules; None: that
    #: of the workers that the configuration names, if any.
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
    """A node's metadata; changes have the store's growing numbers (ZooKeeper's zxids)."""

    version: int
    #: The change that made the node (czxid).
    created: int
    #: The last change that made the node or set the value (mzxid).
    modified: int
    #: The last change that made the node, or made or deleted a child (pzxid).
    children_modified: int
    #: Session id of an ephemeral node; 0 for a persistent node.
    owner: int
    children: int


class NodeData(NamedTuple):
    """A node's value and metadata at one moment."""

    data: bytes
    stat: NodeStat


EventCallback = Callable[[EventType, str], None]

ConnectionListener = Callable[[ConnectionState], None]


class StateReader(Protocol):
    """A session with a store that changes nothing. Safe for many threads.

    Every operation may raise `StateError`: `StateUnavailableError`, `AccessDeniedError`, and
    `StateClosedError` after `close`; and `InvalidPathError`.
    """

    @property
    def connection(self) -> ConnectionState:
        """The present state."""

    @property
    def session_id(self) -> int | None:
        """The id of the newest session, as in `NodeStat.owner`."""

    @property
    def session_timeout_secs(self) -> float | None:
        """The session timeout that the store granted."""

    @property
    def recovery_defects(self) -> int:
        """How often the recovery of a session failed of a defect."""

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's value, None if the node is absent.

        A watch fires when the node is created, deleted, or its value set.
        """

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """Return a node's value and version, as `get_data`."""

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """Return a node's version, as `get_data`."""

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        """Return a node's metadata, as `get_data`."""

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """Return whether the node exists; watch as `get_data`."""

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the sorted names of a node's children.

        A watch fires when a child is created or deleted, or the node itself deleted. An absent node
        raises `NoNodeError`, as in Storm, and gets no watch: use `node_exists`.
        """

    def read_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeData | None]:
        """Return the nodes at `paths`, in order, None for an absent node; watch as `get_data`.

        Takes one round trip, and a second for watches of absent nodes; is no snapshot.
        """

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the sorted names of each node's children, None if absent."""

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        """Return a node's children by name, sorted; watch and `NoNodeError` as `get_children`.

        Takes two round trips.
        """

    def sync_path(self, path: str) -> None:
        """Make later reads see every earlier write."""

    def register(self, callback: EventCallback) -> int:
        """Call `callback` with every event; return an id."""

    def unregister(self, registration: int) -> None:
        """Remove the callback of that id."""

    def add_listener(self, listener: ConnectionListener) -> None:
        """Call `listener` with every change of the connection.

        After ``CONNECTED`` come the events that were missed meanwhile.
        """

    def remove_listener(self, listener: ConnectionListener) -> None:
        """Remove `listener`; an unknown listener is fine."""

    def close(self) -> None:
        """End the session with its ephemeral nodes; a callback may do so.

        Afterwards no callback starts, and every other call fails.
        """


class StateWriter(Protocol):
    """Makes persistent nodes, and deletes. Safe for many threads.

    Errors are those of `StateReader`. `workers_digest` is as in `Create`; stores without ACLs
    ignore it.
    """

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply operations, all or none; return a result for each, in order.

        Ancestors are not made. Raises `TransactionError` if an operation was refused, and
        `StateError` if the whole was, for example because of its size.
        """

    def set_data(self, path: str, data: bytes, *, workers_digest: str | None = None) -> None:
        """Set a node's value; make an absent node, persistent, with absent ancestors.

        Raises `StateError` if the parent is ephemeral.
        """

    def mkdirs(self, path: str, *, workers_digest: str | None = None) -> None:
        """Make a directory and absent ancestors, empty as in Storm."""

    def delete_node(self, path: str) -> None:
        """Delete a node and everything below, also what other sessions add meanwhile.

        A failure may leave a part, which a second call deletes. Registrations of this session at or
        below the path are withdrawn.
        """


class ClusterState(StateReader, StateWriter, Protocol):
    """A session with a store, and with ephemeral nodes."""

    @property
    def unregistered(self) -> list[str]:
        """Sorted paths of registrations that are still missing."""

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Register: make an ephemeral node of this session, and absent ancestors.

        Replaces, in one step, another session's or a persistent node; `NotEmptyError` if it has
        children. After a lost session the node is made again, but then never replaces another
        session's. A refused registration is retried until it is withdrawn by
        `withdraw_registration`, `delete_node` or `commit`.
        """

    def withdraw_registration(self, path: str) -> None:
        """Stop making the node of `set_ephemeral_node` again."""

    def create_sequential(self, path: str, data: bytes) -> str:
        """Make an ephemeral node named `path` and ten growing digits; return the whole path.

        The digits count the nodes made under the parent so far. Absent ancestors are made.
        """
