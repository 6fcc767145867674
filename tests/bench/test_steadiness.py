import random

import pytest
from pacemaker.steadiness import Tolerance, slope, trend


def samples(secs, value):
    times = [float(second) for second in range(secs)]
    return times, [value(time) for time in times]


def test_the_slope_of_a_line_is_its_own():
    assert slope(*samples(100, lambda t: 3.0 + 0.25 * t)) == pytest.approx(0.25)


def test_moments_that_stand_out_do_not_tilt_it():
    times, values = samples(600, lambda _: 1_000.0)
    values[-30:] = [750.0] * 30
    assert slope(times, values) == 0


def test_a_leak_is_seen_through_the_noise():
    noise = random.Random(1)
    times, values = samples(600, lambda t: 50.0 + t * 3 / 600 + noise.uniform(-1, 1))
    found = trend("rss", times, values, Tolerance(amount=1.0, share=0.03))
    assert found.growth == pytest.approx(3.0, abs=0.3)
    assert not found.is_flat


def test_noise_alone_is_no_leak():
    noise = random.Random(2)
    times, values = samples(600, lambda _: 50.0 + noise.uniform(-1, 1))
    assert trend("rss", times, values, Tolerance(amount=1.0, share=0.03)).is_flat


def test_shrinking_is_no_leak():
    assert trend("rss", *samples(60, lambda t: 50.0 - t / 2), Tolerance(1.0, 0.0)).is_flat


def test_the_share_counts_where_it_is_more_than_the_amount():
    assert Tolerance(amount=2.0, share=0.05).of([100.0, 100.0]) == 5.0
    assert Tolerance(amount=2.0, share=0.05).of([10.0, 10.0]) == 2.0


def test_a_long_run_is_thinned_out():
    assert slope(*samples(20_000, lambda t: 2.0 * t)) == pytest.approx(2.0)
