"""Since when this server could have received pulses without a break."""

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
        self._began = self._observed = clock()

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
        """Begin anew, because pulses could not be received."""
        self._began = self._observed = self._clock()

    def seconds(self) -> float:
        """Return the length of the stretch until now; the caller observes first."""
        return self._clock() - self._began
