"""Heartbeats of workers, in ZooKeeper or in Pacemaker, and the task-level tree.

Storm's first releases have that tree; Storm 2 and 3 do not.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    SerializationError,
    StateError,
    TransactionError,
)
from stormkeeper.heartbeats.follower import HeartbeatFollower
from stormkeeper.heartbeats.stores import Heartbeat, HeartbeatStore
from stormkeeper.paths import Slot, WorkerId
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.storage import Check, Create
from stormkeeper.state.storm.record_io import (
    ROUNDS,
    LeaderWriter,
    RecordReader,
    SessionWriter,
    checked,
    digest_of_workers,
)
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorStats,
    LaunchClaim,
    NodeInfo,
    TaskHeartbeat,
    TaskInfo,
    WorkerActivity,
    WorkerLaunch,
)
from stormkeeper.thrift.serialization import activity_of, heartbeat_release, uncompressed

log = logging.getLogger(__name__)

#: Bytes of the decoded heartbeats that are kept; the records take forty times as much.
_MOST_DECODED: Final = 1024 * 1024

#: By first and last task, as ``Assignment.executor_node_port``.
ExecutorNodePort = Mapping[tuple[int, ...], NodeInfo]


@dataclass(frozen=True, slots=True)
class ExecutorBeat:
    """An executor's part of the worker's heartbeat."""

    stats: ExecutorStats
    #: At the beat, since 1970, by the worker's clock, which may be wrong.
    time_secs: int
    uptime_secs: int
    #: Supervisor id of the slot.
    node: str
    port: int


class Activity(NamedTuple):
    """A worker's activity in its newest pulse; `received_at` is None from a Java Pacemaker."""

    encoded: bytes  # the search for garbage skips bytes
    #: By the clock of the follower.
    received_at: float | None

    @property
    def activity(self) -> WorkerActivity:
        return decode(WorkerActivity, self.encoded)


#: By topology and slot.
Activities = Mapping[str, Mapping[Slot, Activity]]


class ActivityFollower:
    """The activities of all workers: a reading costs what has changed since the last.

    For one thread. What a reading returned stays as it is.
    """

    def __init__(
        self,
        follower: HeartbeatFollower[bytes],
        on_unreadable: Callable[[str, SerializationError], None],
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._follower = follower
        self._on_unreadable = on_unreadable
        self._pause = pause
        self._found: dict[str, Mapping[Slot, Activity]] = {}
        self._workers: dict[str, WorkerId] = {}

    def read(self) -> tuple[float, Activities]:
        """Return all activities, and when the reading began; raises as `read_all` does."""
        refreshed = self._follower.refresh(hurried=True, pause=self._pause)
        changed: dict[str, dict[Slot, Activity]] = {}
        for path in refreshed.changed:
            self._pause()
            worker = self._workers.get(path) or paths.parse_workerbeat(path)
            if worker is None:
                continue
            of_topology = changed.get(worker.storm_id)
            if of_topology is None:
                of_topology = dict(self._found.get(worker.storm_id, {}))
                changed[worker.storm_id] = of_topology
            slot = Slot(worker.node, worker.port)
            pulse = self._follower.get(path)
            if pulse is not None and isinstance(pulse.value, bytes):
                of_topology[slot] = Activity(pulse.value, pulse.received_at)
                self._workers[path] = worker
                continue
            of_topology.pop(slot, None)
            self._workers.pop(path, None)
            if pulse is not None and isinstance(pulse.value, SerializationError):
                self._on_unreadable(path, pulse.value)
        found = {**self._found, **changed}
        self._found = {storm_id: slots for storm_id, slots in found.items() if slots}
        return refreshed.began, self._found


class AgedHeartbeat(NamedTuple):
    """A worker's heartbeat, which must not be changed, and its age; see `aged_heartbeats`."""

    heartbeat: ClusterWorkerHeartbeat
    age_secs: float | None
    #: Whether an earlier worker sent it.
    is_former: bool


class DecodedHeartbeats:
    """The heartbeats that were decoded last, for the next reading of unchanged ones.

    Safe for many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[bytes, ClusterWorkerHeartbeat, int]] = OrderedDict()
        self._bytes = 0

    def get(self, path: str, data: bytes) -> ClusterWorkerHeartbeat | None:
        with self._lock:
            known = self._known.get(path)
            if known is None or known[0] != data:
                return None
            self._known.move_to_end(path)
            return known[1]

    def put(self, path: str, data: bytes, beat: ClusterWorkerHeartbeat, size: int) -> bool:
        """Keep a heartbeat; `size` is that of its decompressed bytes.

        Returns whether the path had none.
        """
        with self._lock:
            before = self._known.pop(path, None)
            self._bytes -= 0 if before is None else before[2]
            self._known[path] = data, beat, size
            self._bytes += size
            while self._bytes > _MOST_DECODED:
                self._bytes -= self._known.popitem(last=False)[1][2]
        return before is None


class HeartbeatReads(RecordReader):
    """Reads of heartbeats; with Pacemakers may raise `PacemakerError`."""

    _heartbeats: HeartbeatStore
    _decoded_beats: DecodedHeartbeats
    _other_release_logged = False

    def heartbeat_storms(self) -> list[str]:
        """List topologies with heartbeats, sorted."""
        return self._heartbeats.names()

    def worker_heartbeat(
        self, storm_id: str, node: str, port: int
    ) -> ClusterWorkerHeartbeat | None:
        """Return a worker's heartbeat."""
        path = paths.workerbeat(storm_id, node, port)
        found = self._heartbeats.read(path)
        return found and self._read(ClusterWorkerHeartbeat, path, found.value or b"")

    def worker_heartbeats(self, storm_id: str) -> dict[Slot, ClusterWorkerHeartbeat]:
        """Return the readable heartbeats of a topology's workers, by slot."""
        return {slot: each.heartbeat for slot, each in self.aged_heartbeats(storm_id).items()}

    def aged_heartbeats(
        self,
        storm_id: str,
        launched: Mapping[Slot, float] | None = None,
        *,
        hurried: bool = False,
    ) -> dict[Slot, AgedHeartbeat]:
        """Return the readable heartbeats of a topology's workers with their ages, by slot.

        `launched` has slots' launch times, in seconds since 1970: a heartbeat received before is an
        earlier worker's (unknown from a Java Pacemaker).
        """
        top = paths.workerbeats(storm_id)
        read = self._heartbeats.read_all(top, values=True, hurried=hurried).by_path
        now, launched = self._clock(), launched or {}
        ages = {
            paths.parse_slot(path.removeprefix(f"{top}/")): read[path].age_secs for path in read
        }
        found = {}
        for slot, beat in self._beats(top, read).items():
            age, began = ages[slot], launched.get(slot)
            is_former = age is not None and began is not None and age > now - began
            found[slot] = AgedHeartbeat(beat, age, is_former)
        return found

    def follow_activities(self, pause: Callable[[], None] = lambda: None) -> ActivityFollower:
        """Return a reader of all workers' activities, which calls `pause` between short steps."""
        return ActivityFollower(
            self._heartbeats.follower(activity_of),
            lambda path, error: self._leave_out(path, str(error).encode(), error),
            pause,
        )

    def ended_queries(self, storm_id: str) -> frozenset[str]:
        """Return the queries that ended by themselves."""
        names = self._names(paths.workerbeats(storm_id))
        ended = (paths.parse_query_end(name) for name in names)
        return frozenset(query for query in ended if query is not None)

    def executor_beats(
        self, storm_id: str, executor_node_port: ExecutorNodePort | None
    ) -> dict[ExecutorInfo, ExecutorBeat]:
        """Return the heartbeats of a topology's executors, from their assigned workers.

        A moved executor is still in its former worker's last heartbeat.
        """
        slots: dict[Slot, set[ExecutorInfo]] = {}
        for tasks, where in (executor_node_port or {}).items():
            for port in where.port:
                slots.setdefault(Slot(where.node, port), set()).add(
                    ExecutorInfo(tasks[0], tasks[-1])
                )
        top = paths.workerbeats(storm_id)
        read = self._heartbeats.read_all(top, values=True).by_path if slots else {}
        assigned = {paths.workerbeat(storm_id, *slot) for slot in slots}
        wanted = {path: read[path] for path in read.keys() & assigned}
        return {
            executor: ExecutorBeat(stats, beat.time_secs, beat.uptime_secs, slot.node, slot.port)
            for slot, beat in self._beats(top, wanted).items()
            for executor, stats in beat.executor_stats.items()
            if executor in slots[slot]
        }

    def _beats(self, top: str, read: Mapping[str, Heartbeat]) -> dict[Slot, ClusterWorkerHeartbeat]:
        found: dict[Slot, ClusterWorkerHeartbeat] = {}
        for path, one in sorted(read.items()):
            slot, data = paths.parse_slot(path.removeprefix(f"{top}/")), one.value or b""
            if slot is None:
                continue
            beat = self._decoded_beats.get(path, data)
            if beat is None:
                try:
                    plain = uncompressed(ClusterWorkerHeartbeat, data)
                    beat = decode(ClusterWorkerHeartbeat, plain)
                except SerializationError as error:
                    self._leave_out(path, data, error)
                    continue
                is_new = self._decoded_beats.put(path, data, beat, len(plain))
                if not found and is_new and not self._other_release_logged:
                    self._compare_release(path, data)
            found[slot] = beat
        return found

    def _compare_release(self, path: str, data: bytes) -> None:
        """Log, once, that another process writes heartbeats for another Storm.

        The codec does not adapt: anyone may write to a Pacemaker without authentication.
        """
        theirs = heartbeat_release(data)
        if theirs is not self._codec.release:
            self._other_release_logged = True
            log.warning(
                "%s is written for Storm %d, and heartbeats are written here for Storm %d, which"
                " cannot read the other's; set storm.meta.serialization.release to the release of"
                " the cluster's daemons",
                path,
                theirs.value,
                self._codec.release.value,
            )

    def task_storms(self) -> list[str]:
        """List topologies with tasks, sorted."""
        return self._names(paths.TASKS)

    def task_ids(self, storm_id: str) -> list[int]:
        """List a topology's tasks, sorted."""
        return _ids(self._names(paths.tasks(storm_id)))

    def task_info(self, storm_id: str, task: int) -> TaskInfo | None:
        """Return a task's component."""
        return self._record(TaskInfo, paths.task(storm_id, task))

    def heartbeat_tasks(self, storm_id: str) -> list[int]:
        """List tasks with heartbeats, sorted."""
        return _ids(self._heartbeats.names(paths.taskbeats(storm_id)))

    def task_heartbeat(self, storm_id: str, task: int) -> TaskHeartbeat | None:
        """Return a task's heartbeat."""
        path = paths.taskbeat(storm_id, task)
        found = self._heartbeats.read(path)
        return found and self._read(TaskHeartbeat, path, found.value or b"")


class HeartbeatWrites(SessionWriter):
    """Writes of a worker, about worker and tasks."""

    _heartbeats: HeartbeatStore

    def set_worker_heartbeat(
        self, storm_id: str, node: str, port: int, heartbeat: ClusterWorkerHeartbeat
    ) -> None:
        """Store a worker's heartbeat; `PacemakerError` if refused."""
        path = paths.workerbeat(storm_id, node, port)
        self._heartbeats.beat(path, self._codec.write(checked(ClusterWorkerHeartbeat, heartbeat)))

    def set_query_ended(self, storm_id: str, query: str, heartbeat: ClusterWorkerHeartbeat) -> None:
        """Record that a query has ended by itself, until the topology is gone.

        In ZooKeeper also with Pacemaker, which forgets.
        """
        path = paths.query_end(storm_id, query)
        self._state.set_data(path, self._codec.write(checked(ClusterWorkerHeartbeat, heartbeat)))

    def begin_claim(self, storm_id: str, query: str, claim: LaunchClaim) -> bool:
        """Record that a launch claims a query's checkpoint; False if the launch must not.

        Writes nothing for a released or no longer assigned launch: Nimbus relies on that when
        moving the query.
        """
        assignment, path = paths.assignment(storm_id), paths.query_claim(storm_id, query)
        for _ in range(ROUNDS):
            self._state.sync_path(assignment)
            found = self._versioned(Assignment, assignment)
            if found is None:
                return True
            launch = _launch_of(found.record, claim)
            if launch is None or launch.released:
                return False
            if not launch.tells_claims or self._state.node_exists(path):
                return True
            self._state.mkdirs(paths.workerbeats(storm_id))
            try:
                self._state.commit([Check(assignment, found.version), Create(path, b"")])
            except TransactionError as error:
                if not isinstance(error.reason, BadVersionError | NoNodeError | NodeExistsError):
                    raise error.reason from error
            else:
                return True
        raise StateError(
            f"cannot write {path}: other sessions changed {assignment} {ROUNDS} times meanwhile"
        )

    def remove_worker_heartbeat(self, storm_id: str, node: str, port: int) -> None:
        """Delete a worker's heartbeat."""
        self._heartbeats.remove(paths.workerbeat(storm_id, node, port))

    def set_task_heartbeat(self, storm_id: str, task: int, heartbeat: TaskHeartbeat) -> None:
        """Store a task's heartbeat."""
        self._heartbeats.beat(
            paths.taskbeat(storm_id, task), self._codec.write(checked(TaskHeartbeat, heartbeat))
        )

    def remove_task_heartbeat(self, storm_id: str, task: int) -> None:
        """Delete a task's heartbeat."""
        self._heartbeats.remove(paths.taskbeat(storm_id, task))


def _launch_of(assignment: Assignment, claim: LaunchClaim) -> WorkerLaunch | None:
    return next((each for each in assignment.launches or () if each.claim == claim), None)


class HeartbeatLeaderWrites(LeaderWriter):
    """A leader's writes of heartbeat directories and tasks."""

    _heartbeats: HeartbeatStore

    def setup_heartbeats(
        self, storm_id: str, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Make a topology's directory of heartbeats, also with Pacemaker, as in Storm."""
        self._writer.mkdirs(
            paths.workerbeats(storm_id), workers_digest=digest_of_workers(topology_conf)
        )

    def teardown_heartbeats(self, storm_id: str) -> None:
        """Delete the heartbeats of a topology's workers and tasks.

        Not fenced in Pacemaker: a heartbeat deleted late returns with the next beat.
        """
        # Listed by `heartbeat_storms`, so deleted last: an interrupted teardown is found again.
        for top in (paths.taskbeats(storm_id), paths.workerbeats(storm_id)):
            self._writer.delete_node(top)
            if not isinstance(self._heartbeats, NodeHeartbeats):  # nodes are gone already
                self._heartbeats.remove(top)

    def set_task(
        self,
        storm_id: str,
        task: int,
        info: TaskInfo,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Set a task's component, and make directories that workers may not make."""
        for top in (paths.taskbeats(storm_id), paths.taskerrors(storm_id)):
            self._writer.mkdirs(top, workers_digest=digest_of_workers(topology_conf))
        self._put(TaskInfo, paths.task(storm_id, task), info, topology_conf)


def _ids(names: list[str]) -> list[int]:
    return sorted(task for name in names if (task := paths.parse_task(name)) is not None)
