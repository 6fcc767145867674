from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo, GlobalStreamId
from stormkeeper.thrift.serialization import Compression, deserialize, serialize
from stormkeeper.worker.executor_counts import ALL_TIME, ComponentWork, WorkerStatistics
from stormkeeper.worker.heartbeat import heartbeat
from support.topologies import executor

WINDOWS = ["600", "10800", "86400", ALL_TIME]


def beat(*, completed=False):
    statistics = WorkerStatistics()
    statistics.add(executor("lines", "spout", "totals", 2, 3))
    statistics.add(executor("words", "bolt", "totals", 4, 4, ("lines",)))
    statistics.add(executor("totals", "bolt", "totals", 1, 1, ("words",)))
    done = {
        "lines": ComponentWork(emitted=5, transferred=5, took_ms=200.0),
        "words": ComponentWork(emitted=40, transferred=40, executed={"lines": 5}),
        "totals": ComponentWork(executed={"words": 40}),
    }
    statistics.record("totals", done, 0.0)
    return heartbeat(
        "wc-1-1",
        statistics.snapshot(0.0),
        time_secs=1_700_000_000,
        uptime_secs=9,
        completed=completed,
    )


def test_it_reads_back_as_it_was_written():
    for compression in Compression:
        data = serialize(beat(), compression)
        assert deserialize(ClusterWorkerHeartbeat, data) == beat()


def test_only_completed_worker_reports_completion():
    usual, last = (
        serialize(beat(completed=completed), Compression.PLAIN) for completed in (False, True)
    )
    assert deserialize(ClusterWorkerHeartbeat, last).completed
    # Field 1000, a bool (2), true, ahead of the end of the record: a field that Storm skips.
    assert last == usual[:-1] + b"\x02\x03\xe8\x01\x00"


def test_executors_by_task_and_component():
    stats = beat().executor_stats
    assert {(e.task_start, e.task_end): s.component for e, s in stats.items()} == {
        (1, 1): "totals",
        (2, 3): "lines",
        (4, 4): "words",
    }


def test_partial_batches_are_reported_only_if_any():
    statistics = WorkerStatistics()
    statistics.add(executor("out", "bolt", "out", 1, 1, ("lines",)))
    statistics.record("out", {"out": ComponentWork(executed={"lines": 5})}, 0.0)
    assert stats_of(statistics).partial_batches is None
    statistics.record("out", {"out": ComponentWork(executed={"lines": 2}, partial=True)}, 0.0)
    assert stats_of(statistics).partial_batches == dict.fromkeys(WINDOWS, 1)


def stats_of(statistics):
    record = heartbeat("wc-1-1", statistics.snapshot(0.0), time_secs=5, uptime_secs=0)
    (stats,) = record.executor_stats.values()
    return stats


def test_spout():
    stats = beat().executor_stats[ExecutorInfo(task_start=2, task_end=3)]
    assert stats.emitted == stats.transferred == {w: {"default": 5} for w in WINDOWS}
    assert stats.specific.spout.acked == {w: {"default": 5} for w in WINDOWS}
    assert stats.specific.spout.failed == {w: {} for w in WINDOWS}
    assert stats.specific.spout.complete_ms_avg == {w: {"default": 200.0} for w in WINDOWS}
    assert stats.specific.bolt is None
    assert stats.rate == 1.0


def test_bolt():
    stats = beat().executor_stats[ExecutorInfo(task_start=4, task_end=4)]
    source = GlobalStreamId(componentId="lines", streamId="default")
    assert stats.emitted == {w: {"default": 40} for w in WINDOWS}
    assert stats.specific.bolt.executed == {w: {source: 5} for w in WINDOWS}
    assert stats.specific.bolt.acked == {w: {source: 5} for w in WINDOWS}
    nothing = {w: {} for w in WINDOWS}
    bolt = stats.specific.bolt
    assert bolt.failed == bolt.process_ms_avg == bolt.execute_ms_avg == nothing
    assert stats.specific.spout is None


def test_sink_emits_no_stream():
    stats = beat().executor_stats[ExecutorInfo(task_start=1, task_end=1)]
    assert stats.emitted == stats.transferred == {w: {} for w in WINDOWS}


def test_a_worker_that_is_starting_has_no_executors_yet():
    record = heartbeat("wc-1-1", [], time_secs=5, uptime_secs=0)
    assert record.executor_stats == {}
    assert (record.storm_id, record.time_secs, record.uptime_secs) == ("wc-1-1", 5, 0)
