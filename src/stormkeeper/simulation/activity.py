"""How much a simulated topology has done by when: sums in closed form, so that nothing is counted.

A count at a time is a rate times the *work done* between two times. As work never goes back, a
counter never falls within an incarnation, and no window counts more than all time. Any count of the
past can be told again, without having been kept.

Times are seconds since 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: Storm's windows in seconds, as heartbeats name them; the last is all time.
WINDOWS: Final = ("600", "10800", "86400", ":all-time")

_LENGTHS: Final = (600.0, 10800.0, 86400.0)

#: Storm's ``NUM_STAT_BUCKETS``: a window forgets in steps of a twentieth of its length.
_BUCKETS: Final = 20


#: Seconds in which a window's mean latency goes up and down, over tau: long windows are steadier.
_WAVES: Final = (60.0, 600.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True)
class Change:
    """From `since` to `until` the rate is `factor` times the usual one."""

    since: float
    until: float
    factor: float


@dataclass(frozen=True, slots=True)
class Activity:
    """A rate that goes up and down around 1, and its integral.

    Parameters
    ----------
    swing
        How far it goes up and down, at least 0 and below 1.
    period_secs
        From one peak to the next.
    phase
        Where in a period time 0 lies, in radians.
    changes
        What was planted. They must not overlap.
    """

    swing: float
    period_secs: float
    phase: float
    changes: tuple[Change, ...] = ()

    def done(self, at: float) -> float:
        """Return the work done by `at`, in seconds at the usual rate, since a time long ago."""
        done = self._usual(at)
        for change in self.changes:
            if at > change.since:
                within = self._usual(min(at, change.until)) - self._usual(change.since)
                done += (change.factor - 1.0) * within
        return done

    def changed(self, change: Change) -> Activity:
        """Return this activity with one more change."""
        changes = (*self.changes, change)
        return Activity(self.swing, self.period_secs, self.phase, changes)

    def _usual(self, at: float) -> float:
        turn = math.tau / self.period_secs
        return at - self.swing / turn * math.cos(turn * at + self.phase)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A latency that rises by `rise` times itself from `since` to `until`, and is usual then."""

    since: float
    until: float
    rise: float

    def mean(self, begin: float, end: float) -> float:
        """Return the mean of the latency from `begin` to `end`, the usual one being 1."""
        return 1.0 + (self._risen(end) - self._risen(begin)) / (end - begin)

    def _risen(self, at: float) -> float:
        length = self.until - self.since
        part = min(max((at - self.since) / length, 0.0), 1.0)
        return self.rise * length * part * part / 2.0


def begins(started: float, now: float) -> tuple[float, float, float, float]:
    """Return when each of the windows begins for a worker that has counted since `started`."""
    ten_minutes, three_hours, day = (
        max(started, (now // (length / _BUCKETS) - _BUCKETS + 1) * (length / _BUCKETS))
        for length in _LENGTHS
    )
    return ten_minutes, three_hours, day, started


def spans(
    activity: Activity, since: tuple[float, float, float, float], now: float
) -> tuple[float, ...]:
    """Return the work done in each window, by `begins`."""
    done = activity.done(now)
    return tuple([max(0.0, done - activity.done(begin)) for begin in since])


def wavering(now: float, task: int) -> list[float]:
    """Return how many times its usual latency an executor has, in each window."""
    return [1.0 + 0.03 * math.sin(now / slowly + task) for slowly in _WAVES]
