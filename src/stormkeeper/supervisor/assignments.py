"""The cluster's assignments: followed by watches, decoded to orders for this supervisor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import SerializationError, StateError
from stormkeeper.state.storm.cluster import StormReads
from stormkeeper.state.watches import Callback
from stormkeeper.supervisor.slot_model import CrashSeries, Restart, SlotAssignment, SlotRecord
from stormkeeper.thrift.records import Assignment, LaunchClaim, WorkerLaunch
from stormkeeper.topology.plan import Claim

log = logging.getLogger(__name__)

#: By topology id; None: an unreadable assignment.
Assigned = Mapping[str, Assignment | None]

_PERIOD_SECS: Final = 60.0
_RETRY_SECS: Final = 1.0


class Assignments(PeriodicThread):
    """Follows the assignments of all topologies; `publish` gets all of them after each change.

    An unreadable assignment keeps its last value, or is None if no value was read. While the
    cluster's state is unavailable, all assignments keep their values.
    """

    def __init__(self, storm: StormReads, publish: Callable[[Assigned], None]) -> None:
        super().__init__(
            "assignments",
            self._follow,
            retried=StateError,
            streak=FailureStreak(_RETRY_SECS, _RETRY_SECS),
            failure="the assignments cannot be read, and stay as they are",
            recovery="the assignments are read again",
            logger=log,
        )
        self._storm = storm
        self._publish = publish
        self._known: dict[str, Assignment | None] = {}
        self._published: Assigned | None = None
        self._lock = threading.Lock()
        self._is_list_stale = True
        self._stale: set[str] = set()
        #: By topology: a watch with the same callback is set once.
        self._callbacks: dict[str, Callback] = {}
        self._has_read = False

    def _follow(self) -> float:
        if self._has_read and not self.was_woken:
            self._compare()
        self._read()
        self._has_read = True
        if self._known != self._published and not self.is_closing:
            self._published = dict(self._known)
            self._publish(self._published)
        return _PERIOD_SECS

    def _read(self) -> None:
        with self._lock:
            is_list_stale, self._is_list_stale = self._is_list_stale, False
            stale, self._stale = self._stale, set()
        try:
            if is_list_stale:
                there = set(self._storm.assignments(self._list_changed))
                for gone in self._known.keys() - there:
                    del self._known[gone]
                self._callbacks = {k: v for k, v in self._callbacks.items() if k in there}
                stale |= there - self._callbacks.keys()
            for storm_id in sorted(stale):
                self._read_one(storm_id)
        except BaseException:
            with self._lock:
                self._is_list_stale = True
                self._stale |= stale
            raise

    def _compare(self) -> None:
        found = self._storm.assignments_info()
        other = {key for key in found | self._known if found.get(key) != self._known.get(key)}
        if other:
            with self._lock:
                self._is_list_stale = True
                self._stale |= other

    def _read_one(self, storm_id: str) -> None:
        callback = self._callbacks.setdefault(storm_id, lambda: self._changed(storm_id))
        try:
            found = self._storm.assignment_info(storm_id, callback)
        except SerializationError as error:
            log.warning("the assignment of %s stays as it was: %s", storm_id, error)
            self._known.setdefault(storm_id, None)
            return
        if found is None:
            self._known.pop(storm_id, None)
        else:
            self._known[storm_id] = found

    # Called on the store's own thread, which must not wait.

    def _list_changed(self) -> None:
        with self._lock:
            self._is_list_stale = True
        self.wake()

    def _changed(self, storm_id: str) -> None:
        with self._lock:
            self._stale.add(storm_id)
        self.wake()


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
