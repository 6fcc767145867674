"""What each executor counted from one reading to the next, across restarts of its worker.

An executor counts from 0 again when its worker starts anew: that begins another *incarnation*. Two
readings are of the same one if no count has fallen in between, and if the worker has the same start

- by its own clock: ``time_secs`` less ``uptime_secs`` (both are whole seconds), or,
- as that clock may be set, by the time of receipt: ``received_at`` less ``uptime_secs``, with some
  tolerance for a heartbeat that came late; then the uptime has not fallen either.

So the sum of all increments of an executor is the sum of what its incarnations counted in all, up
to the last reading of each, whichever readings in between were missed.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.functions import col

from stormkeeper.pipeline.statistics.executors import (
    ALL_TIME,
    CAPACITY_WINDOW,
    is_workers_own,
)
from stormkeeper.pipeline.statistics.tallies import (
    WEIGHTS,
    capacity,
    finite,
    halves,
    sums,
    whole,
)

#: What an executor counted; without Storm's own streams.
COUNTS: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Sums of average times count, in milliseconds.
TIMES: Final = tuple(f"{name}_ms" for name in WEIGHTS)

#: How far apart two readings may put a worker's start by the time of receipt, in seconds.
TOLERANCE_SECS: Final = 5.0

_EXECUTOR: Final = ("storm_id", "node", "port", "task_start", "task_end")
_WORKER: Final = ("storm_id", "node", "port")
_READING: Final = ("server", "instance", "revision", "time_secs", "uptime_secs")

#: By their own clocks: two roundings to whole seconds.
_ROUNDING_SECS: Final = 1


def counters(df: DataFrame, reports: DataFrame | None = None) -> DataFrame:
    """Sum up each executor's counters since its worker's start, one row per executor and reading.

    Parameters
    ----------
    df
        Rows of `executor_stats`, of any readings.
    reports
        One row per worker and reading, by ``storm_id``, ``node``, ``port``, ``server``,
        ``instance``, ``revision``: the ``bytes`` of its heartbeat, and how many heartbeats were
        ``skipped`` before it.

    Returns
    -------
    ``storm_id``, ``topology``, ``node``, ``port``, ``task_start``, ``task_end``, ``component``,
    ``kind``; ``server``, ``instance``, ``revision``, ``time_secs``, ``uptime_secs`` of the
    heartbeat and ``at``, when it was received; ``emitted``, ``transferred``, ``executed``,
    ``acked``, ``failed``, never below 0 and without Storm's own streams; ``complete_ms``,
    ``execute_ms``, ``process_ms``, the sums of average times count; ``capacity``; ``bytes`` and
    ``skipped``, null without `reports`.
    """
    keys = ["storm_id", "topology", *_EXECUTOR[1:], "component", "kind", *_READING]
    all_time = col("window") == ALL_TIME
    own = all_time & ~col("stream").startswith("__")
    counted = {name: own if name in ("emitted", "transferred") else all_time for name in COUNTS}
    terms = {name: finite(col(f"{name}_ms_avg") * col(w)) for name, w in WEIGHTS.items()}
    windows = col("window").isin(ALL_TIME, CAPACITY_WINDOW)
    reported = df.where(~is_workers_own(col("task_start")) & windows).select(
        *keys,
        fn.coalesce("received_at", "read_at").alias("at"),
        *(fn.when(counted[name], col(name)).alias(name) for name in COUNTS),
        *(fn.when(all_time, term).alias(f"{name}_ms") for name, term in terms.items()),
        fn.when(col("window") == CAPACITY_WINDOW, terms["execute"]).alias("recent"),
    )
    found = reported.groupBy(*keys).agg(
        fn.min("at").alias("at"),
        *(half for name in COUNTS for half in halves(name)),
        *sums([*TIMES, "recent"]),
    )
    found = found.select(
        *(*keys, "at"),
        *(fn.greatest(whole(name), fn.lit(0)).cast("bigint").alias(name) for name in COUNTS),
        *(finite(col(name)).alias(name) for name in TIMES),
        fn.when(col("kind") == "bolt", capacity(col("recent"))).alias("capacity"),
    )
    if reports is None:
        return found.withColumns(
            {name: fn.lit(None).cast("bigint") for name in ("bytes", "skipped")}
        )
    reading = [*_WORKER, "server", "instance", "revision"]
    beside = reports.select(
        *(col(name).alias(f"report {name}") for name in reading),
        *(col(name).cast("bigint") for name in ("bytes", "skipped")),
    )
    same = [col(name).eqNullSafe(col(f"`report {name}`")) for name in reading]
    return found.join(beside, same, "left").select(*found.columns, "bytes", "skipped")


def increments(df: DataFrame, previous: DataFrame | None = None) -> DataFrame:
    """Return what each executor counted since its reading before.

    Parameters
    ----------
    df
        Rows of `counters`: new readings in any order. One that is there twice (the same server,
        instance and revision) counts once. One that is older than the executor's in `previous`
        does not count: later ones contain what it says.
    previous
        The newest reading of each executor so far, as `counters_now` returns it. An executor that
        is not in it counts from the start of its worker.

    Returns
    -------
    The rows of `counters` that were new, one per executor and reading, where ``emitted``,
    ``transferred``, ``executed``, ``acked``, ``failed`` and ``complete_ms``, ``execute_ms``,
    ``process_ms`` are of the time since the reading before, or of the time since the worker's start
    if that was later. ``secs``: how long that is. ``restarted``: whether the worker started in
    between. Averages that Storm rounds may make a sum of milliseconds fall a little.
    """
    rows = _with_previous(df, previous)
    floor = fn.max(fn.when(~col("is new"), col("at"))).over(Window.partitionBy(*_EXECUTOR))
    rows = rows.withColumn("floor", floor).where(
        ~col("is new") | col("floor").isNull() | (col("at") > col("floor"))
    )
    in_time = Window.partitionBy(*_EXECUTOR).orderBy("at", "uptime_secs", *COUNTS)
    names = (*COUNTS, *TIMES, "at", "time_secs", "uptime_secs")
    before = fn.lag(fn.struct(*names)).over(in_time)
    rows = rows.withColumn("before", before).where(col("is new"))
    rows = rows.withColumn("same", _of_one_incarnation(TOLERANCE_SECS))
    since = fn.when(col("same"), _secs(col("at")) - _secs(col("before.at")))
    changes = {
        name: col(name) - fn.when(col("same"), col(f"before.{name}")).otherwise(fn.lit(0))
        for name in (*COUNTS, *TIMES)
    }
    return rows.select(
        *(name for name in df.columns if name not in changes),
        *(change.alias(name) for name, change in changes.items()),
        fn.greatest(fn.coalesce(since, col("uptime_secs").cast("double")), fn.lit(0.0)).alias(
            "secs"
        ),
        (col("before").isNotNull() & ~col("same")).alias("restarted"),
    )


def counters_now(df: DataFrame, previous: DataFrame | None = None) -> DataFrame:
    """Return the newest reading of each executor: the `previous` of the next `increments`.

    Parameters
    ----------
    df, previous
        As those of `increments`. Executors that are not in `df` stay as they were; forget those
        whose ``at`` is long ago, so that the table does not grow with every topology that ever ran.
    """
    rows = _with_previous(df, previous)
    newest = Window.partitionBy(*_EXECUTOR).orderBy(
        *(col(name).desc() for name in ("at", "uptime_secs", *COUNTS))
    )
    return rows.withColumn("age", fn.row_number().over(newest)).where("age = 1").select(*df.columns)


def _with_previous(df: DataFrame, previous: DataFrame | None) -> DataFrame:
    """Put old and new readings together, each once; ``is new`` tells them apart."""
    rows = df.withColumn("is new", fn.lit(True))
    if previous is not None:
        rows = rows.unionByName(previous.select(*df.columns).withColumn("is new", fn.lit(False)))
    # The same heartbeat read twice was received at times that differ by the clocks' rounding.
    twice = Window.partitionBy(*_EXECUTOR, *_READING).orderBy("is new", "at")
    return rows.withColumn("copy", fn.row_number().over(twice)).where("copy = 1").drop("copy")


def _of_one_incarnation(tolerance_secs: float) -> Column:
    """Return whether a row's reading is of the same incarnation as the one ``before``."""
    # A worker may say any time: as doubles, no difference of two is too large.
    by_worker, lived = (
        col(name).cast("double") - col(f"before.{name}") for name in ("time_secs", "uptime_secs")
    )
    by_receipt = _secs(col("at")) - _secs(col("before.at"))
    same_start = (fn.abs(by_worker - lived) <= _ROUNDING_SECS) | (
        (lived >= 0) & (fn.abs(by_receipt - lived) <= tolerance_secs)
    )
    fell = [col(name) < col(f"before.{name}") for name in COUNTS]
    any_fell = fell[0]
    for one in fell[1:]:
        any_fell = any_fell | one
    return fn.coalesce(same_start & ~any_fell, fn.lit(False))


def _secs(at: Column) -> Column:
    return fn.unix_micros(at) / 1e6
