"""The task-level tree of Storm's first years, kept beside the worker-level one.

A task has a record of the component that it belongs to, a heartbeat of its own, and its newest
errors. Nothing of Storm 2 or 3 reads or writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormkeeper import paths
from stormkeeper.heartbeats.protocols import HeartbeatStore
from stormkeeper.state.storm.codec import checked
from stormkeeper.state.storm.heartbeats import value_at
from stormkeeper.state.storm.records import LeaderWriter, RecordReader, SessionWriter, workers_of
from stormkeeper.thrift.records import TaskHeartbeat, TaskInfo


class TaskReads(RecordReader):
    """Which tasks there are, and what is said of each."""

    _heartbeats: HeartbeatStore

    def task_storms(self) -> list[str]:
        """Return the ids of the topologies that have tasks, sorted."""
        return self._names(paths.TASKS)

    def task_ids(self, storm_id: str) -> list[int]:
        """Return the ids of a topology's tasks, in order; none when there is no such topology."""
        return _ids(self._names(paths.tasks(storm_id)))

    def task_info(self, storm_id: str, task: int) -> TaskInfo | None:
        """Return which component a task belongs to, None when there is no such task.

        Raises
        ------
        SerializationError
            What is there is not a record of a task.
        """
        return self._record(TaskInfo, paths.task(storm_id, task))

    def heartbeat_tasks(self, storm_id: str) -> list[int]:
        """Return the ids of the tasks of a topology that have a heartbeat, in order."""
        return _ids(self._heartbeats.names(paths.taskbeats(storm_id)))

    def task_heartbeat(self, storm_id: str, task: int) -> TaskHeartbeat | None:
        """Return a task's heartbeat, None when there is none.

        Raises
        ------
        SerializationError
            What is there is not a heartbeat of a task.
        """
        path = paths.taskbeat(storm_id, task)
        data = value_at(self._heartbeats, path)
        return None if data is None else self._read(TaskHeartbeat, path, data)


class TaskBeats(SessionWriter):
    """What is said of a task while it runs."""

    _heartbeats: HeartbeatStore

    def set_task_heartbeat(self, storm_id: str, task: int, heartbeat: TaskHeartbeat) -> None:
        """Store a task's heartbeat, where workers' heartbeats are.

        Raises
        ------
        PacemakerError
            No Pacemaker took it.
        """
        self._heartbeats.beat(
            paths.taskbeat(storm_id, task), self._codec.write(checked(TaskHeartbeat, heartbeat))
        )

    def remove_task_heartbeat(self, storm_id: str, task: int) -> None:
        """Delete a task's heartbeat; none is fine."""
        self._heartbeats.remove(paths.taskbeat(storm_id, task))


class TaskWrites(LeaderWriter):
    """Which tasks there are: the leader says so."""

    def set_task(
        self,
        storm_id: str,
        task: int,
        info: TaskInfo,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Say which component a task belongs to.

        The directories of the topology's task heartbeats and task errors are made with it, as its
        workers may not make them where ZooKeeper has access control.
        """
        for top in (paths.taskbeats(storm_id), paths.taskerrors(storm_id)):
            self._writer.mkdirs(top, workers=workers_of(topology_conf))
        self._put(TaskInfo, paths.task(storm_id, task), info, topology_conf)


def _ids(names: list[str]) -> list[int]:
    return sorted(task for name in names if (task := paths.parse_task(name)) is not None)
