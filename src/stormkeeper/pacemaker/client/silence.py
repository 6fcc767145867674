"""Says which servers are missing in what is read: when that changes, and now and then."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError

#: What it logs is news of the pool, of which this is a part.
log = logging.getLogger("stormkeeper.pacemaker.client.pool")

#: Seconds after which a server that still does not answer is logged again.
_REMIND_SECS: Final = 60.0


class Silence:
    """The servers that do not answer readers; safe for many threads.

    Parameters
    ----------
    servers
        How many there are in all.
    clock
        Monotonic seconds.
    """

    def __init__(self, servers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = servers
        self._clock = clock
        self._lock = threading.Lock()
        #: Servers that the last read missed, and when that was logged.
        self._silent: frozenset[Address] = frozenset()
        self._logged = 0.0

    @property
    def silent(self) -> frozenset[Address]:
        """The servers that the last read missed."""
        return self._silent

    def note(self, failed: Mapping[Address, StormkeeperError]) -> None:
        """Take note of the servers that a read missed, and why."""
        silent = frozenset(failed)
        now = self._clock()
        with self._lock:
            if silent == self._silent and (not silent or now < self._logged + _REMIND_SECS):
                return
            self._silent, self._logged = silent, now
        if not silent:
            log.info("Every Pacemaker answers again")
            return
        log.warning(
            "%d of %d Pacemakers are missing in what is read: %s",
            len(silent),
            self._servers,
            "; ".join(map(str, failed.values())),
        )
