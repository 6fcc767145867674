"""Storm's own examples of statistics, through the pages of the service."""

import json

import pytest

from support import nimbus_ids
from support.nimbus_clients import refusal
from support.nimbus_service import SECRET
from support.statistics_examples import KEYS, assert_same, example
from support.storm_topologies import leave

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module", params=KEYS)
def of_storm(request, leading):
    """A topology with Storm's own components, as Storm's Nimbus would have left it."""
    answers = example(request.param)
    # Storm's Nimbus saves all of its own.
    storm_id = leave(leading, answers, own=1, **{"storm.zookeeper.auth.payload": SECRET})
    for (node, port), beat in answers.heartbeats.items():
        leading.storm.set_worker_heartbeat(storm_id, node, port, beat)
    yield storm_id, answers
    leading.leader.remove_storm(storm_id)


def as_told(of, value):
    """A plain value in the form that the examples have: names of enums, dicts of what has texts."""
    if of in nimbus_ids.ENUMS:
        return {number: name for name, number in nimbus_ids.ENUMS[of].items()}[value]
    if of in nimbus_ids.STRUCTS:
        types = {field.name: field.type for field in nimbus_ids.STRUCTS[of].fields}
        return {name: as_told(types[name], item) for name, item in value.items()}
    if isinstance(of, tuple) and of[0] == "map":
        pairs = [(as_told(of[1], key), as_told(of[2], item)) for key, item in value]
        return dict(pairs) if of[1] == "string" else [list(pair) for pair in pairs] or {}
    if isinstance(of, tuple):
        return [as_told(of[1], item) for item in value]
    return value


PAGE = (
    "num_tasks",
    "num_workers",
    "num_executors",
    "id_to_spout_agg_stats",
    "id_to_bolt_agg_stats",
    "topology_stats",
    "workers",
)
COMPONENT_PAGE = (
    "component_id",
    "component_type",
    "num_executors",
    "num_tasks",
    "window_to_stats",
    "gsid_to_input_stats",
    "sid_to_output_stats",
    "exec_stats",
)


def part_of(found, names):
    return {name: found[name] for name in names if name in found}


def test_the_pages_are_storms(of_storm, client):
    storm_id, answers = of_storm
    for answer in answers.answers["topology_page"]:
        arguments = {"id": storm_id, "window": answer["window"], "is_include_sys": answer["sys"]}
        found = as_told("TopologyPageInfo", client.call("getTopologyPageInfo", arguments))
        assert_same(part_of(found, PAGE), answer["result"])
    for answer in answers.answers["component_page"]:
        arguments = {
            "topology_id": storm_id,
            "component_id": answer["component"],
            "window": answer["window"],
            "is_include_sys": answer["sys"],
        }
        if answer["component"] == "nope":  # Storm shows an empty spout
            assert "no component 'nope'" in refusal(client, "getComponentPageInfo", arguments)
            continue
        found = as_told("ComponentPageInfo", client.call("getComponentPageInfo", arguments))
        assert_same(part_of(found, COMPONENT_PAGE), answer["result"])


def test_the_secrets_that_storms_nimbus_has_saved_are_not_told(of_storm, client):
    storm_id, _ = of_storm
    page = client.call("getTopologyPageInfo", {"id": storm_id, "is_include_sys": True})
    told = client.call("getTopologyConf", {"id": storm_id})
    assert json.loads(told) == json.loads(page["topology_conf"]) == {"own": 1}


def test_the_executors_are_storms(of_storm, client):
    storm_id, answers = of_storm
    found = as_told("TopologyInfo", client.call("getTopologyInfo", {"id": storm_id}))
    expected = answers.answers["topology_info"]["executors"]

    def by_task(executors):
        return {each["executor_info"]["task_start"]: each for each in executors}

    assert in_order(by_task(found["executors"])) == in_order(by_task(expected))


def in_order(value):
    """A value whose lists, which are maps here, are in an order of their own."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((in_order(item) for item in value), key=repr)
    return value
