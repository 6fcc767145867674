"""`LeaderClusterState`: what only a leader may write, let through by its lock or refused."""

from __future__ import annotations

import time
from collections.abc import Callable

from stormkeeper.heartbeats.protocols import HeartbeatStore
from stormkeeper.state.fences import Fence, FencedWriter
from stormkeeper.state.node_heartbeats import NodeHeartbeats
from stormkeeper.state.storm.blobs import BlobWrites
from stormkeeper.state.storm.checkpoints import CheckpointWrites
from stormkeeper.state.storm.cluster import StormClusterState, StormReads
from stormkeeper.state.storm.codec import Codec
from stormkeeper.state.storm.errors import ErrorCleaning
from stormkeeper.state.storm.heartbeats import HeartbeatCleaning
from stormkeeper.state.storm.tasks import TaskWrites
from stormkeeper.state.storm.topologies import TopologyWrites
from stormkeeper.state.storm.workers import ProfileCleaning, WorkerWrites


class LeaderClusterState(
    StormReads,
    TopologyWrites,
    WorkerWrites,
    HeartbeatCleaning,
    ErrorCleaning,
    TaskWrites,
    ProfileCleaning,
    BlobWrites,
    CheckpointWrites,
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


def leading(storm: StormClusterState, fence: Fence) -> LeaderClusterState:
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
