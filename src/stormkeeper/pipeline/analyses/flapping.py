"""Workers that end and come back again and again, or fall silent and are heard again."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from stormkeeper.pipeline.analyses.alerts import findings, newest, until_now

#: Within this time, in seconds, so many ends are found, or so many silences: a busy machine or
#: network may delay a few heartbeats.
WITHIN_SECS: Final = 1800
ENDS: Final = 3
SILENCES: Final = 5

_SUBJECT: Final = ("storm_id", "node", "port")


def flapping_workers(
    events: DataFrame,
    now: datetime | None = None,
    *,
    within_secs: int = WITHIN_SECS,
    least_ends: int = ENDS,
    least_silences: int = SILENCES,
) -> DataFrame:
    """Return workers that ended, or fell silent, several times within half an hour.

    ``value`` is how many times, and ``threshold`` how many are found. A death and the start after
    it count once. It is critical if the worker died or was restarted so often; it is a warning if
    it was only late.

    Parameters
    ----------
    events
        ``worker_events``. Read are at, storm_id, topology, node, port and event, of which
        ``restarted``, ``dead`` and ``late`` count.
    within_secs, least_ends, least_silences
        So many ends, or times that it was late, within this time.
    """
    rows = until_now(events, F.col("at"), now, past_secs=within_secs)
    rows = rows.where(F.col("event").isin("restarted", "dead", "late"))
    seconds = F.unix_seconds("at")
    window = Window.partitionBy(*_SUBJECT).orderBy(seconds).rangeBetween(1 - within_secs, 0)
    for event in ("restarted", "dead", "late"):
        # The same event at the same time was written twice.
        moments = F.collect_set(F.when(F.col("event") == event, F.col("at"))).over(window)
        rows = rows.withColumn(event, F.size(moments))
    rows = rows.withColumn("first", F.min("at").over(window))
    rows = newest(rows, _SUBJECT, F.col("at"), now, fresh_secs=within_secs)
    ends = F.greatest("restarted", "dead")
    ended = ends >= least_ends
    found = rows.where(ended | (F.col("late") >= least_silences)).select(
        *_SUBJECT,
        "topology",
        F.when(ended, "critical").otherwise("warning").alias("severity"),
        F.when(ended, ends).otherwise(F.col("late")).alias("value"),
        F.when(ended, least_ends).otherwise(least_silences).alias("threshold"),
        F.format_string(
            "times within %d minutes: restarted %d, dead %d, late %d",
            F.lit(within_secs // 60),
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
