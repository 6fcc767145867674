"""What a component has emitted between two looks."""

import pytest

from stormkeeper.client.monitoring import Counting, Row, components, look
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
    counting = Counting()
    return [
        counting.row(look(each, "counts", "default", "emitted"), 1_000 * number)
        for number, each in enumerate(looks, start=5)
    ]


def test_rows_sum_over_executors():
    first = info(executor("counts", 1, 10), executor("counts", 2, 5), executor("words", 3, 99))
    then = info(executor("counts", 1, 30), executor("counts", 2, 5), executor("words", 3, 999))
    assert rows(first, then, then) == [Row(2, 0, 15), Row(2, 1_000, 20), Row(2, 1_000, 0)]
    assert [row.per_ms for row in rows(first, then)] == [0.0, 0.02]


def test_what_is_transferred_and_other_streams():
    topology = info(executor("counts", 1, 10, stream="late"), executor("counts", 2))
    assert look(topology, "counts", "late", "transferred").counts == {("a", 6700, 1, 1): 20}
    seen = look(topology, "counts", "default", "emitted")
    assert (seen.executors, seen.counts, seen.streams) == (2, {}, {"late"})


def test_a_worker_that_starts_again_begins_at_nothing():
    before, moved = info(executor("counts", 1, 100)), info(executor("counts", 1, 7, host="b"))
    assert [row.count for row in rows(before, info(executor("counts", 1, 4)))] == [100, 4]
    assert [row.count for row in rows(before, moved)] == [100, 7]


def test_a_nimbus_that_knows_no_counts_for_a_while_changes_nothing():
    known, unknown = info(executor("counts", 1, 100)), info(executor("counts", 1))
    later = info(executor("counts", 1, 103))
    assert [row.count for row in rows(known, unknown, later)] == [100, 0, 3]
    assert [row.count for row in rows(unknown, known)] == [0, 100]


def test_a_component_that_is_not_there_is_answered_with_those_that_are():
    topology = info(executor("words", 1), executor("__acker", 2), executor("words", 3))
    assert components(topology) == ["__acker", "words"]
    with pytest.raises(
        UnknownComponentError, match="wc has no component sums; it has __acker, wor"
    ):
        look(topology, "sums", "default", "emitted")
    with pytest.raises(UnknownComponentError, match="it has none, as it runs nowhere"):
        look(info(), "sums", "default", "emitted")
