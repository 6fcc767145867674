"""What a Nimbus does while it leads: it schedules, cleans, and lets its service write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from stormkeeper.errors import NotLeaderError
from stormkeeper.nimbus.cleaning import Cleaner
from stormkeeper.nimbus.reign import Reign
from stormkeeper.nimbus.scheduler import Scheduler
from stormkeeper.nimbus.sight import Sight
from stormkeeper.state.storm.cluster import LeaderClusterState

#: How long a call waits for a reign that is about to begin, in seconds.
_BEGINNING_SECS: Final = 5.0


class Leading:
    """The reigns of one Nimbus, one after another.

    `begin` and `end` are for the election, which calls them in turn, on one thread; the rest is for
    any thread.

    Parameters
    ----------
    scheduler, cleaner
        What is done in each of them.
    sight
        Is told of them.
    """

    def __init__(self, scheduler: Scheduler, cleaner: Cleaner, sight: Sight) -> None:
        self._scheduler = scheduler
        self._cleaner = cleaner
        self._sight = sight
        self._reign: Reign | None = None
        self._begun = threading.Condition()

    @property
    def leader(self) -> LeaderClusterState | None:
        """What a leader writes with; None while this Nimbus does not lead."""
        reign = self._reign
        return None if reign is None else reign.leader

    def reign(self, is_next: Callable[[], bool] = lambda: False) -> Reign:
        """Return the reign that this Nimbus is in.

        Parameters
        ----------
        is_next
            Returns whether it is about to begin one, as others already say of it. That is waited
            for, a few seconds at most.

        Raises
        ------
        NotLeaderError
            It is in none.
        """
        if self._reign is None and is_next():
            with self._begun:
                self._begun.wait_for(lambda: self._reign is not None, _BEGINNING_SECS)
        reign = self._reign
        if reign is None:
            raise NotLeaderError("this Nimbus does not lead: ask it who does, and call that one")
        return reign

    def begin(self, leader: LeaderClusterState) -> None:
        """Lead, from now on; returns at once."""
        self._sight.leads(leader.fence.epoch)
        self._scheduler.begin(leader)
        self._cleaner.begin(leader)
        with self._begun:
            self._reign = Reign(leader, self._scheduler.wake)
            self._begun.notify_all()

    def end(self) -> None:
        """Lead no more; a write that is under way is waited for, a few seconds at most."""
        self._reign = None
        try:
            self._scheduler.end()
        finally:
            self._cleaner.end()
            self._sight.leads(None)
