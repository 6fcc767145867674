"""Which store the configuration names, connected."""

# ruff: noqa: PLC0415 -- the client of a store that is not used is not loaded

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.state.storage import ClusterState, HeartbeatStore

#: Values of ``storm.cluster.state.store``: Storm's classes, and the name that its first Pacemaker
#: had.
ZOOKEEPER = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER = (
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
)


def connect(conf: Conf) -> ClusterState:
    """Connect to the store that ``storm.cluster.state.store`` names.

    With Pacemaker, heartbeats go to ``pacemaker.servers`` and all else to ZooKeeper, as in Storm.

    Raises
    ------
    ConfigError
        The store is none that is known, an address cannot be read, or no Pacemaker is named.
    StateUnavailableError
        No ZooKeeper server answered in time.
    """
    from stormkeeper.state import zookeeper

    if not _in_pacemaker(conf):
        return zookeeper.connect(conf)
    from stormkeeper.pacemaker.client import pool
    from stormkeeper.state.pacemaker import PacemakerState

    heartbeats = pool.connect(conf)
    try:
        return PacemakerState(zookeeper.connect(conf), heartbeats)
    except BaseException:
        heartbeats.close()
        raise


def connect_heartbeats(conf: Conf) -> HeartbeatStore:
    """Connect to where ``storm.cluster.state.store`` has heartbeats go, and to nothing else.

    With Pacemaker no ZooKeeper server is asked: heartbeats go out while there is none. It is for
    those who beat, who authenticate only where ``pacemaker.auth.writes`` is true, and may not read
    from a Pacemaker that wants readers to.

    Raises
    ------
    ConfigError, StateUnavailableError
        As `connect`.
    """
    if not _in_pacemaker(conf):
        return connect(conf)
    from stormkeeper.pacemaker.client import pool
    from stormkeeper.state.pacemaker import PacemakerHeartbeats

    return PacemakerHeartbeats(pool.connect(conf, role="writer"))


def _in_pacemaker(conf: Conf) -> bool:
    store: str = conf["storm.cluster.state.store"]
    if store != ZOOKEEPER and store not in PACEMAKER:
        known = ", ".join((ZOOKEEPER, *PACEMAKER))
        raise ConfigError(f"storm.cluster.state.store is {store!r}, which is none of {known}")
    return store != ZOOKEEPER
