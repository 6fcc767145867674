"""Requests that a worker be profiled: asked for by the leader, done and removed by supervisors."""

from __future__ import annotations

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError
from stormkeeper.state.storm.codec import checked
from stormkeeper.state.storm.reading import Reading
from stormkeeper.state.storm.writing import LeaderWrites, Writes
from stormkeeper.thrift.records import NodeInfo, ProfileRequest


class ProfileReads(Reading):
    """Reads of profiling requests; what cannot be read is left out, logged once and counted."""

    def topology_profile_requests(self, storm_id: str) -> list[ProfileRequest]:
        """Return the requests for a topology's workers, in the order of their nodes' names."""
        return list(self._records(ProfileRequest, paths.profiler_configs(storm_id)).values())

    def worker_profile_requests(self, storm_id: str, node_info: NodeInfo) -> list[ProfileRequest]:
        """Return the requests for one worker of a topology."""
        requests = self.topology_profile_requests(storm_id)
        return [request for request in requests if request.nodeInfo == node_info]


class ProfileWrites(LeaderWrites):
    """What a leader asks for."""

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


class ProfileCleaning(Writes):
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
