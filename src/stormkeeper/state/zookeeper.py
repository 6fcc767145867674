"""The cluster's state in ZooKeeper."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kazoo.protocol.states import EventType as KazooEvent
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from stormkeeper.errors import (
    InvalidPathError,
    NoNodeError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state import paths
from stormkeeper.state.callbacks import Callbacks
from stormkeeper.state.storage import (
    ConnectionListener,
    ConnectionState,
    EventCallback,
    EventType,
    VersionedData,
)
from stormkeeper.state.watches import ArmedWatches, Seen, Watch, Watched
from stormkeeper.state.zookeeper_connection import Connection, Request, Settings
from stormkeeper.state.zookeeper_tree import Tree, Watcher

log = logging.getLogger(__name__)

#: How long the recovery thread waits before it tries again, in seconds.
RECOVERY_PAUSE_SECS = 1.0

_EVENTS = {
    KazooEvent.CREATED: EventType.NODE_CREATED,
    KazooEvent.DELETED: EventType.NODE_DELETED,
    KazooEvent.CHANGED: EventType.NODE_DATA_CHANGED,
    KazooEvent.CHILD: EventType.NODE_CHILDREN_CHANGED,
}


def connect(conf: Mapping[str, Any]) -> "ZooKeeperState":
    """Connect to the ensemble of ``storm.zookeeper.*``.

    Raises
    ------
    ConfigError
        An entry of ``storm.zookeeper.servers`` is no address.
    StateUnavailableError
        No server answered within ``storm.zookeeper.connection.timeout``.
    """
    if conf.get("storm.zookeeper.auth.scheme"):
        log.warning(
            "storm.zookeeper.auth.scheme is set, but this version does not authenticate to"
            " ZooKeeper: nodes are made open to everyone"
        )
    return ZooKeeperState(Settings.from_conf(conf))


class ZooKeeperState:
    """A `ClusterState` in a ZooKeeper ensemble; connects, and makes the root if it is absent.

    Raises
    ------
    InvalidPathError
        The root is not a path.
    StateUnavailableError
        No server answered within the call timeout.
    """

    def __init__(self, settings: Settings) -> None:
        self._root = "" if settings.root == "/" else paths.check(settings.root)
        self._callbacks = Callbacks("state callbacks")
        self._armed = ArmedWatches()
        self._last_event: WatchedEvent | None = None
        #: Ephemeral nodes of this process, and the session that they were last made in.
        self._registrations: dict[str, bytes] = {}
        self._registered_in: int | None = None
        self._registering = threading.Lock()
        self._connection = Connection(settings, self._on_connection)
        self._tree = Tree(self._connection)
        self._recover = threading.Event()
        self._recovery = threading.Thread(
            target=self._keep_up, name="zookeeper recovery", daemon=True
        )
        try:
            self._connection.start()
            self._registered_in = self._connection.session_id
            self._recovery.start()
            self._tree.make_directory(self._root or "/", self._connection.deadline())
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> ConnectionState:
        """See `ClusterState.connection`."""
        return self._connection.state

    @property
    def session_id(self) -> int | None:
        """ZooKeeper's id of the newest session."""
        return self._connection.session_id

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """See `ClusterState.get_data`."""
        found = self.get_data_with_version(path, watch)
        return None if found is None else found.data

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """See `ClusterState.get_data_with_version`."""
        node, deadline = self._node(path), self._connection.deadline()
        while True:
            try:
                data, stat = self._tree.read(node, deadline, self._watcher(watch))
            except NoNodeError:
                # ZooKeeper leaves no watch when it reads what is not there.
                if not watch or self._stat(path, watch, deadline) is None:
                    return None
            else:
                self._arm(watch, Watched.NODE, path, stat)
                return VersionedData(data, stat.version)

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """See `ClusterState.get_version`."""
        stat = self._stat(path, watch, self._connection.deadline())
        return None if stat is None else stat.version

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """See `ClusterState.node_exists`."""
        return self._stat(path, watch, self._connection.deadline()) is not None

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """See `ClusterState.get_children`."""
        names, stat = self._tree.children(
            self._node(path), self._connection.deadline(), self._watcher(watch)
        )
        self._arm(watch, Watched.CHILDREN, path, stat)
        return names

    def set_data(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_data`."""
        self._tree.put(self._node(path), data, self._connection.deadline())

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_ephemeral_node`."""
        node, deadline = self._node(path), self._connection.deadline()
        with self._registrations_locked(deadline) as registrations:
            self._tree.put_ephemeral(node, data, deadline)
            registrations[path] = data

    def create_sequential(self, path: str, data: bytes) -> str:
        """See `ClusterState.create_sequential`."""
        node = self._node(path)
        created = self._tree.create_sequential(node, data, self._connection.deadline())
        return created.removeprefix(self._root)

    def mkdirs(self, path: str) -> None:
        """See `ClusterState.mkdirs`."""
        self._tree.make_directory(self._node(path), self._connection.deadline())

    def delete_node(self, path: str) -> None:
        """See `ClusterState.delete_node`."""
        if path == "/":
            raise InvalidPathError("the root of the cluster's state is not deleted")
        node, deadline = self._node(path), self._connection.deadline()
        with self._registrations_locked(deadline) as registrations:
            for registered in [p for p in registrations if paths.is_at_or_below(p, path)]:
                del registrations[registered]
        self._tree.delete(node, deadline)

    def sync_path(self, path: str) -> None:
        """See `ClusterState.sync_path`."""
        self._tree.sync(self._node(path), self._connection.deadline())

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
        self._connection.close()
        self._recover.set()
        self._callbacks.close()
        recovery = self._recovery
        if recovery.is_alive() and recovery is not threading.current_thread():
            recovery.join(RECOVERY_PAUSE_SECS)

    def _node(self, path: str) -> str:
        """Return the whole path in ZooKeeper."""
        return self._root + path if paths.check(path) != "/" else self._root or "/"

    def _stat(self, path: str, watch: bool, deadline: float) -> ZnodeStat | None:
        stat = self._tree.stat(self._node(path), deadline, self._watcher(watch))
        self._arm(watch, Watched.NODE, path, stat)
        return stat

    def _watcher(self, watch: bool) -> Watcher | None:
        # Always the same one: kazoo then keeps it once for a path, however often it is left.
        return self._on_watch if watch else None

    def _arm(self, watch: bool, watched: Watched, path: str, stat: ZnodeStat | None) -> None:
        if watch:
            self._armed.arm(Watch(watched, path), _seen(stat))

    @contextmanager
    def _registrations_locked(self, deadline: float) -> Iterator[dict[str, bytes]]:
        """Keep `_registrations` and the nodes themselves in step with the recovery thread."""
        if not self._registering.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StateUnavailableError(
                "the registrations of this session are being made again, and ZooKeeper has not"
                " answered in time"
            )
        try:
            yield self._registrations
        finally:
            self._registering.release()

    # kazoo's thread calls these two: they queue what happened, and never wait.

    def _on_watch(self, event: WatchedEvent) -> None:
        # A node that is deleted while it and its children are watched calls twice with one event.
        if event.type == KazooEvent.NONE or event is self._last_event:
            return
        self._last_event = event
        self._tell(_EVENTS[event.type], event.path.removeprefix(self._root) or "/")

    def _on_connection(self, state: ConnectionState) -> None:
        self._callbacks.tell_connection(state)
        self._recover.set()

    def _tell(self, event: EventType, path: str) -> None:
        self._armed.fire(event, path)
        self._callbacks.tell_event(event, path)

    # The recovery thread.

    def _keep_up(self) -> None:
        """After each reconnection, put back what the session had."""
        while not self._connection.closed:
            self._recover.wait(None if self.connection is ConnectionState.CONNECTED else 1.0)
            self._recover.clear()
            if self._connection.dead:
                self._connection.restart()
            elif self.connection is ConnectionState.CONNECTED:
                self._put_back()

    def _put_back(self) -> None:
        try:
            self._register_again()
            self._look_again()
        except StateUnavailableError as error:
            if not self._connection.closed:
                log.warning("what the ZooKeeper session had is not back yet: %s", error)
                self._connection.wait_changed(RECOVERY_PAUSE_SECS)
                self._recover.set()
        except StateClosedError:
            pass

    def _register_again(self) -> None:
        deadline = self._connection.deadline()
        with self._registrations_locked(deadline) as registrations:
            session = self._connection.session_id
            if session == self._registered_in:
                return
            for path, data in list(registrations.items()):
                try:
                    self._tree.recreate_ephemeral(self._node(path), data, deadline)
                except (StateUnavailableError, StateClosedError):
                    raise
                except StateError as error:
                    # The others must not suffer from it.
                    log.warning("%s is not registered any more: %s", path, error)
                    del registrations[path]
                else:
                    log.info("%s is registered again in the new session", path)
            self._registered_in = session

    def _look_again(self) -> None:
        """Tell what the armed watches missed, and arm those again that missed nothing."""
        # First without arming: what a watch missed must not leave it armed for a second time.
        for arm in (False, True):
            watches = self._armed.all()
            answers = self._connection.gather(
                "look at",
                ((self._node(w.path), self._look(w, arm)) for w in watches),
                self._connection.deadline(),
            )
            for watch, answer in zip(watches, answers, strict=True):
                if isinstance(answer, StateError) and not isinstance(answer, NoNodeError):
                    # Whoever looks again is told the same.
                    log.warning("the watch of %s could not be left again: %s", watch.path, answer)
                    event: EventType | None = EventType.NODE_CHILDREN_CHANGED
                else:
                    event = self._armed.missed(watch, _seen(answer))
                if event is not None:
                    self._tell(event, watch.path)

    def _look(self, watch: Watch, arm: bool) -> Request:
        node = self._node(watch.path)
        if arm and watch.watched is Watched.CHILDREN:
            return lambda client: client.get_children_async(node, self._on_watch, True)
        return lambda client: client.exists_async(node, self._on_watch if arm else None)


def _seen(answer: Any) -> Seen | None:
    """Read what kazoo answers: a stat, names of children with a stat, or that there is none."""
    if answer is None or isinstance(answer, NoNodeError):
        return None
    stat = answer if isinstance(answer, ZnodeStat) else answer[1]
    return Seen(stat.czxid, stat.mzxid, stat.pzxid)
