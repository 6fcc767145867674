"""`StormClusterState`: what every daemon, worker and tool may read, and write of its own."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.heartbeats.protocols import HeartbeatStore
from stormkeeper.state import factory
from stormkeeper.state.access import Role
from stormkeeper.state.node_heartbeats import NodeHeartbeats
from stormkeeper.state.storage import ClusterState, StateReader
from stormkeeper.state.storm.blobs import BlobHolding, BlobReads, BlobWrites
from stormkeeper.state.storm.checkpoints import CheckpointReads, CheckpointRemovals
from stormkeeper.state.storm.codec import Codec
from stormkeeper.state.storm.daemons import DaemonReads, DaemonWrites
from stormkeeper.state.storm.errors import ErrorLimits, ErrorReads, ErrorThrottles, ErrorWrites
from stormkeeper.state.storm.heartbeats import HeartbeatReads, HeartbeatWrites
from stormkeeper.state.storm.snapshot import SnapshotReads
from stormkeeper.state.storm.tasks import TaskBeats, TaskReads
from stormkeeper.state.storm.topologies import TopologyReads
from stormkeeper.state.storm.watching import Callback, Stream
from stormkeeper.state.storm.workers import ProfileCleaning, WorkerReads, WorkerReports

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
    WorkerReads,
    HeartbeatReads,
    ErrorReads,
    TaskReads,
    DaemonReads,
    BlobReads,
    CheckpointReads,
    SnapshotReads,
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


class StormClusterState(
    StormReads,
    WorkerReports,
    HeartbeatWrites,
    ErrorWrites,
    TaskBeats,
    DaemonWrites,
    ProfileCleaning,
    BlobHolding,
    BlobWrites,
    CheckpointRemovals,
):
    """All reads, and what a process writes of its own: registrations, heartbeats, errors.

    What only a leader may write is in `stormkeeper.state.storm.leader`.

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
