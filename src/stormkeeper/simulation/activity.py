"""The work of a simulated topology at any time, in closed form.

A count is a rate times the *work done* between two times. Work only grows, so a counter never falls
within a worker's life, no window counts more than all time, and past counts can be recomputed.
Times are seconds since 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: Storm's windows in seconds, as heartbeats name them; the last is all time.
WINDOWS: Final = ("600", "10800", "86400", ":all-time")

_LENGTHS: Final = (600.0, 10800.0, 86400.0)

#: Storm's ``NUM_STAT_BUCKETS``: a window moves in steps of a twentieth of its length.
_BUCKETS: Final = 20


#: Seconds per radian of a window's swing in latency: long windows are steadier.
_WAVES: Final = (60.0, 600.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True)
class Change:
    """A factor on the rate from `since` to `until`."""

    since: float
    until: float
    factor: float


@dataclass(frozen=True, slots=True)
class Activity:
    """A rate that swings around 1, with the integral.

    Parameters
    ----------
    swing
        Amplitude, at least 0 and below 1.
    phase
        Position of time 0 in a period, in radians.
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
    """A latency that rises by `rise` times itself from `since` to `until`, and then drops back."""

    since: float
    until: float
    rise: float

    def mean(self, begin: float, end: float) -> float:
        """Return the mean latency from `begin` to `end`, relative to the usual latency."""
        return 1.0 + (self._risen(end) - self._risen(begin)) / (end - begin)

    def _risen(self, at: float) -> float:
        length = self.until - self.since
        part = min(max((at - self.since) / length, 0.0), 1.0)
        return self.rise * length * part * part / 2.0


def begins(started: float, now: float) -> tuple[float, float, float, float]:
    """Return the start of each window for a worker that has counted since `started`."""
    ten_minutes, three_hours, day = (
        max(started, (now // (length / _BUCKETS) - _BUCKETS + 1) * (length / _BUCKETS))
        for length in _LENGTHS
    )
    return ten_minutes, three_hours, day, started


def spans(
    activity: Activity, since: tuple[float, float, float, float], now: float
) -> tuple[float, ...]:
    """Return the work done in each window that starts as in `since`."""
    done = activity.done(now)
    return tuple([max(0.0, done - activity.done(begin)) for begin in since])


def wavering(now: float, task: int) -> list[float]:
    """Return the latency of an executor in each window, relative to the usual latency."""
    return [1.0 + 0.03 * math.sin(now / slowly + task) for slowly in _WAVES]
