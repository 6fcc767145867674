"""A session with a ZooKeeper ensemble, as a `ClusterState`."""

from collections.abc import Sequence
from typing import Any

from kazoo.protocol.serialization import Watch
from kazoo.protocol.states import EVENT_TYPE_MAP, WatchedEvent, ZnodeStat
from kazoo.protocol.states import EventType as KazooEvent

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError, NoNodeError
from stormkeeper.state.storage import (
    ClusterState,
    ConnectionListener,
    ConnectionState,
    Create,
    Delete,
    EventCallback,
    EventType,
    NodeData,
    NodeStat,
    Operation,
    Result,
    VersionedData,
    check_paths,
)
from stormkeeper.state.watches import (
    Callbacks,
    TreeObservers,
)
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.recovery import Recovery, Registrations
from stormkeeper.state.zookeeper.requests import Watcher
from stormkeeper.state.zookeeper.tree import Tree

_EVENTS = {
    KazooEvent.CREATED: EventType.NODE_CREATED,
    KazooEvent.DELETED: EventType.NODE_DELETED,
    KazooEvent.CHANGED: EventType.NODE_DATA_CHANGED,
    KazooEvent.CHILD: EventType.NODE_CHILDREN_CHANGED,
}


class ZooKeeperState(ClusterState):
    """A `ClusterState` in ZooKeeper; connects, and makes an absent root.

    Raises errors of `connect`, and `InvalidPathError` for an invalid root.
    """

    def __init__(self, settings: EnsembleSettings) -> None:
        self._root = "" if settings.root == "/" else paths.check(settings.root)
        self._rules = settings.security.rules
        self._last_event: WatchedEvent | None = None
        self._observers = TreeObservers()
        self._connection = EnsembleConnection(settings, self._on_connection, self._on_event)
        self._tree = Tree(self._connection, self._acl)
        self._registrations = Registrations(self._connection, self._tree, self._node)
        self._recovery = Recovery(
            self._connection,
            self._registrations,
            self._report_missed,
        )
        # Last: starts a thread.
        self._callbacks = Callbacks("state callbacks")
        try:
            self._connection.start()
            self._recovery.start()
            self._find_root(settings.make_root)
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> ConnectionState:
        return self._connection.state

    @property
    def session_id(self) -> int | None:
        return self._connection.session_id

    @property
    def session_timeout_secs(self) -> float | None:
        return self._connection.session_timeout_secs

    @property
    def call_timeout_secs(self) -> float:
        return self._connection.call_timeout_secs

    @property
    def unregistered(self) -> list[str]:
        return sorted(self._registrations.missing())

    @property
    def recovery_defects(self) -> int:
        return self._recovery.defects

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        found = self.get_data_with_version(path, watch)
        return None if found is None else found.data

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        node, deadline = self._node(path), self._connection.deadline()
        while True:
            try:
                data, stat = self._tree.read(node, deadline, self._watcher(watch))
            except NoNodeError:
                # ZooKeeper leaves no watch on a read of an absent node.
                if not watch or self._stat(path, watch, deadline) is None:
                    return None
            else:
                return VersionedData(data, stat.version)

    def get_version(self, path: str, watch: bool = False) -> int | None:
        stat = self._stat(path, watch, self._connection.deadline())
        return None if stat is None else stat.version

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        stat = self._stat(path, watch, self._connection.deadline())
        return None if stat is None else _node_stat(stat)

    def node_exists(self, path: str, watch: bool = False) -> bool:
        return self._stat(path, watch, self._connection.deadline()) is not None

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        return self._tree.children(
            self._node(path), self._connection.deadline(), self._watcher(watch)
        )

    def read_many(
        self, paths: Sequence[str], watch: bool = False, *, watch_absent: bool = True
    ) -> list[NodeData | None]:
        nodes = [self._node(path) for path in paths]
        deadline = self._connection.deadline(len(nodes))
        found = self._tree.read_many(
            nodes, deadline, self._watcher(watch), watch_absent=watch_absent
        )
        return [None if one is None else NodeData(one[0], _node_stat(one[1])) for one in found]

    def stat_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeStat | None]:
        nodes = [self._node(path) for path in paths]
        deadline = self._connection.deadline(len(nodes))
        found = self._tree.stat_many(nodes, deadline, self._watcher(watch))
        return [None if stat is None else _node_stat(stat) for stat in found]

    def children_many(self, paths: Sequence[str], watch: bool = False) -> list[list[str] | None]:
        nodes = [self._node(path) for path in paths]
        deadline = self._connection.deadline(len(nodes))
        return self._tree.children_many(nodes, deadline, self._watcher(watch))

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        node, deadline = self._node(path), self._connection.deadline()
        names = self._tree.children(node, deadline, self._watcher(watch))
        children = [f"{node.rstrip('/')}/{name}" for name in names]
        found = self._tree.read_many(children, self._connection.deadline(len(children)))
        return {
            name: NodeData(one[0], _node_stat(one[1]))
            for name, one in zip(names, found, strict=True)
            if one is not None
        }

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        check_paths(operations)
        deadline = self._connection.deadline()
        deleted = [operation.path for operation in operations if isinstance(operation, Delete)]
        if any(self._registrations.has(path) for path in deleted):
            with self._registrations.held(deadline):
                results = self._commit(operations, deadline)
                self._registrations.withdraw(deleted)
            return results
        return self._commit(operations, deadline)

    def set_data(self, path: str, data: bytes, *, workers_digest: str | None = None) -> None:
        self._tree.put(self._node(path), data, self._connection.deadline(), workers_digest)

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        node, deadline = self._node(path), self._connection.deadline()
        with self._registrations.held(deadline):
            self._tree.put_ephemeral(node, data, deadline)
            self._registrations.put(path, data)

    def withdraw_registration(self, path: str) -> None:
        paths.check(path)
        with self._registrations.held(self._connection.deadline()):
            self._registrations.withdraw([path])

    def create_sequential(self, path: str, data: bytes) -> str:
        node = self._node(path)
        created = self._tree.create_sequential(node, data, self._connection.deadline())
        return created.removeprefix(self._root)

    def mkdirs(self, path: str, *, workers_digest: str | None = None) -> None:
        self._tree.make_directory(self._node(path), self._connection.deadline(), workers_digest)

    def delete_node(self, path: str) -> None:
        if path == "/":
            raise InvalidPathError("the root of the cluster's state is not deleted")
        node, deadline = self._node(path), self._connection.deadline()
        with self._registrations.held(deadline):
            registered = self._registrations.paths()
            self._registrations.withdraw([p for p in registered if paths.is_at_or_below(p, path)])
        self._tree.delete(node, deadline)

    def watch_tree(self, path: str, observer: EventCallback) -> bool:
        node, deadline = self._node(path), self._connection.deadline()
        # First: an event may come before the answer.
        self._observers.add(path, observer)
        return self._tree.watch_tree(node, deadline)

    def unwatch_tree(self, path: str, observer: EventCallback) -> None:
        # The server's watch ends with the connection.
        self._observers.remove(path, observer)

    def sync_path(self, path: str) -> None:
        self._tree.sync(self._node(path), self._connection.deadline())

    def register(self, callback: EventCallback) -> int:
        return self._callbacks.register(callback)

    def unregister(self, registration: int) -> None:
        self._callbacks.unregister(registration)

    def add_listener(self, listener: ConnectionListener) -> None:
        self._callbacks.add_listener(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        self._callbacks.remove_listener(listener)

    def close(self) -> None:
        self._connection.close()
        self._recovery.wake()
        self._observers.notify_missed()
        self._callbacks.close()
        self._recovery.join()

    def _find_root(self, may_make: bool) -> None:
        root, deadline = self._root or "/", self._connection.deadline()
        if may_make:
            self._tree.make_directory(root, deadline)
        elif not self._tree.exists(root, deadline):
            raise NoNodeError(
                f"there is nothing at {root} in ZooKeeper at {self._connection.ensemble}"
            )

    def _acl(self, node: Create) -> list[Any] | None:
        below = paths.is_at_or_below(node.path, self._root or "/")
        path = (node.path.removeprefix(self._root) or "/") if below else "/"
        return self._rules.acl(path, node.workers_digest)

    def _node(self, path: str) -> str:
        return self._whole(paths.check(path))

    def _whole(self, checked: str) -> str:
        return self._root + checked if checked != "/" else self._root or "/"

    def _stat(self, path: str, watch: bool, deadline: float) -> ZnodeStat | None:
        return self._tree.stat(self._node(path), deadline, self._watcher(watch))

    def _watcher(self, watch: bool) -> Watcher | None:
        # Always the same object: kazoo keeps it once for a path, however often it is left.
        return self._on_watch if watch else None

    def _commit(self, operations: Sequence[Operation], deadline: float) -> list[Result]:
        whole = [operation._replace(path=self._whole(operation.path)) for operation in operations]
        results = self._connection.commit(whole, self._acl, deadline)
        return [
            result.removeprefix(self._root) if isinstance(result, str) else result
            for result in results
        ]

    # On kazoo's thread: queue events, and never wait.

    def _on_watch(self, event: WatchedEvent) -> None:
        # Deletion of a node with both watches calls twice with the same event.
        if event.type == KazooEvent.NONE or event is self._last_event:
            return
        self._last_event = event
        path = event.path.removeprefix(self._root) or "/"
        self._callbacks.queue_event(_EVENTS[event.type], path)

    def _on_event(self, event: Watch) -> None:
        kind = EVENT_TYPE_MAP.get(event.type)
        if kind in _EVENTS:
            self._observers.notify(_EVENTS[kind], event.path.removeprefix(self._root) or "/")

    def _on_connection(self, state: ConnectionState) -> None:
        if state is not ConnectionState.CONNECTED:
            self._observers.notify_missed()
        self._callbacks.queue_connection(state)
        self._recovery.wake()

    def _report_missed(self) -> None:
        self._callbacks.queue_event(EventType.EVENTS_MISSED, "/")


def _node_stat(stat: ZnodeStat) -> NodeStat:
    return NodeStat(
        stat.version, stat.czxid, stat.mzxid, stat.pzxid, stat.ephemeralOwner, stat.numChildren
    )
