"""What a Nimbus sees of the cluster at the moment, for its log, its metrics and its health."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.heartbeats.protocols import Heartbeats
from stormkeeper.nimbus.scheduling.actions import Action, Assign, FinishRebalance, Remove
from stormkeeper.nimbus.scheduling.cluster import Cluster

log = logging.getLogger(__name__)

#: What is counted of the actions of plans.
_NAMES: Final[Mapping[type[Action], str]] = {
    Assign: "assign",
    Remove: "remove",
    FinishRebalance: "rebalance",
}


@dataclass(frozen=True)
class Seen:
    """Everything at one moment; never changed, only replaced.

    Parameters
    ----------
    epoch
        Of the reign that this Nimbus is in; None while it does not lead.
    reigns
        How often it has begun to lead.
    rounds, failures
        How many rounds of scheduling have been done, and how many were not.
    round_secs
        What the last one took.
    looked_at
        When the last one ended, or the reign began, on the monotonic clock.
    actions
        How many writes have been done, by what they do.
    supervisors, slots, free_slots
        How many there are.
    topologies, workers
        How many there are by their status.
    unread
        How many Pacemakers did not answer.
    """

    epoch: int | None = None
    reigns: int = 0
    rounds: int = 0
    failures: int = 0
    round_secs: float = 0.0
    looked_at: float | None = None
    actions: Mapping[str, int] = field(default_factory=dict)
    supervisors: int = 0
    slots: int = 0
    free_slots: int = 0
    topologies: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    unread: int = 0


class Sight:
    """Takes in what is seen, and logs what changes; `seen` may be read by any thread.

    Parameters
    ----------
    clock
        Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen = Seen()
        self._clock = clock
        self._lock = threading.Lock()
        self._has_heartbeats = True

    def leads(self, epoch: int | None) -> None:
        """Take in that this Nimbus leads, by its epoch, or does not any more (None)."""
        if epoch is None:
            # What others decide is not seen.
            before = self.seen
            self._replace(
                epoch=None, supervisors=0, slots=0, free_slots=0, topologies={}, workers={}
            )
            log.debug("the reign of epoch %s is over", before.epoch)
            return
        self._replace(epoch=epoch, reigns=self.seen.reigns + 1, looked_at=self._clock())

    def looked(self, cluster: Cluster, heartbeats: Heartbeats, took_secs: float) -> None:
        """Take in a round that is done."""
        launches = [one for each in cluster.topologies.values() for one in each.launches]
        statuses = cluster.workers
        # Of those that a Java Nimbus has assigned nothing is known.
        workers = Counter(
            str(statuses[one.claim])
            for one in launches
            if not one.is_released and one.claim in statuses
        )
        taken = {one.slot for one in launches}
        slots = {(id_, port) for id_, each in cluster.supervisors.items() for port in each.ports}
        before = self._replace(
            rounds=self.seen.rounds + 1,
            round_secs=took_secs,
            looked_at=self._clock(),
            supervisors=len(cluster.supervisors),
            slots=len(slots),
            free_slots=len(slots - taken),
            topologies=Counter(each.status.name.lower() for each in cluster.topologies.values()),
            workers=workers,
            unread=len(heartbeats.missing),
        )
        # Of single ones that do not answer their client tells.
        had, self._has_heartbeats = self._has_heartbeats, bool(heartbeats.coverage)
        if had and not self._has_heartbeats:
            log.warning("no Pacemaker can be read: no worker is moved until one is")
        _log_unproven(before.workers.get(Status.UNPROVEN, 0), workers[Status.UNPROVEN])

    def did(self, action: Action) -> None:
        """Take in an action that was carried out."""
        name = _NAMES.get(type(action))
        if name is not None:
            actions = Counter(self.seen.actions)
            actions[name] += 1
            self._replace(actions=actions)

    def failed(self) -> None:
        """Take in that a round was not done."""
        self._replace(failures=self.seen.failures + 1)

    def _replace(self, **changes: Any) -> Seen:
        """Change what is seen, and return what was seen before; one thread at a time counts."""
        with self._lock:
            before, self.seen = self.seen, replace(self.seen, **changes)
        return before


def _log_unproven(before: int, now: int) -> None:
    if now and not before:
        log.warning(
            "self-preservation: %d worker%s silent, and no server can vouch that %s dead: nobody is"
            " moved for that",
            *(now, *(("s are", "they are") if now > 1 else (" is", "it is"))),
        )
    elif before and not now:
        log.info("self-preservation is over: of every worker it is known how it is")
