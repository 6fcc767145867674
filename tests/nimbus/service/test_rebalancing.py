"""A rebalance with other values for a topology's conf."""

import json
import re

import pytest

from stormkeeper.blobs import keys
from stormkeeper.blobs.distributor import CodeDistributor
from stormkeeper.errors import BlobStorageError, CallRefusedError, StateUnavailableError
from stormkeeper.nimbus.lifecycle import ConfChanges
from stormkeeper.nimbus.round import pending_deadlines
from stormkeeper.nimbus.service import topology_checks
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.nimbus import InvalidTopologyException
from stormkeeper.thrift.records import RebalanceOptions, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from support.memory_state import MemoryEnsemble
from support.nimbus_clients import declared, submit
from support.nimbus_service import SECRET, nimbuses
from support.waiting import until


def rebalance(conf, **options):
    return {"wait_secs": 5, "topology_conf_overrides": json.dumps(conf), **options}


def conf_of(client, storm_id):
    return json.loads(client.call("getTopologyConf", {"id": storm_id}))


@pytest.mark.zookeeper
def test_the_conf_is_changed_on_all_nimbuses(leading, client, other, tmp_path):
    given = {"own": "old", "topology.worker.memory.mb": 300}
    storm_id = submit(client, tmp_path, "changed", conf=given)
    before = conf_of(client, storm_id)
    options = rebalance({"own": {"a": [1]}, "topology.worker.memory.mb": 400})
    client.call("rebalance", {"name": "changed", "options": options})

    after = conf_of(client, storm_id)
    assert after == {**before, "own": {"a": [1]}, "topology.worker.memory.mb": 400}
    until(lambda: conf_of(other, storm_id) == after)
    base = leading.storm.storm_base(storm_id)
    assert base.deadline_ms == 1_700_000_005_000
    assert base.topology_action_options.rebalance_options.topology_conf_overrides is None
    store = leading.code.store
    versions = [store.get(f"{storm_id}-{part}").version for part in keys.PARTS]
    assert versions == [1, 1, 2]


@pytest.mark.zookeeper
def test_what_is_refused_changes_nothing(leading, client, tmp_path):
    storm_id = submit(client, tmp_path, "kept")
    before = conf_of(client, storm_id)

    def refusal(options):
        cls, text = declared(client, "rebalance", {"name": "kept", "options": options})
        assert cls == "InvalidTopologyException"
        assert conf_of(client, storm_id) == before
        return text

    assert "own.password" in refusal(rebalance({"own": 1, "own.password": SECRET}))
    assert refusal(rebalance({"topology.blobstore.map": {"none": {}}})) == "Key not found: none"
    assert "valid values are" in refusal(rebalance({"own": 1}, num_executors=[("x", 1)]))
    resources = [("words", [("onheap.memory.mb", 100.0)])]
    text = refusal({"topology_resources_overrides": resources})
    assert "topology.worker.memory.mb" in text
    client.call("killTopology", {"name": "kept"})
    assert "KILLED, and cannot rebalance" in refusal(rebalance({"own": 1}))
    assert leading.code.store.get(f"{storm_id}-stormconf.ser").version == 1


def break_in(monkeypatch, error):
    """Have confs not be saved, by an error."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(CodeDistributor, "change", fail)


def test_a_conf_that_cannot_be_saved_is_no_rebalance(tmp_path, monkeypatch):
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    with nimbuses(tmp_path, storm) as [nimbus]:
        storm_id = nimbus.submit("wc")
        break_in(monkeypatch, BlobStorageError("the disk is full"))
        with pytest.raises(CallRefusedError, match="the disk is full"):
            nimbus.handler.rebalance("wc", RebalanceOptions(topology_conf_overrides='{"own": 1}'))
        base = storm.storm_base(storm_id)
        assert base.status is TopologyStatus.ACTIVE
        assert (base.prev_status, base.deadline_ms, base.topology_action_options) == (None,) * 3


def test_next_leader_saves_the_conf_of_a_lost_one(tmp_path, monkeypatch):
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    with nimbuses(tmp_path, storm) as [nimbus]:
        storm_id = nimbus.submit("wc")

        def own():
            return json.loads(nimbus.handler.getTopologyConf(storm_id)).get("own")

        options = RebalanceOptions(wait_secs=0, topology_conf_overrides='{"own": 1}')
        with monkeypatch.context() as broken:
            break_in(broken, StateUnavailableError("it is lost"))
            with pytest.raises(StateUnavailableError):
                nimbus.handler.rebalance("wc", options)
        base = storm.storm_base(storm_id)
        assert (base.status, own()) == (TopologyStatus.REBALANCING, None)
        # It is not due before that, however long it takes.
        assert pending_deadlines({}, {storm_id: base}, default_wait_secs={}, now=2e9) == {}
        with nimbus.conf_changes.under_way(storm_id):
            assert not nimbus.conf_changes.finish(nimbus.leader, {storm_id: base})
        next_one = ConfChanges(nimbus.code)
        assert next_one.finish(nimbus.leader, {storm_id: base})
        assert own() == 1
        base = storm.storm_base(storm_id)
        assert pending_deadlines({}, {storm_id: base}, default_wait_secs={}, now=2e9).keys() == {
            storm_id
        }
        assert not next_one.finish(nimbus.leader, {storm_id: base})
        # Lost after that, it is saved once more, and stays as it is.
        version = nimbus.code.store.get(f"{storm_id}-stormconf.ser").version
        next_one.save(storm_id, {"own": 1})
        assert nimbus.code.store.get(f"{storm_id}-stormconf.ser").version == version


def test_rebalance_keeps_the_operators_limits(tmp_path):
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    with nimbuses(tmp_path, storm, **{"nimbus.slots.perTopology": 2}) as [nimbus]:
        nimbus.submit("wc")
        with pytest.raises(InvalidTopologyException) as error:
            nimbus.handler.rebalance("wc", RebalanceOptions(num_workers=3))
        assert error.value.msg == (
            "Failed to rebalance topology. Topology requests more than 2 workers."
        )
        nimbus.handler.rebalance("wc", RebalanceOptions(num_workers=2))


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"topology.workers": 2}, "cannot change topology.workers: .*storm rebalance -n"),
        ({"topology.checkpoint.dir": "/d"}, "its checkpoints stay where they are"),
        ({"topology.name": "x"}, "cannot change topology.name: a topology keeps its name"),
        ({"topology.submitter.user": "root"}, "cannot change topology.submitter.user"),
        ({"storm.local.hostname": "h"}, "cannot change storm.local.hostname: it is the cluster's"),
        ({"storm.zookeeper.auth.payload": "a:b"}, "it is the cluster's"),
        ({"own": None}, "cannot take away own"),
        ({"topology.worker.memory.mb": None}, "cannot take away topology.worker.memory.mb"),
        ({"topology.worker.memory.mb": -1}, "must be a Positive Number"),
        ({"own.password": "x"}, "may be a secret"),
        ([], "no mapping"),
    ],
)
def test_what_a_rebalance_cannot_change(conf, why):
    with pytest.raises(InvalidTopologyException) as error:
        topology_checks.read_overrides(json.dumps(conf))
    assert re.search(why, error.value.msg)
