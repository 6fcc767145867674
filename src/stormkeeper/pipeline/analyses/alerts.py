"""Findings of the analyses in a common schema, and the alerts that follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.window import Window, WindowSpec

from stormkeeper.conf import Conf
from stormkeeper.history.parquet import Retention, TableSpec
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.table_columns import (
    ALERT_HISTORY,
    ALERT_ROWS,
    KILLED_TOPOLOGIES,
    SUPERVISORS,
)

#: A row of `ALERT_ROWS`.
_Alert = dict[str, Any]

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
    open_, present = (
        as_alert_rows(alerts.toArrow()).to_pylist()
        for alerts in (previous.where("until is null"), found)
    )
    merged = _merged(open_, present, now, clear_secs)
    rows = pa.Table.from_pylist(merged, schema=ALERT_ROWS)
    return found.sparkSession.createDataFrame(rows, ALERTS)


def _merged(
    open_: list[_Alert], found: list[_Alert], now: datetime, clear_secs: Mapping[str, float]
) -> list[_Alert]:
    before, present = _newest(open_), _newest(found)
    merged = []
    for id_ in sorted(before | present):
        both = [rows[id_] for rows in (present, before) if id_ in rows]
        seen_at = max(row["seen_at"] for row in both)
        clears_after = clear_secs.get(both[0]["rule"], DEFAULT_CLEAR_SECS)
        is_over = id_ not in present and (now - seen_at).total_seconds() >= clears_after
        times = {
            "since": min(now, *(row["since"] for row in both)),
            "seen_at": min(now, seen_at),
            "until": seen_at if is_over else None,
        }
        merged.append(both[0] | times)
    return merged


def _newest(alerts: list[_Alert]) -> dict[str, _Alert]:
    return {row["id"]: row for row in sorted(alerts, key=lambda row: row["seen_at"])}


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
    ended_since = now - timedelta(seconds=ENDED_SECS)
    kept, open_ = [], []
    for row in previous.to_pylist():
        is_open = row["until"] is None
        if is_open and (row["rule"] in asked or row["rule"] not in known):
            open_.append(row)
        elif is_open or row["until"] > ended_since:
            kept.append(row)
    unknown = {row["rule"]: 0.0 for row in open_ if row["rule"] not in known}
    kept += _merged(open_, found.to_pylist(), now, {**clear_secs, **unknown})
    return pa.Table.from_pylist(kept, schema=ALERT_ROWS)


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
