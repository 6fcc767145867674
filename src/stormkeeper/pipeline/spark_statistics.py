"""Storm's statistics as DataFrame functions, ``df -> df``: the pipeline's functions on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.pipeline.executor_stats import READ, cut_pulses
from stormkeeper.pipeline.executor_stats import executor_stats as of_executors
from stormkeeper.pipeline.rollups import merge_buckets
from stormkeeper.pipeline.summaries import SUMMED, concat_sums, sum_workers, tally_rows
from stormkeeper.pipeline.summaries import component_stats as of_components
from stormkeeper.pipeline.summaries import topology_stats as of_topologies
from stormkeeper.pipeline.table_columns import (
    COMPONENT_STATS,
    EXECUTOR_STATS,
    ROLLUP,
    TOPOLOGY_STATS,
)

#: Executors' sums that are merged before more are read.
_AT_ONCE: Final = 1 << 18


def newest(df: DataFrame) -> DataFrame:
    """Keep each worker's newest heartbeat, of rows of `decoded_rows.heartbeats`.

    A worker that moved to another Pacemaker leaves an older heartbeat on the first.
    """
    received = fn.coalesce("received_at", "read_at").desc()
    newest_first = Window.partitionBy("storm_id", "node", "port").orderBy(received)
    readable = df.where(col("storm_id").isNotNull() & col("executors").isNotNull())
    ranked = readable.withColumn("rank", fn.row_number().over(newest_first))
    return ranked.where("rank = 1").select(*df.columns)


def executor_stats(df: DataFrame) -> DataFrame:
    """Lay out the counts of executors, of rows of `decoded_rows.heartbeats`."""
    schema = from_arrow_schema(EXECUTOR_STATS)
    return df.select(*READ).mapInArrow(_laid_out, schema)


def component_stats(df: DataFrame) -> DataFrame:
    """Sum rows of `executor_stats` of a moment by component and window: Storm's pages.

    >>> now = beats.transform(executor_stats).transform(component_stats)  # doctest: +SKIP
    """
    return _by_topology(df, of_components, COMPONENT_STATS)


def topology_stats(df: DataFrame) -> DataFrame:
    """Sum rows of `executor_stats` of a moment by topology and window: ``TopologyStats``."""
    return _by_topology(df, of_topologies, TOPOLOGY_STATS)


def assigned(df: DataFrame, executors: DataFrame) -> DataFrame:
    """Keep the rows of `executor_stats` that Nimbus has assigned, with names of components.

    `executors` has ``storm_id``, ``task_start``, ``task_end``, ``component``, and perhaps ``node``
    and ``port``.
    """
    on = ["storm_id", "task_start", "task_end"]
    on += [name for name in ("node", "port") if name in executors.columns]
    named = executors.select(*on, "component")
    return df.drop("component").join(named, on).select(*df.columns)


def _laid_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for piece in cut_pulses(pa.Table.from_batches([batch])):
            yield from of_executors(piece).combine_chunks().to_batches()


def _by_topology(
    df: DataFrame, summed: Callable[[pa.Table], pa.Table], schema: pa.Schema
) -> DataFrame:
    """Sum executors' rows; a partition has all rows of a topology."""

    def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: list[pa.Table] = []
        for batch in batches:
            found.append(tally_rows(pa.Table.from_batches([batch])))
            if sum(part.num_rows for part in found[1:]) > _AT_ONCE:
                found = [tally_rows(concat_sums(found))]
        if found:
            executors = tally_rows(concat_sums(found))
            yield from summed(sum_workers(executors)).combine_chunks().to_batches()

    rows = df.select(*SUMMED).repartition("storm_id")
    return rows.mapInArrow(sums, from_arrow_schema(schema))


def named(df: DataFrame, components: DataFrame) -> DataFrame:
    """Name the components of executors known only by tasks, before sums.

    `df` has rows of `executor_stats` or `decoded_rows.statistics`, `components` rows of the table
    ``components``.
    """
    tasks = components.select(
        col("storm_id").alias("of"),
        col("component").alias("name"),
        col("task_start").alias("first"),
        col("task_end").alias("last"),
    )
    label = fn.concat(fn.lit("tasks "), col("task_start"), fn.lit("-"), col("task_end"))
    is_within = (col("first") <= col("task_start")) & (col("task_end") <= col("last"))
    lacks = fn.coalesce(col("component"), label) == label
    on = (col("storm_id") == col("of")) & is_within & lacks
    found = df.join(fn.broadcast(tasks), on, "left")
    return found.withColumn("component", fn.coalesce("name", "component")).select(*df.columns)


def coarser(df: DataFrame, minutes: int) -> DataFrame:
    """Merge a roll-up's buckets into buckets of `minutes`, a multiple of the old length."""

    def longer_of(finer: pa.Table) -> pa.Table:
        return merge_buckets(finer.select(ROLLUP.names).cast(ROLLUP), minutes)

    return df.groupBy("storm_id").applyInArrow(longer_of, from_arrow_schema(ROLLUP))
