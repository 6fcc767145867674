"""Connects to the stores that the configuration names."""

# ruff: noqa: PLC0415 -- the client of a store that is not used is not loaded

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.heartbeats.stores import (
    HeartbeatSender,
    HeartbeatStore,
    pacemaker_reader,
    pacemaker_sender,
)
from stormkeeper.state.access import Role
from stormkeeper.state.storage import ClusterState

#: Values of ``storm.cluster.state.store``: Storm's classes, and an older name of its Pacemaker
#: store.
ZOOKEEPER = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER = (
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
)


def connect(conf: Conf, *, role: Role = Role.SERVER, read_only: bool = False) -> ClusterState:
    """Connect to ZooKeeper, the store of everything but heartbeats.

    `role` selects credentials and access rules. With `read_only` nothing is made, not even an
    absent root.

    Raises
    ------
    ConfigError
        ``storm.cluster.state.store`` is unknown, an address cannot be read, or a credential or
        certificate is invalid.
    StateAuthenticationError
        A ZooKeeper server refuses our credentials.
    StateUnavailableError
        No ZooKeeper server answered in time.
    NoNodeError
        The root is absent, with `read_only`.
    """
    from stormkeeper.state.zookeeper import zookeeper_state as zookeeper

    in_pacemaker(conf)  # raises for an unknown store
    return zookeeper.connect(conf, role=role, read_only=read_only)


def heartbeat_sender(conf: Conf) -> HeartbeatSender:
    """Connect to the store of heartbeats alone, for a worker.

    With Pacemaker no ZooKeeper server is asked, so heartbeats go out without ZooKeeper. The sender
    authenticates only if ``pacemaker.auth.writes`` is true, and cannot read from a Pacemaker that
    authenticates readers. To ZooKeeper it connects with the topology's credentials. Errors are
    those of `connect`.
    """
    if in_pacemaker(conf):
        return pacemaker_sender(conf)
    from stormkeeper.state.node_heartbeats import NodeHeartbeats

    return NodeHeartbeats(connect(conf, role=Role.WORKER))


def heartbeats(conf: Conf, state: ClusterState) -> HeartbeatStore:
    """Return the store of heartbeats that ``storm.cluster.state.store`` names.

    If heartbeats are nodes of `state`, closing the store closes `state`. Raises `ConfigError` as
    `connect`, and if no Pacemaker is named.
    """
    if in_pacemaker(conf):
        return pacemaker_reader(conf)
    from stormkeeper.state.node_heartbeats import NodeHeartbeats

    return NodeHeartbeats(state)


def in_pacemaker(conf: Conf) -> bool:
    """Return whether heartbeats go to Pacemakers; `ConfigError` for an unknown store."""
    store: str = conf["storm.cluster.state.store"]
    if store != ZOOKEEPER and store not in PACEMAKER:
        known = ", ".join((ZOOKEEPER, *PACEMAKER))
        raise ConfigError(f"storm.cluster.state.store is {store!r}, which is none of {known}")
    return store != ZOOKEEPER
