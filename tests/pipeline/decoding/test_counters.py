"""What an executor's nested maps become: a row for each window and stream."""

import pytest

from stormkeeper.pipeline.decoded_rows import decode
from stormkeeper.thrift.records import (
    BoltStats,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
)
from support.decoding import ENGINES
from support.heartbeats import WINDOWS, bolt, heartbeat, spout

NAMES = ("window", "source", "stream", "emitted", "transferred", "executed", "acked", "failed")
AVERAGES = ("complete_ms_avg", "execute_ms_avg", "process_ms_avg", "partial")


@pytest.fixture(params=ENGINES)
def executors_of(request):
    """Decodes a heartbeat with these executors; each engine does the same."""

    def executors_of(executors):
        [(_, columns)] = decode([heartbeat("t-1-1", executors)], ENGINES[request.param])
        return columns["executors"].to_pylist()[0]

    return executors_of


@pytest.fixture
def counters(executors_of):
    def counters(stats):
        [executor] = executors_of({(1, 2): stats})
        return sorted(
            (tuple(row.values()) for row in executor["counters"]), key=lambda row: str(row[:3])
        )

    return counters


def test_spout_statistics_are_joined_by_window_and_stream(counters):
    found = counters(spout(7, stream="s", acked=5))
    assert [row[0] for row in found] == sorted(WINDOWS)
    assert found[0] == ("10800", None, "s", 7, 7, None, 5, None, 2.5, None, None, False)


def test_a_bolts_inputs_are_apart_from_what_it_emits(counters):
    found = [row for row in counters(bolt({("words", "default"): 9}, 4)) if row[0] == ":all-time"]
    assert found == [
        (":all-time", "words", "default", None, None, 9, 9, None, None, 1.0, 1.0, False),
        (":all-time", None, "default", 4, 4, None, None, None, None, None, None, False),
    ]


def test_each_statistic_of_a_bolt_has_its_column(counters):
    source = GlobalStreamId("a", "b")
    stats = BoltStats(*({"600": {source: value}} for value in (1, 2, 3.5, 4, 5.5)))
    found = counters(ExecutorStats({}, {}, ExecutorSpecificStats(bolt=stats), 1.0))
    assert found == [("600", "a", "b", None, None, 4, 1, 2, None, 5.5, 3.5, False)]


def test_a_window_may_be_reported_by_some_statistics_only(counters):
    stats = spout(0)
    stats.emitted, stats.transferred = {"600": {"a": 1}, "7": {}}, {"10800": {"a": 2}}
    stats.specific.spout.acked = stats.specific.spout.complete_ms_avg = {}
    assert counters(stats) == [
        ("10800", None, "a", None, 2, *[None] * 6, False),
        ("600", None, "a", 1, None, *[None] * 6, False),
    ]


def test_window_with_partial_batches_is_partial_on_all_streams(counters):
    stats = bolt({("words", "default"): 9}, 4)
    stats.partial_batches = {"600": 0, ":all-time": 2, "other": 3}
    found = counters(stats)
    assert len(found) == 2 * len(WINDOWS)
    assert [row[0] for row in found if row[-1]] == [":all-time", ":all-time"]


def test_partial_windows_of_an_executor_end_with_it(executors_of):
    first, second = bolt({("words", "default"): 9}, 4), bolt({("words", "default"): 9}, 4)
    first.partial_batches = {"600": 1}
    first.component, second.rate = "count", 0.5
    one, other = sorted(
        executors_of({(5, 7): first, (8, 8): second}), key=lambda found: found["task_start"]
    )
    assert [(e["task_start"], e["task_end"], e["component"], e["rate"]) for e in (one, other)] == [
        (5, 7, "count", 1.0),
        (8, 8, None, 0.5),
    ]
    assert {e["kind"] for e in (one, other)} == {"bolt"}
    assert sum(row["partial"] for row in one["counters"]) == 2
    assert not any(row["partial"] for row in other["counters"])
