"""Storm's statistics as Spark expressions: ``df -> df``, on any master.

===============  =================================================================================
``readings``     what executors counted, one row each, in Arrow
``sums``         the arithmetic of Arrow: sums within 64 bits, averages, capacity
``executors``    decoded heartbeats as rows of executors; which of these count
``named``        the components of executors whose workers do not name them
``tallies``      the arithmetic: sums within 64 bits, averages, the tally of each executor
``summaries``    what components and topologies counted, as Storm's pages say it
``increments``   what each executor counted from one reading to the next
``rollups``      what components counted minute by minute, and in longer buckets
===============  =================================================================================

The rules are those of `stormkeeper.statistics`, which Nimbus's pages are made of.
"""

from stormkeeper.pipeline.statistics.executors import assigned, executor_stats, newest
from stormkeeper.pipeline.statistics.increments import counters, counters_now, increments
from stormkeeper.pipeline.statistics.named import named
from stormkeeper.pipeline.statistics.rollups import coarser, rollup
from stormkeeper.pipeline.statistics.summaries import component_stats, topology_stats

__all__ = [
    "assigned",
    "coarser",
    "component_stats",
    "counters",
    "counters_now",
    "executor_stats",
    "increments",
    "named",
    "newest",
    "rollup",
    "topology_stats",
]
