"""What components and topologies counted, as Storm's pages say it."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.functions import col

from stormkeeper.pipeline.statistics.executors import topology_name
from stormkeeper.pipeline.statistics.tallies import (
    BOLT,
    COUNTS,
    SPOUT,
    WEIGHTS,
    as_double,
    average,
    executor_tallies,
    halves_of,
    sums,
    whole,
)

_TERMS: Final = [f"{name} {kind}" for kind in ("terms", "page") for name in WEIGHTS]
_SIZES: Final = ("workers", "executors", "tasks")
_ADDED_UP: Final = [*halves_of(COUNTS), *_TERMS]


def component_stats(df: DataFrame) -> DataFrame:
    """Sum up what executors counted, by component and window: the rows of Storm's pages.

    Parameters
    ----------
    df
        Rows of `executor_stats`, of one moment: one report per executor.

    Returns
    -------
    One row per component and each of Storm's four windows:

    - ``read_at`` (the newest), ``storm_id``, ``topology``, ``component``, ``kind``, ``window``.
    - ``workers``, ``executors``, ``tasks``: how many have reported, be it in another window.
    - ``emitted``, ``transferred`` without Storm's own streams (``__…``), ``emitted_all``,
      ``transferred_all`` with them; ``executed``, ``acked``, ``failed``. 0 where nothing was
      reported; a sum beyond 64 bits is the largest number that they hold.
    - ``complete_ms_avg`` of a spout, weighed by what was acked, ``execute_ms_avg`` and
      ``process_ms_avg`` of a bolt, both by what was executed: exact, as on a component's page.
      ``…_page``: as on the topology's page, where Storm cuts the time of each executor down to
      whole milliseconds. Null where the count is 0.
    - ``capacity`` of a bolt: the largest of its executors'; null for a spout. It is of the last ten
      minutes in every window's row.
    - ``partial``: an executor had more rows in that window than were counted.

    Examples
    --------
    >>> now = beats.transform(executor_stats).transform(component_stats)  # doctest: +SKIP
    """
    keys = ["storm_id", "component"]
    found = _by_window(executor_tallies(df), keys, fn.lit(True))
    is_spout, is_bolt = col("kind") == SPOUT, col("kind") == BOLT
    of_kind = {"complete": is_spout, "execute": is_bolt, "process": is_bolt}
    latencies = [
        fn.when(of_kind[name], average(col(f"`{name} {total}`"), as_double(weight))).alias(
            f"{name}_ms_{column}"
        )
        for total, column in (("terms", "avg"), ("page", "page"))
        for name, weight in WEIGHTS.items()
    ]
    return found.select(
        *("read_at", "storm_id", topology_name(col("storm_id")).alias("topology"), "component"),
        fn.when(is_spout, "spout").when(is_bolt, "bolt").alias("kind"),
        *("window", *_SIZES),
        *(whole(name).alias(name) for name in COUNTS),
        *latencies,
        fn.when(is_bolt, fn.greatest(col("capacity"), fn.lit(0.0))).alias("capacity"),
        fn.coalesce("partial", fn.lit(False)).alias("partial"),
    )


def topology_stats(df: DataFrame) -> DataFrame:
    """Sum up what executors counted, by topology and window: Storm's ``TopologyStats``.

    Parameters
    ----------
    df
        Rows of `executor_stats`, of one moment: one report per executor.

    Returns
    -------
    One row per topology and each of Storm's four windows: ``read_at`` (the newest), ``storm_id``,
    ``topology``, ``window``; ``workers``, ``executors``, ``tasks``, how many have reported: workers
    for more than Storm's own components (``__…``), executors and tasks including these;
    ``emitted``, ``transferred`` of all components but Storm's own, ``emitted_all``,
    ``transferred_all`` with these and with Storm's own streams; ``acked``, ``failed`` and
    ``complete_ms_avg``, of spouts alone.
    """
    visible = ~col("component").startswith("__")
    spouts = visible & (col("kind") == SPOUT)
    counts = dict.fromkeys(("emitted", "transferred"), visible)
    counts |= dict.fromkeys(("acked", "failed"), spouts)
    tallies = executor_tallies(df).withColumns(
        {
            name: fn.when(counted, col(f"`{name}`"))
            for count, counted in counts.items()
            for name in halves_of([count])
        }
        | {"complete terms": fn.when(spouts, col("`complete terms`"))}
    )
    found = _by_window(tallies, ["storm_id"], visible)
    return found.select(
        *("read_at", "storm_id", topology_name(col("storm_id")).alias("topology")),
        *("window", *_SIZES),
        *(whole(name).alias(name) for name in COUNTS if name != "executed"),
        average(col("`complete terms`"), as_double("acked")).alias("complete_ms_avg"),
    )


def _by_window(tallies: DataFrame, keys: list[str], visible: Column) -> DataFrame:
    """Add up executors' tallies by `keys`: first those of each worker, then the workers'."""
    largest = [fn.max(name).alias(name) for name in ("kind", "read_at", "partial", "capacity")]
    by_worker = (
        tallies.withColumn("visible", visible)
        .groupBy(*keys, "window", "node", "port")
        .agg(
            *sums([*_ADDED_UP, "tasks"]),
            *largest,
            fn.count(fn.lit(1)).alias("executors"),
            fn.max("visible").cast("bigint").alias("workers"),
        )
    )
    by_window = by_worker.groupBy(*keys, "window").agg(*sums([*_ADDED_UP, *_SIZES]), *largest)
    capacity = fn.max("capacity").over(Window.partitionBy(*keys))
    return by_window.withColumn("capacity", capacity)
