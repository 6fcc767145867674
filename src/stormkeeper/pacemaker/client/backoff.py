"""How long to leave a server alone after it failed: exponential back-off with full jitter.

The delay before the n-th attempt in a row is uniform between 0 and ``min(cap, base * 2**(n-1))``
seconds. Full jitter keeps the clients of one dead server apart when it comes back, and the cap is
low because a worker that beats every few seconds must find a revived server on its next beat.
"""

from random import Random
from typing import Final

#: Upper end of the first delay, in seconds: a connection that was merely cut is back at once.
BASE_SECS: Final = 0.05

#: Upper end of every later delay, in seconds.
CAP_SECS: Final = 1.0


class Backoff:
    """Counts failures in a row and draws the delay after each.

    Parameters
    ----------
    random
        Source of the jitter.
    base, cap
        Upper ends of the first and of the longest delay, in seconds.
    """

    __slots__ = ("_base", "_cap", "_random", "failures")

    def __init__(self, random: Random, *, base: float = BASE_SECS, cap: float = CAP_SECS) -> None:
        self._random = random
        self._base = base
        self._cap = cap
        #: Failures since the last success.
        self.failures = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait before the next attempt."""
        self.failures += 1
        # 2.0 ** 1024 is no float any more; the cap is reached long before 30 doublings.
        ceiling = min(self._cap, self._base * 2.0 ** min(self.failures - 1, 30))
        return self._random.uniform(0.0, ceiling)

    def succeeded(self) -> None:
        """Forget the failures: the server answered."""
        self.failures = 0
