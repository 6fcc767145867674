"""The cluster's assignments: followed by a subscription, decoded to orders for this supervisor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from stormkeeper import paths
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.cluster_view import records_below
from stormkeeper.state.subscription import Subscription
from stormkeeper.state.subtrees import Difference
from stormkeeper.supervisor.slot_model import CrashSeries, Restart, SlotAssignment, SlotRecord
from stormkeeper.thrift.records import Assignment, LaunchClaim, WorkerLaunch
from stormkeeper.topology.plan import Claim

#: By topology id; None: an unreadable assignment.
Assigned = Mapping[str, Assignment | None]


class Assignments:
    """Follows the assignments of all topologies; `publish` gets all of them after each change.

    An unreadable assignment keeps its last value, or is None if no value was read. While the
    cluster's state is unavailable, all assignments keep their values.
    """

    def __init__(self, storm: StormClusterState, publish: Callable[[Assigned], None]) -> None:
        self._publish = publish
        self._subscription = Subscription(
            storm.state,
            [records_below(paths.ASSIGNMENTS, storm.codec)],
            name="assignments",
        )
        self._subscription.add_listener(self._on_change)
        self._published: Assigned | None = None
        self._has_failed = False

    @property
    def is_running(self) -> bool:
        """Whether each change is published: False for ever after a defect."""
        return self._subscription.is_running and not self._has_failed

    def start(self) -> None:
        self._subscription.start()

    def close(self, timeout_secs: float | None = None) -> bool:
        """Publish nothing more; return whether the thread ended in time."""
        return self._subscription.close(timeout_secs)

    def _on_change(self, _changes: Sequence[Difference]) -> None:
        try:
            self._publish_all()
        except Exception:
            # The subscription logs the error.
            self._has_failed = True
            raise

    def _publish_all(self) -> None:
        before = self._published or {}
        nodes = self._subscription.snapshot.trees[paths.ASSIGNMENTS]
        known: dict[str, Assignment | None] = {}
        for path, node in nodes.items():
            storm_id = path.removeprefix(f"{paths.ASSIGNMENTS}/")
            is_readable = isinstance(node.value, Assignment)
            if path != paths.ASSIGNMENTS:
                known[storm_id] = node.value if is_readable else before.get(storm_id)
        if known != self._published:
            self._published = known
            self._publish(known)


_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Orders:
    """A leader's orders to a supervisor."""

    wanted: Mapping[int, SlotAssignment] = field(default_factory=dict)
    released: Mapping[int, Claim] = field(default_factory=dict)
    #: Topologies with a launch here; workers of a released launch may come back.
    storm_ids: frozenset[str] = frozenset()
    #: Topologies that a Java Nimbus has placed here, which cannot run: without ``launches``.
    foreign: frozenset[str] = frozenset()


def find_orders(
    assignments: Assigned,
    node: str,
    ports: Collection[int],
    restart: Callable[[str], Restart],
    before: Mapping[int, SlotAssignment] = MappingProxyType({}),
) -> Orders:
    """Return the orders to the supervisor `node`; of two launches on a port the newer counts.

    Slots keep the assignment `before` of a topology whose assignment is unreadable.
    """
    newest: dict[int, tuple[Claim, str, WorkerLaunch]] = {}
    released: dict[int, Claim] = {}
    storm_ids = set()
    known = {storm_id: each for storm_id, each in assignments.items() if each is not None}
    for storm_id, assignment in known.items():
        for launch in assignment.launches or ():
            if launch.node != node:
                continue
            storm_ids.add(storm_id)
            claim = _claim(launch)
            if launch.released:
                released[launch.port] = max(claim, released.get(launch.port, claim))
            elif launch.port in ports and launch.queries:
                other = newest.get(launch.port)
                if other is None or other[0] < claim:
                    newest[launch.port] = claim, storm_id, launch
    wanted = {
        port: SlotAssignment(
            storm_id,
            claims=dict.fromkeys(sorted(launch.queries), str(claim)),
            memory_bytes=int(launch.memory_mb * _MIB) if launch.memory_mb > 0 else None,
            restart=restart(storm_id),
            crashes=_crashes(launch),
        )
        for port, (claim, storm_id, launch) in newest.items()
    }
    for port, last in before.items():
        if last.storm_id in assignments.keys() - known and port in ports:
            wanted.setdefault(port, last)
            storm_ids.add(last.storm_id)
    foreign = {
        storm_id
        for storm_id, assignment in known.items()
        if assignment.launches is None and _is_placed_on(assignment, node)
    }
    return Orders(wanted, released, frozenset(storm_ids), frozenset(foreign))


def find_stopped(orders: Orders, slots: Mapping[int, SlotRecord]) -> dict[int, LaunchClaim]:
    """Return the newest released launch of each port, if no process of that launch is left."""
    found = {}
    for port, claim in orders.released.items():
        record = slots.get(port)
        worker = record.worker if record is not None else None
        if worker is None or _is_later(worker.assignment, claim):
            found[port] = LaunchClaim(claim.epoch, claim.counter)
    return found


def _is_placed_on(assignment: Assignment, node: str) -> bool:
    executors = (assignment.executor_node_port or {}).values()
    return any(place.node == node for place in (*executors, *(assignment.worker_resources or {})))


def _crashes(launch: WorkerLaunch) -> CrashSeries | None:
    found = launch.crashes
    return None if found is None else CrashSeries(found.count, found.since_secs, found.error)


def _claim(launch: WorkerLaunch) -> Claim:
    return Claim(launch.claim.epoch, launch.claim.counter)


def _is_later(assignment: SlotAssignment, claim: Claim) -> bool:
    return all(Claim.parse(text) > claim for text in assignment.claims.values())
