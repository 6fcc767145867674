"""Heartbeats of workers, in ZooKeeper or in Pacemaker, and the task-level tree.

Storm's first releases have that tree; Storm 2 and 3 do not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    SerializationError,
    StateError,
    TransactionError,
)
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
from stormkeeper.thrift.serialization import activity_of, heartbeat_release

log = logging.getLogger(__name__)

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


class HeartbeatReads(RecordReader):
    """Reads of heartbeats; with Pacemakers may raise `PacemakerError`."""

    _heartbeats: HeartbeatStore
    _other_release_logged = False

    def heartbeat_storms(self) -> list[str]:
        """List topologies with heartbeats, sorted."""
        return self._heartbeats.names()

    def worker_heartbeat(
        self, storm_id: str, node: str, port: int
    ) -> ClusterWorkerHeartbeat | None:
        """Return a worker's heartbeat."""
        path = paths.workerbeat(storm_id, node, port)
        data = value_at(self._heartbeats, path)
        return None if data is None else self._read(ClusterWorkerHeartbeat, path, data)

    def worker_heartbeats(
        self,
        storm_id: str,
        launched: Mapping[Slot, float] | None = None,
        *,
        hurried: bool = False,
    ) -> dict[Slot, ClusterWorkerHeartbeat]:
        """Return the readable heartbeats of a topology's workers, by slot.

        `launched` has slots' launch times, in seconds since 1970: a heartbeat received before is an
        earlier worker's, and is left out (not from a Java Pacemaker, which reports no ages).
        """
        top = paths.workerbeats(storm_id)
        read = self._heartbeats.read_all(top, values=True, hurried=hurried).by_path
        now = self._clock()
        former = {
            paths.workerbeat(storm_id, *slot): now - began
            for slot, began in (launched or {}).items()
        }
        counts = {
            path: one
            for path, one in read.items()
            if one.age_secs is None or one.age_secs <= former.get(path, one.age_secs)
        }
        return self._beats(top, counts)

    def activities(
        self, storm_id: str | None = None, *, hurried: bool = False
    ) -> dict[WorkerId, tuple[WorkerActivity, float | None]]:
        """Return workers' activities from their heartbeats, with ages in seconds.

        All topologies by default. For 4,000 workers ten times faster than whole heartbeats.
        """
        top = paths.WORKERBEATS if storm_id is None else paths.workerbeats(storm_id)
        found = {}
        for path, one in self._heartbeats.read_all(
            top, values=True, hurried=hurried
        ).by_path.items():
            worker = paths.parse_workerbeat(path)
            if worker is None or one.value is None:
                continue
            try:
                found[worker] = activity_of(one.value), one.age_secs
            except SerializationError as error:
                self._leave_out(path, one.value, error)
        return found

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
        return {
            executor: ExecutorBeat(stats, beat.time_secs, beat.uptime_secs, slot.node, slot.port)
            for slot, beat in self._beats_of(storm_id, slots).items()
            for executor, stats in beat.executor_stats.items()
            if executor in slots[slot]
        }

    def _beats_of(
        self, storm_id: str, slots: Mapping[Slot, object]
    ) -> dict[Slot, ClusterWorkerHeartbeat]:
        if not slots:
            return {}
        wanted = [paths.workerbeat(storm_id, *slot) for slot in slots]
        return self._beats(paths.workerbeats(storm_id), self._heartbeats.read_each(wanted))

    def _beats(self, top: str, read: Mapping[str, Heartbeat]) -> dict[Slot, ClusterWorkerHeartbeat]:
        found = {path.removeprefix(f"{top}/"): one.value or b"" for path, one in read.items()}
        of_slots = sorted((name, data) for name, data in found.items() if paths.parse_slot(name))
        beats = self._decoded(ClusterWorkerHeartbeat, top, of_slots)
        if beats and not self._other_release_logged:
            name = next(iter(beats))
            self._compare_release(f"{top}/{name}", found[name])
        return {slot: beat for name, beat in beats.items() if (slot := paths.parse_slot(name))}

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
        data = value_at(self._heartbeats, path)
        return None if data is None else self._read(TaskHeartbeat, path, data)


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


def value_at(heartbeats: HeartbeatStore, path: str) -> bytes | None:
    found = heartbeats.read(path)
    return None if found is None else found.value


def _ids(names: list[str]) -> list[int]:
    return sorted(task for name in names if (task := paths.parse_task(name)) is not None)
