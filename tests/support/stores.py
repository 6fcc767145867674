"""The stores that the conformance suite runs against, behind one way to open and to expire."""

from abc import ABC, abstractmethod
from dataclasses import replace

from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.memory_state import MemoryEnsemble
from support.zookeeper import expire_session


class Store(ABC):
    """One store; sessions that it opened are closed with it."""

    def __init__(self) -> None:
        self.sessions: list[ClusterState] = []

    def open(self) -> ClusterState:
        session = self._open()
        self.sessions.append(session)
        return session

    @abstractmethod
    def _open(self) -> ClusterState: ...

    @abstractmethod
    def expire(self, session: ClusterState) -> None:
        """End a session as if it had been silent for too long; it goes on as a new one."""

    def close(self) -> None:
        for session in self.sessions:
            session.close()


class MemoryStore(Store):
    def __init__(self) -> None:
        super().__init__()
        self.ensemble = MemoryEnsemble()

    def _open(self) -> ClusterState:
        return self.ensemble.session()

    def expire(self, session: ClusterState) -> None:
        self.ensemble.expire(session)


class ZooKeeperStore(Store):
    def __init__(self, server: DevZooKeeper, root: str) -> None:
        super().__init__()
        self.settings = settings_for(server, root)

    def _open(self) -> ClusterState:
        return ZooKeeperState(self.settings)

    def expire(self, session: ClusterState) -> None:
        expire_session(session)


def settings_for(server: DevZooKeeper, root: str, **changes: float) -> EnsembleSettings:
    """Short times: tests wait for them."""
    times = {
        "session_timeout_secs": 10.0,
        "call_timeout_secs": 10.0,
        "retry_interval_secs": 0.05,
        **changes,
    }
    return EnsembleSettings(servers=(server.address,), root=root, **times)


def limit_calls(whose: ZooKeeperState | EnsembleConnection, secs: float) -> None:
    """Give calls of a session `secs` from now on; it may have had more to connect."""
    connection = whose if isinstance(whose, EnsembleConnection) else whose._connection
    connection._settings = replace(connection._settings, call_timeout_secs=secs)
