"""Heartbeats in Pacemaker, alone or beside another store that has the rest of the state."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from stormkeeper import paths
from stormkeeper.errors import StateClosedError
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.transactions import Transaction
from stormkeeper.state.wrapped import WrappedReader

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


class PacemakerState(WrappedReader):
    """A `ClusterState` that hands the heartbeat calls to Pacemakers, and all others on.

    Parameters
    ----------
    wrapped
        The store of everything but heartbeats; closed with this.
    heartbeats
        The Pacemakers; closed with this.
    """

    def __init__(self, wrapped: ClusterState, heartbeats: Heartbeats) -> None:
        super().__init__(wrapped)
        self._heartbeats = PacemakerHeartbeats(heartbeats)

    @property
    def heartbeats_are_nodes(self) -> bool:
        """See `StateReader.heartbeats_are_nodes`; they are pulses."""
        return False

    @property
    def unregistered(self) -> list[str]:
        """See `ClusterState.unregistered`."""
        return self._wrapped.unregistered

    def admit(self, storm_id: str, digest_id: str | None) -> None:
        """See `StateWriter.admit`."""
        self._wrapped.admit(storm_id, digest_id)

    def set_data(self, path: str, data: bytes) -> None:
        """See `StateWriter.set_data`."""
        self._wrapped.set_data(path, data)

    def mkdirs(self, path: str) -> None:
        """See `StateWriter.mkdirs`."""
        self._wrapped.mkdirs(path)

    def delete_node(self, path: str) -> None:
        """See `StateWriter.delete_node`."""
        self._wrapped.delete_node(path)

    def transaction(self) -> Transaction:
        """See `StateWriter.transaction`."""
        return self._wrapped.transaction()

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
