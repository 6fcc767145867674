"""What happened to workers, and what the analyses found."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from stormkeeper.history.asking import Past, names_of, of_topology


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
        A node, or a topology's name or id; the first of these that anything happened to.
    since, until
        With them, what happened from `since` to before `until`.
    limit
        The newest so many.

    Returns
    -------
    list
        Rows of ``worker_events``.
    """
    tries = [of_topology(subject, is_id=is_id) for is_id in names_of(subject)]
    for which, values in [("node = ?", [subject]), *tries]:
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
            return found[::-1]
    return []


def alerts(past: Past, *, ended: bool = False) -> list[dict[str, Any]]:
    """Return what the analyses found, the severest and newest first.

    Parameters
    ----------
    past
        The tables.
    ended
        Whether those that have ended are among them.

    Returns
    -------
    list
        Rows of ``alerts``: the newest one of each alert and its beginning.
    """
    only = "" if ended else " WHERE until IS NULL"
    return past.ask(
        f"SELECT * FROM (SELECT * FROM {past.table('alerts')}"
        " QUALIFY row_number() OVER (PARTITION BY id, since ORDER BY seen_at DESC) = 1)"
        f"{only} ORDER BY severity, since DESC, id"
    )
