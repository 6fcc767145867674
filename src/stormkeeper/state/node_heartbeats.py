"""Workers' heartbeats as nodes of the store itself, where there is no Pacemaker."""

from typing import Protocol

from stormkeeper.errors import NoNodeError
from stormkeeper.state.storage import ClusterState


class NodeHeartbeats(ClusterState, Protocol):
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
