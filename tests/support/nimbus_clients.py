"""What Apache Thrift's client asks of Nimbus's service, in the words of `support.nimbus_ids`."""

import json

import pytest
from thrift.Thrift import TApplicationException

from stormkeeper.nimbus.scheduling import cluster
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import Slot
from stormkeeper.topology.plan import Claim
from support.apache_thrift import DeclaredError
from support.nimbus_service import describe, package, plain_topology

#: Bytes that are uploaded at a time.
CHUNK = 1000

BEAT = {"storm_id": "nobody", "executors": [], "time_secs": 1}
REQUEST = {"nodeInfo": {"node": "n", "port": [1]}, "action": 0}
NO_TOPOLOGY = {"spouts": [], "bolts": [], "state_spouts": []}


def upload(client, data):
    """Upload a file to be submitted, and return where it is."""
    location = client.call("beginFileUpload", {})
    for at in range(0, len(data), CHUNK):
        client.call("uploadChunk", {"location": location, "chunk": data[at : at + CHUNK]})
    client.call("finishFileUpload", {"location": location})
    return location


def submission(client, folder, name, graph=None, conf=None):
    """The arguments of a submission, once its package is uploaded."""
    described = describe(name, graph)
    return {
        "name": name,
        "uploadedJarLocation": upload(client, package(folder, described)),
        "jsonConf": json.dumps(conf or {}),
        "topology": plain_topology(described),
    }


def submit(client, folder, name, graph=None, conf=None):
    """Submit a topology, and return its id."""
    client.call("submitTopology", submission(client, folder, name, graph, conf))
    return client.call("getTopologySummaryByName", {"name": name})["id"]


def declared(client, method, arguments):
    """The exception that a method is answered with: its name and its text."""
    with pytest.raises(DeclaredError) as error:
        client.call(method, arguments)
    cls, fields = error.value.args
    return cls, fields["msg"]


def fault(client, method, arguments):
    """Why a method is answered with an internal error."""
    with pytest.raises(TApplicationException) as error:
        client.call(method, arguments)
    assert error.value.type == TApplicationException.INTERNAL_ERROR
    prefix = f"Internal error processing {method}: "
    assert error.value.message.startswith(prefix)
    return error.value.message.removeprefix(prefix)


def refusal(client, method, arguments):
    """Why a method refuses what its caller asks, which is no internal error."""
    with pytest.raises(TApplicationException) as error:
        client.call(method, arguments)
    assert error.value.type == TApplicationException.UNKNOWN
    return error.value.message


def place(leading, storm_id, *launches):
    """Have a topology's queries run: ``(node, port, queries)``."""
    known = leading.submitted.get(storm_id)
    record = cluster.assignment_record(
        [
            Launch(Slot(node, port), Claim(1, number), queries, 1_700_000_000, 512.0)
            for number, (node, port, queries) in enumerate(launches)
        ],
        known.executors,
        master_code_dir="blobs",
        hosts={node: f"{node}.example" for node, *_ in launches},
    )
    leading.leader.set_assignment(storm_id, record)
    return record
