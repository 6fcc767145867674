"""What a plan is made from: a cluster at one moment, as values that never change.

Times are seconds since 1970 on one clock, that of the Nimbus which plans.
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
    """Crashes of the same work in a row: how many, since when, and how the last one ended."""

    count: int
    since_secs: int
    error: str


@dataclass(frozen=True, slots=True)
class Supervisor:
    """A supervisor that is there: its session with the store lives.

    Parameters
    ----------
    id, host
        Its id, and its machine's name.
    ports
        Its slots.
    memory_mb
        What its workers may have together; infinite where it does not say.
    running
        The ports on which a worker of its runs, whoever's it is.
    stopped
        By port, the newest launch of which it knows that nothing runs any more.
    uptime_secs
        How long it has run.
    refuses
        Why it takes no new work; None: it does.
    crashes
        The crashes in a row that it tells of, by the launch that crashed.
    is_ours
        Whether it is a supervisor of Stormkeeper. Storm's own cannot run our queries.
    tells_claims
        Whether its workers tell of their claims (`Launch.tells_claims`).
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
    """A worker, as a leader has ordered it.

    Parameters
    ----------
    slot, claim
        Where it is, and which launch it is. No two workers of a cluster have the same claim.
    queries
        What it runs: all at once, and the same ones for as long as it lives.
    started_at
        When it was ordered.
    memory_mb
        What it may use.
    is_released
        Whether it is to stop, or has stopped. Its slot is its topology's until its queries have
        another one. For a query whose checkpoint is on one machine it says which.
    crashes
        How often its queries have crashed in a row before this launch, in whichever slots.
    tells_claims
        Whether each launch of these queries so far tells the cluster before it claims a checkpoint.
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
    """A topology that is known.

    Parameters
    ----------
    id, status
        As in its `StormBase`.
    queries
        What there is to run; a script is one query.
    workers
        On how many slots, at most.
    memory_mb
        What a worker of it may use.
    launched_at
        When it was submitted: who came first is served first.
    is_shared
        Whether its checkpoints can be reached from every machine. Else a query stays with the
        machine on which it was launched first.
    homes
        By query, the machine that its checkpoint is on, by its supervisor's id.
    hosts
        What machines are called of which some may be gone, by their supervisors' ids.
    ended
        Queries that have ended for good, and are not to be launched again.
    claimed
        Queries whose checkpoint a launch has claimed.
    released
        The launches that were released before `claimed` was read. A released launch can claim
        nothing more, so what is known of its claims is final.
    launches
        Its workers, in any order.
    due_at
        When the kill or the rebalance that it waits for is due; None: it waits for none.
    previous
        Its status before a rebalance.
    rebalanced_workers, rebalanced_memory_mb
        What `workers` and `memory_mb` are after the rebalance; None: the same.
    blocked
        Why nothing may be decided about it, such as missing code; None: nothing is in the way.
    text
        What is shown as its ``sched_status``.
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
    rebalanced_memory_mb: float | None = None
    blocked: str | None = None
    text: str = ""

    def is_due(self, now: float) -> bool:
        """Return whether it is time for what it waits for."""
        return self.due_at is not None and self.due_at <= now

    def is_unclaimed(self, launch: Launch) -> bool:
        """Return whether no checkpoint of a worker's queries was claimed when it was read."""
        return launch.tells_claims and self.claimed.isdisjoint(launch.queries)

    def holds_nothing(self, launch: Launch) -> bool:
        """Return whether it is certain that no machine has a checkpoint of a worker's queries."""
        return launch.claim in self.released and self.is_unclaimed(launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster at one moment.

    Parameters
    ----------
    now
        The moment.
    epoch, next_counter
        Of the leader who plans, and the least counter that no claim of its reign has had yet.
    supervisors, topologies
        By their ids.
    workers
        What is known of them, by their claims. Of one that is missing nothing is known.
    strays
        Ids under which there is an assignment, and no topology.
    launch_secs
        The time a worker has until its first heartbeat: ``nimbus.task.launch.secs``. A supervisor
        has the same time after its own start to start its workers.
    """

    now: float
    epoch: int
    next_counter: int
    supervisors: Mapping[str, Supervisor]
    topologies: Mapping[str, Topology]
    workers: Mapping[Claim, Status]
    strays: frozenset[str] = frozenset()
    launch_secs: float = 120
