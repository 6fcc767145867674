"""Which store the configuration names, connected."""

# ruff: noqa: PLC0415 -- the client of a store that is not used is not loaded

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.heartbeats.protocols import HeartbeatSender, HeartbeatStore
from stormkeeper.state.access import Role
from stormkeeper.state.storage import ClusterState

#: Values of ``storm.cluster.state.store``: Storm's classes, and the name that its first Pacemaker
#: had.
ZOOKEEPER = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER = (
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
)


def connect(conf: Conf, *, role: Role = Role.SERVER, read_only: bool = False) -> ClusterState:
    """Connect to the store of everything but heartbeats, which is ZooKeeper.

    Parameters
    ----------
    conf
        The configuration.
    role
        As whom to authenticate to ZooKeeper, and whose access rules hold for what is made there.
    read_only
        Whether nothing is to be made, not even the root: one that is absent is an error.

    Raises
    ------
    ConfigError
        ``storm.cluster.state.store`` is none that is known, an address cannot be read, or a
        credential or a certificate is not as it must be.
    StateAuthenticationError
        A ZooKeeper server does not take us for who we say we are.
    StateUnavailableError
        No ZooKeeper server answered in time.
    NoNodeError
        There is no root, and we are not to make it.
    """
    from stormkeeper.state.zookeeper import zookeeper_state as zookeeper

    in_pacemaker(conf)  # which says it where there is no such store
    return zookeeper.connect(conf, role=role, read_only=read_only)


def heartbeat_sender(conf: Conf) -> HeartbeatSender:
    """Connect to where ``storm.cluster.state.store`` has heartbeats go, and to nothing else.

    With Pacemaker no ZooKeeper server is asked: heartbeats go out while there is none. It is for
    those who beat, who authenticate only where ``pacemaker.auth.writes`` is true, and may not read
    from a Pacemaker that wants readers to. To ZooKeeper they come with their topology's
    credentials.

    Raises
    ------
    ConfigError, StateAuthenticationError, StateUnavailableError, NoNodeError
        As `connect`.
    """
    if in_pacemaker(conf):
        from stormkeeper.heartbeats import pacemaker

        return pacemaker.sender(conf)
    from stormkeeper.state.node_heartbeats import NodeHeartbeats

    return NodeHeartbeats(connect(conf, role=Role.WORKER))


def heartbeats(conf: Conf, state: ClusterState) -> HeartbeatStore:
    """Return the heartbeats of a cluster, where ``storm.cluster.state.store`` has them go.

    Parameters
    ----------
    conf
        The configuration.
    state
        The session. Where the heartbeats are its nodes, it is closed with them.

    Raises
    ------
    ConfigError
        The store is none that is known, no Pacemaker is named, or a credential or a certificate is
        not as it must be.
    """
    if in_pacemaker(conf):
        from stormkeeper.heartbeats import pacemaker

        return pacemaker.reader(conf)
    from stormkeeper.state.node_heartbeats import NodeHeartbeats

    return NodeHeartbeats(state)


def in_pacemaker(conf: Conf) -> bool:
    """Whether ``storm.cluster.state.store`` has heartbeats go to Pacemakers.

    Raises
    ------
    ConfigError
        It is none that is known.
    """
    store: str = conf["storm.cluster.state.store"]
    if store != ZOOKEEPER and store not in PACEMAKER:
        known = ", ".join((ZOOKEEPER, *PACEMAKER))
        raise ConfigError(f"storm.cluster.state.store is {store!r}, which is none of {known}")
    return store != ZOOKEEPER
