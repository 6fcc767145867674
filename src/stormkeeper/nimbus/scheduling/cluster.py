"""The input of a plan: an immutable snapshot of the cluster.

Times are seconds since 1970 on the clock of the planning Nimbus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim


@dataclass(frozen=True, slots=True, order=True)
class Crashes:
    """Crashes of the same work in a row: how many, since when, and the last error."""

    count: int
    since_secs: int
    error: str


@dataclass(frozen=True, slots=True)
class Supervisor:
    """A registered supervisor with a live session in ZooKeeper.

    Parameters
    ----------
    running
        Ports with a running worker of any topology.
    stopped
        By port, the newest launch that is known to have stopped.
    refuses
        Why it takes no new work; None: it does.
    is_ours
        Whether it belongs to Stormkeeper. Storm's own supervisors cannot run our queries.
    tells_claims
        Whether its workers write ``<query>-claimed`` (`Launch.tells_claims`).
    """

    id: str
    host: str
    ports: frozenset[int]
    memory_mb: float = inf
    running: frozenset[int] = frozenset()
    stopped: Mapping[int, Claim] = field(default_factory=dict)
    uptime_secs: float = inf
    refuses: str | None = None
    crashes: Mapping[Claim, Crashes] = field(default_factory=dict)
    is_ours: bool = True
    tells_claims: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """A worker as ordered by a leader.

    Parameters
    ----------
    queries
        All run at once, the same ones for the worker's whole life.
    is_released
        Whether it should stop, or has stopped. Its slot stays reserved for its topology until its
        queries have another one, and names the machine of a checkpoint that is not shared.
    crashes
        Crash series of its queries before this launch, in any slot.
    tells_claims
        Whether all launches of these queries so far write ``<query>-claimed`` before they take the
        checkpoint.
    """

    slot: Slot
    claim: Claim
    queries: tuple[str, ...]
    started_at: int = 0
    memory_mb: float = 0
    is_released: bool = False
    crashes: Crashes | None = None
    tells_claims: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A known topology.

    Parameters
    ----------
    workers
        The most workers that it may have: ``topology.workers``, or as rebalanced since.
    is_shared
        Whether every machine reaches its checkpoints. Else a query stays on its first machine.
    homes
        By query, the supervisor id of the machine that has its checkpoint.
    hosts
        Host names by supervisor id, also of supervisors that are gone.
    ended
        Queries that ended by themselves: none of them gets a new worker.
    claimed
        Queries whose checkpoint a launch has claimed.
    released
        Launches that were released before `claimed` was read: these can claim nothing more.
    launches
        Its workers as the assignment has them, the released ones too.
    due_at
        When its kill or rebalance is due; None: none is pending, or its conf is not saved yet.
    previous
        The status before a pending rebalance, which the topology gets again; None: ACTIVE.
    rebalanced_workers
        `workers` after the rebalance; None: unchanged.
    blocked
        Why nothing may be decided about it, such as missing code; None: not blocked.
    text
        Its present ``sched_status``.
    """

    id: str
    status: TopologyStatus = TopologyStatus.ACTIVE
    queries: tuple[str, ...]
    workers: int = 1
    memory_mb: float = 0
    launched_at: float = 0
    is_shared: bool = False
    homes: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    claimed: frozenset[str] = frozenset()
    released: frozenset[Claim] = frozenset()
    launches: tuple[Launch, ...] = ()
    due_at: float | None = None
    previous: TopologyStatus | None = None
    rebalanced_workers: int | None = None
    blocked: str | None = None
    text: str = ""

    def is_due(self, now: float) -> bool:
        """Return whether a pending kill or rebalance is due."""
        return self.due_at is not None and self.due_at <= now

    def is_unclaimed(self, launch: Launch) -> bool:
        """Return whether no checkpoint of a worker's queries was claimed at the read."""
        return launch.tells_claims and self.claimed.isdisjoint(launch.queries)

    def holds_nothing(self, launch: Launch) -> bool:
        """Return whether certainly no machine has a checkpoint of a worker's queries."""
        return launch.claim in self.released and self.is_unclaimed(launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A plan's input, which `conversion` makes from a `ClusterSnapshot`.

    Parameters
    ----------
    next_counter
        The least counter that no claim of the epoch has used.
    workers
        Liveness by claim; a missing claim is unknown.
    strays
        Ids with an assignment and without a topology.
    launch_secs
        ``nimbus.task.launch.secs``: a worker's time until its first heartbeat, and a supervisor's
        time after its own start to start its workers.
    """

    now: float
    epoch: int
    next_counter: int
    supervisors: Mapping[str, Supervisor]
    topologies: Mapping[str, Topology]
    workers: Mapping[Claim, Status]
    strays: frozenset[str] = frozenset()
    launch_secs: float = 120
