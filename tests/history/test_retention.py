"""Which rows are too old, on a clock that may be wrong for a while."""

from datetime import UTC, datetime, timedelta

import pytest

from stormkeeper.history.compaction import DOUBT_SECS, RetentionClock
from support.tables import BEGAN, SHORT, events, origin, store, values

DAY = 86_400.0


class Machine:
    def __init__(self, before=None):
        self.wall, self.steady = BEGAN, 5.0
        self._clock = RetentionClock(lambda: self.steady)
        self._before = None if before is None else self._time(self.wall + before)

    @staticmethod
    def _time(secs):
        return datetime.fromtimestamp(secs, UTC)

    def pass_by(self, secs):
        self.wall, self.steady = self.wall + secs, self.steady + secs

    def kept_by(self):
        """By how much the clock by which rows are too old is ahead of the beginning."""
        found = self._clock.at(self._time(self.wall), self._before)
        return (found - self._time(BEGAN)) / timedelta(seconds=1)


@pytest.fixture
def machine():
    return Machine()


def test_a_clock_that_goes_on_is_believed(machine):
    assert machine.kept_by() == 0
    machine.pass_by(30 * DAY)
    assert machine.kept_by() == 30 * DAY
    machine.wall += 59
    assert machine.kept_by() == 30 * DAY + 59


def test_a_clock_that_is_ahead_for_a_while_is_not(machine):
    machine.kept_by()
    machine.pass_by(10)
    machine.wall += 40 * DAY
    assert machine.kept_by() == 10
    machine.pass_by(1000)
    machine.wall += DAY
    assert machine.kept_by() == 1010
    machine.wall -= 41 * DAY
    machine.pass_by(10)
    assert machine.kept_by() == 1020
    machine.wall += DAY
    machine.pass_by(DOUBT_SECS - 1)
    assert machine.kept_by() == 1020 + DOUBT_SECS - 1


def test_a_clock_that_stays_ahead_is_believed_in_the_end(machine):
    machine.kept_by()
    machine.wall += 40 * DAY
    assert machine.kept_by() == 0
    machine.pass_by(DOUBT_SECS)
    assert machine.kept_by() == 40 * DAY + DOUBT_SECS
    machine.pass_by(5)
    assert machine.kept_by() == 40 * DAY + DOUBT_SECS + 5


def test_a_clock_that_was_set_back_is_believed(machine):
    machine.kept_by()
    machine.wall -= DAY
    machine.pass_by(5)
    assert machine.kept_by() == 5 - DAY


@pytest.mark.parametrize(("before", "kept_by"), [(-3 * DAY, -3 * DAY), (3 * DAY, 0)])
def test_a_start_goes_by_the_newest_tables_at_first(before, kept_by):
    machine = Machine(before)
    assert machine.kept_by() == kept_by
    machine.pass_by(DOUBT_SECS)
    assert machine.kept_by() == DOUBT_SECS


def test_rows_outlast_a_clock_that_was_wrong_for_a_while(tmp_path):
    wall, steady = [BEGAN], [0.0]
    tables = store(tmp_path, SHORT, clock=lambda: wall[0], steady=lambda: steady[0])
    tables.publish(origin(0), {"short": events(0)})
    wall[0] += 40 * DAY
    tables.publish(origin(1), {"short": events(1)})
    wall[0] -= 40 * DAY
    tables.publish(origin(2), {"short": events(2)})
    assert values(tmp_path, "short") == [0, 1, 2]
