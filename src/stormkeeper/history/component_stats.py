"""What components count: by the newest reading, and bucket by bucket of the past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from stormkeeper.errors import TableError
from stormkeeper.history.database import (
    NO_HEARTBEATS,
    Past,
    held,
    is_id,
    meant,
    names_of,
    of_topology,
)

#: The roll-ups, with the longest time for which each is looked at: up to 180 buckets, or what the
#: longest one has.
_ROLLUPS: Final = (
    ("rollup_1m", timedelta(hours=3)),
    ("rollup_10m", timedelta(hours=30)),
    ("rollup_60m", timedelta.max),
)

#: In whose rows the newest reading of a topology is looked for first: those of so much time before
#: the newest of all. It is in the first of them unless nothing was read of it lately.
_BACK: Final = (timedelta(0), timedelta(minutes=10))

#: When a topology was submitted, by its id.
_SUBMITTED: Final = r"try_cast(regexp_extract(storm_id, '-(\d+)$', 1) AS BIGINT)"

#: The first task of a component that has no other name than its tasks.
_TASK: Final = r"try_cast(regexp_extract(component, '^tasks (\d+)-', 1) AS BIGINT)"

#: Counts of what is sent, where Storm's pages leave out its own streams.
_SENT: Final = ("emitted", "transferred")

_IN_WINDOW: Final = '"window" = ?'
_NOT_STORMS: Final = " AND NOT starts_with(stream, '__')"

#: The length of their buckets, in seconds, the shortest first.
BUCKET_SECS: Final = {"rollup_1m": 60, "rollup_10m": 600, "rollup_60m": 3_600}

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
        Its name, or its id. By its name, the one that was submitted last of those that were read.
    component, window
        With them, only this component; only this window (``600``, ``10800``, ``86400`` or
        ``:all-time``).

    Returns
    -------
    list
        Rows of ``component_stats``, sorted by component and by length of window. Components that
        are known by their tasks alone come first.
    """
    only, values = "", []
    for column, given in (("component", component), ("window", window)):
        if given is not None:
            only += f' AND "{column}" = ?'
            values.append(given)
    for since in _looks(past, "component_stats"):
        for by_id in names_of(topology):
            which, named = of_topology(topology, is_id=by_id)
            if since is None and not _was_counted(past, which, named):
                continue
            found = past.ask(
                f"SELECT * FROM (SELECT * FROM {past.table('component_stats', since)}"
                f" WHERE {which} QUALIFY"
                f" rank() OVER (ORDER BY {_SUBMITTED} DESC NULLS LAST, storm_id DESC) = 1"
                ' AND row_number() OVER (PARTITION BY storm_id, component, "window"'
                f" ORDER BY read_at DESC) = 1) WHERE true{only}"
                f' ORDER BY {_TASK} NULLS LAST, component, try_cast("window" AS BIGINT) NULLS LAST',
                [*named, *values],
            )
            if found:
                return found
    return []


def totals(past: Past, storm_id: str) -> list[dict[str, Any]]:
    """Return what a topology had counted by its newest reading: ``topology_stats``, per window.

    Parameters
    ----------
    past
        The tables.
    storm_id
        The topology's id.
    """
    which, values = of_topology(storm_id, is_id=True)
    for since in _looks(past, "topology_stats"):
        found = past.ask(
            f"SELECT * FROM {past.table('topology_stats', since)} WHERE {which}"
            ' QUALIFY row_number() OVER (PARTITION BY "window" ORDER BY read_at DESC) = 1'
            ' ORDER BY try_cast("window" AS BIGINT) NULLS LAST',
            values,
        )
        if found:
            return found
    return []


def executors(
    past: Past, storm_id: str, component: str, window: str, expected: int
) -> list[dict[str, Any]]:
    """Return what each executor of a component had counted by its newest reading.

    Parameters
    ----------
    past
        The tables.
    storm_id
        The topology's id.
    component
        Its name.
    window
        ``600``, ``10800``, ``86400`` or ``:all-time``.
    expected
        How many there are. Where the newest of all readings has fewer, as some workers sent nothing
        new for it, those before it are looked at, too.

    Returns
    -------
    list
        One object per executor, by its tasks: where it runs, when it was read, its counts on all
        streams (but for Storm's own, ``__…``, in ``emitted`` and ``transferred``), averages, and
        ``capacity``: the share of the last ten minutes that it executed for. None that was silent
        for ten minutes.
    """
    found: list[dict[str, Any]] = []
    latest = past.latest("executor_stats")
    for back in _BACK:
        if latest is None:
            break
        found = _executors(past, storm_id, component, window, latest - back)
        if len(found) >= expected:
            break
    return found


def _executors(
    past: Past, storm_id: str, component: str, window: str, since: datetime
) -> list[dict[str, Any]]:
    which, values = of_topology(storm_id, is_id=True)
    counts = ", ".join(
        f"sum({name}) FILTER ({_IN_WINDOW}{own}) AS {name}"
        for name, own in [(name, _NOT_STORMS if name in _SENT else "") for name in _COUNTS]
    )
    averages = ", ".join(
        f"sum({_finite(average, weight)}) FILTER ({_IN_WINDOW})"
        f" / nullif(sum({weight}) FILTER ({_IN_WINDOW}), 0) AS {average}"
        for average, weight in _AVERAGES.items()
    )
    return past.ask(
        f"SELECT * REPLACE ({_held()}) FROM ("
        "SELECT task_start, task_end, node, port, read_at, any_value(uptime_secs) AS uptime_secs,"
        f" {counts}, {averages}, CASE WHEN any_value(kind) = 'bolt' THEN"
        f" coalesce(sum({_finite('execute_ms_avg', 'executed')}) FILTER (\"window\" = '600')"
        " / nullif(least(any_value(uptime_secs), 600) * 1000.0, 0), 0) END AS capacity"
        f" FROM (SELECT * FROM {past.table('executor_stats', since)}"
        f" WHERE {which} AND component = ?"
        " QUALIFY rank() OVER (PARTITION BY task_start, task_end ORDER BY read_at DESC) = 1)"
        " GROUP BY task_start, task_end, node, port, read_at) ORDER BY task_start, node, port",
        [*[window] * (len(_COUNTS) + 2 * len(_AVERAGES)), *values, component],
    )


def topologies(past: Past) -> tuple[list[str], list[str]]:
    """Return the names and the ids of topologies of the last day, each sorted."""
    newest, day = past.latest("component_stats"), "rollup_10m"
    rows = [past.table("component_stats", newest)]
    if newest is not None and past.has(day):
        rows.append(past.table(day, newest - timedelta(days=1)))
    of_each = (f"SELECT DISTINCT topology, storm_id FROM {each}" for each in rows)
    found = past.ask(" UNION ".join(of_each))
    names, ids = ({row[name] for row in found} - {None} for name in ("topology", "storm_id"))
    return sorted(names), sorted(ids)


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
        averages are weighed, and ``capacity`` is the largest. A worker is counted with each of its
        components, so ``restarts`` and ``skipped`` are those of the component with the most.
    rollup
        ``rollup_1m``, ``rollup_10m`` or ``rollup_60m``; None: as `rollup_for` the time.

    Returns
    -------
    list
        One object per bucket, oldest first. What nobody counted is None, and so is an average of
        nothing. ``interval_secs`` is the longest time between two readings: if it is more than the
        bucket has, counts are also of the time before.
    """
    name = rollup or rollup_for(until - since)
    of_workers = "max" if component is None else "sum"
    for by_id in names_of(topology):
        which, values = of_topology(topology, is_id=by_id)
        if component is not None:
            which += " AND component = ?"
            values.append(component)
        found = past.ask(
            f"SELECT * REPLACE ({_held('restarts', 'skipped')}) FROM ("
            f"SELECT bucket, {_sums(whole=component is None)},"
            f" max(capacity) AS capacity, {of_workers}(restarts) AS restarts,"
            f" {of_workers}(skipped) AS skipped, max(interval_secs) AS interval_secs"
            f" FROM {past.table(name, since, until)}"
            f" WHERE {which} AND bucket >= ? AND bucket < ? GROUP BY bucket) ORDER BY bucket",
            [*values, since, until],
        )
        if found:
            return found
    return []


def _held(*more: str) -> str:
    """Return sums of counts, and of more columns, as 64 bits hold them."""
    return ", ".join(f"{held(name)} AS {name}" for name in (*_COUNTS, *more))


def _sums(*, whole: bool) -> str:
    """Return what is selected of a bucket; `whole`: of a topology, and not of a component."""
    spouts = " FILTER (kind = 'spout')" if whole else ""
    of_spouts = {"acked", "failed", "complete_ms_avg"}
    parts = [f"sum({count}){spouts if count in of_spouts else ''} AS {count}" for count in _COUNTS]
    for average, weight in _AVERAGES.items():
        only = spouts if average in of_spouts else ""
        known = f"CASE WHEN {average} IS NOT NULL THEN {weight} END"
        parts.append(
            f"sum({average} * {weight}){only} / nullif(sum({known}){only}, 0) AS {average}"
        )
    return ", ".join(parts)


def _was_counted(past: Past, which: str, named: Sequence[Any]) -> bool:
    """Whether a topology may ever have been read: its own table is an eighth of its components'."""
    if not past.has("topology_stats"):
        return True
    rows = past.table("topology_stats")
    return bool(past.ask(f"SELECT 1 FROM {rows} WHERE {which} LIMIT 1", named))


def _looks(past: Past, name: str) -> Iterator[datetime | None]:
    """Yield since when to read a table, later times first; None: all of it."""
    latest = past.latest(name)
    if latest is not None:
        yield from (latest - back for back in _BACK)
    yield None


def _finite(average: str, weight: str) -> str:
    return f"CASE WHEN isfinite({average}) THEN {average} * {weight} END"


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest reading of a topology, or of one of its components.

    Attributes
    ----------
    storm_id
        The topology's id.
    read_at
        When it was read.
    newest_at
        When anything was read last.
    interval_secs
        How often the pipeline reads.
    totals
        Rows of ``topology_stats``, per window.
    components
        Rows of ``component_stats``, per component and window.
    executors
        What `statistics.executors` returns, of one component; None: of none.
    """

    storm_id: str
    read_at: datetime
    newest_at: datetime
    interval_secs: float
    totals: list[dict[str, Any]]
    components: list[dict[str, Any]]
    executors: list[dict[str, Any]] | None = None


def reading(past: Past, topology: str, component: str | None, window: str) -> Reading:
    """Return the newest reading.

    Raises
    ------
    TableError
        The topology or the component is not there.
    """
    rows = newest(past, topology, component)
    if not rows:
        raise _unknown(past, topology, component)
    storm_id, read_at = rows[0]["storm_id"], max(row["read_at"] for row in rows)
    return Reading(
        storm_id,
        read_at,
        past.latest("component_stats") or read_at,
        past.interval_secs("component_stats"),
        totals(past, storm_id),
        rows,
        None
        if component is None
        else executors(past, storm_id, component, window, rows[0]["executors"]),
    )


def course_with_bucket_secs(
    past: Past, topology: str, component: str | None, since: datetime, until: datetime
) -> tuple[int, list[dict[str, Any]]]:
    """Return the length of a bucket in seconds, and what `statistics.course` returns.

    If no bucket of the length that suits the time is over, as of a pipeline that was started not
    long ago, the buckets are shorter ones.

    Raises
    ------
    TableError
        The topology or the component is not there.
    """
    longest = BUCKET_SECS[rollup_for(until - since)]
    for rollup, secs in reversed(BUCKET_SECS.items()):
        if secs <= longest:
            found = course(past, topology, since, until, component=component, rollup=rollup)
            if found:
                return secs, found
    if not newest(past, topology, component):
        raise _unknown(past, topology, component)
    return longest, []


def _unknown(past: Past, topology: str, component: str | None) -> TableError:
    rows = newest(past, topology) if component is not None else []
    if component is not None and rows:
        there = sorted({row["component"] for row in rows})
        return TableError(f"{topology} has no component {component!r}; {meant(component, there)}")
    names, ids = topologies(past)
    if not names:
        return TableError(f"nothing has been counted yet: {NO_HEARTBEATS}")
    if is_id(topology):
        names = ids
    return TableError(f"nothing is known of a topology {topology!r}; {meant(topology, names)}")
