"""The text of a topology's ``sched_status``, for people.

The text does not change by time alone, so it changes only with news. Storm's texts are kept where
Storm has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

from stormkeeper.conf.address import host_of_supervisor, supervisor_names
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Topology
from stormkeeper.nimbus.scheduling.placement import Capacity, Placement
from stormkeeper.nimbus.scheduling.worker_fate import Reason, WorkerFates

#: Texts for one worker, and for several.
_TEXTS: Final = {
    Reason.UNPROVEN: (
        "No Pacemaker can say yet whether {} lives: it is not moved",
        "No Pacemaker can say yet whether {} live: they are not moved",
    ),
    Reason.UNHEARD: (
        "No pulse comes from {}, which runs as its supervisor says: it is not moved",
        "No pulse comes from {}, which run as their supervisors say: they are not moved",
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

#: Most workers to name; of more, the number is given.
_NAMED: Final = 3


def status_text(placed: Placement, capacity: Capacity, cluster: Cluster) -> str:
    """Return the text of a topology that should run, after placement."""
    topology = placed.fates.topology
    if topology.blocked is not None:
        return f"Waits: {topology.blocked}"
    queries = sum(1 for query in topology.queries if query not in topology.ended)
    if not queries:
        return "Completed"
    texts = [*_workers(placed.fates, cluster), *_left_out(placed, capacity, cluster)]
    if texts:
        return "; ".join(texts)
    slots, wanted = len(placed.fates.kept), min(topology.workers, queries)
    if slots < wanted:
        return f"Running with fewer slots than requested ({slots}/{wanted})"
    return "Fully Scheduled"


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


def _left_out(placed: Placement, capacity: Capacity, cluster: Cluster) -> Iterable[str]:
    fates = placed.fates
    if fates.not_on:
        return  # only stuck workers have `not_on`, and their reason is told already
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
            yield f"Not enough slots: 1 slot is missing{where}, and none is free{_java(cluster)}"
        else:
            missing = ceil(topology.memory_mb - memory_mb)
            yield (
                f"Not enough memory: {missing} MB are missing{where}, as a worker needs"
                f" {topology.memory_mb:.0f} MB, and beside a free slot there are at most"
                f" {memory_mb:.0f} MB"
            )


def _java(cluster: Cluster) -> str:
    """Return why supervisors without slots are present, if some are Storm's own."""
    hosts = sorted(each.host for each in cluster.supervisors.values() if not each.is_ours)
    if not hosts:
        return ""
    named = " and ".join(hosts) if len(hosts) <= _NAMED else f"{len(hosts)} supervisors"
    return f": what runs on {named} is Storm's own supervisor, for Java topologies only"


def _slots(number: int) -> str:
    return "1 slot is" if number == 1 else f"{number} slots are"


def _host(node: str, topology: Topology, cluster: Cluster, port: int | None = None) -> str:
    """Return a supervisor's host name; of a missing supervisor the last known name.

    With a `port`, only supervisors that have this slot are told apart by their ports.
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
