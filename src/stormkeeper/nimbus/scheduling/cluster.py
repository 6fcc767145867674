"""The scheduler's immutable snapshot of the cluster, and the conversion from and to records.

Times are seconds since 1970 on the planning Nimbus's clock. A machine is a supervisor; several may
share a host. Storm's fields of an `Assignment` are for Storm's tools; our supervisors read
``launches``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Final

import stormkeeper
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import (
    Assignment,
    CrashSeries,
    LaunchClaim,
    NodeInfo,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
    WorkerLaunch,
    WorkerResources,
)
from stormkeeper.topology.description import ExecutorDescription
from stormkeeper.topology.plan import Claim


@dataclass(frozen=True, slots=True, order=True)
class Crashes:
    """Crashes of the same work in a row."""

    count: int
    since_secs: int
    error: str


@dataclass(frozen=True, slots=True)
class Supervisor:
    """A registered supervisor with a live session in ZooKeeper."""

    id: str
    host: str
    ports: frozenset[int]
    memory_mb: float = inf
    #: Ports with a running worker of any topology.
    running: frozenset[int] = frozenset()
    #: By port, the newest launch that is known to have stopped.
    stopped: Mapping[int, Claim] = field(default_factory=dict)
    uptime_secs: float = inf
    #: Why it takes no new work, if so.
    refuses: str | None = None
    crashes: Mapping[Claim, Crashes] = field(default_factory=dict)
    #: Storm's own supervisors cannot run our queries.
    is_ours: bool = True
    #: Whether its workers write ``<query>-claimed``.
    tells_claims: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """A worker as ordered by a leader; all queries run at once, for the worker's whole life."""

    slot: Slot
    claim: Claim
    queries: tuple[str, ...]
    started_at: int = 0
    memory_mb: float = 0
    #: Whether it should stop, or has stopped. Its slot stays reserved until its queries have
    #: another. The slot says on which machine an unshared checkpoint is.
    is_released: bool = False
    #: Crash series of its queries before this launch, in any slot.
    crashes: Crashes | None = None
    #: Whether all launches of its queries so far write ``<query>-claimed`` before they take the
    #: checkpoint.
    tells_claims: bool = False


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A topology as read; cached properties are computed once for each object."""

    id: str
    status: TopologyStatus = TopologyStatus.ACTIVE
    queries: tuple[str, ...]
    #: Most workers: ``topology.workers``, or the last rebalance's number.
    workers: int = 1
    memory_mb: float = 0
    launched_at: float = 0
    #: Whether every machine reaches its checkpoints; else queries stay on their first machine.
    is_shared: bool = False
    #: By query, the machine (supervisor id) that has the checkpoint.
    homes: Mapping[str, str] = field(default_factory=dict)
    #: Host names by supervisor id, also of supervisors that are gone.
    hosts: Mapping[str, str] = field(default_factory=dict)
    #: Queries that ended by themselves and get no new worker.
    ended: frozenset[str] = frozenset()
    #: Queries whose checkpoint a launch has claimed.
    claimed: frozenset[str] = frozenset()
    #: Launches released before `claimed` was read: they can claim nothing more.
    released: frozenset[Claim] = frozenset()
    #: Also released ones.
    launches: tuple[Launch, ...] = ()
    #: When a kill or rebalance is due; None: none is pending, or its conf is not saved yet.
    due_at: float | None = None
    #: Status after a pending rebalance; None: ACTIVE.
    previous: TopologyStatus | None = None
    #: `workers` after the rebalance; None: unchanged.
    rebalanced_workers: int | None = None
    #: Why nothing may be decided about it, such as missing code.
    blocked: str | None = None
    #: Its present ``sched_status``.
    text: str = ""

    def is_due(self, now: float) -> bool:
        return self.due_at is not None and self.due_at <= now

    def is_unclaimed(self, launch: Launch) -> bool:
        """Return whether no checkpoint of a worker's queries was claimed."""
        return launch.tells_claims and self.claimed.isdisjoint(launch.queries)

    def holds_nothing(self, launch: Launch) -> bool:
        """Return whether certainly no machine has a checkpoint of a worker's queries."""
        return launch.claim in self.released and self.is_unclaimed(launch)

    @cached_property
    def claims(self) -> frozenset[Claim]:
        return frozenset(launch.claim for launch in self.launches)

    @cached_property
    def ordered(self) -> tuple[Launch, ...]:
        """The launches by slot and claim."""
        return in_order(self.launches)

    @cached_property
    def live(self) -> frozenset[str]:
        """The queries that have not ended."""
        return frozenset(self.queries) - self.ended

    @cached_property
    def busy(self) -> tuple[Launch, ...]:
        """The launches with a query that has not ended, in order."""
        busy = tuple(one for one in self.ordered if not self.live.isdisjoint(one.queries))
        return self.ordered if len(busy) == len(self.ordered) else busy

    @cached_property
    def is_placed(self) -> bool:
        """Whether each query that has not ended has a worker, and no worker is released."""
        return self.is_placed_by(self.launches)

    def is_placed_by(self, launches: Collection[Launch]) -> bool:
        """Return the same for other launches of the topology."""
        placed = {query for launch in launches for query in launch.queries}
        return self.live <= placed and not any(launch.is_released for launch in launches)


def in_order(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    return tuple(sorted(launches, key=lambda launch: (launch.slot, launch.claim)))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A plan's input; cached properties are computed once for each object."""

    now: float
    epoch: int
    #: The least unused counter of the epoch's claims.
    next_counter: int
    supervisors: Mapping[str, Supervisor]
    topologies: Mapping[str, Topology]
    #: Liveness by claim; a missing claim is alive, or unknown.
    workers: Mapping[Claim, Status]
    #: Ids with an assignment and without a topology.
    strays: frozenset[str] = frozenset()
    #: ``nimbus.task.launch.secs``: a worker's time until its first heartbeat, and a supervisor's
    #: after its own start to start workers.
    launch_secs: float = 120

    def has_same_parts(self, other: Cluster) -> bool:
        """Return whether another cluster has the same objects, as if nothing changed meanwhile."""
        return self.topologies is other.topologies and self.supervisors is other.supervisors

    @cached_property
    def by_host(self) -> Mapping[str, list[Supervisor]]:
        found: dict[str, list[Supervisor]] = {}
        for each in self.supervisors.values():
            found.setdefault(each.host, []).append(each)
        return found

    @cached_property
    def java_hosts(self) -> list[str]:
        """Hosts of Storm's own supervisors, sorted."""
        return sorted(each.host for each in self.supervisors.values() if not each.is_ours)


#: Resource of a supervisor's memory in MB: since Storm 2, and before.
_MEMORY: Final = ("memory.mb", "supervisor.memory.capacity.mb")


def supervisor_from_record(id_: str, info: SupervisorInfo) -> Supervisor:
    resources = info.resources_map or {}
    is_ours = runs_packages(info)
    return Supervisor(
        id=id_,
        host=info.hostname,
        ports=frozenset(info.meta or ()) if is_ours else frozenset(),
        memory_mb=next((resources[name] for name in _MEMORY if name in resources), inf),
        running=frozenset(info.used_ports or ()),
        stopped={
            port: Claim(claim.epoch, claim.counter)
            for port, claim in (info.stopped_workers or {}).items()
        },
        uptime_secs=inf if info.uptime_secs is None else info.uptime_secs,
        refuses=info.refuses,
        crashes={
            Claim(each.claim.epoch, each.claim.counter): _crashes(each.crashes)
            for each in (info.slots or {}).values()
            if each.crashes is not None
        },
        is_ours=is_ours,
        tells_claims=info.stormkeeper is not None,
    )


def _crashes(series: CrashSeries) -> Crashes:
    return Crashes(series.count, series.since_secs, series.error)


def runs_packages(info: SupervisorInfo) -> bool:
    """Return whether a supervisor is Stormkeeper's: Storm's own runs only Java topologies."""
    # Older supervisors of Stormkeeper do not name themselves.
    ours = (info.stormkeeper, info.slots, info.stopped_workers, info.http_port, info.refuses)
    return info.version == stormkeeper.UNNAMED_VERSION or any(each is not None for each in ours)


def topology_from_records(
    storm_id: str,
    base: StormBase,
    assignment: Assignment | None,
    facts: Topology,
    due_at: float | None,
    *,
    launched: tuple[Launch, ...],
) -> Topology:
    """Return a topology; blocked if the assignment names no queries.

    `facts` has the fields of package, conf, and nodes of the queries; `launched` are the launches
    of the assignment.
    """
    options = base.topology_action_options
    rebalance = None if options is None else options.rebalance_options
    blocked = facts.blocked
    if assignment is not None and assignment.launches is None and _slots(assignment):
        blocked = blocked or "its assignment is another Nimbus's, and says of no query where it is"
    kept = base.checkpoints
    return replace(
        facts,
        id=storm_id,
        status=base.status,
        workers=max(1, base.num_workers),
        launched_at=base.launch_time_secs or 0,
        homes={} if kept is None else kept.nodes,
        hosts={
            **((kept.hosts if kept is not None else None) or {}),
            **((assignment.node_host if assignment is not None else None) or {}),
        },
        released=frozenset(each.claim for each in launched if each.is_released),
        launches=launched,
        due_at=due_at,
        previous=base.prev_status,
        rebalanced_workers=None if rebalance is None else rebalance.num_workers,
        blocked=blocked,
    )


def launches_from_record(assignment: Assignment) -> tuple[Launch, ...]:
    if assignment.launches is None:
        # Storm's Nimbus only names slots, which such workers keep in use.
        return tuple(
            Launch(slot, Claim(0, n), ()) for n, slot in enumerate(sorted(_slots(assignment)))
        )
    return tuple(
        Launch(
            slot=Slot(each.node, each.port),
            claim=Claim(each.claim.epoch, each.claim.counter),
            queries=tuple(each.queries),
            started_at=each.start_time_secs,
            memory_mb=each.memory_mb,
            is_released=bool(each.released),
            crashes=None if each.crashes is None else _crashes(each.crashes),
            tells_claims=bool(each.tells_claims),
        )
        for each in assignment.launches
    )


def assignment_record(
    launched: Collection[Launch],
    executors: Iterable[ExecutorDescription],
    *,
    master_code_dir: str,
    hosts: Mapping[str, str],
    owner: str | None = None,
) -> Assignment:
    """Return the record of a topology's workers; `executors` without a worker are left out."""
    workers = [
        (launch, NodeInfo(launch.slot.node, {launch.slot.port}))
        for launch in launched
        if not launch.is_released
    ]
    of = {query: (slot, launch.started_at) for launch, slot in workers for query in launch.queries}
    places: dict[tuple[int, ...], NodeInfo] = {}
    times: dict[tuple[int, ...], int] = {}
    for each in executors:
        if each.query in of:
            tasks = each.task_start, each.task_end
            places[tasks], times[tasks] = of[each.query]
    nodes = {launch.slot.node for launch in launched}
    resources = {mb: WorkerResources(mem_on_heap=mb) for mb in {one.memory_mb for one in launched}}
    return Assignment(
        master_code_dir=master_code_dir,
        node_host={node: hosts[node] for node in sorted(nodes & hosts.keys())},
        executor_node_port=places,
        executor_start_time_secs=times,
        worker_resources={slot: resources[launch.memory_mb] for launch, slot in workers},
        owner=owner,
        launches=[_record(launch) for launch in launched],
    )


def _record(launch: Launch) -> WorkerLaunch:
    return WorkerLaunch(
        node=launch.slot.node,
        port=launch.slot.port,
        claim=LaunchClaim(launch.claim.epoch, launch.claim.counter),
        queries=list(launch.queries),
        start_time_secs=launch.started_at,
        memory_mb=launch.memory_mb,
        released=launch.is_released or None,
        crashes=None if launch.crashes is None else CrashSeries(**asdict(launch.crashes)),
        tells_claims=launch.tells_claims or None,
    )


def _slots(assignment: Assignment) -> set[Slot]:
    named = [*(assignment.executor_node_port or {}).values(), *(assignment.worker_resources or ())]
    return {Slot(where.node, port) for where in named for port in where.port}
