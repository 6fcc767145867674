import logging
import math
import threading

import pytest

from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import NotLeaderError, StateClosedError, StateUnavailableError
from support.waiting import until

NEVER = 3600.0


class Steps:
    """Counts the steps of a thread; `results` says how each of the first ends."""

    def __init__(self, *results, **options):
        self.count = 0
        self._results = list(results)
        self.now = 0.0
        options = {"settle_secs": 0.01} | options
        self.thread = PeriodicThread("test", self, clock=lambda: self.now, **options)

    def __call__(self):
        self.count += 1
        result = self._results.pop(0) if self._results else NEVER
        if isinstance(result, Exception):
            raise result
        return result() if callable(result) else result


@pytest.fixture
def stepping():
    opened = []

    def start(*results, **options):
        opened.append(Steps(*results, **options))
        opened[-1].thread.start()
        return opened[-1]

    yield start
    for each in opened:
        assert each.thread.close(10.0)


def test_steps_begin_at_once_and_when_due(stepping):
    steps = stepping(0.0, 0.0)
    until(lambda: steps.count == 3)


def test_period_is_the_default_pause(stepping):
    steps = stepping(None, None, period_secs=0.0)
    until(lambda: steps.count == 3)


def test_wake_begins_a_step(stepping):
    steps = stepping()
    until(lambda: steps.count == 1)
    assert not steps.thread.was_woken
    steps.thread.wake()
    until(lambda: steps.count == 2)
    assert steps.thread.was_woken


def test_first_step_can_wait_for_wake(stepping):
    steps = stepping(first_secs=math.inf)
    assert steps.count == 0
    steps.thread.wake()
    until(lambda: steps.count == 1)


def test_pause_after_wake_ignores_time_spent_waiting(stepping):
    steps = stepping()
    until(lambda: steps.count == 1)
    steps.now += NEVER  # the wait, by the thread's clock
    steps.thread.wake()
    until(lambda: steps.count == 2)


def test_wakes_during_a_step_cause_one_more(stepping):
    let_go = threading.Event()

    def hold():
        assert let_go.wait(10.0)
        return NEVER

    steps = stepping(hold)
    until(lambda: steps.count == 1)
    for _ in range(100):
        steps.thread.wake()
    let_go.set()
    until(lambda: steps.count == 2)
    steps.thread.close(10.0)
    assert steps.count == 2


def test_failed_steps_are_logged_and_retried(stepping, caplog):
    caplog.set_level(logging.INFO)
    failures = StateUnavailableError("ZooKeeper is away"), ValueError("a defect")
    steps = stepping(*failures, failure="no round", recovery="rounds again")
    until(lambda: steps.count == 3)
    until(lambda: caplog.messages[-1] == "rounds again")
    first, second, _ = caplog.records
    assert first.message == "no round; next attempt in 0.25 s: ZooKeeper is away"
    assert first.exc_info is None
    assert second.exc_info is not None


@pytest.mark.parametrize("error", [NotLeaderError("another leads"), StateClosedError("closed")])
def test_thread_ends_when_its_work_is_over(stepping, error):
    steps = stepping(error)
    until(lambda: not steps.thread.is_running)
    steps.thread.wake()
    assert steps.count == 1


def test_a_step_may_close_its_thread():
    steps = Steps()
    steps._results = [steps.thread.close]
    steps.thread.start()
    until(lambda: not steps.thread.is_running)


def test_streak_pauses_double_up_to_the_longest():
    streak = FailureStreak(1.0, 5.0)
    assert [streak.record() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    streak.reset()
    assert streak.record() == 1.0


def test_streak_logs_the_powers_of_two():
    streak = FailureStreak()
    logged = [streak.record() and streak.should_log for _ in range(9)]
    assert [number for number, is_logged in enumerate(logged, 1) if is_logged] == [1, 2, 4, 8]


def test_jitter_shortens_a_pause_at_most_by_its_share():
    pauses = [FailureStreak(1.0, jitter=0.5).record() for _ in range(100)]
    assert 0.5 <= min(pauses) < max(pauses) <= 1.0
