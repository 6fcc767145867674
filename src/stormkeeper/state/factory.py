"""Which store the configuration names, connected."""

# ruff: noqa: PLC0415 -- the client of a store that is not used is not loaded

from typing import TYPE_CHECKING

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.heartbeats.protocols import HeartbeatReader, HeartbeatSender
from stormkeeper.state.access import Role
from stormkeeper.state.storage import ClusterState

if TYPE_CHECKING:
    from stormkeeper.state.node_heartbeats import Remover

#: Values of ``storm.cluster.state.store``: Storm's classes, and the name that its first Pacemaker
#: had.
ZOOKEEPER = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER = (
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
)


def connect(conf: Conf, *, role: Role = Role.SERVER, read_only: bool = False) -> ClusterState:
    """Connect to the store that ``storm.cluster.state.store`` names.

    With Pacemaker, heartbeats go to ``pacemaker.servers`` and all else to ZooKeeper, as in Storm.

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
        The store is none that is known, an address cannot be read, no Pacemaker is named, or a
        credential or a certificate is not as it must be.
    StateAuthenticationError
        A ZooKeeper server does not take us for who we say we are.
    StateUnavailableError
        No ZooKeeper server answered in time.
    NoNodeError
        There is no root, and we are not to make it.
    """
    from stormkeeper.state.zookeeper import state as zookeeper

    if not _in_pacemaker(conf):
        return zookeeper.connect(conf, role=role, read_only=read_only)
    from stormkeeper.pacemaker.client import pool
    from stormkeeper.state.pacemaker import PacemakerState

    heartbeats = pool.connect(conf)
    try:
        nodes = zookeeper.connect(conf, role=role, read_only=read_only)
        return PacemakerState(nodes, heartbeats)
    except BaseException:
        heartbeats.close()
        raise


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
    if _in_pacemaker(conf):
        from stormkeeper.heartbeats import pacemaker

        return pacemaker.sender(conf)
    from stormkeeper.state.node_heartbeats import NodeHeartbeats

    return NodeHeartbeats(connect(conf, role=Role.WORKER))


def heartbeat_reader(
    conf: Conf, state: ClusterState, remover: "Remover | None" = None
) -> HeartbeatReader:
    """Return what reads heartbeats where ``storm.cluster.state.store`` has them go.

    Parameters
    ----------
    conf
        The configuration.
    state
        The session; where the heartbeats are its nodes, it is closed with the reader.
    remover
        What deletes nodes: a leader's writer. The session, if left out.

    Raises
    ------
    ConfigError
        The store is none that is known, no Pacemaker is named, or a credential or a certificate is
        not as it must be.
    """
    if _in_pacemaker(conf):
        from stormkeeper.heartbeats import pacemaker

        return pacemaker.reader(conf)
    from stormkeeper.state.node_heartbeats import NodeHeartbeats

    return NodeHeartbeats(state, remover=remover)


def _in_pacemaker(conf: Conf) -> bool:
    store: str = conf["storm.cluster.state.store"]
    if store != ZOOKEEPER and store not in PACEMAKER:
        known = ", ".join((ZOOKEEPER, *PACEMAKER))
        raise ConfigError(f"storm.cluster.state.store is {store!r}, which is none of {known}")
    return store != ZOOKEEPER
