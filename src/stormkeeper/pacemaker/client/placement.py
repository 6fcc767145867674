"""Which of several servers a client writes to: pure decisions.

Pacemakers share nothing, and nobody tells a writer where to write. What keeps the writers of a
cluster evenly spread is this:

- Each draws a *home* at random, and the order in which it goes to the others when its home fails.
  As the orders are drawn too, the writers of a dead server spread over all that are left.
- Away from home it looks now and then whether home answers, beside its pulses, and goes back when
  it does. So after any outage each server has the writers that it had before, without anybody
  counting them. Nobody else moves.
- Each look comes after a delay of its own, drawn anew, so the writers of a server that is back
  come one by one over one and a half times `LOOK_SECS`, and not all at once.
- Home that fails again soon after the return is left alone for twice as long each time.

Moving harms nothing: of a path's pulses on two servers the one received last counts.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from stormkeeper.conf import Address

#: Seconds between two looks, on average: some beats, so that a server that only restarts has its
#: writers back within half a minute, and a dead one is asked for by each of them seldom.
LOOK_SECS: Final = 15.0

#: How much longer the looks at a home that fails again and again are apart, at most.
MOST_PATIENCE: Final = 16.0

#: A failure within that many `look_secs` after a return counts as one soon after it.
_SOON: Final = 4.0


class Placement:
    """Where one client writes to. Not safe for threads.

    Parameters
    ----------
    servers
        All of them.
    random
        Source of the choice, and of the delays.
    home
        In place of a home drawn at random.
    look_secs
        Seconds between two looks whether home is back, on average.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        random: Random,
        *,
        home: Address | None = None,
        look_secs: float = LOOK_SECS,
    ) -> None:
        order = random.sample(servers, len(servers))
        if home is not None:
            order.remove(home)
            order.insert(0, home)
        self._order = order
        self._random = random
        self._look_secs = look_secs
        self._patience = 1.0
        self._look_at = float("inf")
        self._returned_at = float("-inf")
        #: Where writes go to at present.
        self.current = self.home

    @property
    def home(self) -> Address:
        """Where writes go to when nothing is wrong."""
        return self._order[0]

    def order(self) -> list[Address]:
        """Return all servers in the order in which a write is offered to them."""
        first = self._order.index(self.current)
        return self._order[first:] + self._order[:first]

    def took(self, server: Address, instead_of: Address, now: float) -> bool:
        """Take note that `server` took a write that began with `instead_of`.

        Returns
        -------
        Whether that is news: writes go to `server` from now on.
        """
        if server == self.current or instead_of != self.current:
            return False  # several threads write, and one has noted it already
        self.current = server
        if instead_of == self.home:
            soon = now < self._returned_at + _SOON * self._look_secs
            self._patience = min(2.0 * self._patience, MOST_PATIENCE) if soon else 1.0
            self._plan_look(now)
        return True

    def look_due(self, now: float) -> Address | None:
        """Return the server to look for, if it is time; the next look is planned then."""
        if self.current == self.home or now < self._look_at:
            return None
        self._plan_look(now)
        return self.home

    def answered(self, now: float) -> Address | None:
        """Take note that home answered a look; return whom writes leave, if they return home."""
        if self.current == self.home:
            return None
        left, self.current = self.current, self.home
        self._returned_at = now
        return left

    def _plan_look(self, now: float) -> None:
        self._look_at = now + self._patience * self._look_secs * self._random.uniform(0.5, 1.5)
