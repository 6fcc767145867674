"""How often errors may be reported, so that a failing component does not drown ZooKeeper.

Storm's rule: each component of a topology may report
``topology.max.error.report.per.interval`` errors in ``topology.error.throttle.interval.secs``, and
what comes beyond is dropped. An interval begins with the first error after the one before is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

#: Reporters remembered at once. A worker has its topology's components; whoever reports for others
#: as well (a supervisor) forgets those that were silent for longest.
REMEMBERED = 10_000


class ErrorLimits(NamedTuple):
    """How many errors a component may report."""

    #: How long an interval is, in seconds.
    interval_secs: float = 10.0

    #: Errors that it may report in each.
    per_interval: int = 5

    @classmethod
    def from_conf(cls, conf: Mapping[str, object]) -> Self:
        """Return the limits of a configuration, which may be one topology's."""
        interval = conf["topology.error.throttle.interval.secs"]
        most = conf["topology.max.error.report.per.interval"]
        assert isinstance(interval, int | float)
        assert isinstance(most, int)
        return cls(float(interval), most)


class ErrorThrottle:
    """Decides of each error of one component whether it is reported. It has no clock of its own."""

    def __init__(self, limits: ErrorLimits) -> None:
        self._limits = limits
        self._began: float | None = None
        self._count = 0

    def admits(self, now: float) -> bool:
        """Return whether an error that came at `now`, in seconds of any clock, is reported."""
        if self._began is None or now - self._began > self._limits.interval_secs:
            self._began = now
            self._count = 0
        self._count += 1
        return self._count <= self._limits.per_interval


class ErrorThrottles:
    """A throttle for each component, or task, that reports. Safe for many threads.

    Parameters
    ----------
    limits : ErrorLimits
        The limits of each.
    monotonic : callable, optional
        A clock that never goes back, in seconds.
    """

    def __init__(
        self, limits: ErrorLimits, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._lock = threading.Lock()
        #: In the order in which they reported last.
        self._throttles: dict[tuple[str, str | int], ErrorThrottle] = {}

    def __len__(self) -> int:
        """Return how many reporters are remembered."""
        return len(self._throttles)

    def admits(self, storm_id: str, reporter: str | int) -> bool:
        """Return whether an error is reported; `reporter` is a component's name or a task's id."""
        key = (storm_id, reporter)
        with self._lock:
            throttle = self._throttles.pop(key, None) or ErrorThrottle(self._limits)
            self._throttles[key] = throttle
            while len(self._throttles) > REMEMBERED:
                del self._throttles[next(iter(self._throttles))]
            return throttle.admits(self._monotonic())

    def forget(self, storm_id: str) -> None:
        """Forget what a topology has reported."""
        with self._lock:
            for key in [key for key in self._throttles if key[0] == storm_id]:
                del self._throttles[key]
