"""``storm history`` and ``storm alerts``: events and alerts in the pipeline's tables."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from stormkeeper.cli.connections import json_option
from stormkeeper.cli.options import as_age, command, faults, load_conf
from stormkeeper.cli.output import age_of, ago, aligned, iso_time, print_json, remark, remark_on_age
from stormkeeper.errors import TableError
from stormkeeper.names import printable

#: Pause between reads with ``--follow``.
_LOOK_SECS: Final = 0.5

#: Before all events.
_BEGINNING: Final = datetime.fromtimestamp(0, UTC)

_WIDTH: Final = 80
_INDENT: Final = "  "


@command(
    "storm history word-count",
    "storm history node-7 --since 2h",
    "storm history word-count-1-1700000000 --json",
)
@click.argument("subject", metavar="NODE|TOPOLOGY")
@click.option(
    "--since", metavar="TIME", callback=as_age, help="Only the last TIME: 90s, 15m, 2h, 7d."
)
@click.option(
    "-n",
    "--lines",
    metavar="N",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="At most the newest N events.",
)
@json_option
def history(subject: str, since: timedelta | None, lines: int, as_json: bool) -> None:
    """Show events of the workers of a node or a topology, oldest first.

    NODE is a host or a supervisor's id, TOPOLOGY a name or an id. The command reads the tables of
    `storm pipeline` in pipeline.tables.dir, and prints a line for each event: time, topology's id,
    worker, event and evidence. If the pipeline reaches Nimbus, workers of killed topologies are
    killed, not late or dead. --json prints an array of the rows of the table worker_events. stderr
    says if the tables are old.

    Exit code 1: there are no tables, they cannot be read, or do not contain that node or topology.
    """
    conf = load_conf()
    with faults():
        from stormkeeper.history import database
        from stormkeeper.pipeline import tables

        beginning = None if since is None else datetime.now(UTC) - since
        with database.HistoryDatabase(tables.tables_folder(conf)) as past:
            found = database.events(past, subject, beginning, limit=lines)
            if not found:
                database.check_known(past, subject)
            names = node_names(database.hosts(past), (event["node"] for event in found))
            remark_on_age(past, "worker_events")
    if as_json:
        print_json(found)
    elif found:
        click.echo("\n".join(_line(event, names) for event in found))
    else:
        click.echo("The tables contain no events of that time.")


def node_names(hosts: Mapping[str, str], nodes: Iterable[str]) -> dict[str, str]:
    """Return names of nodes by supervisor id; `hosts` are known names."""
    from stormkeeper.conf.address import host_of_supervisor, supervisor_names

    return supervisor_names({**{node: host_of_supervisor(node) for node in nodes}, **hosts})


def _line(event: dict[str, Any], names: Mapping[str, str]) -> str:
    worker = f"{names[event['node']]}:{event['port']}"
    parts = (iso_time(event["at"]), event["storm_id"], worker, event["event"])
    return printable(f"{'  '.join(parts)}: {event['evidence']}")


@command(
    "storm alerts",
    "storm alerts --severity critical --ended",
    "storm alerts -f",
    "storm alerts -f --json",
)
@click.option("-f", "--follow", is_flag=True, help="Print alerts that begin or end, until Ctrl-C.")
@click.option("--ended", is_flag=True, help="Also those that ended in the last day.")
@click.option(
    "--severity", type=click.Choice(["warning", "critical"]), help="Only those of this severity."
)
@json_option
def alerts(*, follow: bool, ended: bool, severity: str | None, as_json: bool) -> None:
    """Show the alerts of the pipeline's analyses, the severest first.

    The command reads the tables of `storm pipeline` in pipeline.tables.dir; stderr says if their
    newest round is old.

    --json prints an array of the rows of the table alerts; with -f an object a line, these rows and
    then each new row of the table alert_history, whose "change" is began, severity (a new one), or
    ended. -f waits for the first round of analyses.

    Exit code 0: also without alerts. 1: there are no tables of alerts, or they cannot be read.
    """
    conf = load_conf()
    with suppress(KeyboardInterrupt), faults():
        from stormkeeper.history import database
        from stormkeeper.pipeline import tables

        folder = tables.tables_folder(conf)
        with database.HistoryDatabase(folder) as past:
            found, seen, is_old = list[dict[str, Any]](), None, False
            hosts = database.hosts(past)
            if past.has("alerts"):
                found = database.alerts(past, ended=ended, severity=severity)
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
            print_json(found)
        else:
            for alert in found:
                print_json(alert)
        if follow:
            for change in _changes(folder, seen, is_old=is_old):
                if severity in (None, change["severity"]) or change["change"] == "severity":
                    if as_json:
                        print_json(change)
                    else:
                        click.echo(_alert_line(*_named([change], hosts)))


def _changes(folder: Path, seen: datetime | None, *, is_old: bool) -> Iterator[Mapping[str, Any]]:
    """Yield new rows of the history for ever; remark once if the table is unreadable or old.

    `seen` is the time of the last known row.
    """
    from stormkeeper.history import database

    manifest = folder / "alerts" / "manifest.json"
    read: int | None = None
    complaint: str | None = None
    interval_secs = 0.0
    while True:
        time.sleep(_LOOK_SECS)
        news: list[dict[str, Any]] = []
        try:
            written = manifest.stat().st_mtime_ns
            if written != read:
                with database.HistoryDatabase(folder) as past:
                    news = database.changes(past, seen or _BEGINNING)
                    seen = past.written_at("alert_history")
                    interval_secs = past.interval_secs("alert_history")
                read = written
        except (OSError, TableError) as error:
            if seen is None and isinstance(error, FileNotFoundError):
                continue
            if str(error) != complaint:
                remark(f"the alerts cannot be read: {error}")
            read, complaint = None, str(error)
            continue
        assert seen is not None
        if complaint is not None:
            remark("the alerts are read again")
            complaint = None
        age = age_of(seen, interval_secs)
        if (age is not None) != is_old:
            remark(age or "these tables are written again")
            is_old = age is not None
        yield from news


def _named(found: Iterable[Mapping[str, Any]], hosts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Replace supervisor ids in alerts by names of nodes."""
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
        since = ago((now - alert["since"]).total_seconds())
        if alert["until"] is not None:
            since += f", found last {ago((now - alert['until']).total_seconds())}"
        rows.append((alert["severity"], alert["rule"], since, printable(alert["subject"])))
    head, *lines = aligned(rows)
    yield head
    for line, alert in zip(lines, found, strict=True):
        yield line
        yield from textwrap.wrap(
            printable(alert["evidence"]), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
        )


def _alert_line(change: Mapping[str, Any]) -> str:
    what = "is" if change["change"] == "severity" else change["change"]
    parts = (iso_time(change["at"]), what, change["severity"], change["rule"], change["subject"])
    return printable(f"{'  '.join(parts)}: {change['evidence']}")
