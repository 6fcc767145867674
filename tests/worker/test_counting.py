from stormkeeper.topology import Topology
from stormkeeper.topology.plan import Edge, plan
from stormkeeper.worker.batch_readings import BatchRows
from stormkeeper.worker.executor_counts import (
    ALL_TIME,
    TopologyCounts,
    WorkerStatistics,
    component_work,
    observation,
)
from stormkeeper.worker.running_queries import QueryRun


def diamond():
    topology = Topology("t")
    s = topology.spout(name="s", parallelism=2)(lambda: None)
    left = topology.bolt(s, name="left")(lambda a: a)
    right = topology.bolt(s, name="right")(lambda a: a)
    topology.bolt(left, right, left, name="join")(lambda a, b, c: (a, b, c))
    return plan(topology)


def observed(**rows):
    """Rows by edge, written source_target_position."""
    counts = {}
    for edge, count in rows.items():
        source, target, position = edge.split("_")
        counts[observation(Edge(source, target, int(position)))] = count
    return BatchRows(counts)


def test_observation_names_are_distinct_and_stable():
    (query,) = diamond().queries
    names = [observation(edge) for edge in query.edges]
    assert len(set(names)) == len(names)
    assert names == [observation(edge) for edge in diamond().queries[0].edges]
    assert names[0] == "stormkeeper:s>left:0"


def test_counts_of_a_diamond():
    (query,) = diamond().queries
    rows = observed(s_left_0=10, s_right_0=10, left_join_0=4, right_join_1=6, left_join_2=4)
    done = component_work(query, rows, 25.0)
    assert (done["s"].emitted, done["s"].transferred, done["s"].executed) == (10, 20, {})
    assert (done["left"].emitted, done["left"].transferred) == (4, 8)
    assert done["left"].executed == {"s": 10}
    assert done["right"].executed == {"s": 10}
    assert (done["join"].emitted, done["join"].executed) == (0, {"left": 8, "right": 6})
    assert {w.took_ms for w in done.values()} == {25.0}


def test_a_reader_that_stops_early_takes_nothing_from_the_others():
    (query,) = diamond().queries
    done = component_work(query, observed(s_left_0=3, s_right_0=10), 1.0)
    assert (done["s"].emitted, done["s"].transferred) == (10, 13)
    assert done["left"].executed == {"s": 3}


def test_what_was_not_observed_had_no_rows():
    (query,) = diamond().queries
    assert all(done.emitted == 0 for done in component_work(query, BatchRows(), 1.0).values())


def test_a_part_is_one_for_who_let_it_out_and_for_who_took_it_in():
    (query,) = diamond().queries
    names = [observation(edge) for edge in query.edges]
    done = component_work(query, BatchRows(dict.fromkeys(names, 1), frozenset(names[:1])), 1.0)
    assert names[0] == "stormkeeper:s>left:0"
    assert {name for name, did in done.items() if did.partial} == {"s", "left"}


def test_executors_of_a_plan():
    found = {e.component.id: e for e in diamond().executors}
    assert (found["s"].task_start, found["s"].task_end) == (4, 5)
    assert not found["join"].emits
    assert found["left"].emits


def test_batches_are_counted_by_the_name_of_their_query():
    statistics = WorkerStatistics()
    counts = TopologyCounts(diamond(), statistics, clock=lambda: 0.0)
    run = QueryRun("run", "query", "join")
    counts.batch(run, observed(s_left_0=2, s_right_0=2), 1.0)
    counts.batch(run, observed(s_left_0=3, s_right_0=3), 1.0)
    counts.batch(QueryRun("other", "query", "another"), observed(s_left_0=99), 1.0)
    counts.batch(QueryRun("other", "query", None), observed(s_left_0=99), 1.0)
    emitted = {e.component.id: f.emitted[ALL_TIME] for e, f in statistics.snapshot(0.0)}
    assert emitted == {"join": 0, "left": 0, "right": 0, "s": 5}
