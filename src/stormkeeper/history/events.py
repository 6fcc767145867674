"""Events of workers, and alerts of the analyses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from stormkeeper.errors import TableError
from stormkeeper.history.database import (
    NO_HEARTBEATS,
    HistoryDatabase,
    is_id,
    meant,
    names_of,
    of_topology,
)

#: The address in a supervisor's id, behind a UUID; else the whole id.
_ADDRESS: Final = "regexp_replace(node, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)$', '\\2')"

_SILENCES: Final = ("late", "dead", "gone")


def events(
    database: HistoryDatabase,
    subject: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """Return the events of a node's or topology's workers, oldest first: rows of ``worker_events``.

    `subject` is a node or its host, or a topology's name or id: the first of these with events.
    `limit` keeps the newest. For a worker whose topology was killed, its silence since then is one
    event, ``killed``.
    """
    tries = [of_topology(subject, is_id=is_id) for is_id in names_of(subject)]
    named = [node for node, host in hosts(database).items() if host == subject]
    marks = ", ".join("?" for _ in [subject, *named])
    of_host = f"(node IN ({marks}) OR {_ADDRESS} = ?)", [subject, *named, subject]
    for which, values in [of_host, *tries]:
        only, times = "", []
        for sign, at in ((">=", since), ("<", until)):
            if at is not None:
                only += f' AND "at" {sign} ?'
                times.append(at)
        found = database.query(
            f"SELECT * FROM {database.table('worker_events', since, until)}"
            f' WHERE {which}{only} ORDER BY "at" DESC, node DESC, port DESC LIMIT ?',
            [*values, *times, limit],
        )
        if found:
            return list(_with_kills(database, found[::-1]))
    return []


def _with_kills(database: HistoryDatabase, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    killed = {}
    if database.has("killed_topologies"):
        rows = database.query(
            "SELECT storm_id, killed_at AS at"
            f" FROM {database.table('killed_topologies')} WHERE killed_at IS NOT NULL"
        )
        killed = {row["storm_id"]: row["at"] for row in rows}
    yielded = set()
    for event in found:
        at = killed.get(event["storm_id"])
        if at is None or event["event"] not in _SILENCES or event["at"] < at:
            yield event
            continue
        worker = (event["storm_id"], event["node"], event["port"])
        if worker not in yielded:
            yielded.add(worker)
            yield {**event, "event": "killed", "evidence": "its topology was killed"}


def check_known(database: HistoryDatabase, subject: str) -> None:
    """Check that a node or a topology is known; raises `TableError` with a suggestion."""
    of_each = [
        f"SELECT DISTINCT node, {_ADDRESS} AS address, topology, storm_id"
        f" FROM {database.table(name)}"
        for name in ("worker_liveness", "worker_events")
        if database.has(name)
    ]
    found = database.query(" UNION ".join(of_each))
    if not found:
        raise TableError(f"no worker is known yet: {NO_HEARTBEATS}")
    if any(subject in row.values() for row in found):
        return
    named = hosts(database)
    names = {named.get(row["node"]) or row["address"] for row in found}
    names |= {row["storm_id" if is_id(subject) else "topology"] for row in found}
    if subject not in names:
        there = sorted(name for name in names if name is not None)
        raise TableError(f"nothing is known of {subject!r}; {meant(subject, there)}")


def hosts(database: HistoryDatabase) -> dict[str, str]:
    """Return the hosts of supervisors that Nimbus has listed, by supervisor id."""
    if not database.has("supervisors"):
        return {}
    rows = database.query(f"SELECT node, host FROM {database.table('supervisors')}")
    return {row["node"]: row["host"] for row in rows}


def alerts(
    database: HistoryDatabase, *, ended: bool = False, severity: str | None = None
) -> list[dict[str, Any]]:
    """Return alerts, the severest and newest first: rows of ``alerts``.

    `ended` includes those that ended in the last day; `severity` is ``warning`` or ``critical``.
    """
    return database.query(
        f"SELECT * FROM {database.table('alerts')}"
        " WHERE (until IS NULL OR ?) AND (? IS NULL OR severity = ?)"
        " ORDER BY until IS NOT NULL, severity, since DESC, id",
        [ended, severity, severity],
    )


def changes(database: HistoryDatabase, after: datetime) -> list[dict[str, Any]]:
    """Return rows of ``alert_history``: changes of alerts noticed after a time."""
    return database.query(
        f"SELECT * FROM {database.table('alert_history', after)}"
        ' WHERE "at" > ? ORDER BY "at", severity, since, id',
        [after],
    )
