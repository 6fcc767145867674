import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import TopologyError
from stormkeeper.topology import Topology
from stormkeeper.topology.plan import Edge, plan
from support.topologies import graphs, make


def tasks(the_plan):
    return [(e.component.id, e.query, e.task_start, e.task_end) for e in the_plan.executors]


def test_one_query_in_a_line():
    the_plan = plan(make({"c": ((), 1), "b": (("c",), 2), "a": (("b",), 1)}))
    (query,) = the_plan.queries
    assert query.id == "a"
    assert [c.id for c in query.components] == ["c", "b", "a"]
    assert query.edges == (Edge("c", "b", 0), Edge("b", "a", 0))
    assert tasks(the_plan) == [("a", "a", 1, 1), ("b", "a", 2, 3), ("c", "a", 4, 4)]


def test_what_feeds_two_queries_runs_in_both():
    graph = {"s": ((), 2), "z": (("s",), 1), "y": (("s",), 1)}
    the_plan = plan(make(graph | {"alone": ((), 1), "x": (("alone",), 1)}))
    assert [q.id for q in the_plan.queries] == ["z", "y", "x"]
    assert tasks(the_plan) == [
        ("alone", "x", 1, 1),
        ("s", "y", 2, 3),
        ("s", "z", 4, 5),
        ("x", "x", 6, 6),
        ("y", "y", 7, 7),
        ("z", "z", 8, 8),
    ]


def test_diamond_and_same_input_twice():
    (query,) = plan(
        make({"s": ((), 1), "l": (("s",), 1), "r": (("s",), 1), "j": (("l", "r", "l"), 1)})
    ).queries
    assert query.edges == (
        Edge("s", "l", 0),
        Edge("s", "r", 0),
        Edge("l", "j", 0),
        Edge("r", "j", 1),
        Edge("l", "j", 2),
    )


def test_empty_topology():
    with pytest.raises(TopologyError, match="'t' is empty"):
        plan(Topology("t"))


def test_spout_without_readers():
    with pytest.raises(TopologyError, match=r"no component reads from the spout 'b'.*bolt\(b\)"):
        plan(make({"a": ((), 1), "b": ((), 1), "c": (("a",), 1)}))


@given(graphs().filter(bool))
def test_tasks_are_numbered_without_gaps_over_sorted_ids(graph):
    the_plan = plan(make(graph))
    next_task = 1
    for executor in the_plan.executors:
        assert executor.task_start == next_task
        assert executor.task_end - executor.task_start + 1 == executor.component.parallelism
        next_task = executor.task_end + 1
    order = [(e.component.id, e.query) for e in the_plan.executors]
    assert order == sorted(set(order))
    assert set(order) == {(c.id, q.id) for q in the_plan.queries for c in q.components}


@given(graphs().filter(bool))
def test_each_query_has_all_that_feeds_its_sink_and_no_more(graph):
    for query in plan(make(graph)).queries:
        seen = set()
        for component in query.components:
            assert set(component.inputs) <= seen
            seen.add(component.id)
        assert query.components[-1].id == query.id
        used = {edge.source for edge in query.edges}
        assert used == seen - {query.id}


@given(graphs().filter(bool), st.data())
def test_part_of_a_plan_keeps_its_task_numbers(graph, data):
    the_plan = plan(make(graph))
    ids = [query.id for query in the_plan.queries]
    chosen = data.draw(st.lists(st.sampled_from(ids), min_size=1))
    part = the_plan.only(chosen)
    assert {query.id for query in part.queries} == set(chosen)
    assert part.executors == tuple(e for e in the_plan.executors if e.query in chosen)
    assert the_plan.only(ids) == the_plan == plan(make(graph))


def test_a_query_that_is_not_there():
    whole = plan(make({"s": ((), 1), "a": (("s",), 1), "b": (("s",), 1)}))
    with pytest.raises(TopologyError, match=r"has no query 's': .* of the sinks 'a', 'b'"):
        whole.only(["a", "s"])
