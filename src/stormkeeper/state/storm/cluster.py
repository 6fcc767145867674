"""`StormClusterState`: what every daemon, worker and tool may read, and write of its own."""

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
from stormkeeper.state import factory
from stormkeeper.state.access import Role
from stormkeeper.state.leader_lock import Fence, FencedWriter
from stormkeeper.state.node_heartbeats import NodeHeartbeats
from stormkeeper.state.storage import ClusterState, StateReader
from stormkeeper.state.storm.blob_records import BlobHolderWrites, BlobReads, BlobWrites
from stormkeeper.state.storm.daemon_records import DaemonReads, DaemonWrites
from stormkeeper.state.storm.heartbeat_records import (
    HeartbeatLeaderWrites,
    HeartbeatReads,
    HeartbeatWrites,
)
from stormkeeper.state.storm.record_io import Codec, Record
from stormkeeper.state.storm.subscriptions import Callback, Stream
from stormkeeper.state.storm.topology_records import (
    CheckpointRemovalWrites,
    TopologyReads,
    TopologyWrites,
)
from stormkeeper.state.storm.worker_reports import (
    ErrorLimits,
    ErrorThrottles,
    ProfileRequestWrites,
    ReportLeaderWrites,
    ReportReads,
    ReportWrites,
)
from stormkeeper.thrift.records import Assignment, NimbusSummary, StormBase, SupervisorInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster as it was read; whoever decides about it reads nothing else.

    It is not of one moment: the heartbeats were read last, so that a worker that an assignment
    names had the time to beat, and each of the others in one go.

    Parameters
    ----------
    bases, assignments
        By the ids of their topologies.
    supervisors
        By their ids.
    nimbuses
        By the names of their nodes.
    ended
        The queries that have ended by themselves, by the ids of their topologies.
    claimed
        The queries of which a launch has told that it claims the checkpoint, by the ids of their
        topologies. They were read after the assignments.
    heartbeats
        By path, without values unless they were asked for, and how far back each server can vouch.
    heartbeats_at
        When the read of the heartbeats began, which their ages are of, by the reader's clock.
    unreadable
        The paths of records that are there and cannot be read, so that nobody takes them for
        absent.
    """

    bases: Mapping[str, StormBase]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    nimbuses: Mapping[str, NimbusSummary]
    ended: Mapping[str, frozenset[str]]
    claimed: Mapping[str, frozenset[str]]
    heartbeats: Heartbeats
    heartbeats_at: float
    unreadable: frozenset[str]


def _queries(
    told: Mapping[str, list[str]], parse: Callable[[str], str | None]
) -> Mapping[str, frozenset[str]]:
    """Return which queries the names of nodes are about, by topology."""
    found = {
        storm_id: frozenset(query for name in names if (query := parse(name)) is not None)
        for storm_id, names in told.items()
    }
    return MappingProxyType({storm_id: queries for storm_id, queries in found.items() if queries})


T = TypeVar("T")
Value = TypeVar("Value")


class Dependents(Generic[T]):
    """What has to end with a session, by weak references. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[T] = weakref.WeakSet()

    def add(self, one: T) -> None:
        """Add one, also while others are looked at."""
        with self._lock:
            self._held.add(one)

    def __iter__(self) -> Iterator[T]:
        """Look at those that there are now."""
        with self._lock:
            return iter(list(self._held))


class StormReads(
    TopologyReads,
    HeartbeatReads,
    ReportReads,
    DaemonReads,
    BlobReads,
):
    """All reads. Safe for many threads.

    Parameters
    ----------
    state : StateReader
        The store.
    codec : Codec
        How records are written in it.
    heartbeats : HeartbeatStore
        Where heartbeats are.
    clock : callable, optional
        Seconds since 1970.

    Notes
    -----
    A callback is called once: when what was read has changed, or may have while the session was
    lost. It runs on the store's callback thread. To be called again it reads again; `watch` does
    that. After `disconnect` a read with a callback raises `StateClosedError`. Beside their own
    errors, all operations may raise those of `ClusterState`.
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
        """Return a stream of the values of a read: the present one, and one after each change.

        `disconnect` closes it.

        Parameters
        ----------
        read : callable
            Takes a callback, such as ``storm.assignments``, or
            ``lambda again: storm.assignment_info("wc-1-1700000000", again)``.
        """
        stream = Stream(read, self._callbacks.forget_all)
        self._streams.add(stream)
        return stream

    def disconnect(self) -> None:
        """Call no callback any more, and close the streams; the store stays open."""
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
        """Read bases, assignments, supervisors, Nimbuses, and then who beats.

        It takes nine round trips to ZooKeeper, and one bulk read of the heartbeats.

        Parameters
        ----------
        values
            Whether to read the heartbeats' values too.
        may_lack_heartbeats
            Whether there are no heartbeats, and no server that could vouch for anything, where no
            Pacemaker answered; that is waited for no longer than it has to be. Else it is an error.
        clock
            Tells when the heartbeats were read.

        Raises
        ------
        PacemakerError
            No Pacemaker answered. Where some did, `Heartbeats.missing` names the others.
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
        told = self._told(list(bases))
        return ClusterSnapshot(
            bases=bases,
            assignments=assignments,
            supervisors=read(SupervisorInfo, paths.SUPERVISORS),
            nimbuses=read(NimbusSummary, paths.NIMBUSES),
            ended=_queries(told, paths.parse_query_end),
            claimed=_queries(told, paths.parse_query_claim),
            heartbeats_at=clock(),
            heartbeats=beats(),
            unreadable=frozenset(unreadable),
        )

    def _told(self, storm_ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of what workers have left in ZooKeeper, by topology."""
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
    """All reads, and what a process writes of its own: registrations, heartbeats, errors.

    What only a leader may write is in `stormkeeper.state.storm.cluster`.

    Parameters
    ----------
    state : ClusterState
        A session with the store, which `disconnect` closes.
    codec : Codec
        How records are written in it.
    heartbeats : HeartbeatStore, optional
        Where heartbeats are, which `disconnect` closes too; nodes of the session if left out.
    limits : ErrorLimits, optional
        How many errors a component may report in which time; Storm's if left out.
    clock : callable, optional
        Seconds since 1970.
    monotonic : callable, optional
        Seconds, for intervals.
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
        #: What else uses the session, such as a leader; `disconnect` disconnects it too.
        self.handles: Dependents[StormReads] = Dependents()

    @property
    def state(self) -> ClusterState:
        """The session: for a lock in it, and for what has no record."""
        return self._state

    @property
    def heartbeats(self) -> HeartbeatStore:
        """Where heartbeats are: for their ages, and how far back each server can vouch."""
        return self._heartbeats

    @property
    def codec(self) -> Codec:
        """How records are written."""
        return self._codec

    def disconnect(self) -> None:
        """Call no callback any more, and end the session with all that it registered."""
        super().disconnect()
        for handle in self.handles:
            handle.disconnect()
        try:
            self._heartbeats.close()
        finally:
            self._state.close()


def connect(conf: Conf, *, role: Role = Role.SERVER) -> StormClusterState:
    """Connect to the store that the configuration names.

    A server makes the directories that are absent, as every daemon of Storm does. A worker may not
    make them, and does without.

    Raises
    ------
    ConfigError
        A key is wrong.
    StateUnavailableError, StateAuthenticationError
        No server answered in time, or none took us for who we say we are.
    """
    codec = Codec.from_conf(conf)
    limits = ErrorLimits.from_conf(conf)
    state = factory.connect(conf, role=role)
    try:
        if role is Role.SERVER:
            for directory in paths.DIRECTORIES:
                state.mkdirs(directory)
        beats = factory.heartbeats(conf, state)
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
    """All reads, and what a leader decides: every write is fenced, every record names the leader.

    The session had the first lock of the queue when `writer` was made. It leads as long as that
    lock is there, which every write checks. Once the lock is gone every write raises
    `NotLeaderError`. A process that leads again makes another one of these with its new lock.

    Parameters
    ----------
    writer : FencedWriter
        What lets the leader's writes through. Reads are those of its session, which `disconnect`
        leaves open.
    codec : Codec
        How records are written.
    heartbeats : HeartbeatStore, optional
        Where heartbeats are; nodes of the session if left out. What it removes of nodes, it removes
        through `writer`.
    clock : callable, optional
        Seconds since 1970.

    Raises
    ------
    TypeError
        `writer` is none that is fenced.
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
        """The lock that lets its writes through."""
        return self._writer.fence


def leader_state(storm: StormClusterState, fence: Fence) -> LeaderClusterState:
    """Return the leader's calls, for the session of `storm`, which leads by `fence`.

    Its callbacks are its own: `disconnect` it when the reign is over. `storm.disconnect` ends it
    too.

    Raises
    ------
    TypeError, NotLeaderError, StateUnavailableError
        As `FencedWriter`: this session does not lead by `fence`.
    """
    leader = LeaderClusterState(
        FencedWriter(storm.state, fence), storm.codec, heartbeats=storm.heartbeats
    )
    storm.handles.add(leader)
    return leader
