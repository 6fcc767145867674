"""Storm's cluster state: all reads, a process's own writes, and a leader's fenced writes."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.errors import PacemakerError
from stormkeeper.heartbeats.follower import FollowedHeartbeats, HeartbeatFollower
from stormkeeper.heartbeats.stores import HeartbeatStore
from stormkeeper.state import backends
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.leader_lock import Fence
from stormkeeper.state.storage import ClusterState, Role, StateReader
from stormkeeper.state.storm.blob_records import BlobHolderWrites, BlobReads, BlobWrites
from stormkeeper.state.storm.cluster_view import (
    ClusterRecords,
    ClusterView,
    Names,
    parsed_queries,
)
from stormkeeper.state.storm.daemon_records import (
    CheckpointRemovalWrites,
    DaemonReads,
    DaemonWrites,
    TopologyReads,
    TopologyWrites,
)
from stormkeeper.state.storm.heartbeat_records import (
    DecodedHeartbeats,
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
from stormkeeper.thrift.records import Assignment
from stormkeeper.thrift.serialization import Codec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot(ClusterRecords):
    """A cluster as read, for a decision that reads nothing else.

    The heartbeats are read last, so that assigned workers had time to beat.
    """

    heartbeats: FollowedHeartbeats
    #: Beginning of the heartbeats' read, by the reader's clock.
    heartbeats_at: float


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
    have during a lost connection.
    """

    _heartbeats: HeartbeatStore

    def __init__(
        self,
        state: StateReader,
        codec: Codec,
        *,
        heartbeats: HeartbeatStore,
        session_view: Callable[[], ClusterView] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(state, codec, clock=clock)
        self._heartbeats = heartbeats
        self._decoded_beats = DecodedHeartbeats()
        self._streams: Dependents[Stream[Any]] = Dependents()
        self._session_view = session_view
        self._view: ClusterView | None = None
        #: Assignments, and which have released workers. Replaced as a whole: threads may race.
        self._released: tuple[Mapping[str, Assignment], list[str]] = ({}, [])
        self._view_lock = threading.Lock()

    def watch(self, read: Callable[[Callback], Value]) -> Stream[Value]:
        """Return a stream of a read's values: the present, and the next after each change.

        `read` takes a callback, as ``storm.assignments`` does.
        """
        stream = Stream(read, self._callbacks.forget_all)
        self._streams.add(stream)
        return stream

    def disconnect(self) -> None:
        """Call no more callbacks, and close the streams and the own view."""
        self._callbacks.close()
        if self._view is not None:
            self._view.close()
        for stream in self._streams:
            stream.close()

    @property
    def view(self) -> ClusterView:
        """The session's records in memory, kept in sync from the first use on."""
        if self._session_view is not None:
            return self._session_view()
        with self._view_lock:
            if self._view is None:
                self._view = ClusterView(self._state, self._codec)
            return self._view

    def snapshot(
        self,
        *,
        may_lack_heartbeats: bool = False,
        is_synced: bool = False,
        follower: HeartbeatFollower[Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> ClusterSnapshot:
        """Return the records with this session's writes, and then read the heartbeats.

        With `is_synced` the records have every write to the store before the call. A `follower`
        reads only heartbeats that changed since it read last. If no Pacemaker answers, raises
        `PacemakerError`, or with `may_lack_heartbeats` returns no coverage; if some answer,
        `FollowedHeartbeats.missing` names the others.
        """
        records = self.view.now() if is_synced else self.view.caught_up()
        ended, claimed = self._newest_names(records)
        began = clock()
        if follower is None:
            follower = self._heartbeats.follower()
        beats = FollowedHeartbeats(follower, {}, follower.clock())
        try:
            coverage = follower.refresh(hurried=may_lack_heartbeats).coverage
            beats = replace(beats, coverage=coverage)
        except PacemakerError as error:
            if not may_lack_heartbeats:
                raise
            log.debug("no heartbeats were read: %s", error)
        return ClusterSnapshot(
            **{each.name: getattr(records, each.name) for each in fields(records)}
            # Unchanged names stay the same object.
            | {"ended": {**records.ended, **ended} if ended else records.ended}
            | {"claimed": {**records.claimed, **claimed} if claimed else records.claimed},
            heartbeats=beats,
            heartbeats_at=began,
        )

    def _newest_names(self, records: ClusterRecords) -> tuple[Names, Names]:
        """Return ended and claimed queries of topologies with released workers, as of now.

        A released worker can claim no checkpoint any more, so a claim that is not there now, after
        the release was seen, will never be.
        """
        assignments, released = self._released
        if assignments is not records.assignments:
            assignments = records.assignments
            released = [
                storm_id
                for storm_id, each in assignments.items()
                if any(launch.released for launch in each.launches or ())
            ]
            self._released = (assignments, released)
        names = self._state.children_many([paths.workerbeats(each) for each in released])
        return parsed_queries(dict(zip(released, (below or [] for below in names), strict=True)))


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
        session_view: Callable[[], ClusterView] | None = None,
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
        super().__init__(
            writer.session, codec, heartbeats=heartbeats, session_view=session_view, clock=clock
        )
        self._writer = writer

    @property
    def fence(self) -> Fence:
        return self._writer.fence


def leader_state(storm: StormClusterState, fence: Fence) -> LeaderClusterState:
    """Return the leader's calls, for the session of `storm`, which leads by `fence`.

    Disconnect at the end of the leadership. Errors are those of `verify_fence`.
    """
    leader = LeaderClusterState(
        FencedWriter(storm.state, fence),
        storm.codec,
        heartbeats=storm.heartbeats,
        session_view=lambda: storm.view,
    )
    storm.handles.add(leader)
    return leader
