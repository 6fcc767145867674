"""Statistics of components and topologies: the newest reading, and buckets of past time."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from stormkeeper.errors import TableError
from stormkeeper.history.database import (
    NO_HEARTBEATS,
    HistoryDatabase,
    held,
    is_id,
    mean,
    meant,
    of_id,
    of_topology,
)

#: Seconds of a roll-up's buckets, the shortest first.
_BUCKET_SECS: Final = {"rollup_1m": 60, "rollup_10m": 600, "rollup_60m": 3_600}

#: Longer times are shown by the next roll-up.
_MOST_BUCKETS: Final = 180

#: How far before the newest reading of any topology to look first.
_BACK: Final = (timedelta(0), timedelta(minutes=10))

_SUBMITTED: Final = r"try_cast(regexp_extract(storm_id, '-(\d+)$', 1) AS BIGINT)"

_TASK: Final = r"try_cast(regexp_extract(component, '^tasks (\d+)-', 1) AS BIGINT)"

#: Counts without Storm's own streams, as on Storm's pages.
_SENT: Final = ("emitted", "transferred")

_IN_WINDOW: Final = '"window" = ?'
_NOT_STORMS: Final = " AND NOT starts_with(stream, '__')"

_COUNTS: Final = ("emitted", "transferred", "executed", "acked", "failed")

_AVERAGES: Final = {
    "complete_ms_avg": "acked",
    "execute_ms_avg": "executed",
    "process_ms_avg": "executed",
}


def rollup_for(length: timedelta) -> str:
    secs = length.total_seconds()
    fine = (name for name, of in _BUCKET_SECS.items() if secs <= _MOST_BUCKETS * of)
    return next(fine, "rollup_60m")


def newest(
    database: HistoryDatabase,
    topology: str,
    component: str | None = None,
    window: str | None = None,
) -> list[dict[str, Any]]:
    """Return the newest rows of ``component_stats`` of a topology, by component and window.

    A name means the last submitted topology that was read.
    """
    only, values = "", []
    for column, given in (("component", component), ("window", window)):
        if given is not None:
            only += f' AND "{column}" = ?'
            values.append(given)
    for since in _looks(database, "component_stats"):
        for which, named in of_topology(topology):
            if since is None and not _was_counted(database, which, named):
                continue
            found = database.query(
                f"SELECT * FROM (SELECT * FROM {database.table('component_stats', since)}"
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


def totals(database: HistoryDatabase, storm_id: str) -> list[dict[str, Any]]:
    """Return a topology's newest row of ``topology_stats`` per window."""
    which, values = of_id(storm_id)
    for since in _looks(database, "topology_stats"):
        found = database.query(
            f"SELECT * FROM {database.table('topology_stats', since)} WHERE {which}"
            ' QUALIFY row_number() OVER (PARTITION BY "window" ORDER BY read_at DESC) = 1'
            ' ORDER BY try_cast("window" AS BIGINT) NULLS LAST',
            values,
        )
        if found:
            return found
    return []


def executors(
    database: HistoryDatabase, storm_id: str, component: str, window: str, expected: int
) -> list[dict[str, Any]]:
    """Return the newest figures of each executor of a component, by tasks.

    ``emitted`` and ``transferred`` are without Storm's own streams; ``capacity`` is the busy share
    of ten minutes. Readings of the last ten minutes are used if the newest has fewer than
    `expected` executors.
    """
    found: list[dict[str, Any]] = []
    latest = database.latest("executor_stats")
    for back in _BACK:
        if latest is None:
            break
        found = _executors(database, storm_id, component, window, latest - back)
        if len(found) >= expected:
            break
    return found


def _executors(
    database: HistoryDatabase, storm_id: str, component: str, window: str, since: datetime
) -> list[dict[str, Any]]:
    which, values = of_id(storm_id)
    counts = ", ".join(
        f"sum({name}) FILTER ({_IN_WINDOW}{own}) AS {name}"
        for name, own in [(name, _NOT_STORMS if name in _SENT else "") for name in _COUNTS]
    )
    averages = ", ".join(
        f"sum({_finite(average, weight)}) FILTER ({_IN_WINDOW})"
        f" / nullif(sum({weight}) FILTER ({_IN_WINDOW}), 0) AS {average}"
        for average, weight in _AVERAGES.items()
    )
    return database.query(
        f"SELECT * REPLACE ({_held()}) FROM ("
        "SELECT task_start, task_end, node, port, read_at, any_value(uptime_secs) AS uptime_secs,"
        f" {counts}, {averages}, CASE WHEN any_value(kind) = 'bolt' THEN"
        f" coalesce(sum({_finite('execute_ms_avg', 'executed')}) FILTER (\"window\" = '600')"
        " / nullif(least(any_value(uptime_secs), 600) * 1000.0, 0), 0) END AS capacity"
        f" FROM (SELECT * FROM {database.table('executor_stats', since)}"
        f" WHERE {which} AND component = ?"
        " QUALIFY rank() OVER (PARTITION BY task_start, task_end ORDER BY read_at DESC) = 1)"
        " GROUP BY task_start, task_end, node, port, read_at) ORDER BY task_start, node, port",
        [*[window] * (len(_COUNTS) + 2 * len(_AVERAGES)), *values, component],
    )


def topologies(database: HistoryDatabase) -> tuple[list[str], list[str]]:
    """Return the last day's topologies: sorted names, and sorted ids."""
    newest, day = database.latest("component_stats"), "rollup_10m"
    rows = [database.table("component_stats", newest)]
    if newest is not None and database.has(day):
        rows.append(database.table(day, newest - timedelta(days=1)))
    of_each = (f"SELECT DISTINCT topology, storm_id FROM {each}" for each in rows)
    found = database.query(" UNION ".join(of_each))
    names, ids = ({row[name] for row in found} - {None} for name in ("topology", "storm_id"))
    return sorted(names), sorted(ids)


def course(
    database: HistoryDatabase,
    topology: str,
    since: datetime,
    until: datetime,
    *,
    component: str | None = None,
    rollup: str | None = None,
) -> list[dict[str, Any]]:
    """Return the figures of a topology or a component per bucket of a time, oldest first.

    Topologies of one name are added up. Without `component`, ``acked``, ``failed`` and
    ``complete_ms_avg`` are those of spouts, as in Storm; ``capacity`` is the largest, and
    ``restarts`` and ``skipped`` are the greatest of any component, as a worker counts with each. If
    ``interval_secs``, the longest time between two readings, exceeds the bucket, counts include
    earlier time.
    """
    name = rollup or rollup_for(until - since)
    of_workers = "max" if component is None else "sum"
    only, of_component = ("", []) if component is None else (" AND component = ?", [component])
    for which, values in of_topology(topology):
        found = database.query(
            f"SELECT * REPLACE ({_held('restarts', 'skipped')}) FROM ("
            f"SELECT bucket, {_sums(whole=component is None)},"
            f" max(capacity) AS capacity, {of_workers}(restarts) AS restarts,"
            f" {of_workers}(skipped) AS skipped, max(interval_secs) AS interval_secs"
            f" FROM {database.table(name, since, until)}"
            f" WHERE {which}{only} AND bucket >= ? AND bucket < ? GROUP BY bucket) ORDER BY bucket",
            [*values, *of_component, since, until],
        )
        if found:
            return found
    return []


def _held(*more: str) -> str:
    return ", ".join(f"{held(name)} AS {name}" for name in (*_COUNTS, *more))


def _sums(*, whole: bool) -> str:
    spouts = " FILTER (kind = 'spout')" if whole else ""
    of_spouts = {"acked", "failed", "complete_ms_avg"}
    parts = [f"sum({count}){spouts if count in of_spouts else ''} AS {count}" for count in _COUNTS]
    for average, weight in _AVERAGES.items():
        only = spouts if average in of_spouts else ""
        parts.append(f"{mean(average, weight, only)} AS {average}")
    return ", ".join(parts)


def _was_counted(database: HistoryDatabase, which: str, named: Sequence[Any]) -> bool:
    """Return whether the small table of topologies may have a topology."""
    if not database.has("topology_stats"):
        return True
    rows = database.table("topology_stats")
    return bool(database.query(f"SELECT 1 FROM {rows} WHERE {which} LIMIT 1", named))


def _looks(database: HistoryDatabase, name: str) -> Iterator[datetime | None]:
    """Yield times since which to read a table, the latest first; None: all."""
    latest = database.latest(name)
    if latest is not None:
        yield from (latest - back for back in _BACK)
    yield None


def _finite(average: str, weight: str) -> str:
    return f"CASE WHEN isfinite({average}) THEN {average} * {weight} END"


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest reading of a topology, or a component with `executors`.

    `newest_at` is when any topology was last read. `totals` are rows of ``topology_stats``,
    `components` of ``component_stats``.
    """

    storm_id: str
    read_at: datetime
    newest_at: datetime
    interval_secs: float
    totals: list[dict[str, Any]]
    components: list[dict[str, Any]]
    executors: list[dict[str, Any]] | None = None


def reading(
    database: HistoryDatabase, topology: str, component: str | None, window: str
) -> Reading:
    """Raise `TableError` with suggestions for an unknown name."""
    rows = newest(database, topology, component)
    if not rows:
        raise _unknown(database, topology, component)
    storm_id, read_at = rows[0]["storm_id"], max(row["read_at"] for row in rows)
    return Reading(
        storm_id,
        read_at,
        database.latest("component_stats") or read_at,
        database.interval_secs("component_stats"),
        totals(database, storm_id),
        rows,
        None
        if component is None
        else executors(database, storm_id, component, window, rows[0]["executors"]),
    )


def course_with_bucket_secs(
    database: HistoryDatabase,
    topology: str,
    component: str | None,
    since: datetime,
    until: datetime,
) -> tuple[int, list[dict[str, Any]]]:
    """Return the length of a bucket in seconds, and the `course`.

    Buckets are shorter than usual if none of the usual length is complete. Raises `TableError` for
    an unknown name.
    """
    longest = _BUCKET_SECS[rollup_for(until - since)]
    for rollup, secs in reversed(_BUCKET_SECS.items()):
        if secs <= longest:
            found = course(database, topology, since, until, component=component, rollup=rollup)
            if found:
                return secs, found
    if not newest(database, topology, component):
        raise _unknown(database, topology, component)
    return longest, []


def _unknown(database: HistoryDatabase, topology: str, component: str | None) -> TableError:
    rows = newest(database, topology) if component is not None else []
    if component is not None and rows:
        there = sorted({row["component"] for row in rows})
        return TableError(f"{topology} has no component {component!r}; {meant(component, there)}")
    names, ids = topologies(database)
    if not names:
        return TableError(f"nothing has been counted yet: {NO_HEARTBEATS}")
    if is_id(topology):
        names = ids
    return TableError(f"nothing is known of a topology {topology!r}; {meant(topology, names)}")


_HEIGHT: Final = 11
_NARROWEST, _WIDEST = 40, 160

#: Width beside the title, and the shortest useful title.
_BESIDE: Final = 6
_SHORTEST: Final = 4

#: Column, whether a count, and label.
_DRAWN: Final = (
    ("emitted", True, "emitted, tuples/s"),
    ("executed", True, "executed, tuples/s"),
    ("failed", True, "failed, tuples/s"),
    ("complete_ms_avg", False, "complete latency, ms"),
    ("execute_ms_avg", False, "execute latency, ms"),
    ("capacity", False, "capacity, busiest executor"),
)


def draw_course(buckets: Sequence[dict[str, Any]], bucket_secs: int, title: str) -> str:
    """Draw the rates, latencies and capacity of a `course`, but figures that are always 0."""
    width = max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))
    drawings = []
    for name, is_count, text in _DRAWN:
        divisor = bucket_secs if is_count else 1
        points = [(row["bucket"], row[name] / divisor) for row in buckets if row[name] is not None]
        if any(value for _, value in points):
            newest = f"{points[-1][1]:,.4g}"
            label = _label(title, f"{text} (last {newest})", width)
            drawings.append(_drawing(points, bucket_secs, label, width))
    return "\n".join(drawings)


def _label(title: str, text: str, width: int) -> str:
    """Return the title shortened to the width: plotext omits longer titles."""
    room = width - len(text) - _BESIDE
    if len(title) > room:
        title = f"{title[: room - 1]}…" if room > _SHORTEST else ""
    return f"{title}: {text}" if title else text


def _drawing(
    points: Sequence[tuple[datetime, float]], bucket_secs: int, label: str, width: int
) -> str:
    import plotext  # noqa: PLC0415 - only for drawings

    # Otherwise plotext cuts drawings to the detected terminal.
    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, _HEIGHT)
    times = [at.timestamp() for at, _ in points]
    signal = figure.signal(times, [value for _, value in points], marker="braille")
    signal.lines()
    for place, (before, after) in enumerate(itertools.pairwise(times), start=1):
        if after - before > bucket_secs:
            signal.line(place, False)  # no bucket: nothing is known of that time
    figure.draw(signal)
    figure.title(label)
    first, last = points[0][0], points[-1][0]
    ticks = [first + (last - first) * step / 4 for step in range(5)]
    form = "%H:%M" if last - first <= timedelta(days=1) else "%m-%d %H:%M"
    labels = {f"{at:{form}}": at.timestamp() for at in reversed(ticks)}  # each once
    figure.ruler("x").ticks([*labels.values()], [*labels])
    figure.ruler("y").lim(0, None)
    return "\n".join(line.rstrip() for line in plotext.uncolorize(str(figure.build())).splitlines())
