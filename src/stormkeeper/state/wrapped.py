"""What a state that wraps another one leaves to it: all reads, watches, and the connection."""

from collections.abc import Sequence

from stormkeeper.state.storage import (
    ClusterState,
    ConnectionListener,
    ConnectionState,
    EventCallback,
    NodeData,
    NodeStat,
    VersionedData,
)


class WrappedReader:
    """A `StateReader` that hands every call on.

    Parameters
    ----------
    wrapped
        The state that answers; closed with this.
    """

    def __init__(self, wrapped: ClusterState) -> None:
        self._wrapped = wrapped

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

    @property
    def heartbeats_are_nodes(self) -> bool:
        """See `StateReader.heartbeats_are_nodes`."""
        return self._wrapped.heartbeats_are_nodes

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

    def get_worker_hb(self, path: str) -> bytes | None:
        """See `StateReader.get_worker_hb`."""
        return self._wrapped.get_worker_hb(path)

    def get_worker_hb_children(self, path: str) -> list[str]:
        """See `StateReader.get_worker_hb_children`."""
        return self._wrapped.get_worker_hb_children(path)

    def get_worker_hbs(self, path: str) -> dict[str, bytes]:
        """See `StateReader.get_worker_hbs`."""
        return self._wrapped.get_worker_hbs(path)

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

    def close(self) -> None:
        """See `StateReader.close`."""
        self._wrapped.close()
