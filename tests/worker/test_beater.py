import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import PacemakerUnavailableError, StateUnavailableError
from stormkeeper.state.node_heartbeats import NodeHeartbeats
from stormkeeper.worker.heartbeat import Beater, next_due
from support.memory_state import MemoryEnsemble
from support.waiting import DEADLINE_SECS, until

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


def test_it_beats_at_once_and_goes_on(beater, recording):
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
    assert "the worker goes on without: nobody is there" in began.getMessage()
    assert "go out again after" in ended.getMessage()


def test_a_fault_of_its_own_does_not_end_it(beater, recording, caplog):
    recording.broken = TypeError("a defect")
    beater.start()
    until(lambda: caplog.records)
    recording.broken = None
    until(lambda: recording.beats)


def test_one_that_cannot_tell_of_the_first_beat_goes_on_beating(recording, caplog):
    def tell():
        raise BrokenPipeError("nobody reads")

    made = Beater(lambda: recording, PATH, lambda: b"x", period_secs=PERIOD, on_first=tell)
    made.start()
    until(lambda: len(recording.beats) >= 3)
    made.close(DEADLINE_SECS)
    assert [str(record.exc_info[1]) for record in caplog.records] == ["nobody reads"]


def test_it_connects_again_until_it_can(recording):
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


def test_one_that_never_began_can_be_closed(beater, recording):
    beater.close(DEADLINE_SECS)
    assert recording.beats == []


def test_a_call_that_hangs_does_not_hold_up_the_close(caplog):
    hanging = threading.Event()

    class Hanging(Recording):
        def beat(self, path, data):  # noqa: ARG002
            hanging.wait(DEADLINE_SECS)

    made = Beater(Hanging, PATH, lambda: b"x", period_secs=PERIOD)
    made.start()
    made.close(0.1)
    hanging.set()
    assert "was not accepted within" in caplog.text


def test_it_beats_into_a_cluster_state():
    ensemble = MemoryEnsemble()
    state = ensemble.session()
    made = Beater(lambda: NodeHeartbeats(state), PATH, lambda: b"beat", period_secs=PERIOD)
    made.start()
    other = ensemble.session()
    until(lambda: other.get_data(PATH) == b"beat")
    made.close(DEADLINE_SECS)
