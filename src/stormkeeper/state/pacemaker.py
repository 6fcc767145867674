"""Heartbeats in Pacemaker, alone or beside another store that has the rest of the state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from stormkeeper import paths
from stormkeeper.errors import StateClosedError
from stormkeeper.state.storage import (
    ClusterState,
    ConnectionListener,
    ConnectionState,
    EventCallback,
    NodeData,
    NodeStat,
    VersionedData,
)
from stormkeeper.state.transactions import Operation, Result

if TYPE_CHECKING:
    from stormkeeper.pacemaker.client.readings import Reading


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

    def readings(self, path: str) -> "Mapping[str, Reading]":
        """Return the newest pulse of every path at and below a path, by path."""
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
        """See `HeartbeatReader.get_worker_hb`."""
        return self._at(path).get_pulse(path)

    def get_worker_hb_children(self, path: str) -> list[str]:
        """See `HeartbeatReader.get_worker_hb_children`."""
        return sorted(self._at(path).children(path))

    def get_worker_hbs(self, path: str) -> dict[str, bytes]:
        """See `HeartbeatReader.get_worker_hbs`."""
        readings = self._at(path).readings(path)
        directly = sorted(p for p in readings if p not in (path, "/") and paths.parent(p) == path)
        values = ((p.rpartition("/")[2], readings[p].details) for p in directly)
        return {name: value for name, value in values if value is not None}

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


class PacemakerState(ClusterState):
    """A `ClusterState` that hands the heartbeat calls to Pacemakers, and all others on.

    Parameters
    ----------
    wrapped
        The store of everything but heartbeats; closed with this.
    heartbeats
        The Pacemakers; closed with this.
    """

    def __init__(self, wrapped: ClusterState, heartbeats: Heartbeats) -> None:
        self._wrapped = wrapped
        self._heartbeats = PacemakerHeartbeats(heartbeats)

    @property
    def connection(self) -> ConnectionState:
        """See `StateReader.connection`."""
        return self._wrapped.connection

    @property
    def session_id(self) -> int | None:
        """See `StateReader.session_id`."""
        return self._wrapped.session_id

    @property
    def session_timeout_secs(self) -> float | None:
        """See `StateReader.session_timeout_secs`."""
        return self._wrapped.session_timeout_secs

    @property
    def recovery_defects(self) -> int:
        """See `StateReader.recovery_defects`."""
        return self._wrapped.recovery_defects

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """See `StateReader.get_data`."""
        return self._wrapped.get_data(path, watch)

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """See `StateReader.get_data_with_version`."""
        return self._wrapped.get_data_with_version(path, watch)

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """See `StateReader.get_version`."""
        return self._wrapped.get_version(path, watch)

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        """See `StateReader.get_stat`."""
        return self._wrapped.get_stat(path, watch)

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """See `StateReader.node_exists`."""
        return self._wrapped.node_exists(path, watch)

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """See `StateReader.get_children`."""
        return self._wrapped.get_children(path, watch)

    def read_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeData | None]:
        """See `StateReader.read_many`."""
        return self._wrapped.read_many(paths, watch)

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """See `StateReader.children_many`."""
        return self._wrapped.children_many(paths)

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        """See `StateReader.children_data`."""
        return self._wrapped.children_data(path, watch)

    def sync_path(self, path: str) -> None:
        """See `StateReader.sync_path`."""
        self._wrapped.sync_path(path)

    def register(self, callback: EventCallback) -> int:
        """See `StateReader.register`."""
        return self._wrapped.register(callback)

    def unregister(self, registration: int) -> None:
        """See `StateReader.unregister`."""
        self._wrapped.unregister(registration)

    def add_listener(self, listener: ConnectionListener) -> None:
        """See `StateReader.add_listener`."""
        self._wrapped.add_listener(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        """See `StateReader.remove_listener`."""
        self._wrapped.remove_listener(listener)

    @property
    def heartbeats_are_nodes(self) -> bool:
        """See `StateReader.heartbeats_are_nodes`; they are pulses."""
        return False

    @property
    def unregistered(self) -> list[str]:
        """See `ClusterState.unregistered`."""
        return self._wrapped.unregistered

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """See `StateWriter.commit`."""
        return self._wrapped.commit(operations)

    def set_data(self, path: str, data: bytes, *, workers: str | None = None) -> None:
        """See `StateWriter.set_data`."""
        self._wrapped.set_data(path, data, workers=workers)

    def mkdirs(self, path: str, *, workers: str | None = None) -> None:
        """See `StateWriter.mkdirs`."""
        self._wrapped.mkdirs(path, workers=workers)

    def delete_node(self, path: str) -> None:
        """See `StateWriter.delete_node`."""
        self._wrapped.delete_node(path)

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_ephemeral_node`."""
        self._wrapped.set_ephemeral_node(path, data)

    def withdraw_registration(self, path: str) -> None:
        """See `ClusterState.withdraw_registration`."""
        self._wrapped.withdraw_registration(path)

    def create_sequential(self, path: str, data: bytes) -> str:
        """See `ClusterState.create_sequential`."""
        return self._wrapped.create_sequential(path, data)

    def set_worker_hb(self, path: str, data: bytes) -> None:
        """See `HeartbeatStore.set_worker_hb`."""
        self._heartbeats.set_worker_hb(path, data)

    def get_worker_hb(self, path: str) -> bytes | None:
        """See `HeartbeatReader.get_worker_hb`."""
        return self._heartbeats.get_worker_hb(path)

    def get_worker_hb_children(self, path: str) -> list[str]:
        """See `HeartbeatReader.get_worker_hb_children`."""
        return self._heartbeats.get_worker_hb_children(path)

    def get_worker_hbs(self, path: str) -> dict[str, bytes]:
        """See `HeartbeatReader.get_worker_hbs`."""
        return self._heartbeats.get_worker_hbs(path)

    def delete_worker_hb(self, path: str) -> None:
        """See `StateWriter.delete_worker_hb`."""
        self._heartbeats.delete_worker_hb(path)

    def close(self) -> None:
        """See `StateReader.close`."""
        try:
            self._heartbeats.close()
        finally:
            self._wrapped.close()
