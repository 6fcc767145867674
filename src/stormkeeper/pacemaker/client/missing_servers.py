"""Says which servers are missing in what is read: when that changes, and now and then."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError

#: This is a part of the pool, and logs in its name.
log = logging.getLogger("stormkeeper.pacemaker.client.pool")

#: Seconds after which a server that still does not answer is logged again.
_REMIND_SECS: Final = 60.0

#: What is said when no server is missing any more.
ALL_ANSWER: Final = "Every Pacemaker answers again"


class MissingServers:
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
        #: Why the last read missed servers, and when that was logged.
        self._failures: Mapping[Address, str] = MappingProxyType({})
        self._logged = 0.0

    @property
    def failures(self) -> Mapping[Address, str]:
        """The servers that the last read missed, and why."""
        return self._failures

    def note(self, failed: Mapping[Address, StormkeeperError]) -> None:
        """Note which servers a read missed, and why."""
        failures = MappingProxyType({server: str(error) for server, error in failed.items()})
        now = self._clock()
        with self._lock:
            is_known = failures.keys() == self._failures.keys()
            self._failures = failures
            if is_known and (not failures or now < self._logged + _REMIND_SECS):
                return
            self._logged = now
        if failures:
            log.warning("%s", missing(failures, self._servers))
        else:
            log.info(ALL_ANSWER)


def missing(failures: Mapping[Address, str], servers: int) -> str:
    """Say which of so many servers a read missed."""
    are = "is" if len(failures) == 1 else "are"
    of = f"{servers} Pacemaker{'' if servers == 1 else 's'}"
    return f"{len(failures)} of {of} {are} missing in what is read: {'; '.join(failures.values())}"
