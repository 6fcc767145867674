"""Analyses of workers' health: workers that flap, and nodes and Pacemakers with many late workers.

If a worker of the rest of the cluster is late with probability p, k of m others are late by chance
with at most the probability of Chernoff's bound, ``exp(-m KL(k/m, p))``. So while the whole cluster
is late, as when it cannot be read, no node is found.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from stormkeeper.pipeline.analyses.alerts import findings, instant, newest, until_now, window

#: Seconds within which so many ends are found, or so many silences: a busy machine or network may
#: delay a few heartbeats.
WITHIN_SECS: Final = 1800
ENDS: Final = 3
SILENCES: Final = 5

_SUBJECT: Final = ("storm_id", "node", "port")


#: Least late workers of a node or server, as a number and as a part.
LEAST_LATE: Final = 3
LEAST_SHARE: Final = 0.5

#: Least probability that a worker is late, however few of the rest are.
FLOOR: Final = 0.01

#: Probability below which chance is no explanation.
CHANCE: Final = 1e-4

#: Critical from this part on.
ALL: Final = 0.9

#: The statuses that are judged; other workers are unknown or done.
STATUSES: Final = ("alive", "late", "dead")

#: The column with the number of workers, where rows are counts.
WORKERS: Final = "workers"

#: With `now`, the greatest age of the table.
FRESH_SECS: Final = 60


def flapping_workers(events: DataFrame, now: datetime | None = None) -> DataFrame:
    """Return workers that ended, or fell silent, several times within half an hour.

    ``value`` is how often. Ends are critical, silences alone a warning; a death and the start after
    it count once.
    """
    rows = until_now(events, F.col("at"), now, past_secs=WITHIN_SECS)
    rows = rows.where(F.col("event").isin("restarted", "dead", "late"))
    lately = window(_SUBJECT, "at", WITHIN_SECS - 1)
    for event in ("restarted", "dead", "late"):
        # A set, as an event may have been written twice.
        moments = F.collect_set(F.when(F.col("event") == event, F.col("at"))).over(lately)
        rows = rows.withColumn(event, F.size(moments))
    rows = rows.withColumn("first", F.min("at").over(lately))
    rows = newest(rows, _SUBJECT, F.col("at"), now, fresh_secs=WITHIN_SECS)
    ends = F.greatest("restarted", "dead")
    ended = ends >= ENDS
    found = rows.where(ended | (F.col("late") >= SILENCES)).select(
        *_SUBJECT,
        "topology",
        F.when(ended, "critical").otherwise("warning").alias("severity"),
        F.when(ended, ends).otherwise(F.col("late")).alias("value"),
        F.when(ended, ENDS).otherwise(SILENCES).alias("threshold"),
        F.format_string(
            "times within %d minutes: restarted %d, dead %d, late %d",
            F.lit(WITHIN_SECS // 60),
            "restarted",
            "dead",
            "late",
        ).alias("evidence"),
        F.col("first").alias("since"),
        F.col("at").alias("seen_at"),
    )
    worker = F.concat(F.col("node"), F.lit(":"), F.col("port").cast("string"))
    subject = F.concat_ws("/", "storm_id", worker)
    return findings(found, "flapping", "worker", subject)


def late_nodes(liveness: DataFrame, now: datetime | None = None) -> DataFrame:
    """Return nodes with many workers late or dead together.

    ``value`` is the part of the node's workers. A row of `liveness` stands for the number of
    workers in its column `WORKERS`, or for one.
    """
    return _late(liveness, "node", now)


def late_pacemakers(liveness: DataFrame, now: datetime | None = None) -> DataFrame:
    """Return Pacemakers with pulses late together: as `late_nodes`, by server."""
    return _late(liveness, "server", now)


def _late(liveness: DataFrame, by: str, now: datetime | None) -> DataFrame:
    rows = until_now(liveness, F.col("updated_at"), now, past_secs=FRESH_SECS)
    reading = F.col("updated_at")
    if now is not None:
        # Equals now, but is no constant: Spark warns of windows over a constant.
        reading = F.greatest(reading, instant(now))
    counted = rows.where(F.col(by).isNotNull() & F.col("status").isin(*STATUSES))
    workers = F.col(WORKERS) if WORKERS in liveness.columns else F.lit(1)
    late = F.col("status") != "alive"
    groups = counted.groupBy(reading.alias("reading"), by).agg(
        F.sum(workers).alias("workers"),
        F.sum(F.when(late, workers).otherwise(0)).alias("late"),
    )
    everywhere = Window.partitionBy("reading")
    others = F.sum("workers").over(everywhere) - F.col("workers")
    others_late = F.sum("late").over(everywhere) - F.col("late")
    groups = groups.withColumn("others", others).withColumn("others_late", others_late)
    share = F.col("late") / F.col("workers")
    usual = F.greatest((F.col("others_late") + 0.5) / (F.col("others") + 1), F.lit(FLOOR))
    groups = groups.withColumn("share", share).withColumn("usual", usual)
    many = (F.col("late") >= LEAST_LATE) & (F.col("share") >= LEAST_SHARE) & (F.col("others") > 0)
    found = groups.where(many & (F.col("share") > F.col("usual")))
    found = found.where(_log_chance() <= F.log(F.lit(CHANCE)))
    kind, what = ("node", "node") if by == "node" else ("pacemaker", "Pacemaker")
    found = found.select(
        by,
        F.when(F.col("share") >= ALL, "critical").otherwise("warning").alias("severity"),
        F.col("share").alias("value"),
        F.lit(LEAST_SHARE).alias("threshold"),
        F.format_string(
            f"%d of the {what}'s %d workers are late or dead, and %d of the other %d",
            "late",
            "workers",
            "others_late",
            "others",
        ).alias("evidence"),
        F.col("reading").alias("since"),
        F.col("reading").alias("seen_at"),
    )
    return findings(found, f"{kind}_late", kind, F.col(by))


def _log_chance() -> Column:
    share, usual = F.col("share"), F.col("usual")
    rest = F.when(share < 1, (1 - share) * F.log((1 - share) / (1 - usual))).otherwise(0.0)
    return -F.col("workers") * (share * F.log(share / usual) + rest)
