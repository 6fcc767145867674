"""Removes unneeded code, environments, workers' files and checkpoints."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf.folders import checkpoint_root, on_disk
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import StateError, SupervisorError
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.disk import Directories, Needed
from stormkeeper.supervisor.environments import Environments
from stormkeeper.supervisor.topology_code import LocalTopologyCode
from stormkeeper.thrift.records import Checkpoints

log = logging.getLogger(__name__)

#: Without a `wake`, as the cluster's state names checkpoints to remove.
_PERIOD_SECS: Final = 30.0


@dataclass(eq=False)
class DiskCleanup(PeriodicThread):
    """A thread that removes unneeded files: at each `wake`, and regularly after the first.

    `needed` includes files about to be created.
    """

    code: LocalTopologyCode
    environments: Environments
    checkpoints: CheckpointRemoval
    directories: Directories
    needed: Callable[[], Needed]

    def __post_init__(self) -> None:
        super().__init__(
            "tidying",
            self._remove_unneeded,
            period_secs=_PERIOD_SECS,
            first_secs=inf,  # before the first wake, the needs are unknown
            retried=OSError,
            failure="what is not needed any more could not all be removed",
            streak=FailureStreak(_PERIOD_SECS, _PERIOD_SECS),
            logger=log,
        )

    def _remove_unneeded(self) -> None:
        for name in self.code.remove_unneeded(self.needed):
            log.debug("%s is not needed here any more, and removed", name)
        for name in self.checkpoints.remove_unneeded(lambda: self.needed().storm_ids):
            log.info("the checkpoints %s are removed", name)
        for identity in self.environments.remove_unused(self._identities):
            log.debug("the environment %s is not needed here any more, and removed", identity)

    def _identities(self) -> set[str]:
        # A running worker may use older code, or the code is just being fetched.
        found = self.directories.environments_in_use()
        for storm_id in self.needed().storm_ids:
            try:
                identity = self.environments.identity(self.code.manifest(storm_id))
            except SupervisorError:
                continue
            if identity is not None:
                found.add(identity)
        return found


_ASIDE: Final = ".removed-"


class CheckpointRemoval:
    """Removes checkpoints from this machine that the cluster's state names for removal.

    Checkpoints stay while a worker here may use them, or while the cluster's state is unreadable.
    """

    def __init__(
        self, storm: StormClusterState, supervisor_id: str, conf: Mapping[str, Any]
    ) -> None:
        self._storm = storm
        self._supervisor_id = supervisor_id
        self._root = checkpoint_root(conf)

    def remove_unneeded(self, storm_ids: Callable[[], Collection[str]]) -> list[str]:
        """Remove checkpoints of topologies other than these; return and record them."""
        if self._storm.state.connection is not ConnectionState.CONNECTED:
            return []
        removed = []
        try:
            for name, record in self._storm.all_checkpoints().items():
                if self._supervisor_id not in (record.remove_on or ()):
                    continue
                if {record.storm_id, name}.intersection(storm_ids()):
                    continue  # its workers are about to stop
                if self._remove(name, record):
                    self._storm.checkpoints_removed(name, self._supervisor_id)
                    removed.append(name)
        except StateError as error:
            log.debug("checkpoints to remove cannot be read, and are looked for again: %s", error)
        return removed

    def _remove(self, name: str, record: Checkpoints) -> bool:
        root = on_disk(self._root if record.root is None else record.root)
        if root is None:
            log.warning(
                "the checkpoints %s of %s are not on a disk of this machine, and stay",
                *(name, record.storm_id),
            )
            return True
        # Renamed first, so that readers see all or nothing.
        place, aside = root / name, root / f"{_ASIDE}{name}"
        try:
            _remove_tree(aside)
            if place.exists():
                place.rename(aside)
                _remove_tree(aside)
        except OSError as error:
            log.warning("the checkpoints in %s cannot be removed now: %s", place, error)
            return False
        return True


def _remove_tree(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
