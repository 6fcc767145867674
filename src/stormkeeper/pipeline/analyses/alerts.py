"""Findings of the analyses as rows of one shape, and alerts that begin, last and end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType
from pyspark.sql.window import Window

_TEXTS: Final = (
    *("id", "rule", "severity", "subject_kind", "subject"),
    *("storm_id", "topology", "component", "node"),
)

#: One row per finding. `id` is the rule and the subject. `value` and `threshold` are in the unit
#: that the rule's function states. It holds since `since`; `seen_at` is when it was last found to
#: hold. `until` is null as long as it holds.
ALERTS: Final = StructType(
    [
        *(StructField(name, StringType()) for name in _TEXTS),
        StructField("value", DoubleType()),
        StructField("threshold", DoubleType()),
        StructField("evidence", StringType()),
        StructField("since", TimestampType()),
        StructField("until", TimestampType()),
        StructField("seen_at", TimestampType()),
    ]
)

#: How long a finding has to be absent before its alert ends, in seconds: some of its rule's
#: buckets, or of the pipeline's triggers, so that what comes and goes is one alert.
CLEAR_SECS: Final[Mapping[str, float]] = {
    "skew": 600,
    "throughput": 1800,
    "saturation": 3600,
    "growth": 7200,
    "flapping": 1800,
    "node_late": 60,
    "pacemaker_late": 60,
}

#: Of a rule that is not in `CLEAR_SECS`.
DEFAULT_CLEAR_SECS: Final = 1800


def instant(moment: datetime) -> Column:
    """Return a moment as a column, whatever the session's time zone is."""
    return F.timestamp_micros(F.lit(round(moment.timestamp() * 1e6)))


def after(at: Column, secs: float) -> Column:
    """Return the time that is `secs` seconds after `at`."""
    return F.timestamp_micros(F.unix_micros(at) + F.lit(round(secs * 1e6)))


def until_now(table: DataFrame, at: Column, now: datetime | None, *, past_secs: float) -> DataFrame:
    """Return the rows whose time is known: of the last `past_secs` before `now`, if it is given."""
    table = table.where(at.isNotNull())
    if now is None:
        return table
    return table.where((at <= instant(now)) & (at > after(instant(now), -past_secs)))


def newest(
    rows: DataFrame,
    by: tuple[str, ...],
    at: Column,
    now: datetime | None,
    *,
    fresh_secs: float,
    count: int = 1,
) -> DataFrame:
    """Return, if `now` is given, each subject's newest rows that are less than `fresh_secs` old.

    Parameters
    ----------
    by
        The columns that tell subjects apart.
    at
        The time that a row is about.
    count
        How many rows of each subject.
    """
    if now is None:
        return rows
    latest = Window.partitionBy(*by).orderBy(F.unix_micros(at).desc())
    rows = rows.withColumn("place", F.row_number().over(latest))
    rows = rows.where((F.col("place") <= count) & (at > after(instant(now), -fresh_secs)))
    return rows.drop("place")


def findings(found: DataFrame, rule: str, subject_kind: str, subject: Column) -> DataFrame:
    """Return what an analysis found as rows of `ALERTS`.

    Parameters
    ----------
    found
        Has ``severity``, ``value``, ``threshold``, ``evidence``, ``since`` and ``seen_at``, and
        of the columns that name the subject those that it has.
    subject
        Text that names the subject.
    """
    columns = {
        "id": F.concat_ws("/", F.lit(rule), subject),
        "rule": F.lit(rule),
        "subject_kind": F.lit(subject_kind),
        "subject": subject,
        "until": F.lit(None),
    }
    for name in found.columns:
        columns.setdefault(name, F.col(name))
    return found.select(
        [
            columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in ALERTS.fields
        ]
    )


def merge(
    previous: DataFrame,
    found: DataFrame,
    now: datetime,
    *,
    clear_secs: Mapping[str, float] = CLEAR_SECS,
) -> DataFrame:
    """Return the alerts that follow from the last ones and from what is found now.

    An alert that is found again keeps its ``since``. One that is not found stays open until it has
    been absent for its rule's `clear_secs`; then its ``until`` is when it was last seen. Alerts
    that had ended in `previous` are left out, so each end is in exactly one result.

    Parameters
    ----------
    previous
        The result of the call before; an empty table of `ALERTS` at the beginning.
    found
        The rows of all analyses that were called with this `now`. Of several rows with one id, the
        newest one counts. A rule that was not asked this time ends its alerts all the same, when
        `clear_secs` have gone by.
    now
        Times that are later than this one, as after a clock was set back, are replaced by it.
    """
    moment = instant(now)
    names = [field.name for field in ALERTS.fields]
    before = _newest(previous.where("until is null"), names).alias("before")
    present = _newest(found, names).alias("present")
    both = before.join(present, F.col("before.id") == F.col("present.id"), "full_outer")
    again = F.col("present.id").isNotNull()
    columns = {
        name: F.when(again, F.col(f"present.{name}")).otherwise(F.col(f"before.{name}"))
        for name in names
    }
    columns["since"] = F.least(F.col("before.since"), F.col("present.since"), moment)
    columns["seen_at"] = F.least(F.greatest("before.seen_at", "present.seen_at"), moment)
    clear = F.lit(DEFAULT_CLEAR_SECS)
    for rule, secs in clear_secs.items():
        clear = F.when(F.col("before.rule") == rule, F.lit(secs)).otherwise(clear)
    silent = (F.unix_micros(moment) - F.unix_micros("before.seen_at")) / 1e6
    columns["until"] = F.when(~again & (silent >= clear), F.col("before.seen_at"))
    return both.select([columns[field.name].alias(field.name) for field in ALERTS.fields])


def _newest(alerts: DataFrame, names: list[str]) -> DataFrame:
    row = F.struct(*names)
    grouped = alerts.groupBy("id").agg(F.max_by(row, "seen_at").alias("row"))
    return grouped.select("row.*")
