"""The components of executors whose workers do not name them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.functions import col


def named(df: DataFrame, components: DataFrame) -> DataFrame:
    """Name the components of executors that are known by their tasks alone.

    Parameters
    ----------
    df
        Rows of `executor_stats` or `decode.statistics`. Name them before they are summed up.
    components
        Rows of the pipeline's table ``components``: ``storm_id``, ``component``, ``task_start``,
        ``task_end``.

    Returns
    -------
    The same rows. What `components` does not have stays as it is.

    Examples
    --------
    >>> counted.transform(named, components).transform(component_stats)  # doctest: +SKIP
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
