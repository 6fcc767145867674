"""For how long a missing pulse is proof of silence: how far back this server can vouch.

Three things end it: the process did not run, it may have lost a pulse for want of room or by an
error of its own, and it drops pulses that are too old. The first also puts off that dropping; the
second does not, as room comes from nothing else.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

#: Monotonic seconds, which go on while the machine sleeps where the system can tell (Linux): by
#: them pulses have their ages.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)

#: A server that has not looked at the clock for this long (s) was stopped or suspended: it looks
#: every second, and what is sent meanwhile waits in the sockets only for so long.
MAX_SILENCE: Final = 3.0


class Horizon:
    """Measures an unbroken stretch of service on a monotonic clock.

    `observe` must be called about every second; whenever `MAX_SILENCE` passes without a call, the
    process did not run, pulses may have been lost, and the stretch begins anew.

    Parameters
    ----------
    clock
        Returns seconds; monotonic, and best one that goes on while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._observed = self._took_all = clock()

    def observe(self) -> float | None:
        """Note that the process runs; return the seconds for which it did not, if it did not."""
        now = self._clock()
        silence = now - self._observed
        self._observed = now
        if silence <= MAX_SILENCE:
            return None
        self._began = now
        return silence

    def restart(self) -> None:
        """Begin anew, because pulses could not be received until now."""
        self._began = self._observed = self._clock()

    def lost(self) -> None:
        """Note that a pulse may have been lost: what is missing now may have been that one."""
        self._took_all = self._clock()

    def dropped(self, kept: float) -> None:
        """Note that until now pulses older than `kept` seconds were dropped, and no longer are."""
        self._took_all = max(self._took_all, self._clock() - kept)

    def seconds(self) -> float:
        """Return the length of the stretch until now; the caller observes first."""
        return self._clock() - self._began

    def vouched(self, kept: float) -> float:
        """Return for how long a path without a pulse has been silent at least.

        Parameters
        ----------
        kept
            Seconds after which pulses are dropped; 0: never.
        """
        span = self._clock() - max(self._began, self._took_all)
        return min(span, kept) if kept else span
