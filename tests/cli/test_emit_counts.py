"""What a component has emitted between two looks."""

import pytest

from stormkeeper.cli.monitor import CountRow, EmitCounter, component_counts
from stormkeeper.client.topology_view import components_of
from stormkeeper.errors import UnknownComponentError
from stormkeeper.thrift.nimbus import ExecutorSummary, TopologyInfo
from stormkeeper.thrift.records import BoltStats, ExecutorInfo, ExecutorSpecificStats, ExecutorStats


def executor(component, task, emitted=None, *, host="a", stream="default"):
    """Return an executor that has emitted so many; None: it has not reported."""
    stats = None
    if emitted is not None:
        specific = ExecutorSpecificStats(bolt=BoltStats({}, {}, {}, {}, {}))
        windows = {"600": {stream: 1}, ":all-time": {stream: emitted}}
        stats = ExecutorStats(windows, {":all-time": {stream: 2 * emitted}}, specific, 1.0)
    return ExecutorSummary(ExecutorInfo(task, task), component, host, 6700, 1, stats)


def info(*executors):
    return TopologyInfo("wc-1-1", "wc", 1, list(executors), "ACTIVE", {})


def rows(*looks):
    """Return the rows of looks at the component counts, a second after each other."""
    counting = EmitCounter()
    return [
        counting.row(component_counts(each, "counts", "default", "emitted"), 1_000 * number)
        for number, each in enumerate(looks, start=5)
    ]


def test_rows_sum_over_executors():
    first = info(executor("counts", 1, 10), executor("counts", 2, 5), executor("words", 3, 99))
    then = info(executor("counts", 1, 30), executor("counts", 2, 5), executor("words", 3, 999))
    assert rows(first, then, then) == [
        CountRow(2, 0, 15),
        CountRow(2, 1_000, 20),
        CountRow(2, 1_000, 0),
    ]
    assert [row.per_ms for row in rows(first, then)] == [0.0, 0.02]


def test_what_is_transferred_and_other_streams():
    topology = info(executor("counts", 1, 10, stream="late"), executor("counts", 2))
    assert component_counts(topology, "counts", "late", "transferred").counts == {
        ("a", 6700, 1, 1): 20
    }
    seen = component_counts(topology, "counts", "default", "emitted")
    assert (seen.executors, seen.counts, seen.streams) == (2, {}, {"late"})


def test_a_worker_that_starts_again_begins_at_nothing():
    before, moved = info(executor("counts", 1, 100)), info(executor("counts", 1, 7, host="b"))
    assert [row.count for row in rows(before, info(executor("counts", 1, 4)))] == [100, 4]
    assert [row.count for row in rows(before, moved)] == [100, 7]


def test_missing_counts_after_a_failover_change_nothing():
    known, unknown = info(executor("counts", 1, 100)), info(executor("counts", 1))
    later = info(executor("counts", 1, 103))
    assert [row.count for row in rows(known, unknown, later)] == [100, 0, 3]
    assert [row.count for row in rows(unknown, known)] == [0, 100]


def test_unknown_component_error_lists_the_components():
    topology = info(executor("words", 1), executor("__acker", 2), executor("words", 3))
    assert components_of(topology) == ["__acker", "words"]
    with pytest.raises(
        UnknownComponentError, match="wc has no component sums; it has __acker, wor"
    ):
        component_counts(topology, "sums", "default", "emitted")
    with pytest.raises(UnknownComponentError, match="it has none, as it runs nowhere"):
        component_counts(info(), "sums", "default", "emitted")
