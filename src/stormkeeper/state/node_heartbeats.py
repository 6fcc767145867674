"""Workers' heartbeats as nodes of the store itself, where there is no Pacemaker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from stormkeeper import paths
from stormkeeper.errors import NoNodeError, StateUnavailableError
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.following import Position
from stormkeeper.heartbeats.protocols import Heartbeat, Heartbeats
from stormkeeper.paths import WORKERBEATS
from stormkeeper.state.storage import ClusterState, ConnectionState

#: The one server, in `Heartbeats.coverage`.
ZOOKEEPER: Final = "zookeeper"

#: Names in the path of a worker's heartbeat: ``/workerbeats/<storm id>/<node>-<port>``.
_DEPTH: Final = 3


class Remover(Protocol):
    """Deletes nodes: a session, or a leader's writer, which checks that it leads."""

    def delete_node(self, path: str) -> None:
        """Delete a node and everything below it; an absent one is fine."""
        ...


class NodeHeartbeats:
    """A `HeartbeatReader` and a `HeartbeatSender` over nodes. Safe for many threads.

    A node does not say how old it is. A heartbeat is as old as the time since this reader saw its
    node change, by the reader's clock: one that it sees for the first time has an age of 0. The
    horizon is the time since the first read, and begins anew when the session was without a
    connection: as long as there is no quorum, no worker can beat.

    Parameters
    ----------
    store
        The session; closed with this.
    remover
        What deletes; the session if left out. A leader gives its writer.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        store: ClusterState,
        *,
        remover: Remover | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._remover = remover or store
        self._clock = clock
        self._lock = threading.Lock()
        #: The change that each node was made or set by, and when that was first seen.
        self._seen: dict[str, tuple[int, float]] = {}
        #: Since when changes are seen without a gap; None before the first read.
        self._since: float | None = None
        store.add_listener(self._connection_changed)

    def beat(self, path: str, value: bytes) -> None:
        """See `HeartbeatSender.beat`."""
        self._store.set_data(path, value)

    def read(self, path: str) -> Heartbeat | None:
        """See `HeartbeatReader.read`."""
        return self.read_each([path]).get(path)

    def read_all(self, path: str = WORKERBEATS, *, values: bool = False) -> Heartbeats:
        """See `HeartbeatReader.read_all`. The values are read in any case, as nodes go whole."""
        began = self._clock()
        with self._gap_where_it_fails():
            found, newest = self._read(self._workers(paths.check(path)), values=values)
        with self._lock:
            for gone in self._seen.keys() - found.keys():
                if paths.is_at_or_below(gone, path):
                    del self._seen[gone]
            since = self._since if self._since is not None else began
        return Heartbeats(
            found,
            {
                ZOOKEEPER: Coverage(
                    time.time(),
                    position=Position(ZOOKEEPER, newest),
                    horizon_secs=max(0.0, began - since),
                    keys=len(found),
                )
            },
        )

    def read_each(self, paths: Collection[str]) -> dict[str, Heartbeat]:
        """See `HeartbeatReader.read_each`."""
        with self._gap_where_it_fails():
            return self._read(list(paths), values=True)[0]

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """See `HeartbeatReader.names`."""
        try:
            return self._store.get_children(path)
        except NoNodeError:
            return []

    def remove(self, path: str) -> None:
        """See `HeartbeatReader.remove`."""
        self._remover.delete_node(path)

    def close(self) -> None:
        """See `HeartbeatReader.close`."""
        self._store.remove_listener(self._connection_changed)
        self._store.close()

    def _workers(self, path: str) -> list[str]:
        """Return the paths of all workers at and below a path."""
        level = [path]
        for _ in range(_DEPTH - path.count("/")):
            listed = zip(level, self._store.children_many(level), strict=True)
            level = [f"{above}/{name}" for above, names in listed for name in names or ()]
        return level

    def _read(self, wanted: Sequence[str], *, values: bool) -> tuple[dict[str, Heartbeat], int]:
        """Return the heartbeats among these paths, and the newest change of any of them."""
        nodes = zip(wanted, self._store.read_many(wanted), strict=True)
        there = [(path, node) for path, node in nodes if node is not None]
        now, newest = self._clock(), 0
        found = {}
        with self._lock:
            if self._since is None and self._store.connection is ConnectionState.CONNECTED:
                self._since = now
            for path, node in there:
                modified = node.stat.modified
                seen = self._seen.get(path)
                if seen is None or seen[0] != modified:
                    seen = self._seen[path] = modified, now
                newest = max(newest, modified)
                data = node.data
                found[path] = Heartbeat(
                    ZOOKEEPER, now - seen[1], len(data), modified, data if values else None
                )
        return found, newest

    @contextmanager
    def _gap_where_it_fails(self) -> Iterator[None]:
        """Begin the horizon anew when a read fails, which may be told before the connection is."""
        try:
            yield
        except StateUnavailableError:
            self._begin_anew()
            raise

    def _connection_changed(self, state: ConnectionState) -> None:
        if state is not ConnectionState.CONNECTED:
            self._begin_anew()

    def _begin_anew(self) -> None:
        with self._lock:
            self._since = None


class HeartbeatCalls(ClusterState, Protocol):
    """The heartbeat calls of a store that keeps heartbeats as it keeps all else."""

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

    def get_worker_hbs(self, path: str) -> dict[str, bytes]:
        """See `HeartbeatStore.get_worker_hbs`."""
        try:
            return {name: node.data for name, node in self.children_data(path).items()}
        except NoNodeError:
            return {}

    def delete_worker_hb(self, path: str) -> None:
        """See `ClusterState.delete_worker_hb`."""
        self.delete_node(path)
