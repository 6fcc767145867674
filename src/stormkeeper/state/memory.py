"""The cluster's state in memory, for one process: the semantics of ZooKeeper without a server.

Tests, simulations and tools use it; no daemon does by default. A `MemoryEnsemble` is the server,
and each session with it a `ClusterState`. It has no clock: a session expires, or is cut off, when
it is told to, and a call while it is cut off fails at once, as there is no deadline to wait for.
"""

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stormkeeper.errors import (
    InvalidPathError,
    NoNodeError,
    StateClosedError,
    StateUnavailableError,
)
from stormkeeper.state import paths
from stormkeeper.state.callbacks import Callbacks
from stormkeeper.state.memory_tree import Event, MemoryTree, Node
from stormkeeper.state.storage import (
    ConnectionListener,
    ConnectionState,
    EventCallback,
    VersionedData,
)
from stormkeeper.state.watches import ArmedWatches, Seen, Watch, Watched

log = logging.getLogger(__name__)


class MemoryEnsemble:
    """A tree of nodes that several sessions share. Safe for many threads."""

    def __init__(self) -> None:
        #: Guards the tree, and the fields of all its sessions.
        self.lock = threading.RLock()
        self.tree = MemoryTree()
        self._sessions: list[MemoryState] = []
        self._ids = itertools.count(1)

    def session(self) -> "MemoryState":
        """Open a session."""
        with self.lock:
            session = MemoryState(self, next(self._ids))
            self._sessions.append(session)
            return session

    def suspend(self, session: "MemoryState") -> None:
        """Cut a session off: its calls fail, and it hears of nothing, until `resume`."""
        with self.lock:
            if session.connection is ConnectionState.CONNECTED:
                session.become(ConnectionState.SUSPENDED)

    def resume(self, session: "MemoryState") -> None:
        """Give a session that was cut off its connection back; it is told what it missed."""
        with self.lock:
            if session.connection is ConnectionState.SUSPENDED:
                session.become(ConnectionState.CONNECTED)
                session.look_again()

    def expire(self, session: "MemoryState") -> None:
        """End a session, as after a long silence; it goes on as a new one at once."""
        with self.lock:
            session.become(ConnectionState.LOST)
            self.end(session)
            session.renew(next(self._ids))

    def end(self, session: "MemoryState") -> None:
        """Delete a session's ephemeral nodes."""
        for path in self.tree.owned_by(session.session_id):
            self.publish(self.tree.delete(path))

    def leave(self, session: "MemoryState") -> None:
        """Forget a session that was closed."""
        with self.lock:
            self.end(session)
            self._sessions.remove(session)

    def publish(self, events: list[Event]) -> None:
        """Let every session hear what happened."""
        for event in events:
            for session in self._sessions:
                session.hear(event)


class MemoryState:
    """A `ClusterState` in memory: a session with a `MemoryEnsemble`, which makes it."""

    def __init__(self, ensemble: MemoryEnsemble, session_id: int) -> None:
        self._ensemble = ensemble
        self._session_id = session_id
        self._connection = ConnectionState.CONNECTED
        self._closed = False
        self._armed = ArmedWatches()
        self._registrations: dict[str, bytes] = {}
        self._callbacks = Callbacks("state callbacks")

    @property
    def connection(self) -> ConnectionState:
        """See `ClusterState.connection`."""
        return self._connection

    @property
    def session_id(self) -> int:
        """The id of the newest session."""
        return self._session_id

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """See `ClusterState.get_data`."""
        node = self._find(path, watch)
        return None if node is None else node.data

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """See `ClusterState.get_data_with_version`."""
        with self._ensemble.lock:
            node = self._find(path, watch)
            return None if node is None else VersionedData(node.data, node.version)

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """See `ClusterState.get_version`."""
        node = self._find(path, watch)
        return None if node is None else node.version

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """See `ClusterState.node_exists`."""
        return self._find(path, watch) is not None

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """See `ClusterState.get_children`."""
        with self._tree(path) as tree:
            node = tree.get(path)
            if watch:
                self._armed.arm(Watch(Watched.CHILDREN, path), node.seen)
            return sorted(node.children)

    def set_data(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_data`."""
        with self._tree(path) as tree:
            self._ensemble.publish(tree.put(path, data))

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_ephemeral_node`."""
        with self._tree(path) as tree:
            self._ensemble.publish(tree.put_ephemeral(path, data, self._session_id))
            self._registrations[path] = data

    def create_sequential(self, path: str, data: bytes) -> str:
        """See `ClusterState.create_sequential`."""
        with self._tree(path) as tree:
            created, events = tree.create_sequential(path, data, self._session_id)
            self._ensemble.publish(events)
            return created

    def mkdirs(self, path: str) -> None:
        """See `ClusterState.mkdirs`."""
        with self._tree(path) as tree:
            self._ensemble.publish(tree.make_directory(path))

    def delete_node(self, path: str) -> None:
        """See `ClusterState.delete_node`."""
        if path == "/":
            raise InvalidPathError("the root of the cluster's state is not deleted")
        with self._tree(path) as tree:
            for registered in [p for p in self._registrations if paths.is_at_or_below(p, path)]:
                del self._registrations[registered]
            self._ensemble.publish(tree.delete(path))

    def sync_path(self, path: str) -> None:
        """See `ClusterState.sync_path`."""
        with self._tree(path):
            pass

    def register(self, callback: EventCallback) -> int:
        """See `ClusterState.register`."""
        return self._callbacks.register(callback)

    def unregister(self, registration: int) -> None:
        """See `ClusterState.unregister`."""
        self._callbacks.unregister(registration)

    def add_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.add_listener`."""
        self._callbacks.add_listener(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.remove_listener`."""
        self._callbacks.remove_listener(listener)

    def set_worker_hb(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_worker_hb`."""
        self.set_data(path, data)

    def get_worker_hb(self, path: str) -> bytes | None:
        """See `ClusterState.get_worker_hb`."""
        return self.get_data(path)

    def get_worker_hb_children(self, path: str) -> list[str]:
        """See `ClusterState.get_worker_hb_children`."""
        try:
            return self.get_children(path)
        except NoNodeError:
            return []

    def delete_worker_hb(self, path: str) -> None:
        """See `ClusterState.delete_worker_hb`."""
        self.delete_node(path)

    def close(self) -> None:
        """See `ClusterState.close`."""
        with self._ensemble.lock:
            if self._closed:
                return
            self._closed = True
            self._connection = ConnectionState.LOST
            self._ensemble.leave(self)
        # Not under the lock: a callback that runs may want it.
        self._callbacks.close()

    # The ensemble calls these, under its lock.

    def become(self, state: ConnectionState) -> None:
        """Take on a connection state, and tell it."""
        self._connection = state
        self._callbacks.tell_connection(state)

    def hear(self, event: Event) -> None:
        """Tell an event if a watch was left for it, unless the session is cut off."""
        if self._connection is ConnectionState.CONNECTED and self._armed.fire(*event):
            self._callbacks.tell_event(*event)

    def look_again(self) -> None:
        """Tell what the armed watches missed."""
        for watch in self._armed.all():
            event = self._armed.missed(watch, _seen(self._ensemble.tree.find(watch.path)))
            if event is not None:
                self._armed.fire(event, watch.path)
                self._callbacks.tell_event(event, watch.path)

    def renew(self, session_id: int) -> None:
        """Go on as a new session: register again, and tell what the watches missed."""
        self._session_id = session_id
        tree = self._ensemble.tree
        for path, data in list(self._registrations.items()):
            if tree.find(path) is None:
                self._ensemble.publish(tree.put_ephemeral(path, data, session_id))
            else:
                del self._registrations[path]
                log.warning("%s is not registered any more: another session took it", path)
        self.become(ConnectionState.CONNECTED)
        self.look_again()

    def _find(self, path: str, watch: bool) -> Node | None:
        with self._tree(path) as tree:
            node = tree.find(path)
            if watch:
                self._armed.arm(Watch(Watched.NODE, path), _seen(node))
            return node

    @contextmanager
    def _tree(self, path: str) -> Iterator[MemoryTree]:
        paths.check(path)
        with self._ensemble.lock:
            if self._closed:
                raise StateClosedError(f"cannot use {path}: this session was closed")
            if self._connection is not ConnectionState.CONNECTED:
                raise StateUnavailableError(
                    f"cannot use {path}: the session is cut off (the connection is"
                    f" {self._connection.name})"
                )
            yield self._ensemble.tree


def _seen(node: Node | None) -> Seen | None:
    return None if node is None else node.seen
