"""The horizon begins anew whenever the process did not run."""

from stormkeeper.pacemaker.server.server_status import MAX_SILENCE, Horizon, clock


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def test_horizon_grows_while_the_process_runs():
    time = Clock()
    horizon = Horizon(time)
    for _ in range(10):
        time.now += MAX_SILENCE
        assert horizon.observe() is None
    assert horizon.seconds() == 10 * MAX_SILENCE


def test_horizon_restarts_after_a_stop_of_the_process():
    time = Clock()
    horizon = Horizon(time)
    time.now += 1
    assert horizon.observe() is None
    time.now += MAX_SILENCE + 0.5
    assert horizon.observe() == MAX_SILENCE + 0.5
    assert horizon.seconds() == 0
    time.now += 1
    assert horizon.observe() is None
    assert horizon.seconds() == 1


def test_horizon_restarts_on_request():
    time = Clock()
    horizon = Horizon(time)
    time.now += 2
    horizon.restart()
    time.now += 2
    assert horizon.observe() is None
    assert horizon.seconds() == 2


def test_the_clock_does_not_go_back():
    assert clock() <= clock()


def test_horizon_is_at_most_the_age_of_kept_pulses():
    time = Clock()
    horizon = Horizon(time)
    time.now += 100
    assert horizon.vouched(30) == 30
    assert horizon.vouched(600) == 100
    assert horizon.vouched(0) == 100


def test_lost_pulse_shortens_horizon_but_not_expiry():
    time = Clock()
    horizon = Horizon(time)
    time.now += 100
    horizon.record_loss()
    time.now += 5
    assert horizon.vouched(600) == 5
    assert horizon.seconds() == 105


def test_longer_ttl_does_not_extend_the_horizon_backwards():
    time = Clock()
    horizon = Horizon(time)
    time.now += 100
    horizon.record_dropped(30)
    assert horizon.vouched(0) == 30
    time.now += 5
    assert horizon.vouched(600) == 35
    horizon.record_dropped(600)
    assert horizon.vouched(0) == 35
