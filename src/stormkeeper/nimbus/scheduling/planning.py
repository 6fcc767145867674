"""The plan: the leader's whole decision about the cluster as read, and the text of the reasons.

Pure: the same cluster, read in any order, gives the same plan. Actions state the desired result, so
they are idempotent: once all are done, a plan of the same moment is empty, but for queries of
workers just released, which the next round may place, and for topologies that were left to it.

A topology's ``sched_status`` does not change by time alone, and has Storm's text if Storm has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from stormkeeper.conf.address import host_of_supervisor, supervisor_names
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology, in_order
from stormkeeper.nimbus.scheduling.placement import Capacity, Placement, place
from stormkeeper.nimbus.scheduling.workers import TO_RUN, Reason, WorkerFates, worker_fates
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim
from stormkeeper.topology.schedule_status import ScheduleKind


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a topology, or leftovers."""

    storm_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Make these a topology's workers; all other workers of the topology stop."""

    storm_id: str
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class FinishRebalance:
    """End a rebalance: set the new status and settings (`Event.DO_REBALANCE`)."""

    storm_id: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Set a topology's ``sched_status``."""

    storm_id: str
    text: str


Action = Remove | Assign | FinishRebalance | SetStatus


def counter_after(actions: Iterable[Action], epoch: int, counter: int) -> int:
    """Return the least counter that no claim of an epoch has used after these actions."""
    claims = (
        launch.claim
        for action in actions
        if isinstance(action, Assign)
        for launch in action.launches
    )
    return max([counter, *(claim.counter + 1 for claim in claims if claim.epoch == epoch)])


Launches = Mapping[str, tuple[Launch, ...]]

#: A plan places about so many workers if all fit: 72,000 took the scheduler over a second.
_MOST_WORKERS: Final = 25_000


def plan(cluster: Cluster) -> tuple[Action, ...]:
    """Return the actions, to be carried out in order.

    Removals come first, then each topology's actions, its text last. A due rebalance releases
    workers; the first plan that finds all of them stopped places their queries. No worker moves for
    another topology. The time is linear in changes, supervisors and topologies.
    """
    removed = {
        *cluster.strays,
        *(id_ for id_, each in cluster.topologies.items() if _is_over(each, cluster)),
    }
    rebalanced = {
        id_
        for id_, each in cluster.topologies.items()
        # A topology that cannot be placed keeps running.
        if each.status is TopologyStatus.REBALANCING
        and each.is_due(cluster.now)
        and each.blocked is None
    }
    topologies = {
        id_: _rebalanced(each) if id_ in rebalanced else each
        for id_, each in sorted(cluster.topologies.items())
        if id_ not in removed
    }
    settled = _settle(topologies, cluster)
    actions: list[Action] = [Remove(id_) for id_ in sorted(removed)]
    for id_, topology in topologies.items():
        actions += _changes(
            cluster.topologies[id_], topology, settled, is_finished=id_ in rebalanced
        )
    return tuple(actions)


@dataclass(frozen=True, slots=True)
class _Settled:
    """All workers after the plan, and the texts of the topologies that should run."""

    launches: Launches
    texts: Mapping[str, str]


def _is_over(topology: Topology, cluster: Cluster) -> bool:
    return topology.status is TopologyStatus.KILLED and topology.is_due(cluster.now)


def _rebalanced(topology: Topology) -> Topology:
    return replace(
        topology,
        status=topology.previous or TopologyStatus.ACTIVE,
        workers=topology.rebalanced_workers or topology.workers,
        launches=tuple(replace(launch, is_released=True) for launch in topology.launches),
        due_at=None,
    )


def _settle(topologies: Mapping[str, Topology], cluster: Cluster) -> _Settled:
    """Place queries, then release workers, until nothing changes."""
    silent = {
        claim
        for claim, status in cluster.workers.items()
        if status is Status.DEAD or status is Status.UNPROVEN
    }
    launches: dict[str, tuple[Launch, ...]] = {}
    texts: dict[str, str] = {}
    #: Topologies that may need a place, or whose text may name a worker.
    open_: dict[str, Topology] = {}
    for id_, topology in topologies.items():
        staying = staying_workers(topology, silent)
        launches[id_] = topology.ordered if staying is None else staying
        if staying is None:
            open_[id_] = topology
        elif topology.status in TO_RUN:
            texts[id_] = _plain_text(topology, len(staying))
    settled: list[Launch] | None = None
    counter = _next_counter(cluster) if open_ else 0
    while open_:
        all_fates = [worker_fates(one, launches[id_], cluster) for id_, one in open_.items()]
        if later := _later(all_fates, launches, cluster.supervisors):
            all_fates = [each for each in all_fates if each.topology.id not in later]
            open_ = {each.topology.id: each.topology for each in all_fates}
        needy = [each for each in all_fates if each.needs]
        placed: list[Placement] = []
        capacity: Capacity | None = None
        if needy or any(each.releasable for each in all_fates):
            if settled is None:
                settled = [
                    one for id_, all_ in launches.items() if id_ not in open_ for one in all_
                ]
            held = (launch for each in all_fates for launch in _held(each, cluster.supervisors))
            placed, capacity = place(needy, cluster.supervisors, [*settled, *held])
        got = {each.fates.topology.id: each for each in placed}
        for each in all_fates:
            id_ = each.topology.id
            new, counter = _launched(got.get(id_) or Placement(each), counter, cluster)
            launches[id_] = in_order(new)
        if any(each.slot_count for each in placed):
            settled = None
            for one in placed:
                topology, all_ = one.fates.topology, launches[one.fates.topology.id]
                if topology.is_placed_by(all_) and silent.isdisjoint(each.claim for each in all_):
                    texts[topology.id] = _plain_text(topology, len(all_))
                    del open_[topology.id]
            continue
        if capacity is None or not _release(all_fates, launches, capacity):
            texts |= {
                each.topology.id: status_text(
                    got.get(each.topology.id) or Placement(each), capacity, cluster
                )
                for each in all_fates
                if each.topology.status in TO_RUN
            }
            break
    return _Settled(launches, texts)


def _later(
    all_fates: Iterable[WorkerFates], launches: Launches, supervisors: Mapping[str, Supervisor]
) -> set[str]:
    """Return the ids of topologies to leave to the next plan; none unless all workers fit."""
    later, workers, memory_mb = set[str](), 0, 0.0
    for each in all_fates:
        if workers > _MOST_WORKERS and each.needs.keys() == {None} and not each.not_on:
            later.add(each.topology.id)
        workers += min(each.free_workers, sum(map(len, each.needs.values())))
        memory_mb = max(memory_mb, each.topology.memory_mb)
    if later:
        capacity = Capacity(supervisors, [one for all_ in launches.values() for one in all_])
        if not capacity.has_room_for_any(workers, memory_mb):
            return set()
    return later


def staying_workers(
    topology: Topology, silent: Collection[Claim] = frozenset()
) -> tuple[Launch, ...] | None:
    """Return the workers of a topology that needs no place; None if `worker_fates` must decide.

    `silent` are the claims of dead and unproven workers.
    """
    if topology.blocked is not None or topology.status not in TO_RUN:
        return topology.ordered
    is_settled = topology.is_placed and topology.claims.isdisjoint(silent)
    return topology.busy if is_settled else None


def _release(
    all_fates: Iterable[WorkerFates],
    launches: dict[str, tuple[Launch, ...]],
    capacity: Capacity,
) -> bool:
    chosen: set[Claim] = set()
    for each in all_fates:
        if not each.releasable:
            continue
        id_, memory_mb = each.topology.id, each.topology.memory_mb
        for launch in each.releasable:
            if capacity.take(memory_mb, {}, not_on={launch.slot.node}) is not None:
                chosen.add(launch.claim)
        launches[id_] = tuple(
            replace(one, is_released=True) if one.claim in chosen else one for one in launches[id_]
        )
    return bool(chosen)


def _held(fates: WorkerFates, supervisors: Mapping[str, Supervisor]) -> Iterator[Launch]:
    yield from fates.kept
    yield from fates.vacated
    for launch in fates.lost:
        supervisor = supervisors.get(launch.slot.node)
        # If the supervisor lost the slot, its worker never runs again.
        if supervisor is None or launch.slot.port in supervisor.ports:
            yield launch


def _next_counter(cluster: Cluster) -> int:
    claims = [one.claim for each in cluster.topologies.values() for one in each.launches]
    ours = [claim.counter + 1 for claim in claims if claim.epoch == cluster.epoch]
    return max([cluster.next_counter, *ours])


def _launched(placed: Placement, counter: int, cluster: Cluster) -> tuple[list[Launch], int]:
    fates = placed.fates
    launches = [*fates.kept, *placed.retained]
    for slot, queries in placed.new_workers():
        launches.append(
            Launch(
                slot=slot,
                claim=Claim(cluster.epoch, counter),
                queries=queries,
                started_at=int(cluster.now),
                memory_mb=fates.topology.memory_mb,
                tells_claims=cluster.supervisors[slot.node].tells_claims
                and fates.tells_claims(queries),
            )
        )
        counter += 1
    return launches, counter


def _changes(
    was: Topology, topology: Topology, settled: _Settled, *, is_finished: bool
) -> Iterator[Action]:
    launches = settled.launches[was.id]
    if is_finished or launches is not was.ordered:
        assign: list[Action] = [Assign(was.id, launches)] if launches != was.ordered else []
        finish: list[Action] = [FinishRebalance(was.id)] if is_finished else []
        # After a crash in between, the next plan continues from released workers with a due
        # rebalance, or from a finished rebalance with unplaced queries.
        if any(launch.is_released for launch in launches):
            yield from (*assign, *finish)
        else:
            yield from (*finish, *assign)
    text = settled.texts.get(was.id)
    if text is not None and text != topology.text:
        yield SetStatus(was.id, text)


_TEXTS: Final = {
    Reason.UNPROVEN: (
        ScheduleKind.NO_PACEMAKER + " yet whether {} lives: it is not moved",
        ScheduleKind.NO_PACEMAKER + " yet whether {} live: they are not moved",
    ),
    Reason.UNHEARD: (
        ScheduleKind.NO_PULSE + " {}, which runs as its supervisor says: it is not moved",
        ScheduleKind.NO_PULSE + " {}, which run as their supervisors say: they are not moved",
    ),
    Reason.RESTARTING: (
        "Waits until its supervisor has started {} again",
        "Waits until their supervisors have started {} again",
    ),
    Reason.NO_MACHINE: (
        "Waits for the machine of {}: the checkpoint is there and is not shared",
        "Waits for the machines of {}: the checkpoints are there and are not shared",
    ),
    Reason.NO_ROOM: (
        "Waits for a free slot, or for the machine of {}, which has not come back",
        "Waits for free slots, or for the machines of {}, which have not come back",
    ),
    Reason.STOPPING: (
        "Waits until {} is known to have stopped",
        "Waits until {} are known to have stopped",
    ),
}

#: Of the enum, where each look takes longer.
_COMPLETED: Final = ScheduleKind.COMPLETED.value
_FULL: Final = ScheduleKind.FULL.value

#: More workers are counted, not named.
_NAMED: Final = 3


def status_text(placed: Placement, capacity: Capacity | None, cluster: Cluster) -> str:
    """Return the text of a topology; `capacity` may be None if no query needs a place."""
    topology = placed.fates.topology
    if topology.blocked is None and topology.live:
        texts = [*_workers(placed.fates, cluster), *_left_out(placed, capacity, cluster)]
        if texts:
            return "; ".join(texts)
    return _plain_text(topology, len(placed.fates.kept))


def _plain_text(topology: Topology, slots: int) -> str:
    if topology.blocked is not None:
        return f"Waits: {topology.blocked}"
    if not topology.live:
        return _COMPLETED
    wanted = min(topology.workers, len(topology.live))
    return f"{ScheduleKind.FEWER_SLOTS} ({slots}/{wanted})" if slots < wanted else _FULL


def _workers(fates: WorkerFates, cluster: Cluster) -> Iterable[str]:
    for reason, (one, several) in _TEXTS.items():
        launches = [launch for each, launch in fates.reasons if each is reason]
        if launches:
            text = one if len(launches) == 1 else several
            yield text.format(_named(launches, fates.topology, cluster))


def _named(launches: list[Launch], topology: Topology, cluster: Cluster) -> str:
    slots = (each.slot for each in launches)
    names = [f"{_host(node, topology, cluster, port)}:{port}" for node, port in slots]
    if len(names) > _NAMED:
        return f"{len(names)} workers"
    return f"the worker{'s'[: len(names) > 1]} at {' and '.join(names)}"


def _left_out(placed: Placement, capacity: Capacity | None, cluster: Cluster) -> Iterable[str]:
    fates = placed.fates
    if fates.not_on or capacity is None:
        return  # only stuck workers have `not_on`, and their reason is already in the text
    topology = fates.topology
    unplaced = placed.unplaced
    if unplaced and fates.free_workers - placed.slot_count <= 0:
        is_bound = any(node is not None for node in unplaced)
        bound = ", and checkpoints are on several machines and not shared" if is_bound else ""
        yield (
            f"Not enough workers: {_slots(len(unplaced))} missing, as topology.workers is"
            f" {topology.workers}{bound}; raise it with `storm rebalance -n`"
        )
        return
    for node in unplaced:
        if node is None:
            where, slots, memory_mb = "", capacity.slots, capacity.most_memory_mb
        else:
            where = f" on {_host(node, topology, cluster)}, where its checkpoint is"
            slots, memory_mb = capacity.slots_of(node), capacity.memory_of(node)
        supervisor = None if node is None else cluster.supervisors.get(node)
        if node is not None and supervisor is None:
            name = _host(node, topology, cluster)
            yield f"Waits for the machine {name}: its checkpoint is there and is not shared"
        elif supervisor is not None and supervisor.refuses:
            name = _host(node or "", topology, cluster)
            yield f"Waits for {name}, which takes no new work: {supervisor.refuses}"
        elif not slots:
            yield (
                f"{ScheduleKind.LACKS_SLOTS}: 1 slot is missing{where}, and none is free"
                f"{_java(cluster)}"
            )
        else:
            missing = ceil(topology.memory_mb - memory_mb)
            yield (
                f"{ScheduleKind.LACKS_MEMORY}: {missing} MB are missing{where}, as a worker needs"
                f" {topology.memory_mb:.0f} MB, and beside a free slot there are at most"
                f" {memory_mb:.0f} MB"
            )


def _java(cluster: Cluster) -> str:
    hosts = cluster.java_hosts
    if not hosts:
        return ""
    named = " and ".join(hosts) if len(hosts) <= _NAMED else f"{len(hosts)} supervisors"
    return f": what runs on {named} is Storm's own supervisor, for Java topologies only"


def _slots(number: int) -> str:
    return "1 slot is" if number == 1 else f"{number} slots are"


def _host(node: str, topology: Topology, cluster: Cluster, port: int | None = None) -> str:
    """Return a supervisor's host name, or the last known, with a port where names are the same."""
    known = cluster.supervisors.get(node)
    last = topology.hosts.get(node) or host_of_supervisor(node)
    host = last if known is None else known.host
    hosts = {
        each.id: host
        for each in cluster.by_host.get(host, ())
        if port is None or port in each.ports
    }
    return supervisor_names({**hosts, node: host})[node]
