"""``storm logs``: prints and follows the logs of a topology's workers, from all machines."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from stormkeeper.cli.connections import json_option, open_state
from stormkeeper.cli.options import Fault, UnansweredFault, as_age, command, exit_with, load_conf
from stormkeeper.cli.output import note, remark
from stormkeeper.errors import ConfigError, LogsError, RpcError, StormkeeperError
from stormkeeper.names import host_port, printable

if TYPE_CHECKING:
    from stormkeeper.client.log_reader import MachineLogs
    from stormkeeper.client.log_server import LogMachine
    from stormkeeper.conf import Conf
    from stormkeeper.state.storm.cluster import StormReads

_REMEDY: Final = (
    "check that `storm supervisor` runs there, and that supervisor.bind.host admits other machines"
)

#: Seconds between rounds of reads with ``--follow``.
_ROUND: Final = 1.0
#: Seconds until the next read of a silent machine.
_AGAIN: Final = 10.0
#: Seconds between updates of the workers' machines.
_LOOK: Final = 5.0


def _place(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    from stormkeeper.conf import Address

    with suppress(ConfigError):
        place = Address.parse(text, 0)
        if place.port:
            return place.host, place.port
    raise click.BadParameter(f"{text!r} is no HOST:PORT of a worker; `storm status` lists them")


@command(
    "storm logs word-count",
    "storm logs word-count -f --component counts",
    "storm logs word-count --since 10m --worker node-a:6700",
    "storm logs word-count-1-1700000000 --worker node-a:6700",
)
@click.argument("topology")
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Print new lines, until Ctrl-C.")
@click.option("--component", metavar="COMPONENT", help="Only the workers of this component.")
@click.option("--worker", metavar="HOST:PORT", callback=_place, help="Only this worker.")
@click.option(
    "--since",
    metavar="TIME",
    callback=as_age,
    help="Only the last TIME, such as 90s, 10m or 2h; by default the last 50 KiB of each log.",
)
@json_option
def logs(
    *,
    topology: str,
    is_followed: bool,
    component: str | None,
    worker: tuple[str, int] | None,
    since: timedelta | None,
    as_json: bool,
) -> None:
    """Print the logs of the workers of TOPOLOGY, a name or an id.

    The command reads the logs from the workers' supervisors over HTTP. If there are several
    workers, each line begins with HOST:PORT of its worker. With --json each line is an object.

    Output of a topology has no time. --since drops such a line if a later line is too old.

    -f continues until Ctrl-C, or until the topology is gone; it follows workers to other machines,
    and renamed logs. stderr names machines that do not answer, and are tried again.

    The log of a past worker stays on its machine. For a topology without workers, all its logs are
    printed. Otherwise name the worker with --worker, and the id of a topology that is gone.

    Exit code 1: there is no such topology, component or worker, or it runs nowhere. 3: a machine
    did not answer, so its logs are missing, or ZooKeeper or Nimbus did not answer.
    """
    if component is not None and worker is not None:
        raise click.UsageError("--component and --worker exclude each other")
    conf = load_conf()
    missing = False
    with suppress(KeyboardInterrupt) if is_followed else nullcontext(), open_state(conf) as store:
        from stormkeeper.state.backends import NodeHeartbeats
        from stormkeeper.state.storm.cluster import StormReads
        from stormkeeper.thrift.serialization import Codec

        cluster = StormReads(store, Codec.from_conf(conf), heartbeats=NodeHeartbeats(store))
        storm_id = _storm_id(cluster, topology, may_be_gone=worker is not None)

        def find_machines() -> dict[str, LogMachine] | None:
            return _machines(conf, cluster, storm_id, component, worker)

        machines = find_machines()
        runs_nowhere = not machines and not is_followed
        if runs_nowhere and component is None:
            from stormkeeper.client import log_server

            machines = log_server.all_machines(cluster.all_supervisor_info())
        beginning = None if since is None else time.time() - since.total_seconds()
        printer = LogPrinter(storm_id, since=beginning, as_json=as_json)
        printer.set_machines(machines or {})
        if is_followed:
            printer.follow(find_machines)
        else:
            missing = printer.print_once()
            if runs_nowhere and not missing and not printer.has_found:
                raise Fault(
                    f"{topology} runs nowhere now, see `storm status {topology}`, and no registered"
                    " supervisor has a log of it"
                )
    exit_with(UnansweredFault.exit_code if missing else 0)


class _Source:
    """A machine, and the reader of the machine's logs."""

    def __init__(self, machine: LogMachine) -> None:
        self.machine = machine
        #: The supervisor's name in the output.
        self.name = machine.host
        #: None until the machine has an address.
        self.logs: MachineLogs | None = None
        #: Whether a remark has said so.
        self.is_missing = False
        self.asked_again_at = 0.0


class LogPrinter:
    """Prints the logs of a topology's workers, from all machines that answer."""

    def __init__(self, storm_id: str, *, since: float | None, as_json: bool) -> None:
        self._storm_id = storm_id
        self._since = since
        self._as_json = as_json
        self._sources: dict[str, _Source] = {}
        #: Whether lines have a prefix: there have been several workers.
        self._is_shared = False

    def set_machines(self, machines: Mapping[str, LogMachine]) -> None:
        """Read from these machines from now on; known machines continue."""
        from stormkeeper.client.log_reader import MachineLogs
        from stormkeeper.client.log_server import LogServer
        from stormkeeper.conf.address import supervisor_names

        self._sources = {
            node: self._sources.get(node) or _Source(machine) for node, machine in machines.items()
        }
        names = supervisor_names({node: machine.host for node, machine in machines.items()})
        places = Counter(
            (each.host, port) for each in machines.values() for port in each.ports or ()
        )
        for node, machine in machines.items():
            source = self._sources[node]
            is_shared = any(places[machine.host, port] > 1 for port in machine.ports or ())
            source.machine, source.name = machine, names[node] if is_shared else machine.host
            if machine.address is None:
                continue
            if source.logs is None:
                server = LogServer(machine.address)
                source.logs = MachineLogs(server, self._storm_id, since=self._since)
            elif source.logs.server.address != machine.address:
                source.logs.server = LogServer(machine.address)
                source.asked_again_at = 0.0
            source.logs.ports = machine.ports
        ports = [machine.ports for machine in machines.values()]
        self._is_shared |= None in ports or sum(len(each or ()) for each in ports) > 1

    @property
    def has_found(self) -> bool:
        return any(source.logs and source.logs.read_ports for source in self._sources.values())

    def print_once(self) -> bool:
        """Print all logs; return whether a machine did not answer."""
        for source in self._sources.values():
            self._read(source)
            if source.is_missing or source.logs is None:
                continue
            source.logs.end(partial(self._show, source))
            for port in source.machine.ports or ():
                if port not in source.logs.read_ports:
                    note(f"{source.name}:{port} has no log of {self._storm_id}")
        return any(source.is_missing for source in self._sources.values())

    def follow(self, find_machines: Callable[[], Mapping[str, LogMachine] | None]) -> None:
        """Print all logs and new lines, until `find_machines` returns None."""
        # Logs of workers that move later are read from now on.
        self._since = time.time() if self._since is None else self._since
        is_told = False
        looked_at = time.monotonic()
        while True:
            for source in self._sources.values():
                if time.monotonic() >= source.asked_again_at:
                    self._read(source)
            sys.stdout.flush()
            time.sleep(_ROUND)
            if time.monotonic() < looked_at + _LOOK:
                continue
            looked_at = time.monotonic()
            try:
                machines = find_machines()
            except (StormkeeperError, click.ClickException) as error:
                if not is_told:
                    remark(f"the workers' machines are unknown at present: {error}")
                is_told = True
                continue
            is_told = False
            if machines is None:
                self.print_once()
                remark("the topology is gone")
                return
            self.set_machines(machines)

    def _read(self, source: _Source) -> None:
        """Print new lines of a machine, or once the fault."""
        fault = None
        try:
            if source.logs is None:
                fault = source.machine.fault
            else:
                source.logs.read(partial(self._show, source))
        except LogsError as error:
            fault = f"{error}; {_REMEDY}"
        if fault is None:
            if source.is_missing:
                source.is_missing = False
                remark(f"{source.name} answers again")
            return
        source.asked_again_at = time.monotonic() + _AGAIN
        if not source.is_missing:
            source.is_missing = True
            workers = ", ".join(host_port(source.name, port) for port in source.machine.ports or ())
            remark(f"no logs of {workers or source.name}: {fault}")

    def _show(self, source: _Source, port: int, line: str) -> None:
        if sys.stdout.isatty() and not self._as_json:
            line = printable(line, keep="\t")
        if self._as_json:
            line = json.dumps({"host": source.machine.host, "port": port, "line": line})
        elif self._is_shared:
            line = f"{host_port(source.name, port)} | {line}"
        sys.stdout.write(f"{line}\n")


def _storm_id(cluster: StormReads, topology: str, *, may_be_gone: bool) -> str:
    found = cluster.storm_id_by_name(topology)
    if found is not None:
        return found
    if may_be_gone or cluster.storm_base(topology) is not None:
        return topology
    raise Fault(f"there is no topology {topology}; `storm list` shows all")


def _machines(
    conf: Conf,
    cluster: StormReads,
    storm_id: str,
    component: str | None,
    worker: tuple[str, int] | None,
) -> dict[str, LogMachine] | None:
    """Return the machines to read by supervisor id; None if the topology is gone."""
    from stormkeeper.client import log_server

    supervisors = cluster.all_supervisor_info()
    assignment = cluster.assignment_info(storm_id)
    found = log_server.machines_of_topology(assignment, supervisors)
    if worker is not None:
        there = log_server.with_workers(found, {worker}) or log_server.machines_of_host(
            *worker, supervisors
        )
        if not there:
            hosts = ", ".join(sorted({each.hostname for each in supervisors.values()})) or "none"
            raise Fault(f"no supervisor is registered on {worker[0]}; these are: {hosts}")
        return there
    if assignment is None and cluster.storm_base(storm_id) is None:
        return None
    if component is None or not found:
        return found
    return log_server.with_workers(found, _workers_of(conf, storm_id, component))


def _workers_of(conf: Conf, storm_id: str, component: str) -> set[tuple[str, int]]:
    from stormkeeper.client.log_server import workers_of_component
    from stormkeeper.client.nimbus_connection import connect
    from stormkeeper.thrift.nimbus import GetInfoOptions, NumErrorsChoice

    try:
        with connect(conf) as connection:
            options = GetInfoOptions(NumErrorsChoice.NONE)
            info = connection.nimbus.getTopologyInfoWithOpts(storm_id, options)
    except RpcError as error:
        raise UnansweredFault(str(error)) from error
    return workers_of_component(info, component)
