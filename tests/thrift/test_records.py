"""Record classes as Python values."""

import pickle

import pytest

from stormkeeper.thrift import pacemaker
from stormkeeper.thrift import records as r

RESOURCES = {"cpu": 1.0}


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (r.ExecutorInfo(1, 2), r.ExecutorInfo(1, 2), r.ExecutorInfo(2, 1)),
        (r.GlobalStreamId("a", "b"), r.GlobalStreamId("a", "b"), r.GlobalStreamId("b", "a")),
        (r.NodeInfo("n", {1, 2}), r.NodeInfo("n", {2, 1}), r.NodeInfo("n", {1})),
        (
            r.WorkerResources(cpu=1.0, resources=dict(RESOURCES)),
            r.WorkerResources(cpu=1.0, resources=dict(RESOURCES)),
            r.WorkerResources(mem_on_heap=1.0, resources=dict(RESOURCES)),
        ),
        (r.LogConfig({}), r.LogConfig({}), r.LogConfig()),
        (r.ErrorInfo("e", 1), r.ErrorInfo("e", 1), r.ErrorInfo("e", 1, "h")),
        (
            pacemaker.HBRecords([pacemaker.HBPulse("/a", b"1")]),
            pacemaker.HBRecords([pacemaker.HBPulse("/a", b"1")]),
            pacemaker.HBRecords([pacemaker.HBPulse("/a", b"2")]),
        ),
    ],
)
def test_records_are_equal_and_hash_by_value(one, same, other):
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert {one: "found"}[same] == "found"
    assert other not in {one}


def test_records_of_different_classes_are_never_equal():
    assert r.ExecutorInfo(1, 2) != r.KillOptions(1)
    assert r.ExecutorInfo(1, 2) != (1, 2)


def test_what_is_not_set_is_none():
    assert vars(r.KillOptions()) == {"wait_secs": None, "purge": None}
    assert r.NimbusSummary("h", 1, 2, True, "2.8.0").tlsPort is None


def test_no_two_records_share_a_default():
    assert r.Assignment("/a").node_host is None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_records_and_enums_can_be_pickled(protocol):
    record = r.StormBase("n", r.TopologyStatus.KILLED, 1, {"split": 2})
    assert pickle.loads(pickle.dumps(record, protocol)) == record
    copy = pickle.loads(pickle.dumps(r.TopologyStatus.KILLED, protocol))
    assert copy is r.TopologyStatus.KILLED


@pytest.mark.parametrize(
    "record",
    [
        r.Credentials({"ticket": "HUSH"}, "alice", 7),
        r.PrivateWorkerKey(b"HUSH", "alice", 1),
        pacemaker.HBMessageData(message_blob=b"HUSH"),
        pacemaker.HBMessage(
            pacemaker.HBServerMessageType.SASL_MESSAGE_TOKEN,
            pacemaker.HBMessageData(message_blob=b"HUSH"),
            3,
        ),
    ],
)
def test_no_secret_is_shown(record):
    for shown in (repr(record), str(record), f"{record}", repr({"in": [record]}), f"{[record]}"):
        assert "HUSH" not in shown
        assert "***" in shown


def test_other_fields_are_shown():
    assert repr(r.Credentials({"ticket": "HUSH"}, "alice", 7)) == (
        "Credentials(creds={'ticket': '***'}, topoOwner='alice', leader_epoch=7)"
    )
    assert repr(r.Credentials()) == "Credentials(creds=None, topoOwner=None, leader_epoch=None)"
    assert repr(r.NodeInfo("node", {6700})) == "NodeInfo(node='node', port={6700})"
