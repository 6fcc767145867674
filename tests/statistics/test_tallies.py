from math import inf, nan

import pytest

from stormkeeper.statistics.aggregates import Tally, capacity, counts_by_window, measures
from stormkeeper.thrift.records import (
    BoltStats,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)

LINES = GlobalStreamId("lines", "default")
TICKS = GlobalStreamId("__system", "__tick")


def bolt(*, executed=None, execute=None, process=None, acked=None, failed=None, emitted=None):
    """A bolt's statistics in the window "600"."""
    streams = [{"600": found or {}} for found in (acked, failed, process, executed, execute)]
    return ExecutorStats(
        {"600": emitted or {}},
        {"600": emitted or {}},
        ExecutorSpecificStats(bolt=BoltStats(*streams)),
        1.0,
    )


def spout(*, acked, complete, emitted=None):
    """A spout's statistics in the window "600"."""
    specific = ExecutorSpecificStats(
        spout=SpoutStats({"600": acked}, {"600": {}}, {"600": complete})
    )
    return ExecutorStats({"600": emitted or {}}, {"600": emitted or {}}, specific, 1.0)


def of(*stats, kind="bolt", include_sys=True):
    return [measures(one, kind, include_sys=include_sys) for one in stats]


def test_bolt_latencies_are_weighed_by_executed():
    found = of(
        bolt(executed={LINES: 10}, execute={LINES: 1.0}, process={LINES: 2.0}, acked={LINES: 1000}),
        bolt(executed={LINES: 30}, execute={LINES: 3.0}, process={LINES: 6.0}, acked={LINES: 0}),
    )
    tally = Tally.of(found, "600")
    assert tally.latency("execute", "executed") == 2.5
    assert tally.latency("process", "executed") == 5.0
    assert tally.latency("complete", "acked") == 0.0


def test_the_latency_of_a_spout_is_weighed_by_what_was_acked():
    (found,) = of(spout(acked={"a": 1, "b": 3}, complete={"a": 8.0, "b": 4.0}), kind="spout")
    assert Tally.of([found], "600").latency("complete", "acked") == 5.0


@pytest.mark.parametrize("count", [0, -3])
def test_there_is_no_latency_of_nothing(count):
    found = of(bolt(executed={LINES: count}, execute={LINES: 5.0}))
    assert Tally.of(found, "600").latency("execute", "executed") is None
    assert Tally.of([], "600").latency("execute", "executed") is None


@pytest.mark.parametrize("average", [nan, inf, -inf, 1e308])
def test_average_that_is_not_finite_counts_as_zero(average):
    executed, execute = {LINES: 10, TICKS: 30}, {LINES: 2.0, TICKS: average}
    tally = Tally.of(of(bolt(executed=executed, execute=execute)), "600")
    assert tally.latency("execute", "executed") == 0.5
    assert capacity(*of(bolt(executed=executed, execute=execute)), 600) == 20 / 600_000


def test_a_sum_that_is_no_number_counts_nothing():
    executed, execute = {LINES: 1, TICKS: 1}, dict.fromkeys((LINES, TICKS), 1.7e308)
    found = of(bolt(executed=executed, execute=execute))
    assert Tally.of(found, "600").latency("execute", "executed") == 0.0
    assert Tally.of_truncated(found, "600").latency("execute", "executed") == 0.0


def test_stream_without_an_average_is_counted():
    """Storm's workers always have both; those of PySpark measure no component by itself."""
    found = of(bolt(executed={LINES: 10}, emitted={"default": 3}))
    assert {
        stream: tally.count("executed") for stream, tally in Tally.by_stream(found, "600").items()
    } == {
        LINES: 10,
        "default": 0,
    }
    assert Tally.of(found, "600").latency("execute", "executed") == 0.0


def test_a_stream_that_has_an_average_alone_counts_nothing():
    """It breaks Storm's page of the component."""
    found = of(bolt(executed={LINES: 2}, execute={LINES: 1.0, TICKS: 9.0}))
    assert Tally.by_stream(found, "600").keys() == {LINES}
    assert Tally.of(found, "600").latency("execute", "executed") == 1.0


def test_topology_page_has_whole_milliseconds():
    found = of(bolt(executed={LINES: 6}, execute={LINES: 0.3}))
    assert Tally.of(found, "600").latency("execute", "executed") == pytest.approx(0.3)
    assert Tally.of_truncated(found, "600").latency("execute", "executed") == 1 / 6
    assert Tally.of_truncated(found * 5, "600").latency("execute", "executed") == 1 / 6
    assert Tally.of_truncated(found, "600").count("executed") == 6


def test_total_time_is_truncated_towards_zero():
    both = bolt(executed={LINES: 1, TICKS: 1}, execute={LINES: 0.6, TICKS: 0.6})
    assert Tally.of_truncated(of(both), "600").total("execute") == 1.0
    less = bolt(executed={LINES: 1}, execute={LINES: -1.6})
    assert Tally.of_truncated(of(less), "600").total("execute") == -1.0


def test_truncated_time_is_clamped_to_64_bits():
    much = bolt(executed={LINES: 1}, execute={LINES: 1e300})
    assert Tally.of_truncated(of(much), "600").total("execute") == float(2**63)


def test_a_count_is_held_within_64_bits():
    found = of(*[bolt(executed={LINES: 2**63 - 1}, failed={LINES: -(2**63)})] * 2)
    tally = Tally.of(found, "600")
    assert (tally.count("executed"), tally.count("failed")) == (2**63 - 1, -(2**63))
    assert counts_by_window(found, "executed") == {"600": 2**63 - 1}


def test_system_streams_hide_emitted_and_transferred():
    stats = bolt(
        executed={LINES: 1, TICKS: 2},
        acked={TICKS: 3},
        failed={TICKS: 4},
        emitted={"default": 5, "__ack_ack": 6},
    )
    names = ("executed", "acked", "failed", "emitted", "transferred")
    with_system = Tally.of(of(stats), "600")
    without = Tally.of(of(stats, include_sys=False), "600")
    assert [with_system.count(name) for name in names] == [3, 3, 4, 11, 11]
    assert [without.count(name) for name in names] == [3, 3, 4, 5, 5]


def test_a_spout_with_a_bolts_statistics_has_only_what_both_have():
    stats = bolt(executed={LINES: 10}, execute={LINES: 2.0}, emitted={"default": 3})
    tally = Tally.of(of(stats, kind="spout"), "600")
    assert (tally.count("executed"), tally.count("emitted")) == (0, 3)
    assert capacity(*of(stats, kind="spout"), 600) == 0.0


def test_a_bolt_with_a_spouts_statistics_has_only_what_both_have():
    stats = spout(acked={"default": 10}, complete={"default": 2.0}, emitted={"default": 3})
    tally = Tally.of(of(stats), "600")
    assert (tally.count("acked"), tally.count("emitted")) == (0, 3)
    assert tally.latency("complete", "acked") is None


@pytest.mark.parametrize("kind", ["spout", "bolt"])
def test_an_executor_may_report_what_it_emitted_alone(kind):
    stats = ExecutorStats({"600": {"a": 1}}, {}, ExecutorSpecificStats(), 1.0)
    (found,) = of(stats, kind=kind)
    assert found.windows == {"600"}
    assert counts_by_window([found], "emitted") == {"600": 1}
    assert counts_by_window([found], "acked") == {}


def test_a_window_without_streams_counts_zero():
    found = of(bolt())
    assert found[0].windows == {"600"}
    assert counts_by_window(found, "failed") == {"600": 0}


@pytest.mark.parametrize(
    ("uptime_secs", "share"),
    [
        (-1, 0.0),
        (0, 0.0),
        (1, 0.3),
        (60, 0.005),
        (600, 0.0005),
        (4242, 0.0005),
        (2**31 - 1, 0.0005),
    ],
)
def test_capacity_is_of_ten_minutes_or_of_the_workers_life(uptime_secs, share):
    stats = bolt(executed={LINES: 100, TICKS: 50}, execute={LINES: 2.0, TICKS: 2.0})
    assert capacity(*of(stats), uptime_secs) == pytest.approx(share, rel=1e-12)


def test_capacity_is_of_ten_minutes_alone():
    stats = bolt(executed={LINES: 100}, execute={LINES: 2.0})
    specific = stats.specific.bolt
    for by_window in (specific.executed, specific.execute_ms_avg):
        by_window["10800"] = by_window.pop("600")
    assert capacity(*of(stats), 600) == 0.0
