"""Nodes that an operator's ACL denies to the followers of their directory."""

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from stormkeeper import conf, paths
from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.storm import cluster
from stormkeeper.state.zookeeper.tree import Tree
from stormkeeper.thrift.records import StormBase, TopologyStatus
from support.leaders import lead
from support.waiting import until
from support.zookeeper import expire_session

pytestmark = pytest.mark.zookeeper

DENIED = [make_digest_acl("operator", "secret", all=True)]


@pytest.fixture
def operator(zookeeper_server, zookeeper_root):
    """A client with the identity that may read all."""
    client = KazooClient(f"{zookeeper_server.host}:{zookeeper_server.port}/{zookeeper_root[1:]}")
    client.start()
    client.add_auth("digest", "operator:secret")
    yield client
    client.stop()
    client.close()


@pytest.fixture
def storm(zookeeper_settings):
    storm = cluster.connect(conf.defaults().with_values(zookeeper_settings()))
    leader = lead(storm)
    for name in "abc":
        leader.activate_storm(name, StormBase(name, TopologyStatus.ACTIVE, 1))
        storm.state.mkdirs(paths.query_end(name, "query"))
    yield storm
    storm.disconnect()


BASE, QUERIES = paths.storm("a"), paths.workerbeats("b")


def deny(operator, acl=DENIED):
    for path in (BASE, QUERIES):
        operator.set_acls(path, acl)


def changed(operator):
    operator.set(BASE, operator.get(BASE)[0])
    operator.create(paths.query_end("b", "another"))


def check_denied(records):
    assert records.unreadable == {BASE, QUERIES}
    assert set(records.bases) == {"b", "c"}
    assert records.ended["a"] == records.ended["c"] == {"query"}


def is_whole(records):
    return not records.unreadable and set(records.bases) == set("abc") and "b" in records.ended


def test_a_denied_node_is_unreadable_until_its_next_change(storm, operator, caplog):
    deny(operator)
    check_denied(storm.view.caught_up())
    storm.state.mkdirs(paths.query_end("c", "another"))
    assert "another" in storm.view.caught_up().ended["c"]
    for path in (BASE, QUERIES):
        assert caplog.text.count(f"{path} cannot be read: ") == 1
    deny(operator, OPEN_ACL_UNSAFE)
    changed(operator)
    until(lambda: is_whole(storm.view.now()))
    assert storm.view.caught_up().ended["b"] == {"query", "another"}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_reconnection_looks_again_at_denied_nodes(storm, operator, monkeypatch, is_old):
    if is_old:  # before ZooKeeper 3.6
        monkeypatch.setattr(Tree, "watch_tree", lambda *_: False)
    assert is_whole(storm.view.now())
    deny(operator)
    expire_session(storm.state)
    check_denied(storm.view.now())
    deny(operator, OPEN_ACL_UNSAFE)
    expire_session(storm.state)
    assert is_whole(storm.view.now())


def test_a_denied_directory_is_no_empty_one(storm, operator):
    operator.set_acls(paths.STORMS, DENIED)
    with pytest.raises(StateUnavailableError):
        storm.view.subscription.caught_up(1.0)
    operator.set_acls(paths.STORMS, OPEN_ACL_UNSAFE)
    until(lambda: is_whole(storm.view.now()))
