"""The horizon begins anew whenever the process did not run."""

from stormkeeper.pacemaker.server.horizon import MAX_SILENCE, Horizon, clock


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def test_it_grows_while_the_process_runs():
    time = Clock()
    horizon = Horizon(time)
    for _ in range(10):
        time.now += MAX_SILENCE
        assert horizon.observe() is None
    assert horizon.seconds() == 10 * MAX_SILENCE


def test_it_begins_anew_after_a_silence():
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


def test_it_begins_anew_when_told():
    time = Clock()
    horizon = Horizon(time)
    time.now += 2
    horizon.restart()
    time.now += 2
    assert horizon.observe() is None
    assert horizon.seconds() == 2


def test_the_clock_does_not_go_back():
    assert clock() <= clock()
