"""Findings of the analyses in a common schema, and the alerts that follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.window import Window, WindowSpec

from stormkeeper.conf import Conf
from stormkeeper.history.parquet import TIME, Retention, TableSpec
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.table_columns import (
    ALERT_HISTORY,
    ALERT_ROWS,
    KILLED_TOPOLOGIES,
    SUPERVISORS,
)

#: The columns of a finding; `value` and `threshold` have the rule's unit.
ALERTS: Final = from_arrow_schema(ALERT_ROWS)

#: Seconds without a finding until its alert ends.
CLEAR_SECS: Final[Mapping[str, float]] = {
    "skew": 600,
    "throughput": 1800,
    "saturation": 3600,
    "growth": 7200,
    "flapping": 1800,
    "node_late": 60,
    "pacemaker_late": 60,
}

DEFAULT_CLEAR_SECS: Final = 1800

#: Seconds for which an ended alert stays among the alerts.
ENDED_SECS: Final = 86_400.0

#: An alert of late workers ends after so many triggers; any alert stays for so many rounds.
_TRIGGERS: Final = 12
_LEAST_ROUNDS: Final = 1.5


def instant(moment: datetime) -> Column:
    """Return a moment as a column, in any time zone of the session."""
    return F.timestamp_micros(F.lit(round(moment.timestamp() * 1e6)))


def after(at: Column, secs: float) -> Column:
    return F.timestamp_micros(F.unix_micros(at) + F.lit(round(secs * 1e6)))


def until_now(table: DataFrame, at: Column, now: datetime | None, *, past_secs: float) -> DataFrame:
    """Keep rows with a time; with `now`, only of the last `past_secs` before `now`."""
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
    """Return each subject's newest `count` rows, less than `fresh_secs` old; without `now`, all."""
    if now is None:
        return rows
    latest = Window.partitionBy(*by).orderBy(F.unix_micros(at).desc())
    rows = rows.withColumn("place", F.row_number().over(latest))
    rows = rows.where((F.col("place") <= count) & (at > after(instant(now), -fresh_secs)))
    return rows.drop("place")


def window(by: tuple[str, ...], at: str, back_secs: int, until_secs: int = 0) -> WindowSpec:
    """Return a window over a subject's rows, from `back_secs` to `until_secs` before each."""
    ordered = Window.partitionBy(*by).orderBy(F.unix_seconds(at))
    return ordered.rangeBetween(-back_secs, -until_secs)


def findings(found: DataFrame, rule: str, subject_kind: str, subject: Column) -> DataFrame:
    """Return findings as rows of `ALERTS`; `subject` is text."""
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
    """Return the alerts that follow from the last result, or none, and the present findings.

    An alert that is found again keeps its ``since``. Without a finding it stays open for its rule's
    `clear_secs`; then its ``until`` is when it was last seen. Each end is in exactly one result. Of
    `found`, the newest row of each id counts. Times later than `now` become `now`.
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


def alert_tables(conf: Conf) -> list[TableSpec]:
    kept = Retention(hours=conf["pipeline.retention.alerts.hours"])
    return [
        TableSpec(tables.ALERTS, ALERT_ROWS, "current"),
        TableSpec(tables.ALERT_HISTORY, ALERT_HISTORY, "log", time="at", retention=kept),
        TableSpec(tables.KILLED_TOPOLOGIES, KILLED_TOPOLOGIES, "current"),
        TableSpec(tables.SUPERVISORS, SUPERVISORS, "current"),
    ]


def alert_store(conf: Conf) -> TableStore:
    folder = tables.tables_folder(conf) / tables.ALERTS
    return TableStore(folder, alert_tables(conf), interval_secs=conf["pipeline.analyses.secs"])


def clear_times(conf: Conf) -> dict[str, float]:
    least = _LEAST_ROUNDS * conf["pipeline.analyses.secs"]
    together = _TRIGGERS * conf["pipeline.trigger.secs"]
    found = {**CLEAR_SECS, "node_late": together, "pacemaker_late": together}
    return {rule: max(secs, least) for rule, secs in found.items()}


def next_alerts(
    session: SparkSession,
    previous: pa.Table,
    found: pa.Table,
    *,
    known: Collection[str],
    asked: Collection[str],
    now: datetime,
    clear_secs: Mapping[str, float],
) -> pa.Table:
    """Return the next alerts: open alerts, and alerts that ended lately.

    Alerts of rules that are not `known` end; alerts of known rules that were not `asked` stay.
    """
    is_open = pc.is_null(previous["until"])
    unasked = pa.array([rule for rule in known if rule not in asked], pa.string())
    stays = pc.is_in(previous["rule"], unasked)
    since = pa.scalar(now - timedelta(seconds=ENDED_SECS), TIME)
    ended = pc.and_(pc.invert(is_open), pc.greater(pc.coalesce(previous["until"], since), since))
    left = previous.filter(pc.or_(pc.and_(is_open, stays), ended))
    given = previous.filter(pc.and_(is_open, pc.invert(stays)))
    if not given.num_rows and not found.num_rows:
        return left
    old = {rule: 0.0 for rule in given["rule"].to_pylist() if rule not in known}
    merged = merge(
        session.createDataFrame(given.combine_chunks(), ALERTS),
        session.createDataFrame(found.combine_chunks(), ALERTS),
        now,
        clear_secs={**clear_secs, **old},
    )
    return pa.concat_tables([left, as_alert_rows(merged.toArrow())])


def without_killed(alerts_: pa.Table, killed: Mapping[str, datetime]) -> tuple[pa.Table, pa.Table]:
    """Split off the open alerts of killed topologies, ended."""
    is_killed = pc.is_in(alerts_["storm_id"], pa.array([*killed], pa.string()))
    is_over = pc.and_(is_killed, pc.is_null(alerts_["until"]))
    ended = [
        {**row, "until": max(row["since"], killed[row["storm_id"]])}
        for row in alerts_.filter(is_over).to_pylist()
    ]
    return alerts_.filter(pc.invert(is_over)), pa.Table.from_pylist(ended, schema=ALERT_ROWS)


def alert_changes(before: pa.Table, after: pa.Table, now: datetime) -> pa.Table:
    earlier = {row["id"]: row for row in before.to_pylist() if row["until"] is None}
    ended = {(row["id"], row["since"]) for row in before.to_pylist() if row["until"] is not None}
    rows = []
    for row in after.to_pylist():
        was = earlier.get(row["id"])
        if row["until"] is not None:
            change = None if (row["id"], row["since"]) in ended else "ended"
        elif was is None:
            change = "began"
        else:
            change = "severity" if was["severity"] != row["severity"] else None
        if change is not None:
            rows.append({"at": now, "change": change, **row})
    return pa.Table.from_pylist(rows, schema=ALERT_HISTORY)


def as_alert_rows(found: pa.Table) -> pa.Table:
    return found.select(ALERT_ROWS.names).cast(ALERT_ROWS)
