"""Decoded heartbeats as rows of executors, and who of them is assigned."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.functions import col

_REPORT: Final = (
    *("read_at", "received_at", "storm_id", "topology", "node", "port"),
    *("server", "instance", "revision", "time_secs", "uptime_secs"),
)
_COUNTER: Final = {
    **dict.fromkeys(("window", "source", "stream"), "string"),
    **dict.fromkeys(("emitted", "transferred", "executed", "acked", "failed"), "bigint"),
    **dict.fromkeys(("complete_ms_avg", "execute_ms_avg", "process_ms_avg"), "double"),
    "partial": "boolean",
}

#: The window that capacity is about, whichever one is asked for.
CAPACITY_WINDOW: Final = "600"

ALL_TIME: Final = ":all-time"

#: Storm's windows.
WINDOWS: Final = (CAPACITY_WINDOW, "10800", "86400", ALL_TIME)


def newest(df: DataFrame) -> DataFrame:
    """Keep the newest heartbeat of each worker, of those that could be decoded.

    A worker that moved from one Pacemaker to another has an older one on the first. What both say
    of its executors would be added up.

    Parameters
    ----------
    df
        Rows of `decode.heartbeats`.
    """
    received = fn.coalesce("received_at", "read_at").desc()
    newest_first = Window.partitionBy("storm_id", "node", "port").orderBy(received)
    readable = df.where(col("storm_id").isNotNull() & col("executors").isNotNull())
    ranked = readable.withColumn("rank", fn.row_number().over(newest_first))
    return ranked.where("rank = 1").select(*df.columns)


def executor_stats(df: DataFrame) -> DataFrame:
    """Lay out what executors counted, one row per executor, window and stream.

    Parameters
    ----------
    df
        Rows of `decode.heartbeats`. Those that could not be decoded give no rows.

    Returns
    -------
    ``read_at``, ``received_at``, ``storm_id``, ``topology`` (the name in the storm id), ``node``,
    ``port``, ``server``, ``instance``, ``revision``, ``time_secs``, ``uptime_secs`` of the
    heartbeat; ``task_start``, ``task_end``, ``component``, ``kind`` of the executor; and
    ``window``, ``source``, ``stream``, the counts and averages as `decode.statistics` has them.

    A component that the worker does not name is ``tasks 1-3``, by the executor's tasks; the
    executor that each of Storm's workers has for itself, of task -1, is of ``__system``. An
    executor has rows in each of Storm's four windows: where it counted nothing, one without a
    stream. So everyone who has reported is found in every window.
    """
    tasks = fn.concat(
        fn.lit("tasks "), col("executor.task_start"), fn.lit("-"), col("executor.task_end")
    )
    label = fn.when(is_workers_own(col("executor.task_start")), "__system").otherwise(tasks)
    executor = (
        *("executor.task_start", "executor.task_end"),
        fn.coalesce("executor.component", label).alias("component"),
        "executor.kind",
    )
    return (
        df.withColumn("topology", topology_name(col("storm_id")))
        .select(*_REPORT, fn.explode("executors").alias("executor"))
        .select(*_REPORT, *executor, fn.explode(_in_every_window()).alias("counter"))
        .select(
            *(*_REPORT, "task_start", "task_end", "component", "kind"),
            *(f"counter.{name}" for name in _COUNTER),
        )
    )


def _in_every_window() -> Column:
    """Return an executor's counters, with an empty one for each window that has none."""
    counters = col("executor.counters")
    missing = fn.array_except(fn.array(*map(fn.lit, WINDOWS)), counters["window"])

    def empty(window: Column) -> Column:
        values = {"window": window, "partial": fn.lit(False)}
        return fn.struct(
            *(
                values.get(name, fn.lit(None)).cast(kind).alias(name)
                for name, kind in _COUNTER.items()
            )
        )

    return fn.concat(counters, fn.transform(missing, empty))


def assigned(df: DataFrame, executors: DataFrame) -> DataFrame:
    """Keep the executors that Nimbus knows, with the names of their components.

    What a worker reports of an executor that Nimbus has not assigned, or not to this worker, does
    not count in Storm. And Storm's own workers do not say of which component an executor is.

    Parameters
    ----------
    df
        Rows of `executor_stats`.
    executors
        One row per executor: ``storm_id``, ``task_start``, ``task_end``, ``component``; also its
        worker's ``node`` and ``port``, where these are known.

    Examples
    --------
    >>> counted = beats.transform(executor_stats).transform(assigned, executors)  # doctest: +SKIP
    """
    on = ["storm_id", "task_start", "task_end"]
    on += [name for name in ("node", "port") if name in executors.columns]
    named = executors.select(*on, "component")
    return df.drop("component").join(named, on).select(*df.columns)


def topology_name(storm_id: Column) -> Column:
    """Return the name in a topology's id, as `current.topology_name` does."""
    name = fn.regexp_extract(storm_id, r"^(?s:(.+))-\d+-\d+$", 1)
    return fn.when(name != "", name).otherwise(storm_id)


def is_workers_own(task_start: Column) -> Column:
    """Return whether it is the executor that each of Storm's workers has for itself.

    The tasks of a topology are numbered from 1. Nobody assigned this one, and no page counts it.
    """
    return task_start < 1
