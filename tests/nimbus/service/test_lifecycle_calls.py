"""What is commanded of topologies, and set for them."""

import pytest

from stormkeeper.errors import CallRefusedError
from stormkeeper.nimbus.service import submission_calls
from stormkeeper.thrift.nimbus import InvalidTopologyException
from stormkeeper.thrift.records import Checkpoints, KillOptions, TopologyStatus
from support.nimbus_clients import REQUEST, declared, fault, refusal, submit
from support.nimbus_service import SECRET
from support.waiting import until

pytestmark = pytest.mark.zookeeper


def test_a_topology_is_commanded_until_it_is_killed(leading, client, tmp_path):
    storm_id = submit(client, tmp_path, "life")

    def status():
        return client.call("getTopologySummary", {"id": storm_id})["status"]

    assert status() == "ACTIVE"
    leading.woken.clear()
    client.call("deactivate", {"name": "life"})
    assert status() == "INACTIVE"
    assert leading.woken.is_set()
    client.call("activate", {"name": "life"})
    assert status() == "ACTIVE"

    cls, text = declared(
        client, "rebalance", {"name": "life", "options": {"num_executors": [("x", 1)]}}
    )
    assert (cls, text) == (
        "InvalidTopologyException",
        "Invalid component x for topology life, valid values are count,lines,raw,words",
    )
    # Each may be so many, and all together may not.
    many = {"num_executors": [("words", 50_000), ("raw", 50_000)]}
    cls, text = declared(client, "rebalance", {"name": "life", "options": many})
    assert (cls, text) == (
        "InvalidTopologyException",
        "the topology has 100,003 tasks, and may have 100,000",
    )
    options = {"wait_secs": 5, "num_workers": 2, "num_executors": [("words", 3)]}
    client.call("rebalance", {"name": "life", "options": options})
    assert status() == "REBALANCING"
    base = leading.storm.storm_base(storm_id)
    assert base.deadline_ms == 1_700_000_005_000
    assert base.prev_status == TopologyStatus.ACTIVE
    assert declared(client, "rebalance", {"name": "life", "options": options})[0] == (
        "InvalidTopologyException"
    )
    assert "REBALANCING, and cannot activate" in refusal(client, "activate", {"name": "life"})

    client.call("killTopology", {"name": "life"})
    assert status() == "KILLED"
    assert leading.storm.storm_base(storm_id).deadline_ms == 1_700_000_030_000
    client.call("killTopologyWithOpts", {"name": "life", "options": {"wait_secs": 1}})
    assert leading.storm.storm_base(storm_id).deadline_ms == 1_700_000_001_000
    assert "KILLED, and cannot deactivate" in refusal(client, "deactivate", {"name": "life"})
    leading.leader.remove_storm(storm_id)
    leading.removed.append((storm_id, base.owner))
    for arguments in ({}, {"user": base.owner}):
        assert storm_id in client.call("getTopologyHistory", arguments)["topo_ids"]
    assert client.call("getTopologyHistory", {"user": "nobody"})["topo_ids"] == []
    assert declared(client, "killTopology", {"name": "life"}) == (
        "NotAliveException",
        "life is not alive",
    )


#: The conf of a plain script that names its own checkpoints.
OWN = '{"topology.checkpoint.scripts": false}'


@pytest.mark.parametrize(
    ("name", "graph", "conf", "why"),
    [
        ("job", "script", OWN, "job is a plain script"),
        ("far", None, '{"topology.checkpoint.dir": "s3a://b"}', "far are in s3a://b/far-"),
    ],
)
def test_what_supervisors_cannot_remove_is_not_purged(leading, client, name, graph, conf, why):
    storm_id = leading.submit(name, graph, conf)
    options = {"wait_secs": 0, "purge": True}
    with pytest.raises(CallRefusedError, match=why):
        leading.handler.killTopologyWithOpts(name, KillOptions(**options))
    assert client.call("getTopologySummary", {"id": storm_id})["status"] == "ACTIVE"
    leading.handler.killTopologyWithOpts(name, KillOptions(wait_secs=0))


def test_a_script_goes_on_unless_it_names_its_own_checkpoints(leading):
    leading.leader.set_checkpoints(Checkpoints("x-1-17", "x-1-17", "x", None, False, {"q": "a"}))
    with pytest.raises(InvalidTopologyException, match="names its own checkpoints"):
        leading.submit("job2", "script", OWN[:-1] + ', "topology.checkpoint.from": "x"}')
    assert leading.submissions.continued() == set()
    going_on = leading.submit("job2", "script", '{"topology.checkpoint.from": "x"}')
    assert leading.storm.storm_base(going_on).checkpoints.folder == "x-1-17"
    begun = leading.submit("job3", "script", "{}")
    assert leading.storm.storm_base(begun).checkpoints.folder == begun


def test_checkpoints_continue_in_one_topology_only(leading, monkeypatch):
    leading.leader.set_checkpoints(Checkpoints("y-1-17", "y-1-17", "y", None, False, {"q": "a"}))
    origin = '{"topology.checkpoint.from": "y"}'
    wait = submission_calls.SubmissionCalls._wait_for_copies
    refused = []

    def meanwhile(self, checked):
        monkeypatch.undo()
        with pytest.raises(InvalidTopologyException, match="another topology is being submitted"):
            leading.submit("second", None, origin)
        refused.append("second")
        wait(self, checked)

    monkeypatch.setattr(submission_calls.SubmissionCalls, "_wait_for_copies", meanwhile)
    storm_id = leading.submit("first", None, origin)
    assert refused == ["second"]
    found = leading.storm.storm_base(storm_id).checkpoints
    assert (found.folder, found.storm_id, found.nodes) == ("y-1-17", storm_id, {"q": "a"})
    with pytest.raises(InvalidTopologyException, match="first goes on from the checkpoints of y"):
        leading.submit("second", None, origin)


def test_abandoned_checkpoints_are_not_continued(leading, monkeypatch):
    leading.leader.set_checkpoints(Checkpoints("z-1-17", "z-1-17", "z", None, False, {"q": "a"}))

    def meanwhile(*_):
        found = leading.leader.checkpoints("z-1-17")
        found.record.remove_on = ["a"]
        assert leading.leader.change_checkpoints(found.record, found.version)

    monkeypatch.setattr(submission_calls.SubmissionCalls, "_wait_for_copies", meanwhile)
    with pytest.raises(CallRefusedError, match="were changed meanwhile"):
        leading.submit("late", None, '{"topology.checkpoint.from": "z"}')
    assert leading.storm.storm_id_by_name("late") is None


def test_follower_never_reports_not_alive(client, other, tmp_path):
    submit(client, tmp_path, "runs")
    for method in ("killTopology", "activate", "deactivate"):
        assert "not a leader" in fault(other, method, {"name": "runs"})
    assert other.call("getTopologySummaryByName", {"name": "runs"})["status"] == "ACTIVE"


def test_credentials_and_log_levels_are_set_sampling_is_not(leading, client, other, tmp_path):
    storm_id = submit(client, tmp_path, "set")
    client.call("uploadNewCredentials", {"name": "set", "creds": {"creds": [("a", SECRET)]}})
    credentials = leading.storm.credentials(storm_id)
    assert credentials.creds == {"a": SECRET}
    assert credentials.leader_epoch == leading.leader.fence.epoch
    owner = leading.storm.storm_base(storm_id).owner
    more = {"creds": [("a", "new"), ("b", SECRET)], "topoOwner": owner}
    client.call("uploadNewCredentials", {"name": "set", "creds": {"creds": [("b", SECRET)]}})
    client.call("uploadNewCredentials", {"name": "set", "creds": more})
    assert leading.storm.credentials(storm_id).creds == {"a": "new", "b": SECRET}
    more["topoOwner"] = "bob"
    cls, text = declared(client, "uploadNewCredentials", {"name": "set", "creds": more})
    assert (cls, text) == (
        "AuthorizationException",
        f"{storm_id} is expected to be owned by bob but is actually owned by {owner}",
    )

    assert other.call("getLogConfig", {"name": storm_id}) == {}
    levels = [("ROOT", {"action": 2, "target_log_level": "DEBUG"})]
    client.call("setLogConfig", {"name": storm_id, "config": {"named_logger_level": levels}})
    until(lambda: other.call("getLogConfig", {"name": storm_id}) == {"named_logger_level": levels})

    def debug(**options):
        return {"name": "set", "samplingPercentage": 10.0, "enable": True, **options}

    assert "rows of a running query cannot be sampled" in refusal(client, "debug", debug())
    client.call("debug", debug(enable=False))
    assert client.call("getTopologyInfo", {"id": storm_id})["component_debug"] == []
    assert "set has no component x" in refusal(client, "debug", debug(component="x"))
    loud = [("ROOT", {"action": 2, "target_log_level": "loud"})]
    asked = {"name": storm_id, "config": {"named_logger_level": loud}}
    assert "'loud' is no log level for ROOT" in refusal(client, "setLogConfig", asked)

    request = {"id": storm_id, "profileRequest": REQUEST}
    assert "which no JVM profiler knows" in refusal(client, "setWorkerProfiler", request)
    pending = {"id": storm_id, "component_id": "words", "action": 0}
    assert client.call("getComponentPendingProfileActions", pending) == []
