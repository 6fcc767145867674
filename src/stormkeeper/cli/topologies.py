"""The commands for running topologies: list, status, kill, (de)activate, rebalance, log levels."""

from __future__ import annotations

import re
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from stormkeeper.cli import connections
from stormkeeper.cli.connections import NotYetFault, connected, json_option, waiting_options
from stormkeeper.cli.options import command, exit_with, load_conf
from stormkeeper.cli.output import Progress, print_json
from stormkeeper.daemon.logs import LEVELS
from stormkeeper.errors import RpcUnavailableError, StormkeeperError
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.client.nimbus_connection import NimbusConnection
    from stormkeeper.client.topology_commands import WaitStatus

#: Time for a change of status, or a start of workers, after Nimbus's wait.
_STATUS_SECS = 60.0
_WORKERS_SECS = 180.0

_GOES_ON = "Nimbus goes on with it"

#: Columns outside a terminal.
_ANY_WIDTH = 1_000_000

#: ``LOGGER=LEVEL`` or ``LOGGER=LEVEL:SECS``.
_SETTING: Final = re.compile(r"(?P<logger>[^=]+)=(?P<level>[A-Za-z]+)(:(?P<secs>[0-9]{1,9}))?")

#: A level, and the seconds until it is removed, if any.
_LevelSetting = tuple[str, int | None]

_wait_option = click.option(
    "-w",
    "--wait",
    "wait_secs",
    metavar="SECS",
    type=click.IntRange(min=0),
    help="Seconds that Nimbus waits first; by default the topology's"
    " topology.message.timeout.secs.",
)


@command("storm list", "storm list --json", name="list")
@json_option
def list_all(as_json: bool) -> None:
    """List the topologies of the cluster.

    The command prints a table as Storm does, or `No topologies running.`. Status is ACTIVE,
    INACTIVE, REBALANCING, KILLED, or COMPLETED if all queries have ended by themselves. Health is
    running, starting, waiting, stuck, crashing or failed, with the reason. Uptime is the time since
    the submission. A narrow terminal has a shorter table.

    Exit code 1: Nimbus did not answer.
    """
    with connected() as connection:
        from stormkeeper.cli import topology_tables
        from stormkeeper.client import topology_view

        found = topology_view.list_topologies(connection)
        if as_json:
            print_json([topology_tables.topology_values(each) for each in found])
        else:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ANY_WIDTH
            click.echo("\n".join(topology_tables.fitting_table(found, columns)))


@command("storm status", "storm status word-count", "storm status word-count --json")
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show the cluster, or topology NAME with components, workers and health.

    The page of the cluster lists the Nimbuses, the supervisors with free slots and memory, those
    that refuse new work, and topologies that wait. Lost supervisors are missing.

    The page of a topology shows how long each worker has run, as of its last heartbeat, and the
    newest error of each component in one line; `storm get-errors` prints whole errors.

    Exit code 1: there is no such topology, or Nimbus did not answer.
    """
    with connected() as connection:
        from stormkeeper.cli import topology_tables
        from stormkeeper.client import topology_view

        if name is None:
            cluster = topology_view.get_cluster(connection)
            if as_json:
                print_json(topology_tables.cluster_values(cluster))
            else:
                click.echo("\n".join(topology_tables.cluster_lines(cluster)))
            return
        found = topology_view.get_topology(connection, name)
        if as_json:
            print_json(asdict(found))
        else:
            click.echo("\n".join(topology_tables.topology_lines(found, time.time())))


@command(
    "storm kill word-count",
    "storm kill word-count -w 0",
    "storm kill word-count nightly-counts -i --no-wait",
    "storm kill word-count --purge",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_wait_option
@click.option(
    "--purge", is_flag=True, help="Remove the checkpoints, too, when all workers have stopped."
)
@click.option(
    "-i", "--ignore-errors", is_flag=True, help="Exit code 0 even if some cannot be killed."
)
@waiting_options(f"{_STATUS_SECS:.0f} s longer than Nimbus waits")
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

    Nimbus deactivates them at once, waits for the running batches, and removes them. Checkpoints
    are kept for nimbus.checkpoint.retention.secs, for `storm submit --from`. If a topology cannot
    be killed, stderr says why, and the others are still killed. The command waits until all are
    gone; Ctrl-C ends only this wait.

    --json prints an array with an object for each NAME. A topology that was not killed has no id,
    and its text says why.

    Exit code 1: a topology is unknown or cannot be killed, or Nimbus did not answer (with -i: 0,
    unless Nimbus did not answer). 4: a killed topology is not gone in time.
    """
    with connected() as connection, Progress() as progress:
        from stormkeeper.client import topology_commands

        kills: list[_Kill] = []
        is_reached = True
        for name in dict.fromkeys(names):
            if is_reached:
                each = _kill(connection, name, wait_secs, purge=purge)
                is_reached = not isinstance(each.error, RpcUnavailableError)
            else:
                text = f"{name} is not killed, as Nimbus did not answer"
                each = _Kill(name, error=RpcUnavailableError(text))
            kills.append(each)
            if each.error is not None:
                why = str(each.error)
                progress.remark(why if name in why else f"{name}: {why}")
            elif not as_json:
                click.echo(f"Killed topology: {name}")
        killed = [each for each in kills if each.error is None]
        remark = f"{', '.join(each.name for each in killed)}: killed; Nimbus goes on to remove it"
        for each in killed:
            each.secs = 0.0 if no_wait else timeout or each.wait_secs + _STATUS_SECS
            until = partial(topology_commands.wait_until_gone, connection, each.name, each.storm_id)
            each.seen = connections.wait_for(
                progress, each.name, each.secs, until, remark=remark, wait_secs=each.wait_secs
            )
    if as_json:
        print_json([each.as_values() for each in kills])
    late = None
    for each in killed:
        try:
            connections.end(each.name, each.seen, each.secs)
        except NotYetFault as fault:
            late = fault
            fault.show()
    if len(killed) < len(kills) and not (ignore_errors and is_reached):
        exit_with(1)
    if late is not None:
        exit_with(late.exit_code)


@dataclass
class _Kill:
    """A topology that Nimbus kills within `wait_secs`, or refused to kill with an `error`."""

    name: str
    storm_id: str = ""
    wait_secs: float = 0.0
    error: StormkeeperError | None = None
    #: The longest wait for the effect, and the status then.
    secs: float = 0.0
    seen: WaitStatus | None = None

    def as_values(self) -> dict[str, Any]:
        if self.error is not None:
            return {"name": self.name, "id": None, "done": False, "text": str(self.error)}
        status = connections.status_values(self.seen)
        return {"name": self.name, "id": self.storm_id, **status}


def _kill(connection: NimbusConnection, name: str, wait_secs: int | None, *, purge: bool) -> _Kill:
    from stormkeeper.client import topology_commands, topology_view

    try:
        waits = topology_view.kill_wait_secs(connection, name) if wait_secs is None else wait_secs
        storm_id = topology_commands.kill(connection, name, wait_secs, purge=purge)
    except StormkeeperError as error:
        return _Kill(name, error=error)
    return _Kill(name, storm_id, waits)


@command("storm activate word-count")
@click.argument("name")
@waiting_options(f"{_STATUS_SECS:.0f} s")
def activate(*, name: str, no_wait: bool, timeout: float | None, as_json: bool) -> None:
    """Activate topology NAME: its queries continue from their checkpoints.

    The command waits until the status is ACTIVE; Ctrl-C ends only this wait.

    Exit code 1: the topology is unknown, KILLED or REBALANCING, or Nimbus did not answer. 4: Nimbus
    has accepted it, and the status did not change in time.
    """
    _set_active(name, active=True, no_wait=no_wait, timeout=timeout, as_json=as_json)


@command("storm deactivate word-count")
@click.argument("name")
@waiting_options(f"{_STATUS_SECS:.0f} s")
def deactivate(*, name: str, no_wait: bool, timeout: float | None, as_json: bool) -> None:
    """Deactivate topology NAME: its queries stop after their running batch, its workers stay.

    The command waits until the status is INACTIVE; Ctrl-C ends only this wait.

    Exit code 1: the topology is unknown, KILLED or REBALANCING, or Nimbus did not answer. 4: Nimbus
    has accepted it, and the status did not change in time.
    """
    _set_active(name, active=False, no_wait=no_wait, timeout=timeout, as_json=as_json)


def _set_active(
    name: str, *, active: bool, no_wait: bool, timeout: float | None, as_json: bool
) -> None:
    said = f"{'Activated' if active else 'Deactivated'} topology: {name}"
    status = "ACTIVE" if active else "INACTIVE"
    secs = 0.0 if no_wait else timeout or _STATUS_SECS
    with connected() as connection, Progress() as progress:
        from stormkeeper.client import topology_commands

        storm_id = topology_commands.set_active(connection, name, active=active)
        if not as_json:
            click.echo(said)
        until = partial(topology_commands.wait_for_status, connection, name, status)
        seen = connections.wait_for(progress, name, secs, until, remark=f"{said}; {_GOES_ON}")
    connections.end(name, seen, secs, as_json=as_json, id=storm_id)


def _parallelism(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    wanted = {}
    for text in given:
        component, _equals, number = text.rpartition("=")
        if not (component and number.isascii() and number.isdigit() and int(number)):
            raise click.BadParameter(f"{text!r} is no COMPONENT=NUMBER, with a number from 1 up")
        wanted[component] = int(number)
    return wanted


@command(
    "storm rebalance word-count -w 0",
    "storm rebalance word-count -n 2",
    "storm rebalance word-count -e words=4 -e counts=2",
    "storm rebalance word-count -c topology.worker.memory.mb=2048",
)
@click.argument("name")
@_wait_option
@click.option(
    "-n",
    "--num-workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Largest number of workers.",
)
@click.option(
    "-e",
    "--executor",
    "parallelism",
    metavar="COMPONENT=N",
    multiple=True,
    callback=_parallelism,
    help="Parallelism of a component: the number of its input's partitions. Repeatable.",
)
@waiting_options(f"{_WORKERS_SECS:.0f} s longer than Nimbus waits")
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
    """Distribute topology NAME over the cluster again, with other numbers if given.

    Its queries stop after their running batch; then Nimbus waits, and starts the workers again. A
    query whose checkpoint is not shared stays on its machine. The command waits until all workers
    run; Ctrl-C ends only this wait.

    -c sets keys of the topology's conf, which its workers read at their next start; keys of
    nimbus.*, storm.nimbus.* and storm.thrift.* concern the connection to Nimbus, and are not sent.

    Exit code 1: the topology or a component is unknown, the topology is KILLED or REBALANCING, or
    Nimbus did not answer. 4: it is rebalanced, and not all workers run in time.
    """
    conf = load_conf(unknown="keep")
    said = f"Topology {name} is rebalancing"
    with connected(conf) as connection, Progress() as progress:
        from stormkeeper.client import package_builder, topology_commands, topology_view

        values = package_builder.conf_to_send({}, conf, name)
        waits = topology_view.kill_wait_secs(connection, name) if wait_secs is None else wait_secs
        storm_id = topology_commands.rebalance(
            connection,
            name,
            wait_secs=wait_secs,
            workers=num_workers,
            parallelism=parallelism,
            conf=values,
        )
        if not as_json:
            click.echo(said)
        secs = 0.0 if no_wait else timeout or waits + _WORKERS_SECS
        seen = connections.wait_for(
            progress,
            name,
            secs,
            partial(topology_commands.wait_for_workers, connection, name, workers=num_workers),
            remark=f"{said}; {_GOES_ON}",
            wait_secs=waits,
        )
    connections.end(name, seen, secs, as_json=as_json, id=storm_id)


def _level(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> dict[str, _LevelSetting]:
    found = {}
    for text in given:
        parsed = _SETTING.fullmatch(text)
        if parsed is None:
            raise click.BadParameter(f"{text!r} is no LOGGER=LEVEL or LOGGER=LEVEL:SECS")
        level = parsed["level"].upper()
        if level not in LEVELS:
            raise click.BadParameter(f"{level} is none of {', '.join(LEVELS)}")
        secs = int(parsed["secs"]) if parsed["secs"] else None
        found[parsed["logger"]] = level, secs
    return found


@command(
    "storm set_log_level word-count -l ROOT=DEBUG:30",
    "storm set_log_level word-count -l my_module=WARN -l org.apache.kafka=INFO",
    "storm set_log_level word-count -r my_module",
    name="set_log_level",
)
@click.argument("name")
@click.option(
    "-l",
    "--level",
    "levels",
    metavar="LOGGER=LEVEL[:SECS]",
    multiple=True,
    callback=_level,
    help="Set the level of LOGGER, and of the loggers below it, for SECS seconds, or until it is"
    " removed. LEVEL is ALL, TRACE, DEBUG, INFO, WARN, ERROR, FATAL or OFF. ROOT is the root"
    " logger. Repeatable.",
)
@click.option(
    "-r", "--remove", "removed", metavar="LOGGER", multiple=True, help="Restore LOGGER's own level."
)
@json_option
def set_log_level(
    *, name: str, levels: dict[str, _LevelSetting], removed: tuple[str, ...], as_json: bool
) -> None:
    """Change log levels of the running workers of topology NAME.

    A level holds, within seconds, for the Python loggers of each worker and for those of its Spark
    driver; not for executors on other machines. `storm logs` prints the logs. Without -l and -r,
    the command prints the levels that are set.

    Exit code 1: there is no such topology, or Nimbus refused or did not answer. 2: wrong usage.
    """
    with connected() as connection:
        from stormkeeper.thrift.records import LogConfig, LogLevel, LogLevelAction

        storm_id = connection.nimbus.getTopologySummaryByName(name).id
        changes = {
            logger: LogLevel(LogLevelAction.UPDATE, level, secs)
            for logger, (level, secs) in levels.items()
        }
        changes |= {logger: LogLevel(LogLevelAction.REMOVE) for logger in removed}
        if changes:
            connection.nimbus.setLogConfig(storm_id, LogConfig(changes))
        found = connection.nimbus.getLogConfig(storm_id).named_logger_level or {}
    now_ms = time.time() * 1000
    left = {
        logger: (each.target_log_level or "", each.reset_log_level_timeout_epoch)
        for logger, each in sorted(found.items())
        if (each.reset_log_level_timeout_epoch or now_ms + 1) > now_ms
    }
    if as_json:
        levels_only = {logger: level for logger, (level, _) in left.items()}
        print_json({"name": name, "levels": levels_only})
        return
    for logger, (level, ends_ms) in left.items():
        ends = "" if ends_ms is None else f", for {max(1, round((ends_ms - now_ms) / 1000))} s"
        click.echo(f"{printable(logger)}={printable(level)}{ends}")
    if not left:
        click.echo(f"no log level is set for {name}")
