"""Topologies that do much less, or much more, than in their own recent past.

The past is the median of the last hours, with the median distance from it (MAD) as its scatter. A
daily rhythm moves slowly beside that. What stops and starts at the same time each day is known from
the second day on: then the past also says by how much this time of day differs from the hours
before it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from stormkeeper.pipeline.analyses.alerts import after, findings, newest, until_now
from stormkeeper.pipeline.analyses.trend import computed, median

#: Buckets that have to differ, one after the other, and those before them that are the past.
RECENT: Final = 2
PAST: Final = 18
LEAST_PAST: Final = 12

#: A topology has fallen below this part of its past, or risen above this multiple.
FALLEN: Final = 0.5
RISEN: Final = 3.0

#: It differs by so many standard deviations besides.
DEVIATIONS: Final = 5.0

#: Half the width of "this time of day", in buckets.
TIME_OF_DAY: Final = 3

#: Tuples for each one that Storm counts: see `skew`.
SAMPLED: Final = 20.0

DAY_SECS: Final = 86_400


def unusual_throughput(
    rollup: DataFrame,
    now: datetime | None = None,
    *,
    bucket_secs: int = 600,
    fallen: float = FALLEN,
    risen: float = RISEN,
    deviations: float = DEVIATIONS,
) -> DataFrame:
    """Return topologies whose throughput is far from that of their last three hours.

    ``value`` is the throughput in tuples per second, the median of the last buckets; ``threshold``
    the limit that it crossed. A fall below a tenth of that limit is critical. Throughput is what
    the spouts acked; what they emitted, if the topology acks nothing; what its bolts executed, if
    no spout has counted anything. A level that lasts becomes the past: then nothing is found.

    Parameters
    ----------
    rollup
        ``rollup_10m``, or another with its `bucket_secs`. Read are bucket, storm_id, topology,
        kind, executed, emitted and acked. With at least a day of past, times of day count.
    fallen, risen
        Parts of the past, below and above which throughput is unusual.
    deviations
        By how many standard deviations it has to differ, too.
    """
    end = after(F.col("bucket"), bucket_secs)
    past_secs = DAY_SECS + (RECENT + PAST + 1) * bucket_secs
    rows = _series(until_now(rollup, end, now, past_secs=past_secs), bucket_secs)
    rows = _windows(rows, bucket_secs)
    rows = newest(rows, ("storm_id",), end, now, fresh_secs=2 * bucket_secs)
    rows = _measured(rows)
    scatter = F.greatest(
        1.4826 * F.col("mad"), F.sqrt(SAMPLED * F.col("usual")), 0.05 * F.col("usual")
    )
    low = F.least(fallen * F.col("usual"), F.col("usual") - deviations * scatter)
    high = F.greatest(risen * F.col("usual"), F.col("usual") + deviations * scatter)
    # Yesterday's change at this time of day moves both limits outwards only.
    down, up = F.least("daily_low", F.lit(1.0)), F.greatest("daily_high", F.lit(1.0))
    rows = computed(rows, low=low * down, high=high * up, level=median(F.col("recent")))
    fell = (F.array_max("recent") < F.col("low")) & (F.col("low") > 0) & ~_often_low()
    rose = F.array_min("recent") > F.col("high")
    enough = (F.size("recent") == RECENT) & (F.size("past") >= LEAST_PAST) & (F.col("usual") > 0)
    level = F.col("level") / bucket_secs
    limit = F.when(fell, F.col("low")).otherwise(F.col("high")) / bucket_secs
    found = rows.where(enough & (fell | rose)).select(
        "storm_id",
        "topology",
        F.when(fell & (level < limit / 10), "critical").otherwise("warning").alias("severity"),
        level.alias("value"),
        limit.alias("threshold"),
        F.format_string(
            "%s tuples a second, where %s were usual in the %s hours before",
            F.format_number(level, 1),
            F.format_number(F.col("usual") / bucket_secs, 1),
            F.format_number(F.size("past") * bucket_secs / 3600, 1),
        ).alias("evidence"),
        after(F.col("bucket"), (1 - RECENT) * bucket_secs).alias("since"),
        end.alias("seen_at"),
    )
    return findings(found, "throughput", "topology", F.col("storm_id"))


def _series(rollup: DataFrame, bucket_secs: int) -> DataFrame:
    """Return what each topology did in each bucket."""
    spout = F.col("kind") == "spout"
    rows = (
        rollup.repartition("storm_id")
        .groupBy("storm_id", "bucket")
        .agg(
            F.max("topology").alias("topology"),
            F.sum(F.when(spout, F.col("acked").cast("double"))).alias("acked"),
            F.sum(F.when(spout, F.col("emitted").cast("double"))).alias("emitted"),
            F.sum(F.when(F.col("kind") == "bolt", F.col("executed").cast("double"))).alias(
                "executed"
            ),
        )
    )
    lately = _window((RECENT + PAST) * bucket_secs, 0)
    done = F.coalesce("executed", F.lit(0.0))
    for name in ("emitted", "acked"):
        some = F.max(name).over(lately) > 0
        done = F.when(some, F.coalesce(name, F.lit(0.0))).otherwise(done)
    return rows.withColumn("done", done)


def _windows(rows: DataFrame, bucket_secs: int) -> DataFrame:
    point = F.struct(F.unix_seconds("bucket").alias("t"), F.col("done").alias("y"))
    earliest = (RECENT + PAST - 1) * bucket_secs
    latest = RECENT * bucket_secs
    near = TIME_OF_DAY * bucket_secs
    return (
        rows.withColumn(
            "recent", F.collect_list("done").over(_window((RECENT - 1) * bucket_secs, 0))
        )
        .withColumn("past", F.collect_list(point).over(_window(earliest, latest)))
        .withColumn("then", F.collect_list("done").over(_window(DAY_SECS + near, DAY_SECS - near)))
        .withColumn(
            "before_then",
            F.collect_list("done").over(_window(DAY_SECS + earliest, DAY_SECS + latest)),
        )
    )


def _measured(rows: DataFrame) -> DataFrame:
    known = (F.size("then") >= TIME_OF_DAY) & (F.size("before_then") >= LEAST_PAST)
    rows = computed(
        rows,
        usual=median(F.col("past.y")),
        before=F.when(known, median(F.col("before_then"))),
    )
    distances = F.transform("past.y", lambda done: F.abs(done - F.col("usual")))
    # A job that had not run yet at this time says nothing about how much it then rose.
    low, high = (
        F.when(F.col("before") > 0, extreme("then") / F.col("before"))
        for extreme in (F.array_min, F.array_max)
    )
    return computed(rows, mad=median(distances), daily_low=low, daily_high=high)


def _often_low() -> Column:
    """Whether the past had been as low before, and had risen again: it comes and goes."""
    low = F.col("low")
    normal = F.array_max(
        F.transform(F.filter("past", lambda point: point["y"] >= low), lambda point: point["t"])
    )
    earlier = F.filter("past", lambda point: (point["y"] < low) & (point["t"] < normal))
    return F.size(earlier) >= RECENT


def _window(back_from: int, back_to: int) -> WindowSpec:
    ordered = Window.partitionBy("storm_id").orderBy(F.unix_seconds("bucket"))
    return ordered.rangeBetween(-back_from, -back_to)
