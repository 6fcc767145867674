"""The scheduler's immutable snapshot of the cluster, and its conversion from and to records.

Times are seconds since 1970 on the planning Nimbus's clock. A machine is a supervisor; several may
share a host. Storm's fields of an `Assignment` are for Storm's tools; our supervisors read
``launches``. An unreadable record counts as present: nothing is moved, removed or stopped for it,
and its slots are not free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Final

import stormkeeper
from stormkeeper import paths
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.paths import Slot
from stormkeeper.state.storm.cluster import ClusterSnapshot
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A topology as read."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A plan's input."""

    now: float
    epoch: int
    #: The least unused counter of the epoch's claims.
    next_counter: int
    supervisors: Mapping[str, Supervisor]
    topologies: Mapping[str, Topology]
    #: Liveness by claim; a missing claim is unknown.
    workers: Mapping[Claim, Status]
    #: Ids with an assignment and without a topology.
    strays: frozenset[str] = frozenset()
    #: ``nimbus.task.launch.secs``: a worker's time until its first heartbeat, and a supervisor's
    #: after its own start to start workers.
    launch_secs: float = 120


#: Resource of a supervisor's memory in MB: since Storm 2, and before.
_MEMORY: Final = ("memory.mb", "supervisor.memory.capacity.mb")


def supervisor_from_record(
    id_: str, info: SupervisorInfo, *, refuses: str | None = None
) -> Supervisor:
    """Return a supervisor; `refuses` overrides the record's reason to take no new work."""
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
        refuses=info.refuses if refuses is None else refuses,
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
    due_at: float | None = None,
) -> Topology:
    """Return a topology; blocked if the assignment names no queries.

    `facts` has the fields of package, conf, and nodes of the queries.
    """
    options = base.topology_action_options
    rebalance = None if options is None else options.rebalance_options
    blocked = facts.blocked
    if assignment is not None and assignment.launches is None and _slots(assignment):
        blocked = blocked or "its assignment is another Nimbus's, and says of no query where it is"
    kept = base.checkpoints
    launched = () if assignment is None else launches_from_record(assignment)
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
    running = [launch for launch in launched if not launch.is_released]
    of = {query: launch for launch in running for query in launch.queries}
    placed = [
        ((each.task_start, each.task_end), of[each.query]) for each in executors if each.query in of
    ]
    nodes = {launch.slot.node for launch in launched}
    return Assignment(
        master_code_dir=master_code_dir,
        node_host={node: hosts[node] for node in sorted(nodes & hosts.keys())},
        executor_node_port={tasks: _node_info(launch.slot) for tasks, launch in placed},
        executor_start_time_secs={tasks: launch.started_at for tasks, launch in placed},
        worker_resources={
            _node_info(launch.slot): WorkerResources(mem_on_heap=launch.memory_mb)
            for launch in running
        },
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


def _node_info(slot: Slot) -> NodeInfo:
    return NodeInfo(slot.node, {slot.port})


def _slots(assignment: Assignment) -> set[Slot]:
    named = [*(assignment.executor_node_port or {}).values(), *(assignment.worker_resources or ())]
    return {Slot(where.node, port) for where in named for port in where.port}


_NO_FACTS: Final = Topology(id="", queries=(), blocked="its code is not here, and says what to run")


def all_launches(snapshot: ClusterSnapshot) -> Iterator[tuple[str, Launch]]:
    """Yield Stormkeeper's workers with their topologies' ids."""
    for storm_id, assignment in snapshot.assignments.items():
        if assignment.launches is not None:
            for launch in launches_from_record(assignment):
                yield storm_id, launch


def cluster_from_snapshot(
    snapshot: ClusterSnapshot,
    *,
    facts: Mapping[str, Topology],
    due: Mapping[str, float],
    statuses: Mapping[Claim, Status],
    refusals: Mapping[str, str],
    now: float,
    epoch: int,
    next_counter: int,
    launch_secs: float,
) -> Cluster:
    """Return a plan's input; a topology without facts is blocked.

    `due` is when kills and rebalances are due; `refusals` are supervisors' reasons to take no work.
    """
    topologies = {
        storm_id: topology_from_records(
            storm_id,
            base,
            snapshot.assignments.get(storm_id),
            facts.get(storm_id, _NO_FACTS),
            due.get(storm_id),
        )
        for storm_id, base in snapshot.bases.items()
    }
    for storm_id in snapshot.assignments.keys() - topologies.keys():
        if paths.storm(storm_id) in snapshot.unreadable:
            topologies[storm_id] = Topology(
                id=storm_id,
                queries=(),
                status=TopologyStatus.ACTIVE,
                launches=launches_from_record(snapshot.assignments[storm_id]),
                blocked="its base cannot be read",
            )
    for storm_id, topology in topologies.items():
        if paths.assignment(storm_id) in snapshot.unreadable:
            topologies[storm_id] = replace(topology, blocked="its assignment cannot be read")
    return Cluster(
        now=now,
        epoch=epoch,
        next_counter=next_counter,
        supervisors=_supervisors(snapshot, topologies, refusals),
        topologies=topologies,
        workers=statuses,
        strays=frozenset(snapshot.assignments.keys() - topologies.keys()),
        launch_secs=launch_secs,
    )


def _supervisors(
    snapshot: ClusterSnapshot, topologies: Mapping[str, Topology], refusals: Mapping[str, str]
) -> dict[str, Supervisor]:
    found = {
        id_: supervisor_from_record(id_, info, refuses=refusals.get(id_))
        for id_, info in snapshot.supervisors.items()
    }
    for path in snapshot.unreadable:
        if paths.parent(path) == paths.SUPERVISORS:
            id_ = path.removeprefix(f"{paths.SUPERVISORS}/")
            slots = (one.slot for each in topologies.values() for one in each.launches)
            # The supervisor exists, so its workers may run.
            ports = frozenset(slot.port for slot in slots if slot.node == id_)
            found[id_] = Supervisor(
                id_, id_, ports, running=ports, refuses="its record cannot be read"
            )
    return found
