"""``storm monitor`` and ``storm get-errors``: what components do, and what went wrong in them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from stormkeeper.cli.effects import connected, json_option
from stormkeeper.cli.listing import remark
from stormkeeper.cli.options import Fault, conf_options, examples, exit_with, until_interrupted
from stormkeeper.errors import NotAliveError, RpcError
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.client.connection import Connection
    from stormkeeper.client.monitoring import Look
    from stormkeeper.thrift.nimbus import NumErrorsChoice, TopologyInfo


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
        from stormkeeper.client import looking

        for_people = sys.stdout.isatty() and not as_json
        try:
            info = looking.errors(connection, name)
        except NotAliveError:
            if for_people:
                raise
            click.echo(json.dumps({"Failure": f"No topologies running with name {name}"}))
            exit_with(1)
    newest = {component: errors[0] for component, errors in info.errors.items() if errors}
    if for_people:
        from stormkeeper.cli import tables

        click.echo("\n".join(tables.of_errors(newest, time.time())))
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
@click.option("-m", "--component", metavar="COMPONENT", help="Which; without it all are listed.")
@click.option(
    "-s",
    "--stream",
    metavar="STREAM",
    default="default",
    show_default=True,
    help="Which of the component's streams.",
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
    """Watch how much a component of topology NAME emits, until Ctrl-C.

    Prints rows with tabs as Storm does: topology, component, executors, stream, milliseconds since
    the row before, tuples (rows of a batch) in them, thousands a second. The first row has what was
    counted since the workers have started. With --json each row is an object. The counts are those
    of the workers' heartbeats, so they come in steps.

    While no Nimbus answers, stderr says so, and no row is printed.

    Exit code 1: there is no such topology or component, or no stream of that name, or Nimbus was
    not reached at first.
    """
    with connected() as connection, until_interrupted():
        from stormkeeper.client import monitoring
        from stormkeeper.thrift.nimbus import NumErrorsChoice

        if component is None:
            info = _info(connection, name, NumErrorsChoice.NONE)
            _list_components(name, monitoring.components(info), as_json=as_json)
            return

        def look() -> Look:
            info = _info(connection, name, NumErrorsChoice.NONE)
            return monitoring.look(info, component, stream, watched)

        seen = look()
        if seen.streams and stream not in seen.streams:
            there = ", ".join(sorted(seen.streams))
            raise Fault(f"{component} has {watched} nothing on a stream {stream}; it has {there}")
        if not as_json:
            columns = ["topology", "component", "parallelism", "stream", "time-diff ms", watched]
            click.echo("\t".join([*columns, "throughput (Kt/s)"]))
        counting = monitoring.Counting()
        due = time.monotonic()
        while True:
            row = counting.row(seen, round(time.monotonic() * 1000))
            place = (name, component, row.executors, stream)
            if as_json:
                keys = ("topology", "component", "executors", "stream", "ms", watched, "per_ms")
                values = (*place, row.ms, row.count, row.per_ms)
                click.echo(json.dumps(dict(zip(keys, values, strict=True))))
            else:
                click.echo("\t".join(map(str, (*place, row.ms, row.count, row.per_ms))))
            now = time.monotonic()
            due = max(due + interval, now)
            time.sleep(due - now)
            seen = _looked_again(look, interval)


def _info(connection: Connection, name: str, errors: NumErrorsChoice) -> TopologyInfo:
    from stormkeeper.thrift.nimbus import GetInfoOptions

    return connection.nimbus.getTopologyInfoByNameWithOpts(name, GetInfoOptions(errors))


def _looked_again(look: Callable[[], Look], interval: int) -> Look:
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


def _list_components(name: str, components: list[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(components))
        return
    line = "-" * 18
    components = [printable(component) for component in components]
    click.echo("\n".join([f"Available components for {name} :", line, *components, line]))
    click.echo("Please use -m to specify one component")
