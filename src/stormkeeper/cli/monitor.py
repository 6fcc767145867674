"""``storm monitor`` and ``storm get-errors``: what components do, and what went wrong in them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from stormkeeper.cli.nimbus_command import connected, json_option
from stormkeeper.cli.options import Fault, conf_options, examples, exit_with, until_interrupted
from stormkeeper.cli.output import line, remark
from stormkeeper.errors import NotAliveError, RpcError
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.client.monitoring import Counting, Look, Row
    from stormkeeper.client.nimbus_connection import NimbusConnection
    from stormkeeper.thrift.nimbus import NumErrorsChoice, TopologyInfo

#: From this rate on, tuples a second are printed without a fraction.
_WHOLE: Final = 10


@click.command(
    "get-errors",
    epilog=examples("storm get-errors word-count", "storm get-errors word-count --json"),
)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on a terminal, too.")
@conf_options
def get_errors(name: str, as_json: bool) -> None:
    """Print the newest error of each component of topology NAME.

    On a terminal they are printed as they are, the newest last. Elsewhere, and with --json, it is
    one JSON object as Storm's: {"Topology Name": NAME, "Comp-Errors": {COMPONENT: ERROR}}, or
    {"Failure": TEXT} where there is no such topology. A component without errors is left out.

    Exit code 1: there is no such topology, or Nimbus was not reached.
    """
    with connected() as connection:
        from stormkeeper.client import topology_view

        for_people = sys.stdout.isatty() and not as_json
        try:
            info = topology_view.errors(connection, name)
        except NotAliveError:
            if for_people:
                raise
            click.echo(json.dumps({"Failure": f"No topologies running with name {name}"}))
            exit_with(1)
    newest = {component: errors[0] for component, errors in info.errors.items() if errors}
    if for_people:
        from stormkeeper.cli import topology_tables

        click.echo("\n".join(topology_tables.of_errors(newest, time.time())))
        return
    texts = {component: error.error for component, error in newest.items()}
    click.echo(json.dumps({"Topology Name": info.name, "Comp-Errors": texts}))


@click.command(
    epilog=examples(
        "storm monitor word-count",
        "storm monitor word-count -m counts",
        "storm monitor word-count -m counts -i 10 -w transferred --json",
    )
)
@click.argument("name")
@click.option(
    "-i",
    "--interval",
    metavar="SECS",
    type=click.IntRange(1, 3600),
    default=4,
    show_default=True,
    help="Time from one row to the next.",
)
@click.option(
    "-m", "--component", metavar="COMPONENT", help="Of this component alone; by default of all."
)
@click.option(
    "-s",
    "--stream",
    metavar="STREAM",
    default="default",
    show_default=True,
    help="Which of the components' streams.",
)
@click.option(
    "-w",
    "--watch",
    "watched",
    type=click.Choice(["emitted", "transferred"]),
    default="emitted",
    show_default=True,
    help="What is counted.",
)
@json_option
@conf_options
def monitor(
    *, name: str, interval: int, component: str | None, stream: str, watched: str, as_json: bool
) -> None:
    """Watch how much the components of topology NAME emit, until Ctrl-C.

    Prints a row for each component every SECS: the time, executors, stream, tuples (rows of a
    batch) since the row before, and tuples a second. The first row of a component has what was
    counted since its workers have started, and no rate. With --json each row is an object, with the
    milliseconds since the row before and, as in Storm, tuples a millisecond. The counts are those
    of the workers' heartbeats, so they come in steps.

    While no Nimbus answers, stderr says so, and no row is printed.

    Exit code 1: there is no such topology or component, or no stream of that name, or Nimbus was
    not reached at first.
    """
    with connected() as connection, until_interrupted():
        from stormkeeper.client import monitoring
        from stormkeeper.thrift.nimbus import NumErrorsChoice

        def look() -> dict[str, Look]:
            info = _info(connection, name, NumErrorsChoice.NONE)
            wanted = monitoring.components(info) if component is None else [component]
            return {each: monitoring.look(info, each, stream, watched) for each in wanted}

        seen = look()
        streams = sorted({one for each in seen.values() for one in each.streams})
        if streams and stream not in streams:
            what = component or "no component"
            nothing = "nothing" if component else "anything"
            raise Fault(
                f"{what} has {watched} {nothing} on a stream {stream}; there are"
                f" {', '.join(streams)}"
            )
        if not seen:
            raise Fault(f"{name} runs nowhere now; `storm status {name}` says what it waits for")
        rows = _Rows(name, stream, watched, [*seen], as_json=as_json)
        countings: dict[str, Counting] = {}
        due = time.monotonic()
        while True:
            at_ms = round(time.monotonic() * 1000)
            for each, its in seen.items():
                counting = countings.setdefault(each, monitoring.Counting())
                rows.show(each, counting.row(its, at_ms))
            now = time.monotonic()
            due = max(due + interval, now)
            time.sleep(due - now)
            seen = _looked_again(look, interval)


class _Rows:
    """Prints rows: for people in columns, else as JSON."""

    def __init__(
        self, topology: str, stream: str, watched: str, components: list[str], *, as_json: bool
    ) -> None:
        self._topology = topology
        self._stream = stream
        self._watched = watched
        self._as_json = as_json
        width = max(map(len, ("COMPONENT", *components)))
        self._widths = (9, width + 1, 10, max(7, len(stream)) + 1, 15, 12)
        if not as_json:
            heads = ("TIME", "COMPONENT", "EXECUTORS", "STREAM", watched.upper(), "PER SECOND")
            click.echo(line(heads, self._widths))

    def show(self, component: str, row: Row) -> None:
        """Print one."""
        if self._as_json:
            found = {
                "topology": self._topology,
                "component": component,
                "executors": row.executors,
                "stream": self._stream,
                "ms": row.ms,
                self._watched: row.count,
                "per_ms": row.per_ms,
            }
            click.echo(json.dumps(found))
            return
        rate, count = 1000 * row.per_ms, f"{row.count:,}"
        per_second = f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.1f}"
        if not row.ms:
            count, per_second = f"{count} so far", "-"
        moment = time.strftime("%H:%M:%S")
        cells = (moment, printable(component), str(row.executors), self._stream, count, per_second)
        click.echo(line(cells, self._widths))


def _info(connection: NimbusConnection, name: str, errors: NumErrorsChoice) -> TopologyInfo:
    from stormkeeper.thrift.nimbus import GetInfoOptions

    return connection.nimbus.getTopologyInfoByNameWithOpts(name, GetInfoOptions(errors))


def _looked_again(look: Callable[[], dict[str, Look]], interval: int) -> dict[str, Look]:
    """Look until Nimbus answers, as another one may lead soon."""
    is_told = False
    while True:
        try:
            seen = look()
        except RpcError as error:
            if not is_told:
                remark(f"Nimbus does not answer: {error}")
                is_told = True
            time.sleep(interval)
        else:
            if is_told:
                remark("Nimbus answers again")
            return seen
