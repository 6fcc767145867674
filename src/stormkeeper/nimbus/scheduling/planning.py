"""The plan: the leader's whole decision about the cluster as read, and the actions.

Pure: no I/O, no memory, no clock. The same cluster always gives the same plan, in whatever order it
was read. Actions state the desired result, so they are idempotent: once all are done, a plan of the
same moment is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.nimbus.scheduling.placement import Capacity, Placement, place
from stormkeeper.nimbus.scheduling.status_text import status_text
from stormkeeper.nimbus.scheduling.worker_fate import TO_RUN, WorkerFates, worker_fates
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a topology, or leftovers of a topology."""

    storm_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Make these a topology's workers; all other workers of the topology stop."""

    storm_id: str
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class FinishRebalance:
    """Give a topology the status and settings after the rebalance.

    This is `stormkeeper.nimbus.lifecycle.Event.DO_REBALANCE`.
    """

    storm_id: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Set the text of a topology's ``sched_status``."""

    storm_id: str
    text: str


Action = Remove | Assign | FinishRebalance | SetStatus


def counter_after(actions: Iterable[Action], epoch: int, counter: int) -> int:
    """Return the least counter that no claim of an epoch has used after these actions.

    A leader remembers the counter, so no claim is given twice: also not after a write with unknown
    outcome, or of a removed topology.
    """
    claims = (
        launch.claim
        for action in actions
        if isinstance(action, Assign)
        for launch in action.launches
    )
    return max([counter, *(claim.counter + 1 for claim in claims if claim.epoch == epoch)])


#: Workers by topology.
Launches = Mapping[str, tuple[Launch, ...]]


def plan(cluster: Cluster) -> tuple[Action, ...]:
    """Return the actions, to be carried out in order.

    Removals come first, then each topology's actions, its text last. A due rebalance releases
    workers; the first plan that finds all of them stopped places their queries. Topologies that
    need slots get free ones (`stormkeeper.nimbus.scheduling.placement`); no worker moves for
    another topology.

    The time is about linear in the changes and in the number of supervisors and topologies.
    """
    removed = sorted(
        {
            *cluster.strays,
            *(id_ for id_, each in cluster.topologies.items() if _is_over(each, cluster)),
        }
    )
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
    before = {id_: in_order(each.launches) for id_, each in topologies.items()}
    settled = _settle(topologies, before, cluster)
    actions: list[Action] = [Remove(id_) for id_ in removed]
    for id_, topology in topologies.items():
        actions += _changes(
            cluster.topologies[id_], topology, settled, is_finished=id_ in rebalanced
        )
    return tuple(actions)


def in_order(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """Return a topology's workers sorted by slot."""
    return tuple(sorted(launches, key=lambda launch: (launch.slot, launch.claim)))


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


def _settle(topologies: Mapping[str, Topology], before: Launches, cluster: Cluster) -> _Settled:
    """Place queries, then release workers, until nothing changes."""
    launches = dict(before)
    counter = _next_counter(cluster)
    while True:
        all_fates = [worker_fates(each, launches[id_], cluster) for id_, each in topologies.items()]
        held = [launch for each in all_fates for launch in _held(each, cluster.supervisors)]
        placed, capacity = place(
            [each for each in all_fates if each.needs], cluster.supervisors, held
        )
        got = {each.fates.topology.id: each for each in placed}
        for each in all_fates:
            id_ = each.topology.id
            new, counter = _launched(got.get(id_) or Placement(each), counter, cluster)
            launches[id_] = in_order(new)
        if any(each.slot_count for each in placed):
            continue
        if not _release(all_fates, launches, capacity):
            texts = {
                each.topology.id: status_text(
                    got.get(each.topology.id) or Placement(each), capacity, cluster
                )
                for each in all_fates
                if each.topology.status in TO_RUN
            }
            return _Settled(launches, texts)


def _release(
    all_fates: Iterable[WorkerFates],
    launches: dict[str, tuple[Launch, ...]],
    capacity: Capacity,
) -> bool:
    chosen: set[Claim] = set()
    for each in all_fates:
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
    assign: list[Action] = [Assign(was.id, launches)] if launches != in_order(was.launches) else []
    finish: list[Action] = [FinishRebalance(was.id)] if is_finished else []
    # A crash in between leaves released workers with a due rebalance, or a finished rebalance with
    # unplaced queries: the next plan continues from both.
    if any(launch.is_released for launch in launches):
        yield from (*assign, *finish)
    else:
        yield from (*finish, *assign)
    text = settled.texts.get(was.id)
    if text is not None and text != topology.text:
        yield SetStatus(was.id, text)
