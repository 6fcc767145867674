"""``storm history``: what happened to workers, out of the pipeline's tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from stormkeeper.cli.columns import escaped
from stormkeeper.cli.effects import json_option
from stormkeeper.cli.freshness import remark_on_age
from stormkeeper.cli.options import conf_options, examples, faults, load_conf

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

#: Longer than anything is kept, and less than what a date can be set back by.
_LONGEST_SECS: Final = 100 * 365 * 86_400


class Age(click.ParamType[timedelta]):
    """A length of time before now, as 90s, 15m, 2h or 7d."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return it as a `timedelta`."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
        secs = int(found[1]) * _UNITS[found[2]] if found else 0
        if not 0 < secs <= _LONGEST_SECS:
            self.fail(f"{value!r} is no length of time such as 90s, 15m, 2h or 7d", param, ctx)
        return timedelta(seconds=secs)


@click.command(
    epilog=examples(
        "storm history word-count",
        "storm history node-7 --since 2h",
        "storm history word-count-1-1700000000 --json",
    )
)
@click.argument("subject", metavar="NODE|TOPOLOGY")
@click.option("--since", metavar="TIME", type=Age(), help="Only the last TIME: 90s, 15m, 2h, 7d.")
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
@conf_options
def history(subject: str, since: timedelta | None, lines: int, as_json: bool) -> None:
    """Show what happened to the workers of a node or a topology, oldest first.

    NODE is a host or a supervisor's id, TOPOLOGY a name or an id. Reads the tables that `storm
    pipeline` keeps in pipeline.tables.dir. Prints one line per event: when, topology's id, worker,
    what, and why. A worker whose topology was killed is called killed, not late or dead, if the
    pipeline reaches Nimbus. With --json it is an array of the rows of the table worker_events. If
    the tables are old, stderr says so.

    Exit code 1: there are no tables, they cannot be read, or do not know that node or topology.
    """
    conf = load_conf()
    with faults():
        from stormkeeper.history import events
        from stormkeeper.history.database import Past
        from stormkeeper.pipeline import folders

        beginning = None if since is None else datetime.now(UTC) - since
        with Past(folders.of_tables(conf)) as past:
            found = events.events(past, subject, beginning, limit=lines)
            if not found:
                events.check_known(past, subject)
            names = node_names(events.hosts(past), (event["node"] for event in found))
            remark_on_age(past, "worker_events")
    if as_json:
        click.echo(json.dumps(found, default=_iso))
    elif found:
        click.echo("\n".join(_line(event, names) for event in found))
    else:
        click.echo("Nothing happened that the tables know of.")


def _iso(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def node_names(hosts: Mapping[str, str], nodes: Iterable[str]) -> dict[str, str]:
    """Return what people call nodes, by the ids of their supervisors.

    Parameters
    ----------
    hosts
        Those that are known, by the same ids.
    nodes
        Further ids.
    """
    from stormkeeper.conf.address import host_of_supervisor, supervisor_names

    return supervisor_names({**{node: host_of_supervisor(node) for node in nodes}, **hosts})


def _line(event: dict[str, Any], names: Mapping[str, str]) -> str:
    worker = f"{names[event['node']]}:{event['port']}"
    parts = (_iso(event["at"]), event["storm_id"], worker, event["event"])
    return escaped(f"{'  '.join(parts)}: {event['evidence']}")
