"""Topologies of executors that report whatever they like, for two ways of summing them up."""

import random
from dataclasses import dataclass
from math import inf, nan

import pyarrow as pa

from stormkeeper.pipeline import rows
from stormkeeper.statistics.executor_reports import DeclaredComponent, ExecutorReport
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from stormkeeper.thrift.serialization import serialize
from support.heartbeats import WINDOWS, change_of, decode_batch, page_of, path

COMPONENTS = {"__acker": "bolt", "lines": "spout", "more": "spout", "words": "bolt", "out": "bolt"}
STREAMS = ("default", "side", "__ack")
SOURCES = [GlobalStreamId(id_, stream) for id_ in ("lines", "__system") for stream in STREAMS]
NODES = [("n", 6700), ("n", 6701), ("m-1", 6700)]

#: Averages without a rounding error, so that two orders of adding them up give the same.
EXACT = [count / 8 for count in (0, 1, 3, 8, 21, 1000)]
ODD = [nan, inf, -inf, 1.7e308, 0.0]
HUGE = [2**63 - 1, 2**53 + 1, 2**62, -(2**63), -1]


@dataclass
class Reported:
    """A topology's components, and its executors with what they reported."""

    storm_id: str
    components: dict[str, DeclaredComponent]
    executors: tuple[ExecutorReport, ...]


def reported(chance: random.Random, storm_id: str) -> Reported:
    """Return a topology whose executors report some windows, streams and statistics only."""
    odd = chance.random() < 0.2
    uptimes = {node: chance.choice([0, 1, 377, 599, 600, 100_000]) for node in NODES}
    found, task = [], 1
    for _ in range(chance.randint(0, 6)):
        component = chance.choice([*COMPONENTS])
        tasks, (node, port) = chance.randint(1, 3), chance.choice(NODES)
        found.append(
            ExecutorReport(
                task_start=task,
                task_end=task + tasks - 1,
                component_id=component,
                supervisor_id=node,
                host=f"{node}.example",
                port=port,
                uptime_secs=uptimes[node, port],
                stats=_stats(chance, component, odd=odd) if chance.random() < 0.9 else None,
            )
        )
        task += tasks
    components = {id_: DeclaredComponent(kind, 1, 1) for id_, kind in COMPONENTS.items()}
    return Reported(storm_id, components, tuple(found))


def heartbeats_of(topologies: list[Reported]) -> pa.Table:
    """Return the workers' heartbeats, decoded, as rows of `decoded_rows.heartbeats`."""
    changes = []
    for topology in topologies:
        slots = {}
        for one in topology.executors:
            slots.setdefault(one.slot, []).append(one)
        for (node, port), executors in slots.items():
            stats = {
                ExecutorInfo(one.task_start, one.task_end): one.stats
                for one in executors
                if one.stats is not None
            }
            beat = ClusterWorkerHeartbeat(
                topology.storm_id, stats, 1_700_000_000, executors[0].uptime_secs
            )
            where = path(topology.storm_id, node, port)
            changes.append(change_of(where, serialize(beat), len(changes), 0.5))
    return decoded(changes, 1_700_000_000.0)


def decoded(changes, read_at) -> pa.Table:
    """Return changes of a server as rows of `decoded_rows.heartbeats`."""
    batch = decode_batch(rows.page_rows("a:1", [page_of("x", changes, read_at)]))
    return pa.Table.from_batches([batch]).drop_columns(["kind", "health"])


def _stats(chance, component, *, odd):
    windows = [w for w in (*WINDOWS, "60") if chance.random() < 0.8]

    def some(streams, values):
        return {
            window: {stream: values() for stream in streams if chance.random() < 0.7}
            for window in windows
        }

    def count():
        if odd and chance.random() < 0.3:
            return chance.choice(HUGE)
        return chance.choice([0, chance.randrange(10**6)])

    def average():
        if odd and chance.random() < 0.3:
            return chance.choice(ODD)
        return chance.choice(EXACT)

    emitted, transferred = some(STREAMS, count), some(STREAMS, count)
    if COMPONENTS[component] == "spout":
        acked, failed = some(STREAMS, count), some(STREAMS, count)
        specific = ExecutorSpecificStats(spout=SpoutStats(acked, failed, some(STREAMS, average)))
    else:
        acked, failed, executed = (some(SOURCES, count) for _ in range(3))
        process, execute = some(SOURCES, average), some(SOURCES, average)
        bolt = BoltStats(acked, failed, process, executed, execute)
        specific = ExecutorSpecificStats(bolt=bolt)
    stats = ExecutorStats(emitted, transferred, specific, 1.0)
    stats.component = component
    return stats
