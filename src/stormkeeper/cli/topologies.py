"""The commands for topologies that are in a cluster: look at them, change them, end them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from stormkeeper.cli import nimbus_command
from stormkeeper.cli.nimbus_command import (
    NotYetFault,
    connected,
    interrupted_with,
    json_option,
    waiting,
    waiting_options,
)
from stormkeeper.cli.options import conf_options, examples, exit_with, load_conf
from stormkeeper.cli.output import Progress
from stormkeeper.errors import RpcUnavailableError, StormkeeperError

if TYPE_CHECKING:
    from stormkeeper.client.nimbus_connection import NimbusConnection
    from stormkeeper.client.wait import Wait, WaitStatus
    from stormkeeper.conf import Conf

#: Seconds that an effect may take, beyond what Nimbus waits before it begins.
_SOON = 60.0
_PLACED = 180.0

#: The width of what is no terminal, in characters.
_ANY_WIDTH = 1_000_000

_wait_option = click.option(
    "-w",
    "--wait",
    "wait_secs",
    metavar="SECS",
    type=click.IntRange(min=0),
    help="Nimbus waits so long before it does it; by default the topology's"
    " topology.message.timeout.secs.",
)


@click.command("list", epilog=examples("storm list", "storm list --json"))
@json_option
@conf_options
def list_all(as_json: bool) -> None:
    """List the topologies of the cluster.

    Prints a table as Storm does, or `No topologies running.`. The table says of a topology its
    status, tasks, workers, seconds since it was submitted, id, whose it is, and its health. The
    status is ACTIVE, INACTIVE, REBALANCING, KILLED, or COMPLETED where all queries have ended by
    themselves. Health is running, starting, waiting, stuck, crashing or failed, and why.
    On a terminal that is too narrow for it, a narrower table has the columns that matter most.

    Exit code 1: Nimbus was not reached.
    """
    with connected() as connection:
        from stormkeeper.cli import topology_tables
        from stormkeeper.client import topology_view

        found = topology_view.summaries(connection)
        if as_json:
            click.echo(json.dumps([topology_tables.as_values(each) for each in found]))
        else:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ANY_WIDTH
            click.echo("\n".join(topology_tables.fitting(found, columns)))


@click.command(
    epilog=examples("storm status", "storm status word-count", "storm status word-count --json")
)
@click.argument("name", required=False)
@json_option
@conf_options
def status(name: str | None, as_json: bool) -> None:
    """Show the cluster; or topology NAME: its components, workers, and what it waits for.

    Of the cluster it shows the Nimbuses, the supervisors with the slots and the memory that are
    free, those that take no new work, and topologies that wait. A supervisor that is lost is no
    longer there.

    Of a topology, a worker's time is that since its start, as it told last. Of errors the newest
    line of each component is shown; `storm get-errors` prints them whole.

    Exit code 1: there is no such topology, or Nimbus was not reached.
    """
    with connected() as connection:
        from stormkeeper.cli import topology_tables
        from stormkeeper.client import topology_view

        if name is None:
            cluster = topology_view.cluster(connection)
            if as_json:
                click.echo(json.dumps(topology_tables.cluster_values(cluster)))
            else:
                click.echo("\n".join(topology_tables.of_cluster(cluster)))
            return
        found = topology_view.topology(connection, name)
        if as_json:
            click.echo(json.dumps(asdict(found)))
        else:
            click.echo("\n".join(topology_tables.of_topology(found, time.time())))


@click.command(
    epilog=examples(
        "storm kill word-count",
        "storm kill word-count -w 0",
        "storm kill word-count nightly-counts -i --no-wait",
        "storm kill word-count --purge",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_wait_option
@click.option(
    "--purge", is_flag=True, help="Remove the checkpoints, too, as soon as all has stopped."
)
@click.option(
    "-i", "--ignore-errors", is_flag=True, help="End with exit code 0 if some cannot be killed."
)
@waiting_options(f"{_SOON:.0f} s longer than Nimbus waits")
def kill(
    *,
    names: tuple[str, ...],
    wait_secs: int | None,
    purge: bool,
    ignore_errors: bool,
    no_wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Kill topologies.

    Nimbus deactivates them at once, waits, and then removes them; running batches are finished.
    Checkpoints are kept for nimbus.checkpoint.retention.secs, so that `storm submit --from` goes on
    from them. If one cannot be killed, stderr says why, and the others are killed all the same. The
    command waits until they are gone. Ctrl-C ends only that.

    With --json it is an array with an object for each NAME. One that was not killed has no id, and
    its text says why.

    Exit code 1: one is not there or cannot be killed, or Nimbus was not reached (with -i: 0, unless
    Nimbus was not reached). 4: one is killed, and not gone in time.
    """
    with connected() as connection, Progress() as progress:
        from stormkeeper.client import topology_commands

        kills = _Kills(connection, progress, dict.fromkeys(names))
        for name, _ in kills.ask(wait_secs, purge=purge):
            if not as_json:
                click.echo(f"Killed topology: {name}")
        ends: list[tuple[str, WaitStatus | None, float]] = []
        for name, (storm_id, waits) in kills.killed.items():
            seen, secs = None, timeout or waits + _SOON
            if not no_wait:
                told = ", ".join(kills.killed)
                with interrupted_with(progress, f"{told}: killed, and gone in time"):
                    wait = waiting(progress, name, secs, waits)
                    seen = topology_commands.until_gone(connection, name, storm_id, wait)
            ends.append((name, seen, secs))
    if as_json:
        click.echo(json.dumps(kills.as_values({name: seen for name, seen, _ in ends})))
    late = None
    for name, seen, secs in ends:
        try:
            nimbus_command.end(name, seen, secs)
        except NotYetFault as fault:
            late = fault
            fault.show()
    if kills.refused and not (ignore_errors and kills.is_reached):
        exit_with(1)
    if late is not None:
        exit_with(late.exit_code)


class _Kills:
    """The topologies that a command kills, and what Nimbus says of each."""

    def __init__(
        self, connection: NimbusConnection, progress: Progress, names: Mapping[str, None]
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._names = names
        #: The id of each that is killed, and how long Nimbus waits.
        self.killed: dict[str, tuple[str, float]] = {}
        #: Why each of the others is not.
        self.refused: dict[str, str] = {}
        self.is_reached = True

    def ask(self, wait_secs: int | None, *, purge: bool) -> Iterator[tuple[str, str]]:
        """Have Nimbus kill them; yield the name and id of each that it kills."""
        from stormkeeper.client import topology_commands, topology_view

        for name in self._names:
            if not self.is_reached:
                self._refuse(name, f"{name} is not killed, as Nimbus was not reached")
                continue
            try:
                waits: float | None = wait_secs
                if waits is None:
                    waits = topology_view.kill_wait_secs(self._connection, name)
                storm_id = topology_commands.kill(self._connection, name, wait_secs, purge=purge)
            except StormkeeperError as error:
                self.is_reached = not isinstance(error, RpcUnavailableError)
                self._refuse(name, str(error))
            else:
                self.killed[name] = storm_id, waits
                yield name, storm_id

    def _refuse(self, name: str, why: str) -> None:
        self.refused[name] = why
        self._progress.remark(why if name in why else f"{name}: {why}")

    def as_values(self, seen: Mapping[str, WaitStatus | None]) -> list[dict[str, Any]]:
        """Return a JSON object for each."""
        return [
            {"name": name, "id": None, "done": False, "text": self.refused[name]}
            if name in self.refused
            else {"name": name, "id": self.killed[name][0], **nimbus_command.as_values(seen[name])}
            for name in self._names
        ]


@click.command(epilog=examples("storm activate word-count"))
@click.argument("name")
@waiting_options(f"{_SOON:.0f} s")
def activate(*, name: str, no_wait: bool, timeout: float | None, as_json: bool) -> None:
    """Activate topology NAME: its queries go on from their checkpoints.

    The command waits until the status is ACTIVE. Ctrl-C ends only that.

    Exit code 1: there is no such topology, or it is KILLED or REBALANCING, or Nimbus was not
    reached. 4: Nimbus has taken it, and the status is not there in time.
    """
    _set_active(name, active=True, no_wait=no_wait, timeout=timeout, as_json=as_json)


@click.command(epilog=examples("storm deactivate word-count"))
@click.argument("name")
@waiting_options(f"{_SOON:.0f} s")
def deactivate(*, name: str, no_wait: bool, timeout: float | None, as_json: bool) -> None:
    """Deactivate topology NAME: its queries stop after their running batch, its workers stay.

    The command waits until the status is INACTIVE. Ctrl-C ends only that.

    Exit code 1: there is no such topology, or it is KILLED or REBALANCING, or Nimbus was not
    reached. 4: Nimbus has taken it, and the status is not there in time.
    """
    _set_active(name, active=False, no_wait=no_wait, timeout=timeout, as_json=as_json)


def _set_active(
    name: str, *, active: bool, no_wait: bool, timeout: float | None, as_json: bool
) -> None:
    from stormkeeper.client import topology_commands

    _carry_out(
        name,
        f"{'Activated' if active else 'Deactivated'} topology: {name}",
        ask=lambda connection: topology_commands.set_active(connection, name, active=active),
        until=lambda connection, wait: topology_commands.until_status(
            connection, name, "ACTIVE" if active else "INACTIVE", wait
        ),
        secs=0.0 if no_wait else timeout or _SOON,
        as_json=as_json,
    )


def _parallelism(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    wanted = {}
    for text in given:
        component, _equals, number = text.rpartition("=")
        if not (component and number.isascii() and number.isdigit() and int(number)):
            raise click.BadParameter(f"{text!r} is no COMPONENT=NUMBER, with a number from 1 up")
        wanted[component] = int(number)
    return wanted


@click.command(
    epilog=examples(
        "storm rebalance word-count -w 0",
        "storm rebalance word-count -n 2",
        "storm rebalance word-count -e words=4 -e counts=2",
        "storm rebalance word-count -c topology.worker.memory.mb=2048",
    )
)
@click.argument("name")
@_wait_option
@click.option(
    "-n",
    "--num-workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="On how many workers it is to run, at most.",
)
@click.option(
    "-e",
    "--executor",
    "parallelism",
    metavar="COMPONENT=N",
    multiple=True,
    callback=_parallelism,
    help="The parallelism of a component: how many partitions its input gets. Repeatable.",
)
@waiting_options(f"{_PLACED:.0f} s longer than Nimbus waits")
def rebalance(
    *,
    name: str,
    wait_secs: int | None,
    num_workers: int | None,
    parallelism: dict[str, int],
    no_wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Spread topology NAME anew over the cluster, on other numbers where they are given.

    Its queries stop after their running batch; then Nimbus waits, and starts its workers anew. A
    query whose checkpoint is not shared stays on its machine. The command waits until all workers
    run. Ctrl-C ends only that.

    -c sets keys of the topology's conf, which its workers have from their next start on; keys of
    nimbus.*, storm.nimbus.* and storm.thrift.* concern the connection to Nimbus, and are not sent.

    Exit code 4: it is rebalanced, and its workers do not all run in time.
    """
    conf = load_conf(unknown="keep")
    with connected(conf) as connection:
        from stormkeeper.client import submission_conf, topology_commands, topology_view

        values = submission_conf.sent({}, conf, name)
        waits = topology_view.kill_wait_secs(connection, name) if wait_secs is None else wait_secs
    change = topology_commands.RebalanceChange(
        wait_secs=wait_secs, workers=num_workers, parallelism=parallelism, conf=values
    )
    _carry_out(
        name,
        f"Topology {name} is rebalancing",
        ask=lambda connection: topology_commands.rebalance(connection, name, change),
        until=lambda connection, wait: topology_commands.until_placed(
            connection, name, wait, num_workers
        ),
        secs=0.0 if no_wait else timeout or waits + _PLACED,
        waits=waits,
        conf=conf,
        as_json=as_json,
    )


def _carry_out(
    name: str,
    said: str,
    *,
    ask: Callable[[NimbusConnection], str],
    until: Callable[[NimbusConnection, Wait], WaitStatus],
    secs: float,
    as_json: bool,
    waits: float = 0.0,
    conf: Conf | None = None,
) -> None:
    """Have Nimbus do something with a topology, and wait until it is done.

    Parameters
    ----------
    name
        The topology.
    said
        What is printed when Nimbus has taken it.
    ask
        Asks Nimbus; returns the topology's id.
    until
        Waits for the effect.
    secs
        How long at most; 0: not at all.
    as_json
        Whether one JSON object is printed, at the end.
    waits
        How long Nimbus waits before.
    conf
        The configuration, where it was read already.
    """
    with connected(conf) as connection, Progress() as progress:
        storm_id = ask(connection)
        if not as_json:
            click.echo(said)
        seen = None
        if secs:
            with interrupted_with(progress, f"{said}; that stays so"):
                seen = until(connection, waiting(progress, name, secs, waits))
    if as_json:
        nimbus_command.print_json(name=name, id=storm_id, **nimbus_command.as_values(seen))
    nimbus_command.end(name, seen, secs)
