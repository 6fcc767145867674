"""Storm's cluster state: all reads, a process's own writes, and a leader's fenced writes."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.errors import PacemakerError
from stormkeeper.heartbeats.stores import Heartbeats, HeartbeatStore
from stormkeeper.state import backends
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.leader_lock import Fence
from stormkeeper.state.storage import ClusterState, Role, StateReader
from stormkeeper.state.storm.blob_records import BlobHolderWrites, BlobReads, BlobWrites
from stormkeeper.state.storm.daemon_records import (
    CheckpointRemovalWrites,
    DaemonReads,
    DaemonWrites,
    TopologyReads,
    TopologyWrites,
)
from stormkeeper.state.storm.heartbeat_records import (
    HeartbeatLeaderWrites,
    HeartbeatReads,
    HeartbeatWrites,
)
from stormkeeper.state.storm.worker_reports import (
    ErrorLimits,
    ErrorThrottles,
    ProfileRequestWrites,
    ReportLeaderWrites,
    ReportReads,
    ReportWrites,
)
from stormkeeper.state.watches import Callback, Stream
from stormkeeper.thrift.records import Assignment, NimbusSummary, StormBase, SupervisorInfo
from stormkeeper.thrift.serialization import Codec, Record

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster as read, for a decision that reads nothing else.

    Not of one moment: heartbeats are read last, so that assigned workers had time to beat.
    """

    #: By topology id, as `assignments`, `ended` and `claimed`.
    bases: Mapping[str, StormBase]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    #: By node name.
    nimbuses: Mapping[str, NimbusSummary]
    ended: Mapping[str, frozenset[str]]
    #: Queries with a checkpoint that a launch has claimed, read after the assignments.
    claimed: Mapping[str, frozenset[str]]
    heartbeats: Heartbeats
    #: Beginning of the heartbeats' read, by the reader's clock.
    heartbeats_at: float
    #: Paths of unreadable records, which must not count as absent.
    unreadable: frozenset[str]


def _queries(
    names: Mapping[str, list[str]], parse: Callable[[str], str | None]
) -> Mapping[str, frozenset[str]]:
    found = {
        storm_id: frozenset(query for name in below if (query := parse(name)) is not None)
        for storm_id, below in names.items()
    }
    return MappingProxyType({storm_id: queries for storm_id, queries in found.items() if queries})


T = TypeVar("T")
Value = TypeVar("Value")


class Dependents(Generic[T]):
    """Weak references to objects that end with a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[T] = weakref.WeakSet()

    def add(self, one: T) -> None:
        with self._lock:
            self._held.add(one)

    def __iter__(self) -> Iterator[T]:
        with self._lock:
            return iter(list(self._held))


class StormReads(
    TopologyReads,
    HeartbeatReads,
    ReportReads,
    DaemonReads,
    BlobReads,
):
    """All reads of a cluster; errors are those of `ClusterState`. Safe for many threads.

    A callback is called once, on the store's callback thread, when the result has changed, or may
    have during a lost session.
    """

    _heartbeats: HeartbeatStore

    def __init__(
        self,
        state: StateReader,
        codec: Codec,
        *,
        heartbeats: HeartbeatStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(state, codec, clock=clock)
        self._heartbeats = heartbeats
        self._streams: Dependents[Stream[Any]] = Dependents()

    def watch(self, read: Callable[[Callback], Value]) -> Stream[Value]:
        """Return a stream of a read's values: the present, and the next after each change.

        `read` takes a callback, as ``storm.assignments`` does.
        """
        stream = Stream(read, self._callbacks.forget_all)
        self._streams.add(stream)
        return stream

    def disconnect(self) -> None:
        """Call no more callbacks, and close the streams."""
        self._callbacks.close()
        for stream in self._streams:
            stream.close()

    def snapshot(
        self,
        *,
        values: bool = False,
        may_lack_heartbeats: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> ClusterSnapshot:
        """Read bases, assignments, supervisors, Nimbuses, and then the heartbeats.

        Takes nine round trips, and one bulk read of heartbeats. If no Pacemaker answers, raises
        `PacemakerError`, or with `may_lack_heartbeats` returns none; if some answer,
        `Heartbeats.missing` names the others.
        """
        unreadable: set[str] = set()

        def read(cls: type[Record], path: str) -> Mapping[str, Record]:
            found, others = self._listed(cls, path)
            unreadable.update(f"{path}/{name}" for name in others)
            return MappingProxyType(found)

        def beats() -> Heartbeats:
            try:
                return self._heartbeats.read_all(values=values, hurried=may_lack_heartbeats)
            except PacemakerError as error:
                if not may_lack_heartbeats:
                    raise
                log.debug("no heartbeats were read: %s", error)
                return Heartbeats({}, {})

        bases = read(StormBase, paths.STORMS)
        assignments = read(Assignment, paths.ASSIGNMENTS)
        names = self._worker_nodes(list(bases))
        return ClusterSnapshot(
            bases=bases,
            assignments=assignments,
            supervisors=read(SupervisorInfo, paths.SUPERVISORS),
            nimbuses=read(NimbusSummary, paths.NIMBUSES),
            ended=_queries(names, paths.parse_query_end),
            claimed=_queries(names, paths.parse_query_claim),
            heartbeats_at=clock(),
            heartbeats=beats(),
            unreadable=frozenset(unreadable),
        )

    def _worker_nodes(self, storm_ids: Sequence[str]) -> dict[str, list[str]]:
        names = self._state.children_many([paths.workerbeats(each) for each in storm_ids])
        return {storm_id: below for storm_id, below in zip(storm_ids, names, strict=True) if below}


class StormClusterState(
    StormReads,
    HeartbeatWrites,
    ReportWrites,
    DaemonWrites,
    ProfileRequestWrites,
    BlobHolderWrites,
    BlobWrites,
    CheckpointRemovalWrites,
):
    """All reads, and a process's own writes: registrations, heartbeats, errors.

    `disconnect` closes `state` and `heartbeats`, by default nodes of the session.
    """

    _state: ClusterState

    def __init__(
        self,
        state: ClusterState,
        codec: Codec,
        *,
        heartbeats: HeartbeatStore | None = None,
        limits: ErrorLimits | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        heartbeats = NodeHeartbeats(state) if heartbeats is None else heartbeats
        super().__init__(state, codec, heartbeats=heartbeats, clock=clock)
        self._writer = state
        self._throttles = ErrorThrottles(limits or ErrorLimits(), monotonic)
        self._nimbus_places = {}
        #: Other users of the session, such as a leader: disconnected too.
        self.handles: Dependents[StormReads] = Dependents()

    @property
    def state(self) -> ClusterState:
        """For locks, and for nodes without a record."""
        return self._state

    @property
    def heartbeats(self) -> HeartbeatStore:
        """For ages and coverage."""
        return self._heartbeats

    @property
    def codec(self) -> Codec:
        return self._codec

    def disconnect(self) -> None:
        """End the session with all registrations."""
        super().disconnect()
        for handle in self.handles:
            handle.disconnect()
        try:
            self._heartbeats.close()
        finally:
            self._state.close()


def connect(conf: Conf, *, role: Role = Role.SERVER) -> StormClusterState:
    """Connect to the store that the configuration names; errors are those of `backends.connect`.

    A server makes absent directories, like Storm's daemons. A worker may not.
    """
    codec = Codec.from_conf(conf)
    limits = ErrorLimits.from_conf(conf)
    state = backends.connect(conf, role=role)
    try:
        if role is Role.SERVER:
            for directory in paths.DIRECTORIES:
                state.mkdirs(directory)
        beats = backends.heartbeats(conf, state)
        return StormClusterState(state, codec, heartbeats=beats, limits=limits)
    except BaseException:
        state.close()
        raise


class LeaderClusterState(
    StormReads,
    TopologyWrites,
    HeartbeatLeaderWrites,
    ReportLeaderWrites,
    ProfileRequestWrites,
    BlobWrites,
):
    """All reads, and a leader's fenced writes, which stamp each record with the leader's epoch.

    `disconnect` leaves the writer's session open.
    """

    def __init__(
        self,
        writer: FencedWriter,
        codec: Codec,
        *,
        heartbeats: HeartbeatStore | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(writer, FencedWriter):
            raise TypeError(
                f"a leader writes through a FencedWriter, not through a {type(writer).__name__}"
            )
        if heartbeats is None:
            heartbeats = NodeHeartbeats(writer.session)
        if isinstance(heartbeats, NodeHeartbeats):
            heartbeats = heartbeats.removed_by(writer)
        super().__init__(writer.session, codec, heartbeats=heartbeats, clock=clock)
        self._writer = writer

    @property
    def fence(self) -> Fence:
        return self._writer.fence


def leader_state(storm: StormClusterState, fence: Fence) -> LeaderClusterState:
    """Return the leader's calls, for the session of `storm`, which leads by `fence`.

    Disconnect at the end of the leadership. Errors are those of `verify_fence`.
    """
    leader = LeaderClusterState(
        FencedWriter(storm.state, fence), storm.codec, heartbeats=storm.heartbeats
    )
    storm.handles.add(leader)
    return leader
