"""Checkpoints of topologies that are gone are kept for a while, and then removed by supervisors.

It is the leader who says which ones, and never of some that a topology may have: where a base
cannot be read, nothing is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.nimbus import checkpoints
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.leader import LeaderClusterState
from stormkeeper.state.storm.records import Versioned
from stormkeeper.thrift.records import Checkpoints, StormBase

log = logging.getLogger(__name__)


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
    """

    def __init__(
        self,
        storm: StormClusterState,
        continued: Callable[[], Collection[str]],
        *,
        kept_secs: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._storm = storm
        self._continued = continued
        self._kept_secs = kept_secs
        self._clock = clock

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

        ids = [id_ for id_, record in leader.all_checkpoints().items() if due(record, {})]
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
