"""Virtual time: what is due happens in order, and nobody waits."""

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Seconds that pass when something is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, secs: float, action: Callable[[], None]) -> None:
        """Have `action` called when that many seconds have passed; equal ones in order."""
        heapq.heappush(self._due, (self.now + secs, next(self._numbers), action))

    def run(self, secs: float) -> None:
        """Let that many seconds pass."""
        end = self.now + secs
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = end
