"""What a plan is made from, and what it says, from and to Storm's records.

Storm's own fields of an `Assignment` are for Storm's tools: which executor is where, since when.
Our supervisors read ``launches``, which also say which worker runs which queries, and its claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Final

import stormkeeper
from stormkeeper.nimbus.scheduling.cluster import Crashes, Launch, Supervisor, Topology
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import (
    Assignment,
    CrashSeries,
    LaunchClaim,
    NodeInfo,
    StormBase,
    SupervisorInfo,
    WorkerLaunch,
    WorkerResources,
)
from stormkeeper.topology.description import ExecutorDescription
from stormkeeper.topology.plan import Claim

#: Where a supervisor says what its workers may have together, in MB: since Storm 2, and before.
_MEMORY: Final = ("memory.mb", "supervisor.memory.capacity.mb")


def supervisor(id_: str, info: SupervisorInfo, *, refuses: str | None = None) -> Supervisor:
    """Return a supervisor as it says that it is.

    Parameters
    ----------
    refuses
        Why it is to get no new work, whatever it says itself; None: that counts.
    """
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
    """Return whether a supervisor is Stormkeeper's: Storm's own runs only Java topologies.

    Supervisors of Stormkeeper that do not say so yet have another field of ours, or its version.
    """
    ours = (info.stormkeeper, info.slots, info.stopped_workers, info.http_port, info.refuses)
    return info.version == stormkeeper.UNNAMED_VERSION or any(each is not None for each in ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a topology besides its records; the fields are those of `Topology`."""

    queries: tuple[str, ...]
    memory_mb: float
    is_shared: bool
    ended: frozenset[str] = frozenset()
    claimed: frozenset[str] = frozenset()
    blocked: str | None = None
    text: str = ""


def topology(
    storm_id: str,
    base: StormBase,
    assignment: Assignment | None,
    facts: Facts,
    due_at: float | None = None,
) -> Topology:
    """Return a topology by its records, and by what else is known of it.

    Nothing is to be decided about one whose assignment does not say which worker runs which query.
    """
    options = base.topology_action_options
    rebalance = None if options is None else options.rebalance_options
    blocked = facts.blocked
    if assignment is not None and assignment.launches is None and _slots(assignment):
        blocked = blocked or "its assignment is another Nimbus's, and says of no query where it is"
    kept = base.checkpoints
    launched = () if assignment is None else launches(assignment)
    return Topology(
        id=storm_id,
        status=base.status,
        queries=facts.queries,
        workers=max(1, base.num_workers),
        memory_mb=facts.memory_mb,
        launched_at=base.launch_time_secs or 0,
        is_shared=facts.is_shared,
        homes={} if kept is None else kept.nodes,
        hosts={
            **((kept.hosts if kept is not None else None) or {}),
            **((assignment.node_host if assignment is not None else None) or {}),
        },
        ended=facts.ended,
        claimed=facts.claimed,
        released=frozenset(each.claim for each in launched if each.is_released),
        launches=launched,
        due_at=due_at,
        previous=base.prev_status,
        rebalanced_workers=None if rebalance is None else rebalance.num_workers,
        blocked=blocked,
        text=facts.text,
    )


def launches(assignment: Assignment) -> tuple[Launch, ...]:
    """Return the workers of an assignment.

    Another Nimbus than ours names its slots alone; then nothing is known of them but that they are
    in use.
    """
    if assignment.launches is None:
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


def assignment(
    launched: Collection[Launch],
    executors: Iterable[ExecutorDescription],
    *,
    master_code_dir: str,
    hosts: Mapping[str, str],
    owner: str | None = None,
) -> Assignment:
    """Return the record that says that a topology has these workers.

    Parameters
    ----------
    launched
        The workers.
    executors
        Of all queries; those whose query runs nowhere are left out.
    hosts
        The names of the machines by their supervisors' ids, as far as they are known.
    """
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
    """Return the slots that Storm's own fields name."""
    named = [*(assignment.executor_node_port or {}).values(), *(assignment.worker_resources or ())]
    return {Slot(where.node, port) for where in named for port in where.port}
