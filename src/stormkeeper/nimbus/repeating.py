"""A thread that does one thing again and again: when it is woken, and when it is time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from stormkeeper.errors import NotLeaderError, StateClosedError, StormkeeperError

log = logging.getLogger(__name__)

#: How long after a change a round begins, in seconds: what a caller writes is several changes, and
#: a round sees all that there are.
SETTLING_SECS: Final = 0.02

#: How long the pause after a round is at least, in so many times what the round took: whoever is
#: woken all the time leaves half of the time to others.
_REST: Final = 1.0

#: Pauses after failures, in seconds: the first, each twice the one before, and the longest.
_FIRST_PAUSE_SECS: Final = 0.25
_LONGEST_PAUSE_SECS: Final = 10.0


class Repeating:
    """Does something from `start` to `close`, in a thread of its own.

    Parameters
    ----------
    name
        Of the thread, and of what it does, for the log.
    once
        Does it once, and returns after how many seconds it is to be done again at the latest. One
        that raises is tried again soon. `NotLeaderError` ends it: whoever leads no more has nothing
        to repeat.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self, name: str, once: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._once = once
        self._clock = clock
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_closing(self) -> bool:
        """Whether it is to end: what is done in several steps ends after the one that it is at."""
        return self._closing.is_set()

    def start(self) -> None:
        """Begin, with a first time at once."""
        self._thread.start()

    def wake(self) -> None:
        """Have it done again at once; returns at once. What comes together is done together."""
        self._woken.set()

    def close(self, timeout_secs: float) -> bool:
        """End it; returns whether it has ended within the time."""
        self._closing.set()
        self._woken.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._woken.clear()
            began = self._clock()
            try:
                wait = self._once()
            except (NotLeaderError, StateClosedError) as error:
                log.info("%s: ends: %s", self._name, error)
                return
            except Exception as error:
                wait = self._failed(error)
            else:
                self._failures = 0
            took = self._clock() - began
            if self._woken.wait(wait):
                self._closing.wait(max(SETTLING_SECS, _REST * took))

    def _failed(self, error: Exception) -> float:
        if self._closing.is_set():
            return 0.0
        pause = min(_LONGEST_PAUSE_SECS, _FIRST_PAUSE_SECS * 2.0 ** min(self._failures, 30))
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            is_defect = not isinstance(error, StormkeeperError)
            log.warning(
                "%s: failed, and is tried again in %g s: %s",
                *(self._name, pause, error),
                exc_info=error if is_defect else None,
            )
        return pause
