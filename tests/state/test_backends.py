import pytest

from stormkeeper import conf as configuration
from stormkeeper.errors import (
    ConfigError,
    NoNodeError,
    PacemakerClosedError,
    StateClosedError,
)
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.state.backends import connect, heartbeat_sender
from stormkeeper.state.storm import cluster
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState

pytestmark = pytest.mark.zookeeper

ZOOKEEPER = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER = [
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
]


@pytest.fixture
def conf(zookeeper_settings):
    return configuration.defaults().with_values(zookeeper_settings())


@pytest.mark.parametrize("store", [ZOOKEEPER, *PACEMAKER])
def test_all_but_heartbeats_is_in_zookeeper(conf, store):
    state = connect(conf.with_values({"storm.cluster.state.store": store}))
    assert isinstance(state, ZooKeeperState)
    state.close()


def test_pacemaker_without_a_server(conf):
    chosen = conf.with_values({"storm.cluster.state.store": PACEMAKER[0]})
    with pytest.raises(ConfigError, match=r"pacemaker\.servers"):
        heartbeat_sender(chosen)
    with pytest.raises(ConfigError, match=r"pacemaker\.servers"):
        cluster.connect(chosen)


def test_a_store_that_nobody_knows(conf):
    with pytest.raises(ConfigError, match="EtcdStateStorageFactory"):
        connect({**conf, "storm.cluster.state.store": "org.example.EtcdStateStorageFactory"})


@pytest.mark.parametrize("name", PACEMAKER)
def test_heartbeats_alone_go_to_pacemakers_without_a_zookeeper(two_pacemakers, name):
    values = {
        "storm.cluster.state.store": name,
        "pacemaker.servers": [str(address) for address in two_pacemakers],
        "storm.zookeeper.servers": ["127.0.0.1"],
        "storm.zookeeper.port": 1,  # closed: whoever asked there would raise
        "storm.zookeeper.connection.timeout": 300,
    }
    sender = heartbeat_sender(configuration.defaults().with_values(values))
    sender.beat("/workerbeats/wc-1/s-1", b"beat")
    with PacemakerPool(two_pacemakers) as pool:
        assert pool.get_pulse("/workerbeats/wc-1/s-1") == b"beat"
        pool.delete_path("/workerbeats")
    sender.close()
    sender.close()
    with pytest.raises(PacemakerClosedError):
        sender.beat("/workerbeats/wc-1/s-1", b"beat")


def test_heartbeats_go_to_zookeeper_without_a_pacemaker(conf):
    connect(conf).close()
    sender = heartbeat_sender(conf)
    sender.beat("/workerbeats/wc-1/s-1", b"beat")
    state = connect(conf)
    assert state.get_data("/workerbeats/wc-1/s-1") == b"beat"
    state.close()
    sender.close()
    with pytest.raises(StateClosedError):
        sender.beat("/workerbeats/wc-1/s-1", b"beat")


@pytest.mark.parametrize("store", [ZOOKEEPER, *PACEMAKER])
def test_heartbeats_are_read_where_they_go(conf, two_pacemakers, store):
    values = {
        "storm.cluster.state.store": store,
        "pacemaker.servers": [str(address) for address in two_pacemakers],
    }
    chosen = conf.with_values(values)
    storm, sender = cluster.connect(chosen), heartbeat_sender(chosen)
    sender.beat("/workerbeats/wc-1/s-1", b"beat")
    assert storm.heartbeats.read("/workerbeats/wc-1/s-1").value == b"beat"
    assert storm.state.node_exists("/workerbeats/wc-1/s-1") == (store == ZOOKEEPER)
    names = ["zookeeper"] if store == ZOOKEEPER else values["pacemaker.servers"]
    assert list(storm.heartbeats.read_all().coverage) == names
    storm.heartbeats.remove("/workerbeats")
    assert storm.heartbeats.names() == []
    sender.close()
    storm.disconnect()
    with pytest.raises((StateClosedError, PacemakerClosedError)):
        storm.heartbeats.names()
    with pytest.raises(StateClosedError):
        storm.state.get_children("/")


def test_heartbeats_alone_in_a_store_that_nobody_knows(conf):
    with pytest.raises(ConfigError, match="EtcdStateStorageFactory"):
        heartbeat_sender(
            {**conf, "storm.cluster.state.store": "org.example.EtcdStateStorageFactory"}
        )


@pytest.mark.parametrize("store", [ZOOKEEPER, PACEMAKER[0]])
def test_who_only_reads_makes_no_root(conf, two_pacemakers, store):
    chosen = conf.with_values(
        {
            "storm.cluster.state.store": store,
            "pacemaker.servers": [str(address) for address in two_pacemakers],
        }
    )
    with pytest.raises(NoNodeError, match=chosen["storm.zookeeper.root"]):
        connect(chosen, read_only=True)
    connect(chosen).close()
    state = connect(chosen, read_only=True)
    assert state.get_children("/") == []
    state.close()
