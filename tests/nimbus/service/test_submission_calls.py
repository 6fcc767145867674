"""Submissions as Storm's clients make them, and what is refused."""

import gzip
import io
import json
import zipfile

import pytest

from stormkeeper.blobs import keys
from stormkeeper.conf.address import Address
from stormkeeper.rpc.leader_client import LeaderClient
from support.nimbus_clients import NO_TOPOLOGY, declared, submission, upload
from support.nimbus_service import SECRET, describe, plain_topology
from support.waiting import DEADLINE_SECS, until

pytestmark = pytest.mark.zookeeper


def test_a_topology_is_submitted_as_storms_clients_do_it(leading, both, client, other, tmp_path):
    assert client.call("isTopologyNameAllowed", {"name": "wc"})
    leading.woken.clear()
    given = submission(client, tmp_path, "wc", conf={"topology.workers": 2, "own": SECRET[:3]})
    options = {"initial_status": 2, "creds": {"creds": [("token", SECRET)]}}
    client.call("submitTopologyWithOpts", {**given, "options": options})
    assert leading.woken.is_set()

    summary = client.call("getTopologySummaryByName", {"name": "wc"})
    storm_id = summary["id"]
    name, counter, secs = storm_id.rsplit("-", 2)
    assert (name, secs) == ("wc", "1700000000")
    assert int(counter) > 0
    assert (summary["status"], summary["replication_count"]) == ("INACTIVE", 2)
    assert not client.call("isTopologyNameAllowed", {"name": "wc"})
    assert not other.call("isTopologyNameAllowed", {"name": "wc"})

    base = leading.storm.storm_base(storm_id)
    assert base.leader_epoch == leading.leader.fence.epoch
    assert base.num_workers == 2
    assert base.component_executors == {"lines": 1, "words": 2, "count": 1, "raw": 1}
    assert leading.storm.credentials(storm_id).creds == {"token": SECRET}
    for nimbus in both:
        until(lambda nimbus=nimbus: nimbus.code.sync.missing() == {})
        assert all(nimbus.code.store.get(key) for key in keys.of_topology(storm_id))

    for each in (client, other):
        saved = json.loads(each.call("getTopologyConf", {"id": storm_id}))
        assert saved["topology.workers"] == 2
        assert saved["storm.id"] == storm_id
        assert SECRET not in json.dumps(saved)
        assert SECRET not in each.call("getNimbusConf", {})
    _, file = leading.code.store.open(f"{storm_id}-stormconf.ser")
    with file:
        assert json.loads(gzip.decompress(file.read())) == saved

    spouts = dict(client.call("getUserTopology", {"id": storm_id})["spouts"])
    assert json.loads(spouts["lines"]["common"]["json_conf"]) == {"topology.tasks": 2}
    assert client.call("getTopology", {"id": storm_id})["storm_version"] == "0.1.0"
    assert storm_id in client.call("getTopologyHistory", {})["topo_ids"]

    again = submission(client, tmp_path, "wc")
    cls, text = declared(client, "submitTopology", again)
    assert (cls, text) == ("AlreadyAliveException", "wc is already alive")
    assert leading.submissions.ids() == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "a/b"}, "Topology name 'a/b' is not valid."),
        ({"jsonConf": '{"topology.workers": 0}'}, "Field topology.workers must be a Positive"),
        ({"jsonConf": '{"my.password": "hunter2"}'}, "by the name of the key: my.password"),
        ({"jsonConf": '{"topology.blobstore.map": {"nokey": {}}}'}, "Key not found: nokey"),
        ({"topology": NO_TOPOLOGY}, "the topology has no component"),
        ({"topology": plain_topology(describe("x", "script"))}, "not the one in its package"),
        ({"uploadedJarLocation": "/etc/passwd"}, "no file was uploaded as '/etc/passwd'"),
    ],
)
def test_what_is_refused_leaves_nothing(leading, client, tmp_path, change, text):
    before = leading.storm.blobs()
    given = {**submission(client, tmp_path, "wrong"), **change}
    cls, why = declared(client, "submitTopology", given)
    assert cls == "InvalidTopologyException"
    assert text in why
    assert leading.storm.blobs() == before
    assert leading.submissions.ids() == []
    assert client.call("isTopologyNameAllowed", {"name": "wrong"})


def test_what_is_no_package_is_refused(client, tmp_path):
    given = submission(client, tmp_path, "java")
    given["uploadedJarLocation"] = upload(client, b"PK\3\4 a jar of Java's")
    cls, why = declared(client, "submitTopology", given)
    assert cls == "InvalidTopologyException"
    assert "no package that can be run here" in why
    with zipfile.ZipFile(jar := io.BytesIO(), "w") as file:
        for name in ("META-INF/", "META-INF/MANIFEST.MF", "org/apache/storm/starter/Words.class"):
            file.writestr(name, "")
    given["uploadedJarLocation"] = upload(client, jar.getvalue())
    _, why = declared(client, "submitTopology", given)
    assert "it is a Java archive, and Java topologies do not run here" in why


def test_our_client_follows_from_a_nimbus_that_does_not_lead(both, leading):
    seeds = [f"127.0.0.1:{both[1].port}"]
    with LeaderClient(seeds, 6627, max_frame=1 << 20, timeout=DEADLINE_SECS) as found:
        assert found.nimbus.beginFileUpload()
        assert found.address == Address("127.0.0.1", leading.port)
