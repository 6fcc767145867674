"""How each method answers about what there is not, from a Nimbus that leads and from another."""

import json
import logging
from contextlib import suppress

import pytest
from thrift.Thrift import TApplicationException

from support import nimbus_ids
from support.apache_thrift import DeclaredError
from support.nimbus_clients import (
    BEAT,
    NO_TOPOLOGY,
    REQUEST,
    declared,
    fault,
    refusal,
    submit,
)
from support.nimbus_values import Samples

pytestmark = pytest.mark.zookeeper

NOT_ALIVE = ("NotAliveException", "nobody is not alive")
NO_ID = ("NotAliveException", "nobody")
NO_KEY = ("KeyNotFoundException", "nobody")
BY_NAME, BY_ID, OF_KEY, OF_SESSION = (
    {"name": "nobody"},
    {"id": "nobody"},
    {"key": "nobody"},
    {"session": "nobody"},
)
NO_META = {"acl": []}
NOWHERE = {"location": "nobody"}
WRONG = {"name": "a.b", "jsonConf": "{}", "topology": NO_TOPOLOGY}

#: How every method answers that is asked for what there is not: an exception and its text, a text
#: that is in a refusal, or a test of what is returned.
UNKNOWN = {
    "submitTopology": (WRONG, ("InvalidTopologyException", None)),
    "submitTopologyWithOpts": (
        {**WRONG, "options": {"initial_status": 1}},
        ("InvalidTopologyException", None),
    ),
    "killTopology": (BY_NAME, NOT_ALIVE),
    "killTopologyWithOpts": ({**BY_NAME, "options": {"wait_secs": 1}}, NOT_ALIVE),
    "activate": (BY_NAME, NOT_ALIVE),
    "deactivate": (BY_NAME, NOT_ALIVE),
    "rebalance": ({**BY_NAME, "options": {}}, NOT_ALIVE),
    "setLogConfig": ({**BY_NAME, "config": {}}, "there is no topology nobody"),
    "getLogConfig": (BY_NAME, "there is no topology nobody"),
    "debug": ({**BY_NAME, "enable": True, "samplingPercentage": 10.0}, NOT_ALIVE),
    "setWorkerProfiler": ({**BY_ID, "profileRequest": REQUEST}, "there is no topology nobody"),
    "getComponentPendingProfileActions": (
        {**BY_ID, "component_id": "c", "action": 0},
        "there is no topology nobody",
    ),
    "uploadNewCredentials": ({**BY_NAME, "creds": {"creds": []}}, NOT_ALIVE),
    "beginCreateBlob": ({"key": "a/b", "meta": NO_META}, "'a/b' is no key of a blob"),
    "beginUpdateBlob": (OF_KEY, NO_KEY),
    "uploadBlobChunk": ({**OF_SESSION, "chunk": b""}, "no upload 'nobody' is under way"),
    "finishBlobUpload": (OF_SESSION, "no upload 'nobody' is under way"),
    "cancelBlobUpload": (OF_SESSION, "no upload 'nobody' is under way"),
    "getBlobMeta": (OF_KEY, NO_KEY),
    "setBlobMeta": ({**OF_KEY, "meta": NO_META}, NO_KEY),
    "beginBlobDownload": (OF_KEY, NO_KEY),
    "downloadBlobChunk": (OF_SESSION, "no download 'nobody' is under way"),
    "deleteBlob": (OF_KEY, NO_KEY),
    "listBlobs": (OF_SESSION, "no list of blobs 'nobody' is under way"),
    "getBlobReplication": (OF_KEY, NO_KEY),
    "updateBlobReplication": ({**OF_KEY, "replication": 2}, NO_KEY),
    "createStateInZookeeper": (OF_KEY, lambda found: found is None),
    "beginFileUpload": ({}, lambda found: "stormjar-" in found),
    "uploadChunk": ({**NOWHERE, "chunk": b""}, "no upload '' is under way"),
    "finishFileUpload": (NOWHERE, "no upload '' is under way"),
    "downloadChunk": (BY_ID, "no download nobody is under way"),
    "getNimbusConf": ({}, lambda found: json.loads(found)["nimbus.thrift.port"] == 6627),
    "getClusterInfo": ({}, lambda found: len(found["nimbuses"]) == 2),
    "getTopologySummaries": ({}, lambda found: isinstance(found, list)),
    "getTopologySummaryByName": (BY_NAME, NOT_ALIVE),
    "getTopologySummary": (BY_ID, NO_ID),
    "getLeader": ({}, lambda found: found["isLeader"] and found["host"] == "127.0.0.1"),
    "isTopologyNameAllowed": (BY_NAME, lambda found: found is True),
    "getTopologyInfoByName": (BY_NAME, NOT_ALIVE),
    "getTopologyInfo": (BY_ID, NO_ID),
    "getTopologyInfoByNameWithOpts": ({**BY_NAME, "options": {}}, NOT_ALIVE),
    "getTopologyInfoWithOpts": ({**BY_ID, "options": {}}, NO_ID),
    "getTopologyPageInfo": ({**BY_ID, "window": "600", "is_include_sys": True}, NO_ID),
    "getSupervisorPageInfo": ({**BY_ID, "is_include_sys": True}, "there is no supervisor nobody"),
    "getComponentPageInfo": (
        {"topology_id": "nobody", "component_id": "c", "window": "600", "is_include_sys": True},
        NO_ID,
    ),
    "getTopologyConf": (BY_ID, NO_ID),
    "getTopology": (BY_ID, NO_ID),
    "getUserTopology": (BY_ID, NO_ID),
    "getTopologyHistory": ({"user": "nobody"}, lambda found: found == {"topo_ids": []}),
    "getOwnerResourceSummaries": (
        {"owner": "nobody"},
        lambda found: [each["total_topologies"] for each in found] == [0],
    ),
    "getSupervisorAssignments": (
        {"node": "nobody"},
        lambda found: found == {"storm_assignment": []},
    ),
    "sendSupervisorWorkerHeartbeats": (
        {"heartbeats": {"supervisor_id": "s", "worker_heartbeats": [BEAT]}},
        lambda found: found is None,
    ),
    "sendSupervisorWorkerHeartbeat": ({"heatbeat": BEAT}, NO_ID),
    "processWorkerMetrics": (
        {"metrics": {"topologyId": "t", "port": 1, "hostname": "h", "metricList": {}}},
        lambda found: found is None,
    ),
    "isRemoteBlobExists": ({"blobKey": "nobody"}, lambda found: found is False),
}

#: What a leader alone does.
LED = {
    "submitTopology",
    "submitTopologyWithOpts",
    "killTopology",
    "killTopologyWithOpts",
    "activate",
    "deactivate",
    "rebalance",
    "setLogConfig",
    "debug",
    "uploadNewCredentials",
    "beginFileUpload",
}


def check_answer(client, method, arguments, expected):
    if isinstance(expected, tuple):
        cls, text = declared(client, method, arguments)
        assert cls == expected[0]
        assert expected[1] in (None, text)
    elif isinstance(expected, str):
        # What is under way may end by itself, which is no mistake of the caller's.
        asked = fault if "is under way" in expected and method != "downloadChunk" else refusal
        assert expected in asked(client, method, arguments)
    else:
        assert expected(client.call(method, arguments))


@pytest.mark.parametrize("method", nimbus_ids.METHODS)
def test_every_method_answers_about_what_there_is_not(client, method):
    check_answer(client, method, *UNKNOWN[method])


@pytest.mark.parametrize("method", nimbus_ids.METHODS)
def test_follower_names_the_leader_or_answers(leading, other, method):
    arguments, expected = UNKNOWN[method]
    if method in LED:
        assert fault(other, method, arguments) == (
            f"not a leader, current leader is 127.0.0.1:{leading.port}"
        )
    else:
        check_answer(other, method, arguments, expected)


@pytest.fixture(scope="module")
def there(client, tmp_path_factory):
    """What names a topology that there is, by the names of arguments."""
    storm_id = submit(client, tmp_path_factory.mktemp("there"), "there")
    jar = f"{storm_id}-stormjar.jar"
    return {"name": "there", "id": storm_id, "topology_id": storm_id, "key": jar, "blobKey": jar}


@pytest.mark.parametrize("full", [True, False], ids=["full", "least"])
@pytest.mark.parametrize("method", nimbus_ids.METHODS)
def test_no_method_fails_unexpectedly(client, there, caplog, method, full):
    samples = Samples(full=full)
    arguments = nimbus_ids.METHODS[method].arguments
    for number in range(4):
        given = {field.name: samples.of(field.type) for field in arguments}
        if number % 2:
            # A method may name an id "name".
            by_id = {**there, "name": there["id"]} if "LogConfig" in method else there
            given |= {name: by_id[name] for name in given.keys() & by_id.keys()}
        with suppress(DeclaredError, TApplicationException):
            client.call(method, given)
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR] == []
