"""What a topology must be, in Storm's words where Storm has any."""

import json

import pytest

from stormkeeper.nimbus.service import topology_checks
from stormkeeper.nimbus.submitted import MOST_TASKS, Submitted
from stormkeeper.statistics.executor_reports import DeclaredComponent
from stormkeeper.thrift.nimbus import InvalidTopologyException, StreamInfo
from stormkeeper.thrift.records import GlobalStreamId
from stormkeeper.topology.description import ExecutorDescription
from support.nimbus_service import describe, topology_of


@pytest.fixture
def described():
    return describe("wc")


@pytest.fixture
def topology(described):
    return topology_of(described)


def refusal(check, *arguments, **options):
    with pytest.raises(InvalidTopologyException) as error:
        check(*arguments, **options)
    return error.value.msg


@pytest.mark.parametrize("graph", [None, "script"])
def test_what_our_client_sends_holds_together(graph):
    described = describe("wc", graph)
    topology = topology_of(described)
    topology_checks.check(topology)
    topology_checks.check_package(topology, described)


def test_ids_are_there_once(topology):
    topology.spouts["words"] = topology.spouts["lines"]
    topology.bolts["lines"] = topology.bolts["count"]
    assert refusal(topology_checks.check, topology) == "Duplicate component ids: [lines, words]"


def test_there_is_a_component(topology):
    topology.spouts = topology.bolts = {}
    assert refusal(topology_checks.check, topology) == "the topology has no component"


def test_ids_and_streams_are_not_storms_own(topology):
    bolt = topology.bolts["count"]
    bolt.common.streams["__ack"] = StreamInfo([], False)
    assert refusal(topology_checks.check, topology) == "__ack is not a valid stream id"
    topology.bolts["__acker"] = bolt
    del bolt.common.streams["__ack"]
    assert refusal(topology_checks.check, topology) == "__acker is not a valid component id"


@pytest.mark.parametrize("hint", [0, -1])
def test_there_is_an_executor(topology, hint):
    topology.bolts["count"].common.parallelism_hint = hint
    assert refusal(topology_checks.check, topology) == "Number of executors must be greater than 0"


def test_a_spout_reads_from_nothing(topology):
    topology.spouts["lines"].common.inputs = topology.bolts["count"].common.inputs
    assert refusal(topology_checks.check, topology) == "May not declare inputs for a spout"


def test_inputs_are_there(topology):
    common = topology.bolts["count"].common
    [grouping] = common.inputs.values()
    common.inputs = {GlobalStreamId("nobody", "default"): grouping}
    assert refusal(topology_checks.check, topology) == (
        "Component: [count] subscribes from non-existent component [nobody]"
    )
    common.inputs = {GlobalStreamId("lines", "other"): grouping}
    assert refusal(topology_checks.check, topology) == (
        "Component: [count] subscribes from non-existent stream: [other] of component [lines]"
    )


@pytest.mark.parametrize("conf", ["[]", "{", "7", "[" * 100_000])
def test_a_components_conf_is_a_mapping(topology, conf):
    topology.bolts["count"].common.json_conf = conf
    assert "the conf of the component count is no mapping" in refusal(
        topology_checks.check, topology
    )


def test_the_record_says_what_the_package_does(topology, described):
    topology.bolts["count"].common.parallelism_hint = 7
    del topology.bolts["raw"]
    assert "they differ in count, raw" in refusal(
        topology_checks.check_package, topology, described
    )
    script = describe("job", "script")
    assert "not the one in its package" in refusal(topology_checks.check_package, topology, script)


def test_tasks_are_counted_before_anybody_lists_them():
    described = describe("wide", {"a": ((), 1), "b": (("a",), MOST_TASKS)})
    topology = topology_of(described)
    assert "100,001 tasks" in refusal(topology_checks.check_package, topology, described)


def test_what_an_operator_allows_is_kept():
    limits = {"nimbus.slots.perTopology": 3, "nimbus.executors.perTopology": 4}
    topology_checks.check_limits(3, 4, limits)
    topology_checks.check_limits(9, 9, dict.fromkeys(limits))
    text = "Failed to submit topology. Topology requests more than "
    assert refusal(topology_checks.check_limits, 4, 4, limits) == text + "3 workers."
    assert refusal(topology_checks.check_limits, 1, 5, limits) == text + "4 executors."


def test_each_component_says_how_many_tasks_it_has(topology, described):
    topology.bolts["count"].common.json_conf = '{"own": 1}'
    found = topology_checks.normalised(topology, described)
    assert topology.bolts["words"].common.json_conf is None, "the one that was given stays"
    assert json.loads(found.bolts["count"].common.json_conf) == {"own": 1, "topology.tasks": 1}
    submitted = Submitted(found, {}, described)
    # The spout feeds two queries, and so has two executors.
    assert submitted.components == {
        "lines": DeclaredComponent("spout", 2, 2),
        "words": DeclaredComponent("bolt", 1, 2),
        "count": DeclaredComponent("bolt", 1, 1),
        "raw": DeclaredComponent("bolt", 1, 1),
    }
    assert submitted.tasks == {
        task: each.component
        for each in described.executors
        for task in range(each.task_start, each.task_end + 1)
    }


def test_a_script_is_one_query_with_one_task():
    described = describe("job", "script")
    submitted = Submitted(
        topology_checks.normalised(topology_of(described), described), {}, described
    )
    assert submitted.queries == ("job",)
    assert submitted.executors == (ExecutorDescription("job", "job", 1, 1),)
    assert submitted.tasks == {1: "job"}
    assert submitted.is_script


def test_a_rebalance_names_components_and_how_many_executors():
    check = topology_checks.check_rebalance
    check("wc", ["b", "a"], {"a": 2})
    assert refusal(check, "wc", ["b", "a"], {"c": 2}) == (
        "Invalid component c for topology wc, valid values are a,b"
    )
    assert refusal(check, "wc", ["a"], {"a": 0}) == "Number of executors must be greater than 0"
    assert "or less" in refusal(check, "wc", ["a"], {"a": MOST_TASKS + 1})
