"""The same on the real ZooKeeper: what is announced there, and what starts a copy."""

import pytest

from stormkeeper import conf, paths
from stormkeeper.blobs import distributor, keys
from stormkeeper.state.storm import cluster as storm_cluster
from support.code import Cluster, activate, code_of
from support.waiting import until
from support.zookeeper import expire_session

WC = "wc-1-1700000000"


@pytest.fixture
def on_zookeeper(tmp_path, zookeeper_settings):
    configured = conf.defaults().with_values(zookeeper_settings())
    cluster = Cluster(tmp_path, connect=lambda: storm_cluster.connect(configured))
    yield cluster
    cluster.close()


@pytest.mark.zookeeper
def test_a_round_after_a_reconnection_finds_what_was_missed(on_zookeeper):
    one, two = on_zookeeper.start(1), on_zookeeper.start(2)
    two.code.sync.run_once()
    one.submitted.append(WC)
    one.code.upload(WC, code_of(WC))
    for _ in range(2):  # the second reads what the first announced
        two.code.sync.run_once()
    assert two.code.sync._entries == two.storm.blobs()
    expire_session(two.storm.state)
    until(lambda: not two.storm.state.unregistered)
    [jar, *_] = keys.of_topology(WC)
    one.storm.withdraw_blob(jar, one.id)
    two.code.sync.run_once()
    assert two.code.sync._entries == two.storm.blobs()
    assert two.storm.blobs([jar])[jar].alive == (str(two.id),)


@pytest.mark.zookeeper
def test_watches_copy_every_version_and_the_deletion(on_zookeeper):
    one, two = on_zookeeper.start(1), on_zookeeper.start(2)
    one.code.start()
    two.code.start()
    one.submitted.append(WC)
    one.code.upload(WC, code_of(WC))
    wanted = conf.defaults().with_values({"topology.max.replication.wait.time.sec": 60})
    assert distributor.await_copies(one.storm, WC, wanted) == (2, 2)
    activate(one, WC)
    one.submitted.clear()
    assert two.code.sync.missing() == {}

    [jar, *_] = blobs = keys.of_topology(WC)
    update = one.code.uploads.begin_update(jar)
    one.code.uploads.chunk(update, b"new")
    record = one.code.uploads.finish(update)
    until(lambda: two.code.store.get(jar) == record)
    holders = paths.blob_holder(jar, str(two.id), 2)
    until(lambda: one.storm.state.node_exists(holders))
    assert one.storm.state.get_stat(holders).owner == two.storm.state.session_id
    assert one.storm.blobs([jar])[jar].held == (str(one.id), str(two.id))

    one.leader.remove_storm(WC)
    for nimbus in (one, two):
        until(lambda nimbus=nimbus: nimbus.code.sync.wake() or not nimbus.code.store.all())
    assert one.storm.blobstore() == []
    assert one.storm.blobs(blobs) == {}
