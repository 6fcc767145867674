"""What is left of topologies that are gone: heartbeats, errors and back-pressure.

Their workers may be writing them still when the topology goes, so they are removed later: when the
topology has been gone for ``nimbus.topology.blobstore.deletion.delay.ms``. Then its code goes too
(`stormkeeper.blobs.sync`). What else there is, such as credentials, is left where a leader was lost
in the middle of a submission, and goes with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from stormkeeper import paths
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.nimbus.retaining import Retention
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState

log = logging.getLogger(__name__)

#: How long `end` waits for a removal that is under way, in seconds.
_END_SECS: Final = 3.0


def gone_since(
    before: Mapping[str, float], found: Iterable[str], kept: Collection[str], now: float
) -> dict[str, float]:
    """Return since when topologies are gone of which something is left, by their ids.

    Parameters
    ----------
    before
        What was returned the last time.
    found
        The ids of those of which there is something.
    kept
        Those that are there, or are being submitted.
    now
        Seconds of any clock.
    """
    return {storm_id: before.get(storm_id, now) for storm_id in found if storm_id not in kept}


class Cleaner:
    """Cleans while this Nimbus leads. `begin` and `end` take turns, on one thread.

    Parameters
    ----------
    storm
        The session.
    submitted
        Returns the ids of topologies that are being submitted here.
    retention
        Of checkpoints.
    period_secs, kept_secs
        How often it looks, and how long is kept what is left.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        storm: StormClusterState,
        submitted: Callable[[], Collection[str]],
        retention: Retention,
        *,
        period_secs: float,
        kept_secs: float,
        clock: Callable[[], float],
    ) -> None:
        self._storm = storm
        self._submitted = submitted
        self._retention = retention
        self._period_secs = period_secs
        self._kept_secs = kept_secs
        self._clock = clock
        self._since: dict[str, float] = {}
        self._thread: PeriodicThread | None = None

    def begin(self, leader: LeaderClusterState) -> None:
        """Clean, from now on; returns at once."""
        self._since = {}
        thread: PeriodicThread = PeriodicThread(
            "nimbus cleaning", lambda: self._once(leader, thread), logger=log
        )
        self._thread = thread
        thread.start()

    def end(self) -> None:
        """Clean no more; a removal that is under way is waited for."""
        thread, self._thread = self._thread, None
        if thread is not None and not thread.close(_END_SECS):
            log.warning("a removal goes on %g s after this Nimbus led", _END_SECS)

    def _once(self, leader: LeaderClusterState, thread: PeriodicThread) -> float:
        found = {*leader.heartbeat_storms(), *leader.kept_storms()}
        # In this order: one that is being submitted is so until it is there.
        kept = set(self._submitted())
        self._storm.state.sync_path(paths.STORMS)
        kept.update(leader.active_storms())
        self._since = gone_since(self._since, sorted(found), kept, self._clock())
        for storm_id, since in self._since.items():
            if thread.is_closing:
                break
            if self._clock() - since >= self._kept_secs:
                leader.remove_settings(storm_id)
                leader.teardown_heartbeats(storm_id)
                leader.teardown_errors(storm_id)
                leader.remove_backpressure(storm_id)
                log.info("%s: removed what was left of it", storm_id)
        if not thread.is_closing:
            self._retention.look(leader)
        return self._period_secs
