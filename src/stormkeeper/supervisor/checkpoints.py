"""Removes checkpoints from this machine when the cluster's state says that they are to go.

Only what is named there is removed, and nothing while a worker here may use it. Where the cluster's
state cannot be read, everything stays.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf.folders import checkpoint_root, on_disk
from stormkeeper.errors import StateError
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import Checkpoints

log = logging.getLogger(__name__)

#: How the name of a folder begins that is half removed.
_ASIDE: Final = ".removed-"


class CheckpointRemoval:
    """Removes checkpoints for one supervisor.

    Parameters
    ----------
    storm
        The cluster's state.
    supervisor_id
        The supervisor.
    conf
        Its configuration, by which checkpoints have their place whose topology does not name one.
    """

    def __init__(
        self, storm: StormClusterState, supervisor_id: str, conf: Mapping[str, Any]
    ) -> None:
        self._storm = storm
        self._supervisor_id = supervisor_id
        self._root = checkpoint_root(conf)

    def remove_unneeded(self, storm_ids: Collection[str]) -> list[str]:
        """Remove what is to be removed, and say so in the cluster's state.

        Parameters
        ----------
        storm_ids
            The topologies that are needed here; asked while this goes on.

        Returns
        -------
        list of str
            The names of the folders that are gone.
        """
        if self._storm.state.connection is not ConnectionState.CONNECTED:
            return []
        removed = []
        try:
            for name, record in self._storm.all_checkpoints().items():
                if self._supervisor_id not in (record.remove_on or ()):
                    continue
                if record.storm_id in storm_ids or name in storm_ids:
                    continue  # its workers are about to stop
                if self._remove(name, record):
                    self._storm.checkpoints_removed(name, self._supervisor_id)
                    removed.append(name)
        except StateError as error:
            log.debug("the next time it is looked for checkpoints again: %s", error)
        return removed

    def _remove(self, name: str, record: Checkpoints) -> bool:
        """Remove a folder, and return whether nothing is left that could be removed from here."""
        root = on_disk(self._root if record.root is None else record.root)
        if root is None:
            log.warning(
                "the checkpoints %s of %s are not on a disk of this machine, and stay",
                *(name, record.storm_id),
            )
            return True
        # By one step, for whoever looks for it; what an earlier try has left comes first.
        place, aside = root / name, root / f"{_ASIDE}{name}"
        try:
            _remove_tree(aside)
            if place.exists():
                place.rename(aside)
                _remove_tree(aside)
        except OSError as error:
            log.warning("the checkpoints in %s cannot be removed, or not yet: %s", place, error)
            return False
        return True


def _remove_tree(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
