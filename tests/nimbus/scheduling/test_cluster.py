from dataclasses import replace
from math import inf

import pytest

from stormkeeper.nimbus.scheduling.cluster import (
    Supervisor,
    Topology,
    assignment_record,
    launches_from_record,
    supervisor_from_record,
    topology_from_records,
)
from stormkeeper.nimbus.scheduling.planning import plan
from stormkeeper.thrift.records import (
    Assignment,
    LaunchClaim,
    NodeInfo,
    RebalanceOptions,
    StormBase,
    SupervisorInfo,
    TopologyActionOptions,
    TopologyStatus,
    WorkerResources,
)
from stormkeeper.thrift.serialization import deserialize, serialize
from stormkeeper.topology import description
from stormkeeper.topology.description import ExecutorDescription
from stormkeeper.topology.plan import Claim
from support import topologies, vectors
from support.clusters import NOW, cluster, launch, supervisor

BASE = StormBase("wc", TopologyStatus.INACTIVE, 3, launch_time_secs=17)

FACTS = Topology(id="", queries=("q",), memory_mb=5, is_shared=True)

LAUNCHES = (
    launch("a:6700", "q", "r", claim=1, memory_mb=1024.0),
    launch("b:6701", "s", claim=2, memory_mb=512.0, is_released=True),
)

EXECUTORS = (
    ExecutorDescription("count", "q", 1, 2),
    ExecutorDescription("count", "s", 3, 4),
    ExecutorDescription("words", "r", 5, 5),
)


def from_records(base, assignment, facts, due_at=None):
    launched = () if assignment is None else launches_from_record(assignment)
    return topology_from_records("t", base, assignment, facts, due_at, launched=launched)


def assigned(launches=LAUNCHES):
    hosts = {"a": "a.example", "b": "b.example", "c": "c.example"}
    record = assignment_record(
        launches, EXECUTORS, master_code_dir="/code", hosts=hosts, owner="alice"
    )
    return deserialize(Assignment, serialize(record))


def test_assignment_has_executors_for_storms_tools():
    record = assigned()
    a = NodeInfo("a", {6700})
    assert record.executor_node_port == {(1, 2): a, (5, 5): a}
    assert record.executor_start_time_secs == {(1, 2): NOW - 1000, (5, 5): NOW - 1000}
    assert record.worker_resources == {a: WorkerResources(mem_on_heap=1024.0)}
    assert record.node_host == {"a": "a.example", "b": "b.example"}
    assert (record.master_code_dir, record.owner) == ("/code", "alice")


def test_an_assignment_says_to_supervisors_what_each_worker_runs():
    assert launches_from_record(assigned()) == LAUNCHES


def test_a_planned_topology_is_read_again_as_it_was_planned():
    words = topologies.make({"s": ((), 2), "q": (("s",), 1), "r": (("s",), 3)})
    described = description.of_topology(words)
    queries = tuple(query.id for query in described.queries)
    facts = Topology(id="", queries=queries, memory_mb=100.0, is_shared=False)
    before = from_records(BASE, None, facts)
    [assign, _] = plan(cluster(supervisor("a"), supervisor("b"), before))
    record = assignment_record(assign.launches, described.executors, master_code_dir="", hosts={})
    assert record.executor_node_port.keys() == {(1, 1), (2, 4), (5, 6), (7, 8)}
    after = from_records(BASE, record, replace(facts, text="Fully Scheduled"))
    assert plan(cluster(supervisor("a"), supervisor("b"), after)) == ()


def test_a_topology_is_what_its_base_says():
    found = from_records(BASE, None, FACTS)
    assert (found.status, found.workers, found.launched_at) == (TopologyStatus.INACTIVE, 3, 17)
    assert (found.queries, found.launches, found.blocked) == (("q",), (), None)
    options = TopologyActionOptions(rebalance_options=RebalanceOptions(num_workers=9))
    waiting = StormBase("wc", TopologyStatus.REBALANCING, 0, None, None, None, options, 2)
    found = from_records(waiting, None, FACTS, 3)
    assert (found.previous, found.rebalanced_workers) == (TopologyStatus.INACTIVE, 9)
    assert (found.workers, found.due_at, found.launched_at) == (1, 3, 0)


def test_assignment_of_storms_nimbus_blocks_its_topology():
    [theirs] = (
        vectors.build(vector["json"])
        for vector in vectors.load("pacemaker")
        if vector["name"] == "thrift.Assignment"
    )
    slots = {
        (where.node, port) for where in theirs.executor_node_port.values() for port in where.port
    }
    found = from_records(BASE, theirs, FACTS)
    assert {one.slot for one in found.launches} >= slots
    assert found.blocked == "its assignment is another Nimbus's, and says of no query where it is"
    nodes = {one.slot.node for one in found.launches}
    ports = frozenset(one.slot.port for one in found.launches)
    here = [Supervisor(node, node, ports) for node in nodes]
    after = cluster(found, *here)
    [told] = plan(after)
    assert told.text == f"Waits: {found.blocked}"


def test_an_assignment_without_any_slot_is_no_reason_to_wait():
    empty = Assignment("/code", executor_node_port={})
    found = from_records(BASE, empty, FACTS)
    assert (found.launches, found.blocked) == ((), None)


def test_a_supervisor_is_what_it_says():
    info = SupervisorInfo(
        NOW,
        "a.example",
        used_ports=[6700],
        meta=[6700, 6701],
        uptime_secs=5,
        resources_map={"memory.mb": 2048.0, "supervisor.memory.capacity.mb": 1.0},
        stopped_workers={6701: LaunchClaim(6, 3)},
        stormkeeper="0.1.0",
    )
    assert supervisor_from_record("a", deserialize(SupervisorInfo, serialize(info))) == Supervisor(
        "a",
        "a.example",
        frozenset({6700, 6701}),
        2048.0,
        frozenset({6700}),
        {6701: Claim(6, 3)},
        5,
    )


def test_a_supervisor_that_refuses_work_is_believed():
    info = SupervisorInfo(NOW, "a.example", refuses="the health check disk.sh failed")
    read = deserialize(SupervisorInfo, serialize(info))
    assert supervisor_from_record("a", read).refuses == "the health check disk.sh failed"


@pytest.mark.parametrize(
    ("resources", "memory_mb"),
    [(None, inf), ({}, inf), ({"supervisor.memory.capacity.mb": 9.0}, 9)],
)
def test_memory_of_older_supervisors(resources, memory_mb):
    info = SupervisorInfo(NOW, "a.example", resources_map=resources, http_port=8000)
    found = supervisor_from_record("a", info)
    of_before = Supervisor("a", "a.example", frozenset(), tells_claims=False)
    assert found == replace(of_before, memory_mb=memory_mb)


def test_storms_own_supervisors_have_no_slots_for_us():
    info = SupervisorInfo(NOW, "a.example", meta=[6700], uptime_secs=5, version="2.8.8")
    found = supervisor_from_record("a", deserialize(SupervisorInfo, serialize(info)))
    assert (found.ports, found.is_ours) == (frozenset(), False)
    for field in (
        {"http_port": 8000},
        {"stormkeeper": "0.1.0"},
        {"refuses": "disk"},
        {"version": "0.1.0"},
    ):
        ours = supervisor_from_record("a", SupervisorInfo(NOW, "a.example", meta=[6700], **field))
        assert (ours.ports, ours.is_ours) == (frozenset({6700}), True)
