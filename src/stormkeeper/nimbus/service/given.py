"""What the service needs of the process that it is served by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from stormkeeper.blobs.distributor import CodeDistributor
from stormkeeper.conf import Conf
from stormkeeper.nimbus.conf_changes import ConfChanges
from stormkeeper.nimbus.reign import Reigns
from stormkeeper.nimbus.service.submissions import Submissions
from stormkeeper.nimbus.submitted import SubmittedCode
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.cluster import StormClusterState


class Leadership(Protocol):
    """Who leads; a `stormkeeper.nimbus.elector.Elector` knows."""

    def leader_address(self) -> NimbusId:
        """Return the addresses of the Nimbus that leads; raises `NoLeaderError` without one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the service works with. All of it is safe for many threads.

    Parameters
    ----------
    conf
        This Nimbus's configuration.
    storm
        The cluster's state, in the session of this Nimbus.
    code
        The blobs on its disk, its uploads and downloads; `submissions` are what it is told that is
        being submitted.
    conf_changes
        What rebalances change in confs.
    submitted
        Reads topologies out of these blobs.
    leadership
        Who leads.
    reign
        What a leader writes with.
    submissions
        The topologies that are being submitted here: `Submissions.ids` is what `code` asks.
    sched_status
        Returns what scheduling tells of topologies, by their ids: nothing while another one leads.
    removed
        Returns the ids of the topologies of a user, or of all users, that this Nimbus has removed.
    clock
        Seconds since 1970.
    """

    conf: Conf
    storm: StormClusterState
    code: CodeDistributor
    conf_changes: ConfChanges
    submitted: SubmittedCode
    leadership: Leadership
    reign: Reigns
    submissions: Submissions
    sched_status: Callable[[], Mapping[str, str]]
    removed: Callable[[str | None], Iterable[str]] = lambda _user: ()
    clock: Callable[[], float] = time.time
