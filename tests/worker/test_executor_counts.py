import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.thrift.records import GlobalStreamId
from stormkeeper.topology import Topology
from stormkeeper.topology.plan import Edge, plan
from stormkeeper.worker.executor_counts import (
    ALL_TIME,
    BUCKETS,
    STREAM,
    WINDOWS,
    ComponentWork,
    ExecutorCounts,
    RollingSum,
    TopologyCounts,
    WindowedSum,
    WorkerStatistics,
    component_work,
    observation,
)
from stormkeeper.worker.query_events import BatchRows, QueryRun
from support.topologies import executor


def test_windows_are_storms():
    assert [*WindowedSum().totals(0.0)] == ["600", "10800", "86400", ":all-time"]


def test_a_window_forgets_and_all_time_does_not():
    total = WindowedSum()
    total.add(5, 10.0)
    total.add(7, 590.0)
    assert total.totals(595.0) == {"600": 12, "10800": 12, "86400": 12, ALL_TIME: 12}
    assert total.totals(700.0) == {"600": 7, "10800": 12, "86400": 12, ALL_TIME: 12}
    assert total.totals(90000.0) == {"600": 0, "10800": 0, "86400": 0, ALL_TIME: 12}


def test_counts_stay_whole_numbers():
    total = WindowedSum()
    total.add(2**60, 0.0)
    total.add(1, 1.0)
    assert total.totals(1.0)["600"] == 2**60 + 1


additions = st.lists(
    st.tuples(st.integers(0, 1000), st.floats(0, 2000, allow_nan=False)), max_size=60
)


@given(additions, st.floats(0, 1000))
def test_rolling_sum_is_that_of_the_window_to_within_a_bucket(added, later):
    window = 600
    rolling = RollingSum(window)
    at = 0.0
    times = []
    for amount, step in added:
        at += step
        rolling.add(amount, at)
        times.append((amount, at))
    now = at + later
    newest = sum(amount for amount, when in times if when > now - window * (1 - 1 / BUCKETS))
    oldest = sum(amount for amount, when in times if when > now - window)
    assert newest <= rolling.total(now) <= oldest


@given(additions)
def test_rolling_sum_keeps_no_more_than_its_buckets(added):
    rolling = RollingSum(600)
    at = 0.0
    for amount, step in added:
        at += step
        rolling.add(amount, at)
        assert len(rolling._sums) <= BUCKETS


def by_window(*rows):
    names = [*map(str, WINDOWS), ALL_TIME]
    return {name: {STREAM: count} for name, count in zip(names, rows, strict=True)}


def source(component):
    return GlobalStreamId(componentId=component, streamId=STREAM)


def test_statistics_of_a_bolt():
    counts = ExecutorCounts(executor("both", "bolt", "out", 1, 1, ("a", "b")))
    counts.record(
        ComponentWork(emitted=3, transferred=6, executed={"a": 10, "b": 2}, took_ms=40), 0.0
    )
    counts.record(
        ComponentWork(emitted=1, transferred=2, executed={"a": 5, "b": 0}, took_ms=60), 700.0
    )
    stats = counts.stats(700.0)
    assert stats.emitted == by_window(1, 4, 4, 4)
    assert stats.transferred == by_window(2, 8, 8, 8)
    executed = stats.specific.bolt.executed
    assert executed["600"] == {source("a"): 5, source("b"): 0}
    assert executed[ALL_TIME] == {source("a"): 15, source("b"): 2}


def spout():
    return ExecutorCounts(executor("lines", "spout", "out", 1, 1))


def test_mean_duration_is_weighted_by_rows():
    counts = spout()
    counts.record(ComponentWork(emitted=30, took_ms=100.0), 0.0)
    counts.record(ComponentWork(emitted=10, took_ms=500.0), 1.0)
    counts.record(ComponentWork(emitted=0, took_ms=9000.0), 2.0)
    mean = counts.stats(2.0).specific.spout.complete_ms_avg["600"]
    assert mean == {STREAM: pytest.approx(200.0)}


def test_no_rows_have_no_mean_duration():
    assert not any(spout().stats(0.0).specific.spout.complete_ms_avg.values())


def test_worker_statistics_are_by_query_and_sorted_by_task():
    statistics = WorkerStatistics()
    statistics.add(executor("lines", "spout", "second", 3, 4))
    statistics.add(executor("lines", "spout", "first", 1, 2))
    statistics.record("second", {"lines": ComponentWork(emitted=7)}, 0.0)
    first, second = statistics.snapshot(0.0)
    assert (first[0].query, first[1].emitted[ALL_TIME]) == ("first", {STREAM: 0})
    assert (second[0].query, second[1].emitted[ALL_TIME]) == ("second", {STREAM: 7})


def test_every_window_has_figures():
    stats = ExecutorCounts(executor("both", "bolt", "out", 1, 1, ("a",))).stats(0.0)
    bolt = stats.specific.bolt
    windows = [*map(str, WINDOWS), ALL_TIME]
    for figures in (stats.emitted, stats.transferred, bolt.executed, bolt.acked, bolt.failed):
        assert list(figures) == windows


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


def test_missing_observation_has_no_rows():
    (query,) = diamond().queries
    assert all(done.emitted == 0 for done in component_work(query, BatchRows(), 1.0).values())


def test_partial_edge_marks_both_components():
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
    emitted = {
        executor.component.id: stats.emitted[ALL_TIME].get(STREAM, 0)
        for executor, stats in statistics.snapshot(0.0)
    }
    assert emitted == {"join": 0, "left": 0, "right": 0, "s": 5}
