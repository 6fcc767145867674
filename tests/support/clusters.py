"""Clusters to be planned, in short, and what becomes of one when its plan is carried out."""

from dataclasses import replace

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.nimbus.scheduling.planning import (
    Assign,
    FinishRebalance,
    Remove,
    SetStatus,
    counter_after,
    plan,
)
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim

NOW = 1_700_000_000
EPOCH = 7


def supervisor(name, slots=2, **facts):
    """A supervisor with ports from 6700."""
    return Supervisor(name, f"{name}.example", frozenset(range(6700, 6700 + slots)), **facts)


def launch(where, *queries, claim=1, **facts):
    """A worker at ``node:port``, which an earlier leader has launched."""
    node, port = where.split(":")
    facts = {"started_at": NOW - 1000, **facts}
    return Launch(Slot(node, int(port)), Claim(EPOCH - 1, claim), queries, **facts)


def topology(name, queries="q", **facts):
    """A topology with as many queries as there are words."""
    return Topology(id=name, queries=tuple(queries.split()), **facts)


def cluster(*members, dead=(), unproven=(), **facts):
    """A cluster of supervisors and topologies, of whose workers all others are alive.

    Parameters
    ----------
    dead, unproven
        Numbers of claims.
    """
    topologies = [each for each in members if isinstance(each, Topology)]
    numbers = [one.claim for each in topologies for one in each.launches]
    facts = {"now": NOW, "epoch": EPOCH, "next_counter": 0, **facts}
    workers = dict.fromkeys(numbers, Status.ALIVE)
    workers |= {Claim(EPOCH - 1, number): Status.DEAD for number in dead}
    workers |= {Claim(EPOCH - 1, number): Status.UNPROVEN for number in unproven}
    return Cluster(
        supervisors={each.id: each for each in members if isinstance(each, Supervisor)},
        topologies={each.id: each for each in topologies},
        workers=workers,
        **facts,
    )


def carried_out(before, actions=None):
    """The cluster when a plan, by default its own, is carried out; the launched workers live."""
    actions = plan(before) if actions is None else actions
    topologies, workers = dict(before.topologies), dict(before.workers)
    for action in actions:
        id_ = action.storm_id
        if isinstance(action, Remove):
            topologies.pop(id_, None)
            continue
        was = topologies[id_]
        if isinstance(action, Assign):
            for each in action.launches:
                if each.claim not in {one.claim for one in was.launches}:
                    workers[each.claim] = Status.ALIVE
            topologies[id_] = replace(was, launches=action.launches)
        elif isinstance(action, SetStatus):
            topologies[id_] = replace(was, text=action.text)
        elif isinstance(action, FinishRebalance):
            topologies[id_] = replace(
                was,
                status=was.previous or TopologyStatus.ACTIVE,
                workers=was.rebalanced_workers or was.workers,
                due_at=None,
                previous=None,
                rebalanced_workers=None,
            )
    return replace(
        before,
        topologies=topologies,
        workers=workers,
        strays=before.strays - {each.storm_id for each in actions if isinstance(each, Remove)},
        next_counter=counter_after(actions, before.epoch, before.next_counter),
    )


def places(cluster):
    """Where the queries of each topology are: ``{topology: {"node:port": queries}}``."""
    return {
        id_: {
            f"{one.slot.node}:{one.slot.port}": " ".join(one.queries)
            for one in each.launches
            if not one.is_released
        }
        for id_, each in cluster.topologies.items()
    }


def texts(cluster):
    """What is told of each topology."""
    return {id_: each.text for id_, each in cluster.topologies.items()}
