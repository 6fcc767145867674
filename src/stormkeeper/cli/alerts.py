"""``storm alerts``: what the pipeline's analyses have found, out of its tables."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from stormkeeper.cli.columns import aligned, escaped
from stormkeeper.cli.durations import duration
from stormkeeper.cli.effects import json_option
from stormkeeper.cli.freshness import age_of, remark_on_age
from stormkeeper.cli.history import node_names
from stormkeeper.cli.listing import remark
from stormkeeper.cli.options import conf_options, examples, faults, load_conf, until_interrupted
from stormkeeper.errors import TableError

#: Between two looks, in seconds.
_LOOK_SECS: Final = 0.5

#: Before all that was seen.
_BEGINNING: Final = datetime.fromtimestamp(0, UTC)

_WIDTH: Final = 80
_INDENT: Final = "  "


@click.command(
    epilog=examples(
        "storm alerts",
        "storm alerts --severity critical --ended",
        "storm alerts -f",
        "storm alerts -f --json",
    )
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what begins and ends, until Ctrl-C.")
@click.option("--ended", is_flag=True, help="Also those that ended in the last day.")
@click.option(
    "--severity", type=click.Choice(["warning", "critical"]), help="Only those of this severity."
)
@json_option
@conf_options
def alerts(*, follow: bool, ended: bool, severity: str | None, as_json: bool) -> None:
    """Show what the pipeline's analyses have found in the cluster, the severest first.

    Reads the tables that `storm pipeline` keeps in pipeline.tables.dir. If their newest round is
    old, stderr says so.

    With --json it is an array of the rows of the table alerts. With -f it is one object a line:
    each of these rows, and then each new row of the table alert_history, which says in "change"
    what has happened: began, severity (it is another one now), or ended. -f waits for the first
    round of analyses.

    Exit code 0: also if there are no alerts. 1: there are no tables of alerts, or they cannot be
    read.
    """
    conf = load_conf()
    with until_interrupted(), faults():
        from stormkeeper.history import events
        from stormkeeper.history.database import Past
        from stormkeeper.pipeline import folders

        folder = folders.of_tables(conf)
        with Past(folder) as past:
            found, seen, is_old = list[dict[str, Any]](), None, False
            hosts = events.hosts(past)
            if past.has("alerts"):
                found = events.alerts(past, ended=ended, severity=severity)
                seen = past.written_at("alert_history")
                is_old = remark_on_age(past, "alerts")
        if seen is None:
            reason = (
                f"there are no alerts in {folder} yet: the first round of the pipeline's "
                "analyses comes after pipeline.analyses.secs, which must not be 0"
            )
            if not follow:
                raise TableError(reason)
            remark(reason)
        elif not as_json:
            click.echo("\n".join(_table(_named(found, hosts), datetime.now(UTC))))
        elif not follow:
            click.echo(_as_json(found))
        else:
            _echo(map(_as_json, found))
        if follow:
            for change in _changes(folder, seen, is_old=is_old):
                if severity in (None, change["severity"]) or change["change"] == "severity":
                    line = _as_json(change) if as_json else _line(*_named([change], hosts))
                    click.echo(line)


def _changes(folder: Path, seen: datetime | None, *, is_old: bool) -> Iterator[Mapping[str, Any]]:
    """Yield what is new in the history, for ever; say once if it cannot be read, or becomes old.

    Without a time that was `seen` there is none yet, and then all of it is new.
    """
    from stormkeeper.history import events
    from stormkeeper.history.database import Past

    manifest, read, complaint = folder / "alerts" / "manifest.json", None, None
    interval_secs = 0.0
    while True:
        time.sleep(_LOOK_SECS)
        try:
            written = manifest.stat().st_mtime_ns
            if written == read:
                assert seen is not None
                said = None if is_old else age_of(seen, interval_secs)
                if said is not None:
                    remark(said)
                    is_old = True
                continue
            with Past(folder) as past:
                news = events.changes(past, seen or _BEGINNING)
                seen = past.written_at("alert_history")
                interval_secs = past.interval_secs("alert_history")
        except (OSError, TableError) as error:
            if seen is None and isinstance(error, FileNotFoundError):
                continue
            if str(error) != complaint:
                remark(f"the alerts cannot be read: {error}")
            read, complaint = None, str(error)
            continue
        if complaint is not None:
            remark("the alerts are read again")
        if is_old and age_of(seen, interval_secs) is None:
            remark("these tables are written again")
            is_old = False
        read, complaint = written, None
        yield from news


def _named(found: Iterable[Mapping[str, Any]], hosts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return alerts in whose texts nodes have the names that people call them."""
    rows = [dict(row) for row in found]
    names = node_names(hosts, (row["node"] for row in rows if row["node"] is not None))
    for row in rows:
        if row["node"] is not None:
            for column in ("subject", "evidence"):
                row[column] = row[column].replace(row["node"], names[row["node"]])
    return rows


def _table(found: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    if not found:
        yield "No alerts."
        return
    rows = [("SEVERITY", "RULE", "SINCE", "SUBJECT")]
    for alert in found:
        since = f"{_ago(alert['since'], now)} ago"
        if alert["until"] is not None:
            since += f", found last {_ago(alert['until'], now)} ago"
        rows.append((alert["severity"], alert["rule"], since, escaped(alert["subject"])))
    head, *lines = aligned(rows)
    yield head
    for line, alert in zip(lines, found, strict=True):
        yield line
        yield from textwrap.wrap(
            escaped(alert["evidence"]), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
        )


def _ago(at: datetime, now: datetime) -> str:
    return duration(int(max(now - at, timedelta()).total_seconds()))


def _line(change: Mapping[str, Any]) -> str:
    what = "is" if change["change"] == "severity" else change["change"]
    parts = (_iso(change["at"]), what, change["severity"], change["rule"], change["subject"])
    return escaped(f"{'  '.join(parts)}: {change['evidence']}")


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _as_json(found: Any) -> str:
    return json.dumps(found, default=_iso)


def _iso(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
