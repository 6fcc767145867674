"""``storm stats``: the command."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from stormkeeper.cli.columns import escaped
from stormkeeper.cli.effects import json_option
from stormkeeper.cli.freshness import remark_on_age
from stormkeeper.cli.history import Age
from stormkeeper.cli.options import conf_options, examples, faults, load_conf

if TYPE_CHECKING:
    from stormkeeper.history.component_stats import Reading
    from stormkeeper.history.database import Past

#: The windows of Storm's pages, by what may be written for them.
_WINDOWS: Final = {
    "10m": "600",
    "600": "600",
    "3h": "10800",
    "10800": "10800",
    "1d": "86400",
    "86400": "86400",
    "all": ":all-time",
    ":all-time": ":all-time",
}

#: What --plot shows without --since.
_PLOTTED: Final = timedelta(hours=3)


class Window(click.ParamType[str]):
    """A window of Storm's, as 10m or in seconds."""

    name = "window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as the tables have it."""
        if value not in _WINDOWS:
            self.fail(f"{value!r} is no window: 10m, 3h, 1d or all", param, ctx)
        return _WINDOWS[value]


@click.command(
    epilog=examples(
        "storm stats word-count",
        "storm stats word-count --window 10m",
        "storm stats word-count --component split",
        "storm stats word-count --since 2h",
        "storm stats word-count --component split --since 7d --plot",
        "storm stats word-count-1-1700000000 --json",
    )
)
@click.argument("topology", metavar="TOPOLOGY")
@click.option("--component", metavar="NAME", help="Only this spout or bolt, with its executors.")
@click.option(
    "--window",
    metavar="WINDOW",
    type=Window(),
    help="What is counted in the newest reading: 10m, 3h, 1d or all.  [default: all]",
)
@click.option(
    "--since", metavar="TIME", type=Age(), help="The course of the last TIME: 90m, 2h, 7d."
)
@click.option("--plot", is_flag=True, help="Draw the course; without --since, of three hours.")
@json_option
@conf_options
def stats(
    *,
    topology: str,
    component: str | None,
    window: str | None,
    since: timedelta | None,
    plot: bool,
    as_json: bool,
) -> None:
    """Show what a topology's components count: now, or since a time.

    A topology is named by its name or its id. Reads the tables that `storm pipeline` keeps in
    pipeline.tables.dir. Without --since it is the newest reading, in the columns of Storm's UI and,
    as there, without Storm's own components; but latencies are not cut down to whole milliseconds.
    With --component it has the executors, too, each with its share of the work.

    With --since it is a line per bucket of a minute, of ten, or of an hour, as the time is long,
    with counts by the second. A bucket is there once it is over. Of a topology, ACKED, FAILED and
    COMPLETE MS are of its spouts alone, CAPACITY is of its busiest bolt, and RESTARTS are those of
    the component whose workers were restarted most. A bucket with * has more than its own time:
    workers were not read before it.

    Exit code 1: there are no tables, or the topology or the component is not in them.
    """
    if plot and since is None:
        since = _PLOTTED
    if since is not None and window is not None:
        raise click.UsageError("--window is for the newest reading, without --since and --plot")
    if plot and as_json:
        raise click.UsageError("--plot and --json exclude each other")
    conf = load_conf()
    with faults():
        from stormkeeper import extras
        from stormkeeper.history.database import Past
        from stormkeeper.pipeline import folders

        if plot:
            extras.require("spark", "storm stats --plot", "plotext")
        with Past(folders.of_tables(conf)) as past:
            if since is None:
                _newest(past, topology, component, window or ":all-time", as_json=as_json)
            else:
                _course(past, topology, component, since, plot=plot, as_json=as_json)


def _newest(
    past: Past, topology: str, component: str | None, window: str, *, as_json: bool
) -> None:
    from stormkeeper.cli.stats import pages
    from stormkeeper.history import component_stats

    reading = component_stats.reading(past, topology, component, window)
    is_old = remark_on_age(past, "component_stats")
    now = datetime.now(UTC)
    if as_json:
        _print_json(_as_values(reading, window, now))
        return
    for line in pages.of_reading(reading, window, component, now):
        click.echo(line)
    if not is_old:
        for warning in pages.warnings(reading, now):
            click.echo(f"storm: {warning}", err=True)


def _course(
    past: Past,
    topology: str,
    component: str | None,
    since: timedelta,
    *,
    plot: bool,
    as_json: bool,
) -> None:
    from stormkeeper.cli.stats import pages
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
        click.echo("No bucket of that time is over that has counts of it.")
    elif plot:
        from stormkeeper.history import plots

        click.echo(plots.of_course(buckets, bucket_secs, escaped(component or topology)))
        for line in pages.of_gaps(buckets, bucket_secs, interval_secs):
            click.echo(line)
    else:
        for line in pages.of_course(buckets, bucket_secs, interval_secs):
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
    click.echo(json.dumps(_strict(values), default=_iso))


def _strict(value: Any) -> Any:
    """Return a value without the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _iso(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
