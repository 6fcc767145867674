"""Nimbuses that would lead: an elector each, and what it tells them."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from stormkeeper.blobs.sync import BlobSync
from stormkeeper.blobs.sync_plan import Missing
from stormkeeper.nimbus.elector import Elector
from stormkeeper.nimbus.readiness import Candidate
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from support.leaders import lead
from support.waiting import until


class Shelf:
    """The code that one Nimbus has; it copies from the others while they are there."""

    def __init__(self, storm_ids: Iterable[str] = ()) -> None:
        self.storm_ids = set(storm_ids)
        self.is_there = True
        #: Why nothing can be put on it.
        self.fault: str | None = None
        self.others: list[Shelf] = []
        #: Returns the ids of all topologies.
        self.topologies: Callable[[], Iterable[str]] = tuple
        #: What was missing when it was to be fetched, each time.
        self.fetches: list[set[str]] = []

    def missing(self) -> dict[str, Missing]:
        lacking = set(self.topologies()) - self.storm_ids
        elsewhere = self._elsewhere()
        return {
            each: Missing((each,), () if each in elsewhere else (each,)) for each in sorted(lacking)
        }

    def fetch(self, timeout_secs: float) -> bool:
        assert timeout_secs > 0
        lacking = set(self.topologies()) - self.storm_ids
        self.fetches.append(lacking)
        if self.fault is None:
            self.storm_ids |= lacking & self._elsewhere()
        return True

    def _elsewhere(self) -> set[str]:
        return set().union(*(each.storm_ids for each in self.others if each.is_there))


def share(*shelves: Shelf) -> None:
    """Let Nimbuses copy from each other."""
    for shelf in shelves:
        shelf.others = [other for other in shelves if other is not shelf]


class Nimbus:
    """A Nimbus that does nothing but to stand for election."""

    def __init__(
        self,
        session: ClusterState,
        host: str,
        code: BlobSync | None = None,
        elected: Callable[[LeaderClusterState], None] = lambda _leader: None,
        deposed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        self.session = session
        self.storm = StormClusterState(session, Codec())
        self.address = NimbusId(host, 6627, 0)
        #: What it was told, in order: the epoch of each reign, and None at its end.
        self.told: list[int | None] = []
        #: What lets it write, since it was told that it leads; kept, as if it forgot to stop.
        self.leader: LeaderClusterState | None = None
        self._elected, self._deposed = elected, deposed
        self._code = code or Shelf()
        if isinstance(self._code, Shelf):
            self._code.topologies = self.storm.active_storms
        candidate = Candidate(
            self.storm,
            self._code,
            self.address,
            elected=self._on_elected,
            deposed=self._on_deposed,
            **options,
        )
        self.elector = Elector(self.storm, self.address, candidate, clock)

    def _on_elected(self, leader: LeaderClusterState) -> None:
        self.leader = leader
        self.told.append(leader.fence.epoch)
        self._elected(leader)

    def _on_deposed(self) -> None:
        self.told.append(None)
        self._deposed()

    @property
    def is_queued(self) -> bool:
        """Whether it has a lock; fails if it has two."""
        holders = [lock.holder for lock in leader_lock.queue(self.storm.state)]
        mine = holders.count(str(self.address).encode())
        assert mine <= 1, f"{self.address} queues behind itself"
        return mine == 1

    def stand(self) -> None:
        """Queue, and wait until it does."""
        self.elector.add_to_leader_lock_queue()
        until(lambda: self.is_queued)

    def lead(self) -> LeaderClusterState:
        """Queue, and wait until it leads, and knows."""
        self.elector.add_to_leader_lock_queue()
        return self.wait_to_lead()

    def wait_to_lead(self) -> LeaderClusterState:
        """Wait until it leads, and knows."""
        until(lambda: self.elector.is_leader and self.told and self.told[-1] is not None)
        assert self.leader is not None
        return self.leader

    def close(self) -> None:
        self.elector.close()
        self.storm.disconnect()


def submit(session: ClusterState, *storm_ids: str) -> None:
    """Write topologies as a leader of ours does, which leads for that long."""
    storm = StormClusterState(session, Codec())
    leader = lead(storm)
    for storm_id in storm_ids:
        leader.activate_storm(storm_id, StormBase(storm_id, TopologyStatus.ACTIVE, 1))
    session.delete_node(leader.fence.path)


def submit_by_java(session: ClusterState, *storm_ids: str) -> None:
    """Write topologies as a leader of Storm's does."""
    for storm_id in storm_ids:
        base = StormBase(storm_id, TopologyStatus.ACTIVE, 1)
        session.set_data(f"/storms/{storm_id}", Codec().write(base))
