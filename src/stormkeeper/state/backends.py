"""Back ends of the cluster's state: ZooKeeper, and for heartbeats nodes or Pacemakers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError, NoNodeError, StateUnavailableError
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.follower import HeartbeatFollower
from stormkeeper.heartbeats.stores import (
    Heartbeat,
    Heartbeats,
    HeartbeatSender,
    HeartbeatStore,
    connect_heartbeats,
)
from stormkeeper.paths import WORKERBEATS
from stormkeeper.state.storage import ClusterState, ConnectionState, NodeData, Role, StateWriter

#: Values of ``storm.cluster.state.store``: Storm's classes, and an older name of the Pacemaker
#: store.
ZOOKEEPER_STORE: Final = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER_STORES: Final = (
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
)

ZOOKEEPER: Final = "zookeeper"

#: ``/workerbeats/<storm id>/<node>-<port>``.
_DEPTH: Final = 3

Value = TypeVar("Value")


def connect(conf: Conf, *, role: Role = Role.SERVER, read_only: bool = False) -> ClusterState:
    """Connect to ZooKeeper, the store of everything but heartbeats.

    `read_only` makes no node, not even an absent root (`NoNodeError`). Raises `ConfigError`,
    `StateAuthenticationError`, or `StateUnavailableError` if no server answered.
    """
    # Loads kazoo only where ZooKeeper is used.
    from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings  # noqa: PLC0415
    from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState  # noqa: PLC0415

    in_pacemaker(conf)  # raises for an unknown store
    return ZooKeeperState(EnsembleSettings.from_conf(conf, role, make_root=not read_only))


def heartbeat_sender(conf: Conf) -> HeartbeatSender:
    """Return the sender of a worker's heartbeats, which needs no ZooKeeper with Pacemakers.

    With Pacemakers the sender authenticates only if ``pacemaker.auth.writes`` is true; otherwise it
    cannot read from a Pacemaker that authenticates readers.
    """
    return (
        connect_heartbeats(conf, "writer")
        if in_pacemaker(conf)
        else NodeHeartbeats(connect(conf, role=Role.WORKER))
    )


def heartbeats(conf: Conf, state: ClusterState) -> HeartbeatStore:
    """Return the store of heartbeats that ``storm.cluster.state.store`` names.

    If heartbeats are nodes of `state`, closing the store closes `state`.
    """
    return connect_heartbeats(conf) if in_pacemaker(conf) else NodeHeartbeats(state)


def in_pacemaker(conf: Conf) -> bool:
    """Return whether heartbeats go to Pacemakers; `ConfigError` for an unknown store."""
    store: str = conf["storm.cluster.state.store"]
    if store != ZOOKEEPER_STORE and store not in PACEMAKER_STORES:
        known = ", ".join((ZOOKEEPER_STORE, *PACEMAKER_STORES))
        raise ConfigError(f"storm.cluster.state.store is {store!r}, which is none of {known}")
    return store != ZOOKEEPER_STORE


class _NodeAges:
    """Ages of nodes since the last seen change. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        #: Change (mzxid) of each node, and when a read first saw that change.
        self._seen: dict[str, tuple[int, float]] = {}
        #: Start of the time without a gap; None before the first read and in a gap.
        self._since: float | None = None

    def record(self, nodes: Mapping[str, NodeData | None], *, connected: bool) -> dict[str, float]:
        now = self.clock()
        ages = {}
        with self._lock:
            if self._since is None and connected:
                self._since = now
            for path, node in nodes.items():
                seen = self._seen.get(path)
                if node is None:
                    self._seen.pop(path, None)
                    continue
                if seen is None or seen[0] != node.stat.modified:
                    seen = self._seen[path] = node.stat.modified, now
                ages[path] = now - seen[1]
        return ages

    def forget_all_but(self, left: Collection[str], top: str) -> None:
        with self._lock:
            for gone in self._seen.keys() - left:
                if paths.is_at_or_below(gone, top):
                    del self._seen[gone]

    def horizon_secs(self, began: float) -> float:
        """Return the time without a gap before a read."""
        with self._lock:
            return 0.0 if self._since is None else max(0.0, began - self._since)

    def gap(self, state: ConnectionState = ConnectionState.SUSPENDED) -> None:
        """Record that workers may have been unable to beat."""
        if state is not ConnectionState.CONNECTED:
            with self._lock:
                self._since = None


class NodeHeartbeats:
    """A `HeartbeatStore` over nodes, for clusters without Pacemaker. Safe for many threads.

    ZooKeeper reports no ages: a heartbeat's age counts from the last change that this reader saw,
    from 0 at first sight. The horizon restarts after a lost connection: without a quorum no worker
    can beat. `remover` deletes nodes; by default the session, which `close` closes.
    """

    def __init__(
        self,
        store: ClusterState,
        *,
        remover: StateWriter | None = None,
        ages: _NodeAges | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._remover = remover or store
        self._ages = ages or _NodeAges(clock)
        if ages is None:
            store.add_listener(self._ages.gap)

    def removed_by(self, remover: StateWriter) -> NodeHeartbeats:
        return NodeHeartbeats(self._store, remover=remover, ages=self._ages)

    def beat(self, path: str, value: bytes) -> None:
        self._store.set_data(path, value)

    def read(self, path: str) -> Heartbeat | None:
        with self._gap_on_failure():
            return self._read([path], values=True).get(path)

    def read_all(
        self,
        path: str = WORKERBEATS,
        *,
        values: bool = False,
        hurried: bool = False,  # noqa: ARG002 - no effect on ZooKeeper
    ) -> Heartbeats:
        began = self._ages.clock()
        with self._gap_on_failure():
            found = self._read(self._workers(paths.check(path)), values=values)
        self._ages.forget_all_but(found.keys(), path)
        newest = max((one.revision or 0 for one in found.values()), default=0)
        coverage = Coverage(
            time.time(),
            position=Position(ZOOKEEPER, newest),
            horizon_secs=self._ages.horizon_secs(began),
            keys=len(found),
        )
        return Heartbeats(found, {ZOOKEEPER: coverage})

    def follower(
        self, decode: Callable[[bytes], Value] | None = None, *, values: bool = True
    ) -> HeartbeatFollower[Value]:
        return HeartbeatFollower(
            self.read_all, path=WORKERBEATS, decode=decode, values=values, clock=self._ages.clock
        )

    def names(self, path: str = WORKERBEATS) -> list[str]:
        try:
            return self._store.get_children(path)
        except NoNodeError:
            return []

    def remove(self, path: str) -> None:
        self._remover.delete_node(path)

    def close(self) -> None:
        self._store.remove_listener(self._ages.gap)
        self._store.close()

    def _workers(self, path: str) -> list[str]:
        level = [path]
        for _ in range(_DEPTH - path.count("/")):
            listed = zip(level, self._store.children_many(level), strict=True)
            level = [f"{above}/{name}" for above, names in listed for name in names or ()]
        return level

    def _read(self, wanted: Sequence[str], *, values: bool) -> dict[str, Heartbeat]:
        nodes = dict(zip(wanted, self._store.read_many(wanted), strict=True))
        connected = self._store.connection is ConnectionState.CONNECTED
        ages = self._ages.record(nodes, connected=connected)
        return {
            path: Heartbeat(
                ZOOKEEPER,
                ages[path],
                len(node.data),
                node.stat.modified,
                node.data if values else None,
            )
            for path, node in nodes.items()
            if node is not None
        }

    @contextmanager
    def _gap_on_failure(self) -> Iterator[None]:
        try:
            yield
        except StateUnavailableError:
            self._ages.gap()
            raise
