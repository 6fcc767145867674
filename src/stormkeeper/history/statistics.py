"""What components count: by the newest reading, and bucket by bucket of the past."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from stormkeeper.history.asking import Past, names_of, of_topology

#: The roll-ups, with the longest time for which each is looked at: up to 180 buckets, or what the
#: longest one has.
_ROLLUPS: Final = (
    ("rollup_1m", timedelta(hours=3)),
    ("rollup_10m", timedelta(hours=30)),
    ("rollup_60m", timedelta.max),
)

_COUNTS: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: The averages, each with the count that it is weighed by.
_AVERAGES: Final = {
    "complete_ms_avg": "acked",
    "execute_ms_avg": "executed",
    "process_ms_avg": "executed",
}


def rollup_for(length: timedelta) -> str:
    """Return the roll-up that shows a length of time in buckets that a person can look at."""
    return next(name for name, longest in _ROLLUPS if length <= longest)


def newest(
    past: Past, topology: str, component: str | None = None, window: str | None = None
) -> list[dict[str, Any]]:
    """Return the newest reading of a topology's components, per component and window.

    Parameters
    ----------
    past
        The tables.
    topology
        Its name, or its id.
    component, window
        With them, only this component; only this window (``600``, ``10800``, ``86400`` or
        ``:all-time``).

    Returns
    -------
    list
        Rows of ``component_stats``, sorted by component and by length of window.
    """
    only, values = "", []
    for column, given in (("component", component), ("window", window)):
        if given is not None:
            only += f' AND "{column}" = ?'
            values.append(given)
    for is_id in names_of(topology):
        which, named = of_topology(topology, is_id=is_id)
        found = past.ask(
            f"SELECT * FROM {past.table('component_stats')} WHERE {which}{only}"
            " QUALIFY read_at = max(read_at) OVER ()"
            ' ORDER BY component, try_cast("window" AS BIGINT) NULLS LAST',
            [*named, *values],
        )
        if found:
            return found
    return []


def course(
    past: Past,
    topology: str,
    since: datetime,
    until: datetime,
    *,
    component: str | None = None,
    rollup: str | None = None,
) -> list[dict[str, Any]]:
    """Return what a topology, or one of its components, did in each bucket of a time.

    Parameters
    ----------
    past
        The tables.
    topology
        Its name, or its id. By its name, all that were submitted under it are counted together.
    since, until
        Buckets that begin from `since` to before `until`.
    component
        With it, only this one. Without, ``acked``, ``failed`` and ``complete_ms_avg`` are of
        spouts alone, as Storm has them for a topology; other counts are those of all components,
        averages are weighed, and ``capacity`` is the largest.
    rollup
        ``rollup_1m``, ``rollup_10m`` or ``rollup_60m``; None: as `rollup_for` the time.

    Returns
    -------
    list
        One object per bucket, oldest first. What nobody counted is None, and so is an average of
        nothing.
    """
    name = rollup or rollup_for(until - since)
    for is_id in names_of(topology):
        which, values = of_topology(topology, is_id=is_id)
        if component is not None:
            which += " AND component = ?"
            values.append(component)
        found = past.ask(
            f"SELECT bucket, {_sums(whole=component is None)},"
            " max(capacity) AS capacity, sum(restarts)::BIGINT AS restarts,"
            " sum(skipped)::BIGINT AS skipped"
            f" FROM {past.table(name, since, until)}"
            f" WHERE {which} AND bucket >= ? AND bucket < ? GROUP BY bucket ORDER BY bucket",
            [*values, since, until],
        )
        if found:
            return found
    return []


def _sums(*, whole: bool) -> str:
    """Return what is selected of a bucket; `whole`: of a topology, and not of a component."""
    spouts = " FILTER (kind = 'spout')" if whole else ""
    of_spouts = {"acked", "failed", "complete_ms_avg"}
    parts = [
        f"sum({count}){spouts if count in of_spouts else ''}::BIGINT AS {count}"
        for count in _COUNTS
    ]
    for average, weight in _AVERAGES.items():
        only = spouts if average in of_spouts else ""
        known = f"CASE WHEN {average} IS NOT NULL THEN {weight} END"
        parts.append(
            f"sum({average} * {weight}){only} / nullif(sum({known}){only}, 0) AS {average}"
        )
    return ", ".join(parts)
