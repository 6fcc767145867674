"""Heartbeats in Pacemaker, alone or beside another store that has the rest of the state."""

from typing import Protocol

from stormkeeper.errors import StateClosedError
from stormkeeper.state import paths
from stormkeeper.state.storage import (
    ClusterState,
    ConnectionListener,
    ConnectionState,
    EventCallback,
    VersionedData,
)


class Heartbeats(Protocol):
    """What is needed of Pacemakers; `stormkeeper.pacemaker.client.pool.PacemakerPool` has it."""

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store a pulse."""
        ...

    def get_pulse(self, path: str) -> bytes | None:
        """Return the newest pulse, None when there is none."""
        ...

    def children(self, path: str) -> list[str]:
        """Return the names of the children of a path."""
        ...

    def delete_path(self, path: str) -> None:
        """Delete the pulse at a path and all below it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class PacemakerHeartbeats:
    """A `HeartbeatStore` in Pacemakers.

    Parameters
    ----------
    pacemakers
        The Pacemakers; closed with this.
    """

    def __init__(self, pacemakers: Heartbeats) -> None:
        self._pacemakers = pacemakers
        self._closed = False

    def set_worker_hb(self, path: str, data: bytes) -> None:
        """See `HeartbeatStore.set_worker_hb`."""
        self._at(path).send_pulse(path, data)

    def get_worker_hb(self, path: str) -> bytes | None:
        """See `HeartbeatStore.get_worker_hb`."""
        return self._at(path).get_pulse(path)

    def get_worker_hb_children(self, path: str) -> list[str]:
        """See `HeartbeatStore.get_worker_hb_children`."""
        return sorted(self._at(path).children(path))

    def delete_worker_hb(self, path: str) -> None:
        """See `HeartbeatStore.delete_worker_hb`."""
        self._at(path).delete_path(path)

    def close(self) -> None:
        """See `HeartbeatStore.close`."""
        if not self._closed:
            self._closed = True
            self._pacemakers.close()

    def _at(self, path: str) -> Heartbeats:
        paths.check(path)
        if self._closed:
            raise StateClosedError(f"cannot use {path}: this session was closed")
        return self._pacemakers


class PacemakerState(PacemakerHeartbeats):
    """A `ClusterState` that hands the heartbeat calls to Pacemakers, and all others on.

    Parameters
    ----------
    wrapped
        The store of everything but heartbeats; closed with this.
    heartbeats
        The Pacemakers; closed with this.
    """

    def __init__(self, wrapped: ClusterState, heartbeats: Heartbeats) -> None:
        super().__init__(heartbeats)
        self._wrapped = wrapped

    @property
    def connection(self) -> ConnectionState:
        """See `ClusterState.connection`; Pacemakers have no sessions."""
        return self._wrapped.connection

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """See `ClusterState.get_data`."""
        return self._wrapped.get_data(path, watch)

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """See `ClusterState.get_data_with_version`."""
        return self._wrapped.get_data_with_version(path, watch)

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """See `ClusterState.get_version`."""
        return self._wrapped.get_version(path, watch)

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """See `ClusterState.node_exists`."""
        return self._wrapped.node_exists(path, watch)

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """See `ClusterState.get_children`."""
        return self._wrapped.get_children(path, watch)

    def set_data(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_data`."""
        self._wrapped.set_data(path, data)

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_ephemeral_node`."""
        self._wrapped.set_ephemeral_node(path, data)

    def create_sequential(self, path: str, data: bytes) -> str:
        """See `ClusterState.create_sequential`."""
        return self._wrapped.create_sequential(path, data)

    def mkdirs(self, path: str) -> None:
        """See `ClusterState.mkdirs`."""
        self._wrapped.mkdirs(path)

    def delete_node(self, path: str) -> None:
        """See `ClusterState.delete_node`."""
        self._wrapped.delete_node(path)

    def sync_path(self, path: str) -> None:
        """See `ClusterState.sync_path`."""
        self._wrapped.sync_path(path)

    def register(self, callback: EventCallback) -> int:
        """See `ClusterState.register`."""
        return self._wrapped.register(callback)

    def unregister(self, registration: int) -> None:
        """See `ClusterState.unregister`."""
        self._wrapped.unregister(registration)

    def add_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.add_listener`."""
        self._wrapped.add_listener(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.remove_listener`."""
        self._wrapped.remove_listener(listener)

    def close(self) -> None:
        """See `ClusterState.close`."""
        try:
            super().close()
        finally:
            self._wrapped.close()
