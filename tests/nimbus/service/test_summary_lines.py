from dataclasses import replace

from stormkeeper.nimbus.service import cluster_calls, summaries, supervisor_summaries
from stormkeeper.nimbus.service.views import View
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.thrift.nimbus import OwnerResourceSummary
from stormkeeper.thrift.records import (
    Assignment,
    NimbusSummary,
    NodeInfo,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
    WorkerResources,
)
from support.nimbus_service import describe, topology_of

NOW = 1_700_000_000.0

ASSIGNMENT = Assignment(
    "nimbus",
    {"sup-a": "a.example"},
    {(1, 1): NodeInfo("sup-a", {6700}), (2, 3): NodeInfo("sup-a", {6701})},
    worker_resources={
        NodeInfo("sup-a", {6700}): WorkerResources(512.0),
        NodeInfo("sup-a", {6701}): WorkerResources(256.0),
    },
)

DESCRIBED = describe("wc")

VIEW = View(
    storm_id="wc-1-1",
    base=StormBase("wc", TopologyStatus.ACTIVE, 3, launch_time_secs=1_699_999_000, owner="ann"),
    assignment=ASSIGNMENT,
    submitted=Submitted(topology_of(DESCRIBED), {"topology.worker.memory.mb": 512}, DESCRIBED),
    sched_status="Fully Scheduled",
    replication_count=2,
    now=NOW,
)


def test_a_topologys_line_is_of_its_base_and_its_assignment():
    line = summaries.topology_summary(VIEW)
    assert (line.id, line.name, line.status, line.owner) == ("wc-1-1", "wc", "ACTIVE", "ann")
    assert (line.num_tasks, line.num_executors, line.num_workers) == (3, 2, 2)
    assert (line.uptime_secs, line.replication_count) == (1000, 2)
    assert (line.sched_status, line.storm_version) == ("Fully Scheduled", "0.1.0")
    assert (line.requested_memonheap, line.assigned_memonheap) == (1536.0, 768.0)


def test_unassigned_topology_without_code_has_a_line():
    line = summaries.topology_summary(
        replace(VIEW, assignment=None, submitted=None, sched_status=None, now=0.0)
    )
    assert (line.num_tasks, line.num_executors, line.num_workers) == (0, 0, 0)
    assert (line.storm_version, line.sched_status) == (None, None)
    assert line.uptime_secs == 0, "a clock that is behind"


def test_a_supervisors_slots_are_used_where_they_are_assigned():
    info = SupervisorInfo(
        0, "a.example", uptime_secs=2**40, meta=[6700, 6701, 6702], refuses="full"
    )
    line = supervisor_summaries.supervisor_summary("sup-a", info, used_workers=2, used_memory=768.0)
    assert (line.host, line.num_workers, line.num_used_workers) == ("a.example", 3, 2)
    assert (line.uptime_secs, line.version) == (2**31 - 1, "VERSION_NOT_PROVIDED")
    assert (line.refuses, line.java_only) == ("full", None)
    java = SupervisorInfo(0, "b.example", meta=[6700, 6701], version="2.8.8")
    line = supervisor_summaries.supervisor_summary("sup-b", java, used_workers=1, used_memory=0.0)
    assert (line.num_workers, line.num_used_workers, line.java_only) == (1, 1, True)
    assignments = {"wc-1-1": ASSIGNMENT, "wc-2-2": ASSIGNMENT}
    records = ClusterRecords(
        bases={}, assignments=assignments, supervisors={"sup-a": info, "sup-b": java}, nimbuses={}
    )
    a, b = (each.decoded() for each in supervisor_summaries.SupervisorSummaries().encoded(records))
    assert (a.num_used_workers, a.used_mem) == (2, 1536.0)
    assert (b.num_used_workers, b.used_mem) == (0, 0.0)


def test_the_nimbus_that_leads_is_told_by_host_and_port():
    found = [NimbusSummary("a", port, 1_699_999_990, True, "1") for port in (1, 2)]
    nimbuses = {f"a:{each.port}": each for each in found}
    records = ClusterRecords(bases={}, assignments={}, supervisors={}, nimbuses=nimbuses)
    told = cluster_calls.nimbus_summaries(records, NimbusId("a", 2, 0), NOW)
    assert [each.isLeader for each in told] == [False, True]
    assert {each.uptime_secs for each in told} == {10}
    assert found[0].uptime_secs == 1_699_999_990, "what was read stays"
    assert not any(each.isLeader for each in cluster_calls.nimbus_summaries(records, None, NOW))


def test_an_owner_has_what_his_topologies_have_or_nothing():
    lines = [summaries.topology_summary(VIEW), summaries.topology_summary(VIEW)]
    bob = replace(VIEW, base=StormBase("b", TopologyStatus.ACTIVE, 1, owner="bob"))
    lines.append(summaries.topology_summary(bob))
    ann, other = cluster_calls.owner_summaries(lines, None)
    assert (ann.owner, ann.total_topologies, ann.total_tasks, ann.total_workers) == ("ann", 2, 6, 4)
    assert (ann.memory_usage, ann.requested_total_memory) == (1536.0, 3072.0)
    assert other.owner == "bob"
    assert cluster_calls.owner_summaries(lines, "bob") == [other]
    [nobody] = cluster_calls.owner_summaries(lines, "carl")
    assert isinstance(nobody, OwnerResourceSummary)
    assert (nobody.owner, nobody.total_topologies, nobody.total_executors) == ("carl", 0, 0)
