from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.statistics.executor_reports import components_of_tasks, is_system
from stormkeeper.topology.plan import plan
from support.statistics_examples import KEYS, example
from support.topologies import graphs, make


def test_tasks_are_numbered_from_one_over_the_components_by_id():
    assert components_of_tasks({"b": 2, "__acker": 1, "a": 1, "__system": 0, "B": 1}) == {
        1: "B",
        2: "__acker",
        3: "a",
        4: "b",
        5: "b",
    }


def test_a_topology_without_components_has_no_tasks():
    assert components_of_tasks({}) == {}


def test_ids_are_in_the_order_of_java():
    """By units of 16 bits, of which an emoji has two: smaller ones than some characters have."""
    in_order = ["Z", "z", "é", "\ud800", "\N{GRINNING FACE}", "\N{FULLWIDTH LATIN SMALL LETTER A}"]
    assert in_order != sorted(in_order)
    found = components_of_tasks(dict.fromkeys(sorted(in_order), 1))
    assert list(found.values()) == in_order


def test_storm_numbers_them_alike():
    for key in KEYS:
        found = example(key).answers["input"]["task_to_component"]
        assert example(key).tasks == dict(map(tuple, found))


@given(graphs().filter(bool))
def test_the_plan_of_a_topology_of_ours_numbers_them_alike(graph):
    """It numbers them over components and queries; the rule is told how many each has in all."""
    executors = plan(make(graph)).executors
    num_tasks = dict.fromkeys(graph, 0)
    for executor in executors:
        num_tasks[executor.component.id] += executor.task_end - executor.task_start + 1
    assert components_of_tasks(num_tasks) == {
        task: executor.component.id
        for executor in executors
        for task in range(executor.task_start, executor.task_end + 1)
    }


@given(st.text())
def test_what_is_storms_own_begins_with_two_underscores(text):
    assert is_system(f"__{text}")
    assert is_system(text) == (text[:2] == "__")
