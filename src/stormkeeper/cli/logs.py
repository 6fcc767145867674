"""``storm logs``: what a topology's workers have written, on whatever machines they are."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import click

from stormkeeper.cli.effects import json_option
from stormkeeper.cli.options import (
    Fault,
    UnansweredFault,
    conf_options,
    examples,
    exit_with,
    faults,
    load_conf,
    until_interrupted,
)
from stormkeeper.names import split_host_port

if TYPE_CHECKING:
    from stormkeeper.client.log_server import LogMachine
    from stormkeeper.conf import Conf
    from stormkeeper.state.storm.cluster import StormReads

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _secs(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", text, re.ASCII)
    if found is None:
        raise click.BadParameter(f"{text!r} is no time such as 90s, 10m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def _place(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    place = split_host_port(text)
    if place is None:
        raise click.BadParameter(f"{text!r} is no HOST:PORT of a worker; `storm status` has them")
    return place


@click.command(
    epilog=examples(
        "storm logs word-count",
        "storm logs word-count -f --component counts",
        "storm logs word-count --since 10m --worker node-a:6700",
        "storm logs word-count-1-1700000000 --worker node-a:6700",
    )
)
@click.argument("topology")
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Go on with what comes.")
@click.option("--component", metavar="COMPONENT", help="Of the workers that it runs in alone.")
@click.option("--worker", metavar="HOST:PORT", callback=_place, help="Of that worker alone.")
@click.option(
    "--since",
    "since_secs",
    metavar="TIME",
    callback=_secs,
    help="Only what was logged in the last TIME, such as 90s, 10m or 2h; by default the last 50 KiB"
    " of each log.",
)
@json_option
@conf_options
def logs(
    *,
    topology: str,
    is_followed: bool,
    component: str | None,
    worker: tuple[str, int] | None,
    since_secs: float | None,
    as_json: bool,
) -> None:
    """Print the logs of the workers of TOPOLOGY, a name or an id.

    ZooKeeper tells which machines they are on, and the supervisors there give the logs over HTTP.
    Where several workers write, each line begins with HOST:PORT of its worker. With --json each is
    an object.

    What a topology prints does not say when. With --since it is left out if a later line is older.

    With -f it goes on until Ctrl-C, or until the topology is gone; it goes along when workers move,
    and when a log is renamed. A machine that cannot be reached is named on stderr, and asked again.

    The log of a worker that ran in the past stays on its machine. All are printed of a topology
    that runs nowhere now, as its queries have ended. Else name the worker, and the topology's id if
    that is gone.

    Exit code 1: there is no such topology, component or worker, or it runs nowhere. 3: a machine
    could not be reached, so its logs are missing, or ZooKeeper or Nimbus did not answer.
    """
    if component is not None and worker is not None:
        raise click.UsageError("--component and --worker exclude each other")
    conf = load_conf()
    from stormkeeper.cli.state import looking

    missing = False
    with until_interrupted() if is_followed else nullcontext(), looking(conf) as store:
        from stormkeeper.cli.log_machines import LogMachines
        from stormkeeper.state.node_heartbeats import NodeHeartbeats
        from stormkeeper.state.storm.cluster import StormReads
        from stormkeeper.state.storm.codec import Codec

        cluster = StormReads(store, Codec.from_conf(conf), heartbeats=NodeHeartbeats(store))
        storm_id = _id(cluster, topology, is_gone=worker is not None)

        def look() -> dict[str, LogMachine] | None:
            return _machines(conf, cluster, storm_id, component, worker)

        machines = look()
        runs_nowhere = not machines and not is_followed
        if runs_nowhere and component is None:
            from stormkeeper.client import log_server

            machines = log_server.of_all(cluster.all_supervisor_info())
        reading = LogMachines(
            storm_id,
            since=None if since_secs is None else time.time() - since_secs,
            as_json=as_json,
        )
        reading.ask(machines or {})
        if is_followed:
            reading.follow(look)
        else:
            missing = reading.once()
            if runs_nowhere and not missing and not reading.has_found:
                raise Fault(
                    f"{topology} runs nowhere now, see `storm status {topology}`, and no supervisor"
                    " that is there has a log of it"
                )
    exit_with(UnansweredFault.exit_code if missing else 0)


def _id(cluster: StormReads, topology: str, *, is_gone: bool) -> str:
    """Return a topology's id; it may be one that `is_gone`."""
    found = cluster.storm_id_by_name(topology)
    if found is not None:
        return found
    if is_gone or cluster.storm_base(topology) is not None:
        return topology
    raise Fault(f"there is no topology {topology}; `storm list` names those that are")


def _machines(
    conf: Conf,
    cluster: StormReads,
    storm_id: str,
    component: str | None,
    worker: tuple[str, int] | None,
) -> dict[str, LogMachine] | None:
    """Return whom to ask, by their supervisors' ids; None where the topology is gone."""
    from stormkeeper.client import log_server

    supervisors = cluster.all_supervisor_info()
    assignment = cluster.assignment_info(storm_id)
    found = log_server.of_topology(assignment, supervisors)
    if worker is not None:
        there = log_server.only(found, {worker}) or log_server.of_host(*worker, supervisors)
        if not there:
            hosts = ", ".join(sorted({each.hostname for each in supervisors.values()})) or "none"
            raise Fault(f"no supervisor is registered on {worker[0]}; these are: {hosts}")
        return there
    if assignment is None and cluster.storm_base(storm_id) is None:
        return None
    if component is None or not found:
        return found
    return log_server.only(found, _workers_of(conf, storm_id, component))


def _workers_of(conf: Conf, storm_id: str, component: str) -> set[tuple[str, int]]:
    """Return the hosts and ports of a component's workers, which Nimbus alone can tell."""
    from stormkeeper.client.log_server import of_component
    from stormkeeper.client.nimbus_connection import connect
    from stormkeeper.thrift.nimbus import GetInfoOptions, NumErrorsChoice

    with _unanswered(), connect(conf) as connection:
        options = GetInfoOptions(NumErrorsChoice.NONE)
        info = connection.nimbus.getTopologyInfoWithOpts(storm_id, options)
    with faults():
        return of_component(info, component)


@contextmanager
def _unanswered() -> Iterator[None]:
    """End the command as where ZooKeeper does not answer, if Nimbus does not."""
    from stormkeeper.errors import RpcError

    with faults():
        try:
            yield
        except RpcError as error:
            raise UnansweredFault(str(error)) from error
