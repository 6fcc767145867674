"""The leading Nimbus's view of the cluster, for log, metrics and health."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.heartbeats.stores import Heartbeats
from stormkeeper.nimbus.scheduling.cluster import Cluster
from stormkeeper.nimbus.scheduling.planning import Action, Assign, FinishRebalance, Remove

log = logging.getLogger(__name__)

_ACTION_NAMES: Final[Mapping[type[Action], str]] = {
    Assign: "assign",
    Remove: "remove",
    FinishRebalance: "rebalance",
}


@dataclass(frozen=True)
class ClusterStatus:
    """An immutable snapshot of the status.

    Parameters
    ----------
    epoch
        Epoch of this Nimbus's leadership; None while it does not lead.
    leaderships
        How often this Nimbus has begun to lead.
    last_round_at
        Monotonic time when the last round ended or the leadership began.
    actions
        Writes done, by kind.
    unread
        Pacemakers that did not answer.
    """

    epoch: int | None = None
    leaderships: int = 0
    rounds: int = 0
    failures: int = 0
    round_secs: float = 0.0
    last_round_at: float | None = None
    actions: Mapping[str, int] = field(default_factory=dict)
    supervisors: int = 0
    slots: int = 0
    free_slots: int = 0
    topologies: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    unread: int = 0


class ClusterStatusTracker:
    """Keeps the current `ClusterStatus` and logs changes.

    Any thread may read `status`. `clock` returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.status = ClusterStatus()
        self._clock = clock
        self._lock = threading.Lock()
        self._has_heartbeats = True

    def record_leadership(self, epoch: int | None) -> None:
        """Record that this Nimbus leads with an epoch, or no longer leads (None)."""
        if epoch is None:
            before = self.status
            # A Nimbus that does not lead does not know the cluster's status.
            self._replace(
                epoch=None, supervisors=0, slots=0, free_slots=0, topologies={}, workers={}
            )
            log.debug("leadership of epoch %s ended", before.epoch)
            return
        self._replace(
            epoch=epoch, leaderships=self.status.leaderships + 1, last_round_at=self._clock()
        )

    def record_round(self, cluster: Cluster, heartbeats: Heartbeats, took_secs: float) -> None:
        """Record a completed round of scheduling."""
        launches = [one for each in cluster.topologies.values() for one in each.launches]
        statuses = cluster.workers
        # The status of workers that a Java Nimbus assigned is unknown.
        workers = Counter(
            str(statuses[one.claim])
            for one in launches
            if not one.is_released and one.claim in statuses
        )
        taken = {one.slot for one in launches}
        slots = {(id_, port) for id_, each in cluster.supervisors.items() for port in each.ports}
        before = self._replace(
            rounds=self.status.rounds + 1,
            round_secs=took_secs,
            last_round_at=self._clock(),
            supervisors=len(cluster.supervisors),
            slots=len(slots),
            free_slots=len(slots - taken),
            topologies=Counter(each.status.name.lower() for each in cluster.topologies.values()),
            workers=workers,
            unread=len(heartbeats.missing),
        )
        # The client already logs individual failures.
        had, self._has_heartbeats = self._has_heartbeats, bool(heartbeats.coverage)
        if had and not self._has_heartbeats:
            log.warning("no Pacemaker can be read: no worker is moved until one answers")
        _log_unproven(before.workers.get(Status.UNPROVEN, 0), workers[Status.UNPROVEN])

    def record_action(self, action: Action) -> None:
        """Count an action that was carried out."""
        name = _ACTION_NAMES.get(type(action))
        if name is not None:
            actions = Counter(self.status.actions)
            actions[name] += 1
            self._replace(actions=actions)

    def record_failure(self) -> None:
        """Count a failed round."""
        self._replace(failures=self.status.failures + 1)

    def _replace(self, **changes: Any) -> ClusterStatus:
        with self._lock:
            before, self.status = self.status, replace(self.status, **changes)
        return before


def _log_unproven(before: int, now: int) -> None:
    if now and not before:
        log.warning(
            "self-preservation: %d worker%s, and no server can vouch that %s dead: no worker is"
            " moved",
            *(now, *(("s are silent", "they are") if now > 1 else (" is silent", "it is"))),
        )
    elif before and not now:
        log.info("self-preservation ended: the state of every worker is known again")
