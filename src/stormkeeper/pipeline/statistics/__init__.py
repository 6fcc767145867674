"""Storm's statistics: of Arrow tables, as the pipeline makes them; and ``df -> df``.

===============  =================================================================================
``readings``     what executors counted, one row each, in Arrow
``summaries``    what workers, components and topologies counted, as Storm's pages say it, in Arrow
``grouping``     aggregates of groups of rows
``sums``         the arithmetic: sums within 64 bits, averages, capacity
``on_spark``     the same for DataFrames; the newest reading of each worker; who is assigned
``holders``      whose an executor is, where several workers have said that it is theirs
``named``        the components of executors whose workers do not name them
``increments``   what each executor counted from one reading to the next
``rollups``      what components counted minute by minute, and in longer buckets
``buckets``      the tables of roll-ups from batch to batch: what is open, what has closed
===============  =================================================================================

The rules are those of `stormkeeper.statistics`, which Nimbus's pages are made of.
"""

from stormkeeper.pipeline.statistics.named import named
from stormkeeper.pipeline.statistics.on_spark import (
    assigned,
    component_stats,
    executor_stats,
    newest,
    topology_stats,
)
from stormkeeper.pipeline.statistics.rollups import coarser

__all__ = [
    "assigned",
    "coarser",
    "component_stats",
    "executor_stats",
    "named",
    "newest",
    "topology_stats",
]
