"""What is told of a cluster, its topologies, and their components."""

import json
import time
from types import SimpleNamespace

import pytest

from stormkeeper.errors import StateUnavailableError
from stormkeeper.nimbus.service import cluster_calls
from stormkeeper.state.storage import ConnectionState
from stormkeeper.thrift.records import StormBase, SupervisorInfo, TopologyStatus
from support.heartbeats import bolt, heartbeat, path, spout
from support.nimbus_clients import BEAT, fault, place, refusal, submit

pytestmark = pytest.mark.zookeeper


def test_where_a_topology_runs_and_how_it_does_is_told(leading, client, other, tmp_path):
    conf = {"topology.workers": 3, "topology.worker.memory.mb": 512}
    storm_id = submit(client, tmp_path, "told", conf=conf)
    summary = client.call("getTopologySummary", {"id": storm_id})
    assert (summary["num_tasks"], summary["num_workers"]) == (0, 0)
    leading.storm.supervisor_heartbeat(
        "sup-a",
        SupervisorInfo(1, "sup-a.example", meta=[6700, 6701, 6702], uptime_secs=7, http_port=1),
    )
    place(leading, storm_id, ("sup-a", 6700, ("count",)), ("sup-a", 6701, ("raw",)))
    executors = leading.submitted.get(storm_id).executors
    of_count = {
        (each.task_start, each.task_end): spout(40, acked=40)
        if each.component == "lines"
        else bolt({("lines", "default"): 40}, emitted=20)
        for each in executors
        if each.query == "count"
    }
    beat = heartbeat(storm_id, of_count, uptime_secs=9)
    leading.storm.heartbeats.beat(path(storm_id, "sup-a", 6700), beat)
    leading.storm.report_error(storm_id, "words", "first", host="h", port=6700)
    leading.storm.report_error(storm_id, "words", "second", host="h", port=6700)
    leading.told = {storm_id: "Fully Scheduled"}

    summary = client.call("getTopologySummary", {"id": storm_id})
    # The spout feeds both queries; the tasks of each component count in each of its queries.
    assert (summary["num_tasks"], summary["num_executors"], summary["num_workers"]) == (6, 5, 2)
    assert summary["sched_status"] == "Fully Scheduled"
    assert (summary["requested_memonheap"], summary["assigned_memonheap"]) == (1536.0, 1024.0)
    assert "sched_status" not in other.call("getTopologySummary", {"id": storm_id})
    assert summary in client.call("getTopologySummaries", {})

    for each in (client, other):
        info = each.call("getTopologyInfoByName", {"name": "told"})
        uptimes = {
            (one["component_id"], one["port"]): one["uptime_secs"] for one in info["executors"]
        }
        assert uptimes == {
            ("count", 6700): 9,
            ("words", 6700): 9,
            ("lines", 6700): 9,
            ("lines", 6701): 0,
            ("raw", 6701): 0,
        }
        assert {one["host"] for one in info["executors"]} == {"sup-a.example"}
        errors = {name: [one["error"] for one in found] for name, found in info["errors"]}
        assert errors == {"words": ["second", "first"], "lines": [], "count": [], "raw": []}
    for choice, expected in ((0, ["second", "first"]), (1, []), (2, ["second"])):
        options = {"num_err_choice": choice}
        for method, by in (
            ("getTopologyInfoWithOpts", {"id": storm_id}),
            ("getTopologyInfoByNameWithOpts", {"name": "told"}),
        ):
            info = client.call(method, {**by, "options": options})
            assert [one["error"] for one in dict(info["errors"])["words"]] == expected

    page = client.call(
        "getTopologyPageInfo", {"id": storm_id, "window": ":all-time", "is_include_sys": False}
    )
    assert dict(page["id_to_spout_agg_stats"])["lines"]["common_stats"]["emitted"] == 40
    assert dict(page["id_to_bolt_agg_stats"])["words"]["last_error"]["error"] == "second"
    none = [("cpu.pcore.percent", 0.0), ("offheap.memory.mb", 0.0), ("onheap.memory.mb", 0.0)]
    stats = dict(page["id_to_bolt_agg_stats"])["words"]["common_stats"]
    assert sorted(stats["resources_map"]) == none
    assert page["requested_regular_on_heap_memory"] == page["requested_memonheap"] == 3 * 512
    assert page["assigned_shared_off_heap_memory"] == 0.0
    assert json.loads(page["topology_conf"])["topology.name"] == "told"
    assert [one["num_executors"] for one in page["workers"]] == [3, 2]

    arguments = {"topology_id": storm_id, "component_id": "words", "is_include_sys": False}
    page = client.call("getComponentPageInfo", arguments)
    assert (page["component_type"], page["num_tasks"], page["topology_status"]) == (1, 2, "ACTIVE")
    assert [one["error"] for one in page["errors"]] == ["second", "first"]
    assert sorted(page["resources_map"]) == none
    unknown = {**arguments, "component_id": "x"}
    assert "no component 'x'" in refusal(client, "getComponentPageInfo", unknown)

    assignments = client.call("getSupervisorAssignments", {"node": "sup-a"})
    assert storm_id in dict(assignments["storm_assignment"])
    client.call("sendSupervisorWorkerHeartbeat", {"heatbeat": {**BEAT, "storm_id": storm_id}})

    for by in ({"id": "sup-a"}, {"host": "sup-a.example"}):
        page = client.call("getSupervisorPageInfo", {**by, "is_include_sys": True})
        [supervisor] = page["supervisor_summaries"]
        assert (supervisor["num_workers"], supervisor["num_used_workers"]) == (3, 2)
        assert supervisor["used_mem"] == 1024.0
        found = [
            (one["port"], one["uptime_secs"], one["topology_name"])
            for one in page["worker_summaries"]
        ]
        assert found == [(6700, 9, "told"), (6701, 0, "told")]
    page = client.call("getSupervisorPageInfo", {"host": "nowhere", "is_include_sys": True})
    assert page == {"supervisor_summaries": [], "worker_summaries": []}

    found = client.call("getClusterInfo", {})
    assert [one["supervisor_id"] for one in found["supervisors"]] == ["sup-a"]
    assert summary in found["topologies"]
    assert {one["port"]: one["isLeader"] for one in found["nimbuses"]} == {
        leading.port: True,
        **{one["port"]: False for one in found["nimbuses"] if one["port"] != leading.port},
    }
    assert {one["uptime_secs"] for one in found["nimbuses"]} == {100}
    owner = summary["owner"]
    [of_owner] = client.call("getOwnerResourceSummaries", {"owner": owner})
    assert of_owner["total_tasks"] == 6


def test_heartbeat_of_an_earlier_launch_is_ignored(leading, client, tmp_path):
    storm_id = submit(client, tmp_path, "moved")
    record = place(leading, storm_id, ("sup-a", 6700, ("count",)))
    tasks = [*record.executor_node_port]
    beat = heartbeat(storm_id, {each: bolt({}) for each in tasks}, uptime_secs=9)
    leading.storm.heartbeats.beat(path(storm_id, "sup-a", 6700), beat)

    def uptimes():
        info = client.call("getTopologyInfoByName", {"name": "moved"})
        return {one["uptime_secs"] for one in info["executors"]}

    assert uptimes() == {9}
    record.executor_start_time_secs = dict.fromkeys(tasks, int(time.time()) + 100)
    leading.leader.set_assignment(storm_id, record)
    assert uptimes() == {0}


def test_a_scripts_components_are_what_its_worker_says(leading, client, tmp_path):
    storm_id = submit(client, tmp_path, "job", "script")
    place(leading, storm_id, ("sup-b", 6700, ("job",)))

    def executors():
        info = client.call("getTopologyInfo", {"id": storm_id})
        assert dict(info["errors"]).keys() == {one["component_id"] for one in info["executors"]}
        return [
            (one["component_id"], one["uptime_secs"], "stats" in one) for one in info["executors"]
        ]

    def beat(stats):
        value = heartbeat(storm_id, stats, uptime_secs=5)
        leading.storm.heartbeats.beat(path(storm_id, "sup-b", 6700), value)

    assert executors() == [("job", 0, False)]
    beat({})
    assert executors() == [("job", 5, False)]
    stats = {(1, 1): spout(7), (2, 2): spout(8)}
    for name, each in zip(("first", "second"), stats.values(), strict=True):
        each.component = name
    beat(stats)
    assert executors() == [("first", 5, True), ("second", 5, True)]
    page = client.call("getTopologyPageInfo", {"id": storm_id, "is_include_sys": False})
    emitted = {name: row["common_stats"]["emitted"] for name, row in page["id_to_spout_agg_stats"]}
    assert emitted == {"first": 7, "second": 8}


def test_a_topology_whose_code_is_lost_is_told_all_the_same(leading, client):
    leading.leader.activate_storm("lost-1-1", StormBase("lost", TopologyStatus.ACTIVE, 1))
    assert client.call("getTopologySummary", {"id": "lost-1-1"})["replication_count"] == 0
    assert client.call("getTopologyInfo", {"id": "lost-1-1"})["executors"] == []
    arguments = {"id": "lost-1-1", "window": "600", "is_include_sys": True}
    assert client.call("getTopologyPageInfo", arguments)["topology_conf"] == "{}"
    assert "not on this Nimbus" in fault(client, "getTopologyConf", {"id": "lost-1-1"})
    leading.leader.remove_storm("lost-1-1")


def test_who_leads_is_not_waited_for_without_zookeeper(monkeypatch):
    """A client asks each seed for seconds, and a read of ZooKeeper takes longer to fail."""
    monkeypatch.setattr(cluster_calls, "_RECONNECT_SECS", 0.0)
    state = SimpleNamespace(connection=ConnectionState.SUSPENDED)
    storm = SimpleNamespace(state=state, follow_activities=lambda _: None)
    context = SimpleNamespace(storm=storm, conf={"storm.zookeeper.servers": ["zk-1", "zk-2"]})
    with pytest.raises(StateUnavailableError, match=r"majority of the servers runs \(zk-1, zk-2;"):
        cluster_calls.ClusterCalls(context).getLeader()
