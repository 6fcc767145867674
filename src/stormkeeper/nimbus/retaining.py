"""Checkpoints of topologies that are gone are kept for a while, and then removed by supervisors.

It is the leader who says which ones, and never of some that a topology may have: where a base
cannot be read, nothing is removed. Nor is what its clock says taken on trust: a machine that starts
with a clock that is far ahead would give up all checkpoints at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.nimbus import checkpoints
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.state.storm.record_io import Versioned
from stormkeeper.thrift.records import Checkpoints, StormBase

log = logging.getLogger(__name__)

#: Seconds for which the time of checkpoints must have been seen to be over, by a clock that nobody
#: sets: longer than a machine that starts takes to set its other one.
SEEN_SECS: Final = 3600.0


def every_base(storm: StormClusterState, leader: LeaderClusterState) -> dict[str, StormBase]:
    """Return the bases of all topologies, by their ids.

    Raises
    ------
    SerializationError
        One of them cannot be read.
    """
    # The server that is asked may lag behind.
    storm.state.sync_path(paths.STORMS)
    names = leader.active_storms()
    bases = leader.storm_bases()
    for storm_id in names:
        if storm_id not in bases:
            leader.storm_base(storm_id)  # it is gone by now, or this raises
    return bases


class Retention:
    """Has checkpoints removed whose time is over.

    Parameters
    ----------
    storm
        The session.
    continued
        Returns the names of the folders from which topologies are about to go on.
    kept_secs
        How long checkpoints are kept; None: for ever.
    clock
        Seconds since 1970.
    monotonic
        Seconds of a clock that is never set.
    """

    def __init__(
        self,
        storm: StormClusterState,
        continued: Callable[[], Collection[str]],
        *,
        kept_secs: float | None,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storm = storm
        self._continued = continued
        self._kept_secs = kept_secs
        self._clock = clock
        self._monotonic = monotonic
        #: Since when their time has been seen to be over, by the names of folders.
        self._over_since: dict[str, float] = {}

    def look(self, leader: LeaderClusterState) -> None:
        """Say of which checkpoints the time is over.

        Raises
        ------
        StateError
            ZooKeeper was not reached.
        """
        now_ms, supervisors = int(self._clock() * 1000), leader.supervisors()

        def due(record: Checkpoints, bases: dict[str, StormBase]) -> Checkpoints | None:
            return checkpoints.due(record, bases, supervisors, now_ms, self._kept_secs)

        over = {id_: each for id_, each in leader.all_checkpoints().items() if due(each, {})}
        ids = self._long_over(over)
        if not ids:
            return
        # Whoever goes on from one after this read has changed its version when this writes.
        found = [each for id_ in ids if (each := leader.checkpoints(id_)) is not None]
        continued = self._continued()
        try:
            bases = every_base(self._storm, leader)
        except SerializationError as error:
            log.warning("no checkpoints are removed: %s", error)
            return
        for each in found:
            changed = due(each.record, bases)
            if changed is not None and changed.folder not in continued:
                self._give_up(leader, each, changed)

    def _long_over(self, over: Mapping[str, Checkpoints]) -> list[str]:
        """Return which of those whose time is over have been seen so for long enough."""
        now = self._monotonic()
        self._over_since = {id_: self._over_since.get(id_, now) for id_ in over}
        least = min(SEEN_SECS, self._kept_secs or 0.0)
        # Whoever is to remove them may be another one at any time.
        return [
            id_
            for id_, since in self._over_since.items()
            if over[id_].remove_on is not None or now - since >= least
        ]

    def _give_up(
        self, leader: LeaderClusterState, found: Versioned[Checkpoints], changed: Checkpoints
    ) -> None:
        storm_id, id_ = changed.storm_id, changed.folder
        if not checkpoints.is_removable(changed):
            if leader.forget_checkpoints(id_, found.version):
                log.warning(
                    "%s: its checkpoints in %s/%s are not needed any more, and on no disk that a"
                    " supervisor could remove them from: remove them yourself",
                    *(storm_id, changed.root, id_),
                )
        elif leader.change_checkpoints(changed, found.version):
            log.info("%s: its checkpoints in the folder %s are to be removed", storm_id, id_)
