"""The cluster's assignments, followed: a thread reads again whatever a watch says has changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from stormkeeper.errors import SerializationError, StateClosedError, StateError
from stormkeeper.state.storm.cluster import StormReads
from stormkeeper.state.storm.subscriptions import Callback
from stormkeeper.supervisor.slot_model import CrashSeries, Restart, SlotAssignment, SlotRecord
from stormkeeper.thrift.records import Assignment, LaunchClaim, WorkerLaunch
from stormkeeper.topology.plan import Claim

log = logging.getLogger(__name__)

#: What is assigned, by the topologies' ids; None: something, and nobody knows what.
Assigned = Mapping[str, Assignment | None]

#: How often all is compared, whatever the watches say, in seconds.
_PERIOD_SECS: Final = 60.0

#: How long after a read that failed it is tried again, in seconds.
_RETRY_SECS: Final = 1.0

#: How long the thread may take to end, in seconds: a read has a deadline of its own.
_END_SECS: Final = 5.0


class Assignments:
    """Follows the assignments of all topologies from `start` to `close`.

    One that cannot be read stays as it was, and is None if it never could be: what is there and
    unreadable is not taken for absent.
    While the cluster's state cannot be reached, all of them stay.

    Parameters
    ----------
    storm
        The cluster's state.
    tell
        Is called by a thread of this class, at first and after each change, with all assignments by
        the ids of their topologies.
    """

    def __init__(self, storm: StormReads, tell: Callable[[Assigned], None]) -> None:
        self._storm = storm
        self._tell = tell
        self._known: dict[str, Assignment | None] = {}
        #: What was told last.
        self._told: Assigned | None = None
        self._lock = threading.Lock()
        #: What has to be read again: the list, and topologies' assignments.
        self._is_list_stale = True
        self._stale: set[str] = set()
        #: Who is told of a change, by topology: the same each time, so that each waits once.
        self._callbacks: dict[str, Callback] = {}
        self._woken = threading.Event()
        self._is_closed = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="assignments", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Tell nobody anything any more."""
        self._is_closed = True
        self._woken.set()
        self._thread.join(_END_SECS)

    def _run(self) -> None:
        is_to_compare = False
        while not self._is_closed:
            self._woken.clear()
            try:
                if is_to_compare:
                    self._compare()
                self._read()
            except StateClosedError:
                return
            except StateError as error:
                if not self._is_failing:
                    log.warning("the assignments cannot be read, and stay as they are: %s", error)
                self._is_failing = True
                self._woken.wait(_RETRY_SECS)
                continue
            if self._is_failing:
                log.info("the assignments are read again")
            self._is_failing = False
            if self._known != self._told and not self._is_closed:
                self._told = dict(self._known)
                self._tell(self._told)
            is_to_compare = not self._woken.wait(_PERIOD_SECS)

    def _read(self) -> None:
        """Read what is stale."""
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
        """Have read again what is not as it is known, and what no watch has told of."""
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

    # Called by the store's own thread, which may not wait.

    def _list_changed(self) -> None:
        with self._lock:
            self._is_list_stale = True
        self._woken.set()

    def _changed(self, storm_id: str) -> None:
        with self._lock:
            self._stale.add(storm_id)
        self._woken.set()


_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Orders:
    """What a leader has ordered of one supervisor.

    Parameters
    ----------
    wanted
        What each slot is to run, by its port. A port that is missing is to run nothing.
    released
        By port, the newest launch that is to stop, or has stopped.
    storm_ids
        The topologies that have a launch here, be it a released one: their workers may come back.
    foreign
        The topologies that another Nimbus, such as Java's, has placed here: none that we can run.
    """

    wanted: Mapping[int, SlotAssignment] = field(default_factory=dict)
    released: Mapping[int, Claim] = field(default_factory=dict)
    storm_ids: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()


def orders(
    assignments: Assigned,
    node: str,
    ports: Collection[int],
    restart: Callable[[str], Restart],
    before: Mapping[int, SlotAssignment] = MappingProxyType({}),
) -> Orders:
    """Return what is ordered of a supervisor.

    Where two launches have one port, as one was read before the other was taken back, the newer one
    counts. An assignment without ``launches`` is another Nimbus's.

    Parameters
    ----------
    assignments
        Of all topologies, by their ids.
    node
        The supervisor's id.
    ports
        Its slots.
    restart
        Returns what a topology says of workers that end by themselves, as far as that is known.
    before
        What each slot was to run. It still is, where the assignment of that topology cannot be
        read.
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


def stopped(given: Orders, slots: Mapping[int, SlotRecord]) -> dict[int, LaunchClaim]:
    """Return, by port, the newest launch of which it is certain that nothing runs any more.

    Parameters
    ----------
    given
        What was ordered, and what the slots know by now.
    slots
        What is known of each slot. A port that is no slot here has nothing that runs.
    """
    found = {}
    for port, claim in given.released.items():
        record = slots.get(port)
        worker = record.worker if record is not None else None
        if worker is None or _is_later(worker.assignment, claim):
            found[port] = LaunchClaim(claim.epoch, claim.counter)
    return found


def started(assignment: SlotAssignment, number: int) -> dict[str, str]:
    """Return the claims of one start of a worker, which has that number."""
    claims = {query: Claim.parse(text) for query, text in assignment.claims.items()}
    return {query: str(claim._replace(launch=number)) for query, claim in claims.items()}


def _is_placed_on(assignment: Assignment, node: str) -> bool:
    executors = (assignment.executor_node_port or {}).values()
    return any(place.node == node for place in (*executors, *(assignment.worker_resources or {})))


def _crashes(launch: WorkerLaunch) -> CrashSeries | None:
    found = launch.crashes
    return None if found is None else CrashSeries(found.count, found.since_secs, found.error)


def _claim(launch: WorkerLaunch) -> Claim:
    return Claim(launch.claim.epoch, launch.claim.counter)


def _is_later(assignment: SlotAssignment, claim: Claim) -> bool:
    """Return whether a worker's launch is later than `claim`: two never run in one slot."""
    return all(Claim.parse(text) > claim for text in assignment.claims.values())
