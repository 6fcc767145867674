"""What happened to workers, and what the analyses found."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from stormkeeper.errors import TableError
from stormkeeper.history.database import NO_HEARTBEATS, Past, is_id, meant, names_of, of_topology

#: The address in a supervisor's id, behind a UUID; the whole id where there is none.
_ADDRESS: Final = "regexp_replace(node, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)$', '\\2')"

#: Events that tell of a worker without pulses.
_SILENCES: Final = ("late", "dead", "gone")


def events(
    past: Past,
    subject: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """Return what happened to the workers of a node or of a topology, oldest first.

    Parameters
    ----------
    past
        The tables.
    subject
        A node or its host, or a topology's name or id; the first of these that anything happened
        to.
    since, until
        With them, what happened from `since` to before `until`.
    limit
        The newest so many.

    Returns
    -------
    list
        Rows of ``worker_events``. Of a worker whose topology was killed, the events of its silence
        since then are one, ``killed``.
    """
    tries = [of_topology(subject, is_id=is_id) for is_id in names_of(subject)]
    named = [node for node, host in hosts(past).items() if host == subject]
    marks = ", ".join("?" for _ in [subject, *named])
    of_host = f"(node IN ({marks}) OR {_ADDRESS} = ?)", [subject, *named, subject]
    for which, values in [of_host, *tries]:
        only, times = "", []
        for sign, at in ((">=", since), ("<", until)):
            if at is not None:
                only += f' AND "at" {sign} ?'
                times.append(at)
        found = past.ask(
            f"SELECT * FROM {past.table('worker_events', since, until)}"
            f' WHERE {which}{only} ORDER BY "at" DESC, node DESC, port DESC LIMIT ?',
            [*values, *times, limit],
        )
        if found:
            return list(_with_kills(past, found[::-1]))
    return []


def _with_kills(past: Past, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events in which the silence of a killed topology's worker is one event, ``killed``."""
    killed = {}
    if past.has("killed_topologies"):
        rows = past.ask(
            "SELECT storm_id, killed_at AS at"
            f" FROM {past.table('killed_topologies')} WHERE killed_at IS NOT NULL"
        )
        killed = {row["storm_id"]: row["at"] for row in rows}
    told = set()
    for event in found:
        at = killed.get(event["storm_id"])
        if at is None or event["event"] not in _SILENCES or event["at"] < at:
            yield event
            continue
        worker = (event["storm_id"], event["node"], event["port"])
        if worker not in told:
            told.add(worker)
            yield {**event, "event": "killed", "evidence": "its topology was killed"}


def check_known(past: Past, subject: str) -> None:
    """See to it that a node or a topology, by name or id, is one of which the tables know.

    Raises
    ------
    TableError
        It is not; the error has those that may be meant.
    """
    of_each = [
        f"SELECT DISTINCT node, {_ADDRESS} AS address, topology, storm_id FROM {past.table(name)}"
        for name in ("worker_liveness", "worker_events")
        if past.has(name)
    ]
    found = past.ask(" UNION ".join(of_each))
    if not found:
        raise TableError(f"no worker is known yet: {NO_HEARTBEATS}")
    if any(subject in row.values() for row in found):
        return
    named = hosts(past)
    names = {named.get(row["node"]) or row["address"] for row in found}
    names |= {row["storm_id" if is_id(subject) else "topology"] for row in found}
    if subject not in names:
        there = sorted(name for name in names if name is not None)
        raise TableError(f"nothing is known of {subject!r}; {meant(subject, there)}")


def hosts(past: Past) -> dict[str, str]:
    """Return the host of each supervisor that Nimbus has listed, by the supervisor's id."""
    if not past.has("supervisors"):
        return {}
    rows = past.ask(f"SELECT node, host FROM {past.table('supervisors')}")
    return {row["node"]: row["host"] for row in rows}


def alerts(past: Past, *, ended: bool = False, severity: str | None = None) -> list[dict[str, Any]]:
    """Return what the analyses have found, the severest and newest first.

    Parameters
    ----------
    past
        The tables.
    ended
        Whether those that ended in the last day are among them.
    severity
        With it, only these: ``warning`` or ``critical``.

    Returns
    -------
    list
        Rows of ``alerts``.
    """
    return past.ask(
        f"SELECT * FROM {past.table('alerts')}"
        " WHERE (until IS NULL OR ?) AND (? IS NULL OR severity = ?)"
        " ORDER BY until IS NOT NULL, severity, since DESC, id",
        [ended, severity, severity],
    )


def changes(past: Past, after: datetime) -> list[dict[str, Any]]:
    """Return how alerts began, changed their severity and ended, oldest first.

    Parameters
    ----------
    past
        The tables.
    after
        Only what was noticed later than this.

    Returns
    -------
    list
        Rows of ``alert_history``.
    """
    return past.ask(
        f"SELECT * FROM {past.table('alert_history', after)}"
        ' WHERE "at" > ? ORDER BY "at", severity, since, id',
        [after],
    )
