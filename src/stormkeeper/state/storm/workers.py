"""What is asked of a topology's workers, profiling, and what they say: that they cannot keep up."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError
from stormkeeper.state.storm.codec import checked
from stormkeeper.state.storm.records import (
    LeaderWriter,
    RecordReader,
    RecordWriter,
    SessionWriter,
    workers_of,
)
from stormkeeper.state.storm.watching import Callback
from stormkeeper.thrift.records import NodeInfo, ProfileRequest

#: How Storm writes a time: milliseconds since 1970.
_MILLISECONDS = struct.Struct(">q")


class WorkerReads(RecordReader):
    """Which workers are to be profiled, and whether some cannot keep up."""

    def topology_profile_requests(self, storm_id: str) -> list[ProfileRequest]:
        """Return the requests for a topology's workers, in the order of their nodes' names."""
        return list(self._records(ProfileRequest, paths.profiler_configs(storm_id)).values())

    def worker_profile_requests(self, storm_id: str, node_info: NodeInfo) -> list[ProfileRequest]:
        """Return the requests for one worker of a topology."""
        requests = self.topology_profile_requests(storm_id)
        return [request for request in requests if request.nodeInfo == node_info]

    def backpressure_topologies(self) -> list[str]:
        """Return the ids of the topologies that have back-pressure, or a place for it, sorted."""
        return self._names(paths.BACKPRESSURE)

    def topology_backpressure(
        self, storm_id: str, timeout_ms: int, callback: Callback | None = None
    ) -> bool:
        """Return whether a worker of a topology has said lately that it cannot keep up.

        Parameters
        ----------
        storm_id : str
            The topology.
        timeout_ms : int
            What was said longer ago, in milliseconds, does not count.
        callback : callable, optional
            Told, once, when a worker comes under back-pressure or is it no longer.
        """
        top = paths.backpressure_of_topology(storm_id)
        names = self._names(top, callback)
        found = self._state.read_many([f"{top}/{name}" for name in names])
        times = [
            _MILLISECONDS.unpack(node.data)[0]
            for node in found
            if node and len(node.data) == _MILLISECONDS.size
        ]
        return bool(times) and self._clock() * 1000 - max(times) < timeout_ms


class WorkerReports(SessionWriter):
    """What a worker says of itself."""

    def worker_backpressure(self, storm_id: str, node: str, port: int, timestamp_ms: int) -> None:
        """Say that a worker cannot keep up, as of `timestamp_ms`: milliseconds since 1970.

        It holds until it is removed, or the worker's session ends.
        """
        path = paths.backpressure(storm_id, node, port)
        self._state.set_ephemeral_node(path, _MILLISECONDS.pack(timestamp_ms))

    def remove_worker_backpressure(self, storm_id: str, node: str, port: int) -> None:
        """Say that a worker keeps up again; so it does when nothing was said."""
        self._state.delete_node(paths.backpressure(storm_id, node, port))


class WorkerWrites(LeaderWriter):
    """What a leader asks of workers, and the directories that they report in."""

    def set_worker_profile_request(self, storm_id: str, request: ProfileRequest) -> None:
        """Ask that a worker be profiled; a second request for the same action replaces the first.

        Raises
        ------
        InvalidPathError
            The request does not name a node, exactly one port of it and an action.
        NotLeaderError, OutcomeUnknownError
            As in `TopologyWrites`.
        """
        self._put(ProfileRequest, _path(storm_id, request), request)

    def setup_backpressure(
        self, storm_id: str, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Make the directory of a topology's back-pressure, which its workers may write in."""
        self._writer.mkdirs(
            paths.backpressure_of_topology(storm_id), workers=workers_of(topology_conf)
        )

    def remove_backpressure(self, storm_id: str) -> None:
        """Delete a topology's back-pressure and the directory of it; none is fine."""
        self._writer.delete_node(paths.backpressure_of_topology(storm_id))


class ProfileCleaning(RecordWriter):
    """What the leader, and the supervisor that did it, remove."""

    def delete_topology_profile_requests(self, storm_id: str, request: ProfileRequest) -> None:
        """Remove a request; one that is gone is fine.

        Raises
        ------
        InvalidPathError
            The request does not name a node, exactly one port of it and an action.
        """
        self._writer.delete_node(_path(storm_id, request))


def _path(storm_id: str, request: ProfileRequest) -> str:
    where = checked(ProfileRequest, request).nodeInfo
    if where is None or where.node is None:
        raise InvalidPathError("a profiling request is for one worker: it names no node")
    if len(ports := sorted(where.port or ())) != 1:
        raise InvalidPathError(
            f"a profiling request is for one worker: it names the ports {ports} of {where.node!r}"
        )
    if request.action is None:
        raise InvalidPathError(
            f"a profiling request for {where.node!r} names no action, such as JSTACK_DUMP"
        )
    (port,) = ports
    return paths.profiler_config(storm_id, where.node, port, request.action.name)
