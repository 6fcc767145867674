"""Stormkeeper's workers as assigned, and since when a leader watches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.heartbeats.follower import HeartbeatFollower, Pulse
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import WorkerId
from stormkeeper.topology.plan import Claim

Launches = tuple[Launch, ...]


class Since(NamedTuple):
    """Since when pulses belong to a launch, and since when this Nimbus watches for pulses."""

    launched: float
    looked: float


def first_look(launch: Launch, now: float, epoch: int) -> Since:
    return Since(now if launch.claim.epoch == epoch else min(launch.started_at, now), now)


class AssignedWorker(NamedTuple):
    """The newest launch of a slot in a topology."""

    id: WorkerId
    launch: Launch
    since: Since


class AssignedWorkers:
    """Stormkeeper's workers by the path of their pulses, kept up by assignments that changed."""

    def __init__(self, since: Mapping[Claim, Since]) -> None:
        self.by_path: dict[str, AssignedWorker] = {}
        #: Workers on each machine.
        self.nodes: Counter[str] = Counter()
        #: Paths without a pulse at the last look, with the pulse that was deleted since they are
        #: assigned.
        self.unheard: dict[str, Pulse[object] | None] = {}
        self._before = since
        #: The launches seen by topology, each with its workers' paths.
        self._seen: dict[str, tuple[Launches, list[str]]] = {}
        self._all_seen: Mapping[str, Launches] | None = None
        self._follower: HeartbeatFollower[object] | None = None
        self._deleted_count = 0

    def since(self) -> dict[Claim, Since]:
        return {each.launch.claim: each.since for each in self.by_path.values()}

    def update(
        self,
        launches: Mapping[str, Launches],
        follower: HeartbeatFollower[object],
        *,
        now: float,
        epoch: int,
    ) -> None:
        """Take launches that are other objects, and paths that got or lost their pulse."""
        if follower is self._follower:
            for path, deletion in follower.deleted_after(self._deleted_count):
                if path in self.by_path:
                    self.unheard[path] = deletion.last
            self._take(launches, now, epoch)
        else:
            self._follower = follower
            self._take(launches, now, epoch)
            self.unheard = {path: self.unheard.get(path) for path in self.by_path}
        self._deleted_count = follower.deleted_count
        for path in [path for path in self.unheard if path in follower]:
            del self.unheard[path]

    def _take(self, all_launches: Mapping[str, Launches], now: float, epoch: int) -> None:
        if all_launches is self._all_seen:
            return
        self._all_seen, seen = all_launches, self._seen
        changed = [
            storm_id
            for storm_id, launches in all_launches.items()
            if (known := seen.get(storm_id)) is None or known[0] is not launches
        ]
        gone = [storm_id for storm_id in seen if storm_id not in all_launches]
        before, deleted = dict(self._before), dict[str, Pulse[object] | None]()
        self._before = {}
        for storm_id in (*gone, *(each for each in changed if each in seen)):
            for path in seen.pop(storm_id)[1]:
                worker = self.by_path.pop(path)
                before[worker.launch.claim] = worker.since
                deleted[path] = self.unheard.pop(path, None)
                node = worker.id.node
                self.nodes[node] -= 1
                if not self.nodes[node]:
                    del self.nodes[node]
        for storm_id in changed:
            launches = all_launches[storm_id]
            # The launches of Storm's Nimbus have no queries.
            ours = (launch for launch in launches if launch.queries)
            of = {paths.workerbeat(storm_id, *launch.slot): launch for launch in ours}
            for path, launch in of.items():
                since = before.get(launch.claim) or first_look(launch, now, epoch)
                worker_id = WorkerId(storm_id, *launch.slot)
                self.by_path[path] = AssignedWorker(worker_id, launch, since)
                self.nodes[launch.slot.node] += 1
                self.unheard[path] = deleted.get(path)
            seen[storm_id] = launches, list(of)
