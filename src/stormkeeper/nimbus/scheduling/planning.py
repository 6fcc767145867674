"""The decision of a leading Nimbus: what is to be done about the cluster as it was read.

It is a function: it reads nothing, keeps nothing and knows no time but the one that it is given.
The same cluster always gives the same plan, whatever the order in which it was read, and when the
plan is carried out there is nothing more to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stormkeeper.nimbus.scheduling.actions import (
    Action,
    Assign,
    FinishRebalance,
    Remove,
    SetStatus,
)
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.nimbus.scheduling.placing import Placed, place
from stormkeeper.nimbus.scheduling.room import Room
from stormkeeper.nimbus.scheduling.standing import TO_RUN, Standing, standing
from stormkeeper.nimbus.scheduling.wording import wording
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim

#: A topology's workers, by slot; by topology.
Launches = Mapping[str, tuple[Launch, ...]]


def plan(cluster: Cluster) -> tuple[Action, ...]:
    """Return what is to be done, in that order.

    Notes
    -----
    Kills that are due come first, then rebalances that are due: their workers are released, and
    the new places follow in a later plan, when all of these have stopped. Then everyone who waits
    for a slot gets one as far as there are any (`stormkeeper.nimbus.scheduling.placing`); nobody
    is moved for that. At last it is told how each topology stands.

    It takes a time that is about linear in what changes, and in the number of supervisors and
    topologies.
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
        # One that cannot be placed is not to be stopped.
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
    """Return a topology's workers by slot."""
    return tuple(sorted(launches, key=lambda launch: (launch.slot, launch.claim)))


@dataclass(frozen=True, slots=True)
class _Settled:
    """All workers when all is done, and what is to be told of each topology that is to run."""

    launches: Launches
    texts: Mapping[str, str]


def _is_over(topology: Topology, cluster: Cluster) -> bool:
    return topology.status is TopologyStatus.KILLED and topology.is_due(cluster.now)


def _rebalanced(topology: Topology) -> Topology:
    """Return a topology after its rebalance, all its workers released."""
    memory_mb = topology.rebalanced_memory_mb
    return replace(
        topology,
        status=topology.previous or TopologyStatus.ACTIVE,
        workers=topology.rebalanced_workers or topology.workers,
        memory_mb=topology.memory_mb if memory_mb is None else memory_mb,
        launches=tuple(replace(launch, is_released=True) for launch in topology.launches),
        due_at=None,
    )


def _settle(topologies: Mapping[str, Topology], before: Launches, cluster: Cluster) -> _Settled:
    """Place what can be placed until nothing is left that can.

    A worker that moves away from a supervisor leaves a slot behind, which may help others. When
    nothing is left to be placed, workers are released that other machines still have room for.
    """
    launches = dict(before)
    counter = _next_counter(cluster)
    while True:
        standings = [standing(each, launches[id_], cluster) for id_, each in topologies.items()]
        held = [launch for each in standings for launch in _held(each, cluster.supervisors)]
        placed, room = place([each for each in standings if each.needs], cluster.supervisors, held)
        got = {each.standing.topology.id: each for each in placed}
        for each in standings:
            id_ = each.topology.id
            new, counter = _launched(got.get(id_) or Placed(each), counter, cluster)
            launches[id_] = in_order(new)
        if any(each.given for each in placed):
            continue
        if not _release(standings, launches, room):
            texts = {
                each.topology.id: wording(got.get(each.topology.id) or Placed(each), room, cluster)
                for each in standings
                if each.topology.status in TO_RUN
            }
            return _Settled(launches, texts)


def _release(
    standings: Iterable[Standing], launches: dict[str, tuple[Launch, ...]], room: Room
) -> bool:
    """Release what other machines have room for; return whether that was any worker."""
    chosen: set[Claim] = set()
    for each in standings:
        id_, memory_mb = each.topology.id, each.topology.memory_mb
        for launch in each.releasable:
            if room.take(memory_mb, {}, not_on={launch.slot.node}) is not None:
                chosen.add(launch.claim)
        launches[id_] = tuple(
            replace(one, is_released=True) if one.claim in chosen else one for one in launches[id_]
        )
    return bool(chosen)


def _held(standing: Standing, supervisors: Mapping[str, Supervisor]) -> Iterator[Launch]:
    yield from standing.kept
    yield from standing.vacated
    for launch in standing.lost:
        supervisor = supervisors.get(launch.slot.node)
        # On a slot that its supervisor has no more, it runs never again.
        if supervisor is None or launch.slot.port in supervisor.ports:
            yield launch


def _next_counter(cluster: Cluster) -> int:
    """Return the least counter that no claim of this reign has had.

    A Nimbus may have forgotten it. What it has written counts then, of those too that are removed.
    """
    claims = [one.claim for each in cluster.topologies.values() for one in each.launches]
    ours = [claim.counter + 1 for claim in claims if claim.epoch == cluster.epoch]
    return max([cluster.next_counter, *ours])


def _launched(placed: Placed, counter: int, cluster: Cluster) -> tuple[list[Launch], int]:
    """Return a topology's workers when it has its slots, and the next counter."""
    standing = placed.standing
    new: list[tuple[Slot, tuple[str, ...]]] = []
    for node, slots in placed.slots.items():
        new += zip(sorted(slots), _spread(standing.needs[node], len(slots)), strict=True)
    launches = [*standing.kept, *placed.retained]
    for slot, queries in sorted(new):
        launches.append(
            Launch(
                slot=slot,
                claim=Claim(cluster.epoch, counter),
                queries=queries,
                started_at=int(cluster.now),
                memory_mb=standing.topology.memory_mb,
                tells_claims=cluster.supervisors[slot.node].tells_claims
                and standing.tells_claims(queries),
            )
        )
        counter += 1
    return launches, counter


def _spread(queries: Sequence[str], workers: int) -> list[tuple[str, ...]]:
    """Return the queries of each worker: those of two differ in number by one at most."""
    return [tuple(queries[n::workers]) for n in range(workers)]


def _changes(
    was: Topology, topology: Topology, settled: _Settled, *, is_finished: bool
) -> Iterator[Action]:
    launches = settled.launches[was.id]
    assign: list[Action] = [Assign(was.id, launches)] if launches != in_order(was.launches) else []
    finish: list[Action] = [FinishRebalance(was.id)] if is_finished else []
    # Whoever stops in between leaves workers that are to stop and a rebalance that is due, or a
    # rebalance that is done and queries to be placed: both are gone on with.
    if any(launch.is_released for launch in launches):
        yield from (*assign, *finish)
    else:
        yield from (*finish, *assign)
    text = settled.texts.get(was.id)
    if text is not None and text != topology.text:
        yield SetStatus(was.id, text)
