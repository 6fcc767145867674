"""How many errors are let through, on a clock of the test's."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.conf import defaults
from stormkeeper.state.storm import worker_reports
from stormkeeper.state.storm.worker_reports import ErrorLimits, ErrorThrottles

LIMITS = ErrorLimits(interval_secs=10, per_interval=2)


def admitted(limits, times):
    """The times at which a throttle lets an error through."""
    now = iter(times)
    one = ErrorThrottles(limits, lambda: next(now))
    return [time for time in times if one.admits("a", "split")]


def test_so_many_are_admitted_in_an_interval_and_no_more():
    assert admitted(LIMITS, [0, 1, 2, 9]) == [0, 1]


def test_an_interval_is_over_when_more_than_it_has_gone():
    assert admitted(LIMITS, [0, 0, 10, 10.5, 10.5, 10.5]) == [0, 0, 10.5, 10.5]


def test_interval_begins_with_the_first_error_after_the_last():
    assert admitted(LIMITS, [0, 30, 39, 39, 41, 41, 41]) == [0, 30, 39, 41, 41]


def test_errors_that_were_dropped_do_not_lengthen_the_interval():
    assert admitted(LIMITS, [*range(11), 11]) == [0, 1, 11]


def test_a_limit_of_none_drops_all():
    assert admitted(ErrorLimits(10, 0), range(100)) == []


@given(
    st.lists(st.floats(0, 20), max_size=60),
    st.integers(1, 4),
)
def test_a_flood_is_held_down_and_a_trickle_passes(pauses, per_interval):
    times = list(itertools.accumulate(pauses))
    passed = admitted(ErrorLimits(10, per_interval), times)
    for begin in passed:
        # Any stretch as long as an interval touches two at most.
        assert sum(begin <= time <= begin + 10 for time in passed) <= 2 * per_interval
    for before, time in itertools.pairwise(times):
        assert time - before <= 10 or time in passed


def test_each_component_and_task_has_its_own_limits():
    throttles = ErrorThrottles(LIMITS, lambda: 0.0)
    reporters = [("a", "split"), ("a", "count"), ("b", "split"), ("a", "1"), ("a", 1)]
    for _ in range(LIMITS.per_interval):
        assert all(throttles.admits(*reporter) for reporter in reporters)
    assert not any(throttles.admits(*reporter) for reporter in reporters)


def test_the_clock_is_the_one_given():
    now = [100.0]
    throttles = ErrorThrottles(LIMITS, lambda: now[0])
    assert [throttles.admits("a", "split") for _ in range(3)] == [True, True, False]
    now[0] += 10.1
    assert throttles.admits("a", "split")


def test_the_longest_silent_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(worker_reports, "REMEMBERED", 3)
    throttles = ErrorThrottles(ErrorLimits(10, 1), lambda: 0.0)
    for component in ("first", "second", "third", "first", "fourth"):
        throttles.admits("a", component)
    assert len(throttles) == 3
    assert not throttles.admits("a", "first")
    assert throttles.admits("a", "second")


def test_the_limits_are_storms_unless_configured():
    conf = defaults()
    assert ErrorLimits.from_conf(conf) == ErrorLimits() == (10.0, 5)
    changed = {
        **conf,
        "topology.error.throttle.interval.secs": 3,
        "topology.max.error.report.per.interval": 7,
    }
    assert ErrorLimits.from_conf(changed) == (3.0, 7)
