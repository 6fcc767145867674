"""The logs of several machines, printed as they are asked for in turn.

A machine that cannot be reached is named on stderr, once until it answers again; the others are
asked all the same.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import click

from stormkeeper.cli.listing import remark
from stormkeeper.client.log_reader import MachineLogs
from stormkeeper.client.log_server import LogMachine, LogServer
from stormkeeper.conf.address import supervisor_names
from stormkeeper.errors import LogsError, StormkeeperError
from stormkeeper.names import host_port, printable

_REMEDY: Final = (
    "see that `storm supervisor` runs there, and that supervisor.bind.host lets others in"
)

#: Seconds between two rounds.
_ROUND: Final = 1.0
#: Seconds after which a machine that could not be reached is asked again.
_AGAIN: Final = 10.0
#: Seconds after which it is looked anew on which machines the workers are.
_LOOK: Final = 5.0


class _Source:
    """One machine, and what was read of its logs."""

    def __init__(self, machine: LogMachine) -> None:
        self.machine = machine
        #: What people call its supervisor.
        self.name = machine.host
        #: None until it has an address.
        self.logs: MachineLogs | None = None
        #: Whether it was told that it cannot be reached.
        self.is_missing = False
        self.asked_again_at = 0.0


class LogMachines:
    """Prints the logs of a topology's workers.

    Parameters
    ----------
    storm_id
        The topology.
    since
        As for `MachineLogs`.
    as_json
        Whether each line is an object.
    """

    def __init__(self, storm_id: str, *, since: float | None, as_json: bool) -> None:
        self._storm_id = storm_id
        self._since = since
        self._as_json = as_json
        self._sources: dict[str, _Source] = {}
        #: Whether lines are told apart by whose they are, from the first time that they have to be.
        self._is_shared = False

    def ask(self, machines: Mapping[str, LogMachine]) -> None:
        """Ask these machines from now on; what was read of those among them stays so."""
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
        """Whether a log was found anywhere."""
        return any(source.logs and source.logs.read_ports for source in self._sources.values())

    def once(self) -> bool:
        """Print what there is; return whether a machine was missing."""
        for source in self._sources.values():
            self._read(source)
            if source.is_missing or source.logs is None:
                continue
            source.logs.end(partial(self._show, source))
            for port in source.machine.ports or ():
                if port not in source.logs.read_ports:
                    click.echo(
                        f"storm: {source.name}:{port} has no log of {self._storm_id}", err=True
                    )
        return any(source.is_missing for source in self._sources.values())

    def follow(self, look: Callable[[], Mapping[str, LogMachine] | None]) -> None:
        """Print what there is and what comes, until interrupted or the topology is gone.

        Parameters
        ----------
        look
            Returns the machines that are to be asked now, None where there is nothing more to come.
        """
        # Those that come later are read from now on.
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
                machines = look()
            except (StormkeeperError, click.ClickException) as error:
                if not is_told:
                    remark(f"where the workers are now is not known: {_words(error)}")
                is_told = True
                continue
            is_told = False
            if machines is None:
                self.once()
                remark("the topology is gone")
                return
            self.ask(machines)

    def _read(self, source: _Source) -> None:
        """Print what has come from a machine, or say once why nothing comes."""
        fault = self._fault(source)
        if fault is None:
            if source.is_missing:
                source.is_missing = False
                remark(f"{source.name} gives its logs again")
            return
        source.asked_again_at = time.monotonic() + _AGAIN
        if not source.is_missing:
            source.is_missing = True
            workers = ", ".join(host_port(source.name, port) for port in source.machine.ports or ())
            remark(f"no logs of {workers or source.name}: {fault}")

    def _fault(self, source: _Source) -> str | None:
        """Print what has come from a machine; return why that is not possible, if so."""
        if source.logs is None:
            return source.machine.fault
        try:
            source.logs.read(partial(self._show, source))
        except LogsError as error:
            return f"{error}; {_REMEDY}"
        return None

    def _show(self, source: _Source, port: int, line: str) -> None:
        if sys.stdout.isatty() and not self._as_json:
            line = printable(line, keep="\t")
        if self._as_json:
            line = json.dumps({"host": source.machine.host, "port": port, "line": line})
        elif self._is_shared:
            line = f"{host_port(source.name, port)} | {line}"
        sys.stdout.write(f"{line}\n")


def _words(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)
