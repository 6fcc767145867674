import pytest

from stormkeeper import conf as configuration
from stormkeeper.errors import (
    ConfigError,
    NoNodeError,
    PacemakerClosedError,
    StateClosedError,
    StateUnavailableError,
)
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.state.factory import connect, heartbeat_reader, heartbeat_sender
from stormkeeper.state.pacemaker import PacemakerState
from stormkeeper.state.zookeeper.state import ZooKeeperState

pytestmark = pytest.mark.zookeeper

ZOOKEEPER = "org.apache.storm.cluster.ZKStateStorageFactory"
PACEMAKER = [
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
]


@pytest.fixture
def conf(zookeeper_settings):
    return configuration.defaults().with_values(zookeeper_settings())


def test_zookeeper_alone(conf):
    for chosen in (conf, conf.with_values({"storm.cluster.state.store": ZOOKEEPER})):
        state = connect(chosen)
        assert isinstance(state, ZooKeeperState)
        state.set_worker_hb("/workerbeats/wc-1/s-1", b"beat")
        assert state.get_data("/workerbeats/wc-1/s-1") == b"beat"
        state.close()


@pytest.mark.parametrize("name", PACEMAKER)
def test_heartbeats_in_pacemakers(conf, two_pacemakers, name):
    values = {
        "storm.cluster.state.store": name,
        "pacemaker.servers": [str(address) for address in two_pacemakers],
    }
    state = connect(conf.with_values(values))
    assert isinstance(state, PacemakerState)
    state.set_worker_hb("/workerbeats/wc-1/s-1", b"beat")
    assert state.get_worker_hb("/workerbeats/wc-1/s-1") == b"beat"
    assert not state.node_exists("/workerbeats/wc-1/s-1")
    state.delete_worker_hb("/workerbeats")
    state.close()


def test_pacemaker_without_a_server(conf):
    with pytest.raises(ConfigError, match=r"pacemaker\.servers"):
        connect(conf.with_values({"storm.cluster.state.store": PACEMAKER[0]}))


def test_a_store_that_nobody_knows(conf):
    with pytest.raises(ConfigError, match="EtcdStateStorageFactory"):
        connect({**conf, "storm.cluster.state.store": "org.example.EtcdStateStorageFactory"})


def test_no_zookeeper_leaves_no_pacemaker_client(conf, two_pacemakers):
    values = {
        "storm.cluster.state.store": PACEMAKER[0],
        "pacemaker.servers": [str(address) for address in two_pacemakers],
        "storm.zookeeper.servers": ["127.0.0.1:1"],
        "storm.zookeeper.connection.timeout": 300,
    }
    with pytest.raises(StateUnavailableError):
        connect(conf.with_values(values))


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


def test_heartbeats_alone_go_to_zookeeper_where_there_is_no_pacemaker(conf):
    connect(conf).close()
    sender = heartbeat_sender(conf)
    sender.beat("/workerbeats/wc-1/s-1", b"beat")
    state = connect(conf)
    assert state.get_data("/workerbeats/wc-1/s-1") == b"beat"
    state.close()
    sender.close()
    with pytest.raises(StateClosedError):
        sender.beat("/workerbeats/wc-1/s-1", b"beat")


@pytest.mark.parametrize("store", [ZOOKEEPER, PACEMAKER[0]])
def test_heartbeats_are_read_where_they_go(conf, two_pacemakers, store):
    values = {
        "storm.cluster.state.store": store,
        "pacemaker.servers": [str(address) for address in two_pacemakers],
    }
    chosen = conf.with_values(values)
    state = connect(chosen)
    sender, reader = heartbeat_sender(chosen), heartbeat_reader(chosen, state)
    sender.beat("/workerbeats/wc-1/s-1", b"beat")
    assert reader.read("/workerbeats/wc-1/s-1").value == b"beat"
    names = ["zookeeper"] if store == ZOOKEEPER else values["pacemaker.servers"]
    assert list(reader.read_all().coverage) == names
    reader.remove("/workerbeats")
    assert reader.names() == []
    for one in (sender, reader, state):
        one.close()


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
