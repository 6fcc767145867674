"""Leadership: the duties and the writes of a Nimbus while the Nimbus leads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import NotLeaderError
from stormkeeper.nimbus.cleanup import Cleaner
from stormkeeper.nimbus.scheduler import Scheduler
from stormkeeper.nimbus.status import ClusterStatusTracker
from stormkeeper.state.storm.cluster import LeaderClusterState

#: How long a call waits for a leadership that is about to begin, in seconds.
_BEGIN_SECS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader's tools for a service call.

    Parameters
    ----------
    leader
        Fenced writes: ZooKeeper refuses them once this Nimbus no longer leads.
    wake
        Starts a round of scheduling at once. A caller need not call it: the scheduler has watches
        and a period.
    """

    leader: LeaderClusterState
    wake: Callable[[], None]


class LeaderDuties:
    """Starts and stops the scheduler and the cleaner as this Nimbus gains and loses leadership.

    The election calls `begin` and `end` alternately on one thread; the rest is safe for any thread.
    """

    def __init__(
        self, scheduler: Scheduler, cleaner: Cleaner, status: ClusterStatusTracker
    ) -> None:
        self._scheduler = scheduler
        self._cleaner = cleaner
        self._status = status
        self._current: Leadership | None = None
        self._has_begun = threading.Condition()

    @property
    def leader(self) -> LeaderClusterState | None:
        """The leader's writes; None while this Nimbus does not lead."""
        current = self._current
        return None if current is None else current.leader

    def current(self, is_next: Callable[[], bool] = lambda: False) -> Leadership:
        """Return the current leadership.

        `is_next` returns whether other Nimbuses already name this one as the leader: then the call
        waits a few seconds for the leadership to begin.

        Raises
        ------
        NotLeaderError
            This Nimbus does not lead.
        """
        if self._current is None and is_next():
            with self._has_begun:
                self._has_begun.wait_for(lambda: self._current is not None, _BEGIN_SECS)
        current = self._current
        if current is None:
            raise NotLeaderError("this Nimbus does not lead: ask it who does, and call that one")
        return current

    def begin(self, leader: LeaderClusterState) -> None:
        """Start to lead; returns at once."""
        self._status.record_leadership(leader.fence.epoch)
        self._scheduler.begin(leader)
        self._cleaner.begin(leader)
        with self._has_begun:
            self._current = Leadership(leader, self._scheduler.wake)
            self._has_begun.notify_all()

    def end(self) -> None:
        """Stop leading; waits a few seconds for a write in progress."""
        self._current = None
        try:
            self._scheduler.end()
        finally:
            self._cleaner.end()
            self._status.record_leadership(None)
