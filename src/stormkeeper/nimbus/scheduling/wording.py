"""What is told of a topology, for people: its ``sched_status``.

It says nothing that changes by itself as time passes, so it is written only when there is news.
Texts that Storm has are Storm's.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

from stormkeeper.conf.address import host_of_supervisor, supervisor_names
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Topology
from stormkeeper.nimbus.scheduling.placing import Placed
from stormkeeper.nimbus.scheduling.room import Room
from stormkeeper.nimbus.scheduling.standing import Standing, Why

#: A reason, of one worker or of several.
_TOLD: Final = {
    Why.UNPROVEN: (
        "No Pacemaker can say yet whether {} lives: it is not moved",
        "No Pacemaker can say yet whether {} live: they are not moved",
    ),
    Why.UNHEARD: (
        "No pulse comes from {}, which runs as its supervisor says: it is not moved",
        "No pulse comes from {}, which run as their supervisors say: they are not moved",
    ),
    Why.RESTARTING: (
        "Waits until its supervisor has started {} again",
        "Waits until their supervisors have started {} again",
    ),
    Why.NO_MACHINE: (
        "Waits for the machine of {}: the checkpoint is there and is not shared",
        "Waits for the machines of {}: the checkpoints are there and are not shared",
    ),
    Why.NO_ROOM: (
        "Waits for a free slot, or for the machine of {}, which has not come back",
        "Waits for free slots, or for the machines of {}, which have not come back",
    ),
    Why.STOPPING: (
        "Waits until {} is known to have stopped",
        "Waits until {} are known to have stopped",
    ),
}

#: How many workers are named; of more it is said how many there are.
_NAMED: Final = 3


def wording(placed: Placed, room: Room, cluster: Cluster) -> str:
    """Return what is to be told of a topology that is to run.

    Parameters
    ----------
    placed
        How it stands, and that it got nothing more.
    room
        What is free.
    """
    topology = placed.standing.topology
    if topology.blocked is not None:
        return f"Waits: {topology.blocked}"
    queries = sum(1 for query in topology.queries if query not in topology.ended)
    if not queries:
        return "Completed"
    told = [*_workers(placed.standing, cluster), *_left_out(placed, room, cluster)]
    if told:
        return "; ".join(told)
    slots, wanted = len(placed.standing.kept), min(topology.workers, queries)
    if slots < wanted:
        return f"Running with fewer slots than requested ({slots}/{wanted})"
    return "Fully Scheduled"


def _workers(standing: Standing, cluster: Cluster) -> Iterable[str]:
    for why, (one, several) in _TOLD.items():
        told = [launch for reason, launch in standing.told if reason is why]
        if told:
            yield (one if len(told) == 1 else several).format(
                _named(told, standing.topology, cluster)
            )


def _named(launches: list[Launch], topology: Topology, cluster: Cluster) -> str:
    slots = (each.slot for each in launches)
    names = [f"{_host(node, topology, cluster, port)}:{port}" for node, port in slots]
    if len(names) > _NAMED:
        return f"{len(names)} workers"
    return f"the worker{'s'[: len(names) > 1]} at {' and '.join(names)}"


def _left_out(placed: Placed, room: Room, cluster: Cluster) -> Iterable[str]:
    standing = placed.standing
    if standing.not_on:
        return  # they stay where they are, and it is told why
    topology = standing.topology
    left_out = placed.left_out
    if left_out and standing.most - placed.given <= 0:
        is_bound = any(node is not None for node in left_out)
        bound = ", and checkpoints are on several machines and not shared" if is_bound else ""
        yield (
            f"Not enough workers: {_slots(len(left_out))} missing, as topology.workers is"
            f" {topology.workers}{bound}; raise it with `storm rebalance -n`"
        )
        return
    for node in left_out:
        if node is None:
            where, slots, memory_mb = "", room.slots, room.most_memory_mb
        else:
            where = f" on {_host(node, topology, cluster)}, where its checkpoint is"
            slots, memory_mb = room.slots_of(node), room.memory_of(node)
        supervisor = None if node is None else cluster.supervisors.get(node)
        if node is not None and supervisor is None:
            name = _host(node, topology, cluster)
            yield f"Waits for the machine {name}: its checkpoint is there and is not shared"
        elif supervisor is not None and supervisor.refuses:
            name = _host(node or "", topology, cluster)
            yield f"Waits for {name}, which takes no new work: {supervisor.refuses}"
        elif not slots:
            yield f"Not enough slots: 1 slot is missing{where}, and none is free{_java(cluster)}"
        else:
            missing = ceil(topology.memory_mb - memory_mb)
            yield (
                f"Not enough memory: {missing} MB are missing{where}, as a worker needs"
                f" {topology.memory_mb:.0f} MB, and beside a free slot there are at most"
                f" {memory_mb:.0f} MB"
            )


def _java(cluster: Cluster) -> str:
    """Return why supervisors that are there have no slots, if some are Storm's own."""
    hosts = sorted(each.host for each in cluster.supervisors.values() if not each.is_ours)
    if not hosts:
        return ""
    named = " and ".join(hosts) if len(hosts) <= _NAMED else f"{len(hosts)} supervisors"
    return f": what runs on {named} is Storm's own supervisor, for Java topologies only"


def _slots(number: int) -> str:
    return "1 slot is" if number == 1 else f"{number} slots are"


def _host(node: str, topology: Topology, cluster: Cluster, port: int | None = None) -> str:
    """Return what people call a supervisor; one that is gone, as it was called last.

    With a `port`, supervisors of the host that have no such slot are told apart by their ports.
    """
    hosts = {
        id_: each.host
        for id_, each in cluster.supervisors.items()
        if port is None or port in each.ports
    }
    known = cluster.supervisors.get(node)
    last = topology.hosts.get(node) or host_of_supervisor(node)
    hosts[node] = last if known is None else known.host
    return supervisor_names(hosts)[node]
