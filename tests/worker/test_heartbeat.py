import logging
import os
import threading
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.conf import defaults
from stormkeeper.errors import PacemakerUnavailableError, StateUnavailableError
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo, GlobalStreamId
from stormkeeper.thrift.serialization import Codec, Compression, deserialize, serialize
from stormkeeper.worker import heartbeat as worker_heartbeat
from stormkeeper.worker.executor_counts import ALL_TIME, ComponentWork, WorkerStatistics
from stormkeeper.worker.heartbeat import (
    AliveFile,
    Beater,
    HeartbeatBuilder,
    next_due,
    warn_of_silent_pacemakers,
)
from support.memory_state import MemoryEnsemble
from support.topologies import executor
from support.waiting import DEADLINE_SECS, until

WINDOWS = ["600", "10800", "86400", ALL_TIME]


NOW = 1_700_000_000


class IdleJvm:
    silent_ms = None

    def activities(self, _):
        return []


def record(statistics, *, completed=False):
    """Return a worker's heartbeat, nine seconds after its start."""
    builder = HeartbeatBuilder(
        *("wc-1-1", statistics, IdleJvm(), Codec()),
        name_of=lambda run: run.name,
        waiting=lambda: None,
    )
    builder._began = 0.0
    builder.has_completed = completed
    clocks = SimpleNamespace(time=lambda: NOW, monotonic=lambda: 9.0)
    with patch.object(worker_heartbeat, "time", clocks):
        return builder.current()


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
    return record(statistics, completed=completed)


def test_heartbeat_reads_back():
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
    (stats,) = record(statistics).executor_stats.values()
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
    made = record(WorkerStatistics())
    assert made.executor_stats == {}
    assert (made.storm_id, made.time_secs, made.uptime_secs) == ("wc-1-1", NOW, 9)


class World:
    """A clock, and a beating thread that comes round when the test says so."""

    def __init__(self):
        self.now = 100.0
        self.beaten_at = None


@pytest.fixture
def world():
    return World()


@pytest.fixture
def alive(world, tmp_path):
    return AliveFile(
        tmp_path / "alive",
        lambda: world.beaten_at,
        period_secs=1.0,
        stuck_secs=33.0,
        clock=lambda: world.now,
    )


def test_before_the_first_beat_there_is_no_sign(alive, tmp_path):
    assert not alive.touch()
    assert list(tmp_path.iterdir()) == []


def test_each_look_is_a_change_of_the_files_time(alive, world, tmp_path):
    world.beaten_at = world.now
    file = tmp_path / "alive"
    assert alive.touch()
    assert file.stat().st_mode & 0o777 == 0o600
    os.utime(file, (1.0, 1.0))
    world.now += 33.0
    assert alive.touch()
    assert file.stat().st_mtime > 1.0


def test_a_beat_that_hangs_is_none(alive, world, tmp_path, caplog):
    world.beaten_at = world.now
    assert alive.touch()
    os.utime(tmp_path / "alive", (1.0, 1.0))
    world.now += 33.5
    assert [alive.touch(), alive.touch()] == [False, False]
    assert (tmp_path / "alive").stat().st_mtime == 1.0
    assert caplog.text.count("the heartbeat thread has been stuck for 34 s") == 1
    world.beaten_at = world.now
    assert alive.touch()


def test_untouchable_alive_file_does_not_stop_the_worker(alive, world, tmp_path, caplog):
    world.beaten_at = world.now
    tmp_path.joinpath("alive").mkdir()
    tmp_path.joinpath("alive").rmdir()
    tmp_path.rmdir()
    alive.touch()
    alive.touch()
    assert caplog.text.count("cannot be touched") == 1
    tmp_path.mkdir()
    assert alive.touch()
    assert (tmp_path / "alive").exists()


def test_the_thread_goes_on_until_it_is_closed(tmp_path):
    file = tmp_path / "alive"
    beats = [None]
    alive = AliveFile(file, lambda: beats[0], period_secs=0.01, stuck_secs=1e9)
    alive.start()
    beats[0] = 0.0
    until(file.exists)
    os.utime(file, (1.0, 1.0))
    until(lambda: file.stat().st_mtime > 1.0)
    alive.close()
    os.utime(file, (1.0, 1.0))
    assert file.stat().st_mtime == 1.0


def test_no_alive_file_without_a_name():
    assert AliveFile.from_conf(None, defaults(), lambda: 0.0) is None


PATH = "/workerbeats/wc-1-1/n-6700"
PERIOD = 0.02


@given(
    st.floats(0, 1e6),
    st.floats(0.1, 60),
    st.floats(0, 1e4),
)
def test_schedule_keeps_its_grid_and_makes_up_for_nothing(due, period, passed):
    now = due + passed
    following = next_due(due, period, now)
    assert now < following + 1e-6
    assert following <= now + period + 1e-6
    periods = (following - due) / period
    assert periods == pytest.approx(round(periods), abs=1e-6)
    assert round(periods) >= 1


def test_schedule_does_not_drift_with_the_time_that_a_call_takes():
    due = 100.0
    for _ in range(10):
        due = next_due(due, 3.0, due + 1.2)
    assert due == pytest.approx(130.0)


class Recording:
    """A state that takes heartbeats, or refuses them while `broken`."""

    def __init__(self):
        self.beats = []
        self.broken = None
        self.closed = False

    def beat(self, path, data):
        if self.broken is not None:
            raise self.broken
        self.beats.append((path, data))

    def close(self):
        self.closed = True


@pytest.fixture
def recording():
    return Recording()


@pytest.fixture
def beater(recording):
    numbers = iter(range(10**6))
    first = threading.Event()
    made = Beater(
        lambda: recording,
        PATH,
        lambda: b"%d" % next(numbers),
        period_secs=PERIOD,
        on_first=first.set,
    )
    made.first = first
    yield made
    if made._thread.is_alive():
        made.close(DEADLINE_SECS)


def test_beater_beats_at_once_and_goes_on(beater, recording):
    beater.start()
    until(lambda: len(recording.beats) >= 5)
    assert recording.beats[:5] == [(PATH, b"%d" % n) for n in range(5)]
    assert beater.first.is_set()


def test_close_sends_one_last_heartbeat(beater, recording):
    beater.start()
    until(lambda: recording.beats)
    beater.close(DEADLINE_SECS)
    last = len(recording.beats)
    assert recording.closed
    assert recording.beats[-1] == (PATH, b"%d" % (last - 1))
    assert not beater._thread.is_alive()


def test_a_long_period_does_not_delay_the_close(recording):
    made = Beater(lambda: recording, PATH, lambda: b"x", period_secs=3600.0)
    made.start()
    until(lambda: recording.beats)
    made.close(DEADLINE_SECS)
    assert len(recording.beats) == 2


def test_failures_are_logged_when_they_begin_and_when_they_end(beater, recording, caplog):
    caplog.set_level(logging.INFO, "stormkeeper.worker.heartbeat")
    recording.broken = PacemakerUnavailableError("nobody is there")
    beater.start()
    until(lambda: caplog.records)
    until(lambda: beater._failing_since is not None)
    recording.broken = None
    until(lambda: recording.beats)
    until(lambda: len(caplog.records) == 2)
    began, ended = caplog.records
    assert "the worker goes on: nobody is there" in began.getMessage()
    assert "are sent again after" in ended.getMessage()


def test_defect_does_not_end_the_beater(beater, recording, caplog):
    recording.broken = TypeError("a defect")
    beater.start()
    until(lambda: caplog.records)
    recording.broken = None
    until(lambda: recording.beats)


def test_failing_announcement_does_not_stop_heartbeats(recording, caplog):
    def tell():
        raise BrokenPipeError("nobody reads")

    made = Beater(lambda: recording, PATH, lambda: b"x", period_secs=PERIOD, on_first=tell)
    made.start()
    until(lambda: len(recording.beats) >= 3)
    made.close(DEADLINE_SECS)
    assert [str(record.exc_info[1]) for record in caplog.records] == ["nobody reads"]


def test_beater_connects_until_it_succeeds(recording):
    tries = []

    def connect():
        tries.append(1)
        if len(tries) < 3:
            raise StateUnavailableError("not yet")
        return recording

    made = Beater(connect, PATH, lambda: b"x", period_secs=PERIOD)
    made.start()
    until(lambda: recording.beats)
    made.close(DEADLINE_SECS)
    assert len(tries) == 3


def test_beater_can_be_closed_before_its_start(beater, recording):
    beater.close(DEADLINE_SECS)
    assert recording.beats == []


def test_hanging_call_does_not_delay_the_close(caplog):
    hanging = threading.Event()

    class Hanging(Recording):
        def beat(self, path, data):  # noqa: ARG002
            hanging.wait(DEADLINE_SECS)

    made = Beater(Hanging, PATH, lambda: b"x", period_secs=PERIOD)
    made.start()
    made.close(0.1)
    hanging.set()
    assert "was not accepted within" in caplog.text


def test_beater_beats_into_a_cluster_state():
    ensemble = MemoryEnsemble()
    state = ensemble.session()
    made = Beater(lambda: NodeHeartbeats(state), PATH, lambda: b"beat", period_secs=PERIOD)
    made.start()
    other = ensemble.session()
    until(lambda: other.get_data(PATH) == b"beat")
    made.close(DEADLINE_SECS)


def test_silent_pacemakers_are_warned_of(caplog):
    warn_of_silent_pacemakers(defaults())
    named = defaults().with_values({"pacemaker.servers": ["host"]})
    store = "org.apache.storm.cluster.PaceMakerStateStorageFactory"
    warn_of_silent_pacemakers(named.with_values({"storm.cluster.state.store": store}))
    assert caplog.records == []
    warn_of_silent_pacemakers(named)
    [record] = caplog.records
    assert f"storm.cluster.state.store={store}" in record.getMessage()
