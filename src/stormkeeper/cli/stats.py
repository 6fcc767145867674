"""``storm stats``: statistics of a topology in the pipeline's tables, now and in the past."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from stormkeeper.cli.connections import json_option
from stormkeeper.cli.options import as_age, command, faults, load_conf
from stormkeeper.cli.output import (
    ago,
    aligned,
    duration,
    limit_secs,
    map_floats,
    note,
    print_json,
    remark_on_age,
)
from stormkeeper.daemon.logs import counted
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.history.component_stats import Reading
    from stormkeeper.history.database import HistoryDatabase

#: Storm's names of windows, by the values of --window, which takes Storm's names, too.
_WINDOWS: Final = {"10m": "600", "3h": "10800", "1d": "86400", "all": ":all-time"}

#: Default of --since with --plot.
_PLOTTED: Final = timedelta(hours=3)

WINDOWS: Final = {"600": "10 min", "10800": "3 h", "86400": "1 day", ":all-time": "all time"}

_BUCKETS: Final = {60: "a minute", 600: "ten minutes", 3_600: "an hour"}

#: Capacities from which a bolt is yellow, and red.
_BUSY, _SATURATED = 0.8, 1.0

#: Format of a bucket's time, and most times below a drawing.
_AT: Final = "%m-%d %H:%M"
_GAPS_NAMED: Final = 3

#: Counts from there on are shortened by powers of a thousand.
_LONG: Final = 100_000
_KILO: Final = 1_000
_UNITS: Final = ("", "k", "M", "G", "T", "P")

#: An unnamed component's name.
_UNNAMED: Final = re.compile(r"tasks -?\d+-")


def _window(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    window = None if given is None else _WINDOWS.get(given, given)
    if window is not None and window not in WINDOWS:
        raise click.BadParameter(f"{given!r} is no window: 10m, 3h, 1d or all")
    return window


@command(
    "storm stats word-count",
    "storm stats word-count --window 10m",
    "storm stats word-count --component split",
    "storm stats word-count --since 2h",
    "storm stats word-count --component split --since 7d --plot",
    "storm stats word-count-1-1700000000 --json",
)
@click.argument("topology", metavar="TOPOLOGY")
@click.option("--component", metavar="NAME", help="Only this spout or bolt, with its executors.")
@click.option(
    "--window",
    metavar="WINDOW",
    callback=_window,
    help="The window of the newest counts: 10m, 3h, 1d or all.  [default: all]",
)
@click.option(
    "--since", metavar="TIME", callback=as_age, help="Show the last TIME in buckets: 90m, 2h, 7d."
)
@click.option("--plot", is_flag=True, help="Draw the buckets; without --since, of three hours.")
@json_option
def stats(
    *,
    topology: str,
    component: str | None,
    window: str | None,
    since: timedelta | None,
    plot: bool,
    as_json: bool,
) -> None:
    """Show the statistics of a topology's components: the newest, or since a time.

    TOPOLOGY is a name or an id. The command reads the tables of `storm pipeline` in
    pipeline.tables.dir. Without --since it shows the newest counts, in the columns of Storm's UI,
    without Storm's own components. With --component it lists the executors, too, each with its
    share of the work.

    With --since it prints a line for each past bucket of a minute, ten minutes or an hour, with
    counts per second. For a topology, ACKED, FAILED and COMPLETE MS are those of its spouts,
    CAPACITY that of its busiest bolt, and RESTARTS those of the component with the most. A bucket
    with * includes counts from before its time, when workers were not read.

    Exit code 1: there are no tables, or they do not contain the topology or the component.
    """
    if plot and since is None:
        since = _PLOTTED
    if since is not None and window is not None:
        raise click.UsageError(
            "--window is for the newest counts: use it without --since and --plot"
        )
    if plot and as_json:
        raise click.UsageError("--plot and --json exclude each other")
    conf = load_conf()
    with faults():
        from stormkeeper import extras
        from stormkeeper.history.database import HistoryDatabase
        from stormkeeper.pipeline import tables

        if plot:
            extras.require("spark", "storm stats --plot", "plotext")
        with HistoryDatabase(tables.tables_folder(conf)) as past:
            if since is None:
                _newest(past, topology, component, window or ":all-time", as_json=as_json)
            else:
                _course(past, topology, component, since, plot=plot, as_json=as_json)


def _newest(
    past: HistoryDatabase, topology: str, component: str | None, window: str, *, as_json: bool
) -> None:
    from stormkeeper.history import component_stats

    reading = component_stats.reading(past, topology, component, window)
    is_old = remark_on_age(past, "component_stats")
    now = datetime.now(UTC)
    if as_json:
        _print_json(_as_values(reading, window, now))
        return
    for line in reading_lines(reading, window, component, now):
        click.echo(line)
    if not is_old:
        for warning in reading_warnings(reading, now):
            note(warning)


def _course(
    past: HistoryDatabase,
    topology: str,
    component: str | None,
    since: timedelta,
    *,
    plot: bool,
    as_json: bool,
) -> None:
    from stormkeeper.history import component_stats

    until = datetime.now(UTC)
    interval_secs = past.interval_secs("rollup_1m")
    bucket_secs, buckets = component_stats.course_with_bucket_secs(
        past, topology, component, until - since, until
    )
    remark_on_age(past, "rollup_1m")
    if as_json:
        _print_json(
            {
                "topology": topology,
                "component": component,
                "since": until - since,
                "until": until,
                "bucket_secs": bucket_secs,
                "interval_secs": interval_secs,
                "buckets": buckets,
            }
        )
    elif not buckets:
        click.echo("No complete bucket of that time has counts of it.")
    elif plot:
        click.echo(
            component_stats.draw_course(buckets, bucket_secs, printable(component or topology))
        )
        for line in gap_lines(buckets, bucket_secs, interval_secs):
            click.echo(line)
    else:
        for line in course_lines(buckets, bucket_secs, interval_secs):
            click.echo(line)


def _as_values(reading: Reading, window: str, now: datetime) -> dict[str, Any]:
    values = {
        "storm_id": reading.storm_id,
        "read_at": reading.read_at,
        "age_secs": round((now - reading.read_at).total_seconds(), 3),
        "interval_secs": reading.interval_secs,
        "window": window,
        "totals": next((row for row in reading.totals if row["window"] == window), None),
        "components": [row for row in reading.components if row["window"] == window],
    }
    return values if reading.executors is None else {**values, "executors": reading.executors}


def _print_json(values: dict[str, Any]) -> None:
    # JSON has no NaN and no infinity.
    finite = map_floats(values, lambda value: value if math.isfinite(value) else None)
    print_json(finite)


_Cell = Callable[[dict[str, Any]], str]


def reading_lines(
    reading: Reading, window: str, component: str | None, now: datetime
) -> Iterator[str]:
    """Yield the newest counts as on Storm's page of a topology, or of a component if given."""
    read = ago((now - reading.read_at).total_seconds())
    yield f"{printable(reading.storm_id)}, read {read}, window {WINDOWS[window]}"
    if component is None:
        yield from _topology(reading, window)
        return
    rows = reading.components
    yield ""
    kind = rows[0]["kind"]
    title = f"{printable(component)} ({kind})" if kind else printable(component)
    yield from _table(
        [(title, lambda row: WINDOWS.get(row["window"], row["window"]), False), *_COUNTED[kind]],
        rows,
    )
    executors = reading.executors or []
    if executors:
        yield ""
        yield f"Executors, window {WINDOWS[window]}:"
        yield from _table(
            [*_PLACE, ("SHARE", _share_of(executors, kind)), *_of_one(kind)], executors
        )


def reading_warnings(reading: Reading, now: datetime) -> Iterator[str]:
    """Yield warnings of old counts, and of missing names, while the pipeline runs."""
    limit = limit_secs(reading.interval_secs)
    silent = (now - reading.newest_at).total_seconds()
    if silent > limit:
        yield (
            f"no heartbeat was read for {duration(int(silent))}, though `storm pipeline` runs: all"
            " workers are silent, or no Pacemaker can be read, which its log would say"
        )
        return
    behind = (reading.newest_at - reading.read_at).total_seconds()
    if behind > limit:
        yield (
            f"{printable(reading.storm_id)} has not been read for {duration(int(behind))}, and"
            " others have: it was killed, or its workers are silent"
        )
    if all(_UNNAMED.match(row["component"]) for row in reading.components):
        yield (
            "components are shown by their tasks, as Storm's workers do not name them, and Nimbus"
            " has not yet done so: `storm pipeline` asks the one of nimbus.seeds"
        )


def course_lines(
    buckets: Sequence[dict[str, Any]], bucket_secs: int, interval_secs: float
) -> Iterator[str]:
    """Yield a table of buckets with rates a second; the pipeline writes every `interval_secs`."""
    gaps = _after_gaps(buckets, bucket_secs, interval_secs)

    def at(row: dict[str, Any]) -> str:
        return f"{row['bucket']:{_AT}}{'*' if row in gaps else ''}"

    def rate(name: str) -> _Cell:
        return lambda row: _count(None if row[name] is None else row[name] / bucket_secs)

    yield f"Times in UTC, buckets of {_BUCKETS[bucket_secs]}. /S: tuples a second. MS: latency."
    yield from _table(
        [
            ("TIME", at, False),
            *((f"{name.upper()}/S", rate(name)) for name in ("emitted", "executed", "acked")),
            ("FAILED", _counted("failed")),
            ("COMPLETE MS", _millis("complete_ms_avg")),
            ("EXECUTE MS", _millis("execute_ms_avg")),
            ("CAPACITY", _capacity),
            ("RESTARTS", _counted("restarts")),
        ],
        buckets,
    )
    if gaps:
        yield f"* {_beyond(gaps)}"


def gap_lines(
    buckets: Sequence[dict[str, Any]], bucket_secs: int, interval_secs: float
) -> Iterator[str]:
    """Yield the line below a drawing: buckets that include earlier counts."""
    gaps = _after_gaps(buckets, bucket_secs, interval_secs)
    if gaps:
        times = ", ".join(f"{row['bucket']:{_AT}}" for row in gaps[:_GAPS_NAMED])
        more = f" and {len(gaps) - _GAPS_NAMED} more" if len(gaps) > _GAPS_NAMED else ""
        yield f"{times}{more}: {_beyond(gaps)}"


def _after_gaps(
    buckets: Sequence[dict[str, Any]], bucket_secs: int, interval_secs: float
) -> Sequence[dict[str, Any]]:
    # A bucket has all counts of an interval. Small excesses do not matter.
    longest = interval_secs + max(interval_secs, bucket_secs / 4)
    return [row for row in buckets if (row["interval_secs"] or 0) > longest]


def _beyond(gaps: Sequence[dict[str, Any]]) -> str:
    longest = duration(int(max(row["interval_secs"] for row in gaps)))
    return f"also counts of up to {longest} before, when workers were not read."


def _topology(reading: Reading, window: str) -> Iterator[str]:
    totals = [row for row in reading.totals if row["window"] == window]
    for row in totals:
        yield ", ".join(counted(row[f"{noun}s"], noun) for noun in ("worker", "executor", "task"))
    if totals:
        yield ""
        yield from _table([("TOPOLOGY", lambda _: "", False), *_TOTALS], totals)
    for kind, columns in _COUNTED.items():
        rows = [
            row
            for row in reading.components
            if row["kind"] == kind
            and row["window"] == window
            and not row["component"].startswith("__")
        ]
        if rows:
            yield ""
            title = (kind or "component").upper()
            yield from _table([(title, _text("component"), False), *_SIZES, *columns], rows)


def _text(name: str) -> _Cell:
    return lambda row: printable(str(row[name]))


def _counted(name: str) -> _Cell:
    return lambda row: _count(row[name])


def _millis(name: str) -> _Cell:
    return lambda row: "-" if row[name] is None else f"{row[name]:.3f}"


def _failed(row: dict[str, Any]) -> str:
    return click.style(_count(row["failed"]), fg="red" if row["failed"] else None)


def _capacity(row: dict[str, Any]) -> str:
    value = row["capacity"]
    if value is None:
        return "-"
    colour = "red" if value >= _SATURATED else "yellow" if value >= _BUSY else None
    return click.style(f"{value:.3f}", fg=colour)


def _share_of(executors: Sequence[dict[str, Any]], kind: str | None) -> _Cell:
    name = "emitted" if kind == "spout" else "executed"
    whole = sum(row[name] or 0 for row in executors)
    return lambda row: f"{(row[name] or 0) / whole:.0%}" if whole else "-"


_SIZES: Final = [("EXECUTORS", _counted("executors")), ("TASKS", _counted("tasks"))]
_SENT: Final = [("EMITTED", _counted("emitted")), ("TRANSFERRED", _counted("transferred"))]
_ENDED: Final = [("ACKED", _counted("acked")), ("FAILED", _failed)]
_TOTALS: Final = [*_SENT, *_ENDED, ("COMPLETE MS", _millis("complete_ms_avg"))]
_OF_BOLTS: Final = [
    *_SENT,
    ("EXECUTED", _counted("executed")),
    *_ENDED,
    ("EXECUTE MS", _millis("execute_ms_avg")),
    ("PROCESS MS", _millis("process_ms_avg")),
    ("CAPACITY", _capacity),
]
#: By kind; None: unknown.
_COUNTED: Final = {"spout": _TOTALS, "bolt": _OF_BOLTS, None: _OF_BOLTS}
_PLACE: Final = [
    ("TASKS", lambda row: _tasks(row["task_start"], row["task_end"]), False),
    ("WORKER", lambda row: printable(f"{row['node']}:{row['port']}"), False),
]


def _of_one(kind: str | None) -> list[tuple[str, _Cell]]:
    """Return the columns of an executor: all but TRANSFERRED."""
    return [column for column in _COUNTED[kind] if column[0] != "TRANSFERRED"]


def _tasks(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _count(value: float | None) -> str:
    """Return a count; from 100,000 on, four digits and a unit.

    Examples
    --------
    >>> _count(99_999), _count(123_456), _count(7_654_321_000), _count(0.25), _count(13_187.4)
    ('99,999', '123.5k', '7.654G', '0.25', '13,187')
    """
    if value is None:
        return "-"
    if value < _LONG:
        digits = "" if isinstance(value, int) else ".4g" if value < _KILO else ".0f"
        return f"{value:,{digits}}"
    power = next((power for power in range(1, 5) if value < _KILO ** (power + 1)), 5)
    return f"{value / _KILO**power:.4g}{_UNITS[power]}"


def _table(columns: Sequence[tuple[Any, ...]], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table; columns are aligned right, except columns with a third item."""
    cells = [[each[1](row) for each in columns] for row in rows]
    right = [number for number, each in enumerate(columns) if len(each) == 2]
    return aligned([[each[0] for each in columns], *cells], right)
