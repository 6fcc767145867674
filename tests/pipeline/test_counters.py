from stormkeeper.pipeline.counters import Counter, counters
from stormkeeper.thrift.records import ExecutorSpecificStats, ExecutorStats
from support.heartbeats import WINDOWS, bolt, spout


def test_a_spouts_statistics_stand_side_by_side_by_window_and_stream():
    found = sorted(counters(spout(7, stream="s", acked=5)))
    assert [counter.window for counter in found] == sorted(WINDOWS)
    assert found[0] == Counter("10800", None, "s", 7, 7, None, 5, None, 2.5, None, None)


def test_a_bolts_inputs_are_apart_from_what_it_emits():
    found = [c for c in counters(bolt({("words", "default"): 9}, 4)) if c.window == ":all-time"]
    assert sorted(found, key=lambda c: c.source or "") == [
        Counter(":all-time", None, "default", 4, 4, *[None] * 6),
        Counter(":all-time", "words", "default", None, None, 9, 9, None, None, 1.0, 1.0),
    ]


def test_a_window_may_be_reported_by_some_statistics_only():
    stats = ExecutorStats({"600": {"a": 1}}, {}, ExecutorSpecificStats(), 1.0)
    assert list(counters(stats)) == [Counter("600", None, "a", 1, *[None] * 7)]


def test_a_window_with_batches_that_nobody_read_to_their_end_is_partial_on_every_stream():
    stats = bolt({("words", "default"): 9}, 4)
    stats.partial_batches = {"600": 0, ":all-time": 2}
    found = list(counters(stats))
    assert len(found) == 2 * len(WINDOWS)
    assert {counter.window for counter in found if counter.partial} == {":all-time"}
    assert sum(counter.partial for counter in found) == 2
