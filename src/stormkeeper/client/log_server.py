"""One machine's logs, as its supervisor has them over HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec

from stormkeeper.client.monitoring import unknown
from stormkeeper.conf.address import Address
from stormkeeper.errors import LogsError, RpcUnavailableError
from stormkeeper.rpc.dialing import connect, in_words
from stormkeeper.thrift.nimbus import TopologyInfo
from stormkeeper.thrift.records import Assignment, SupervisorInfo

#: Seconds for a connection, so that a machine that is off does not hold up the others for long.
_CONNECTING: Final = 3.0
#: Seconds for each wait for bytes of an answer.
_PATIENCE: Final = 10.0
#: Bytes of an answer: more than any supervisor sends.
_MOST_BYTES: Final = 16 * 1024 * 1024

#: Answers by which the supervisor says that the file is gone or is another one.
_CHANGED: Final = frozenset(
    (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
)


class RemoteLog(msgspec.Struct, frozen=True):
    """A file as it was when it was listed."""

    #: ``ID/PORT/NAME``.
    file: str
    port: int
    #: The same as long as it is this file, whatever its name.
    identity: str
    #: Its bytes.
    size: int
    #: When it was last written to, in seconds since 1970.
    modified: float


class LogServer:
    """Asks a supervisor, by a connection for each question.

    Parameters
    ----------
    address
        Where its HTTP listens.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    def files(self, storm_id: str) -> list[RemoteLog]:
        """Return the logs of a topology's workers on that machine.

        Those of a slot begin with the one that was written to the longest ago, and end with that
        which is written to now.

        Raises
        ------
        LogsError
            They cannot be had from there.
        """
        asked = urlencode({"topoId": storm_id, "details": "yes"})
        status, body = self._ask(f"/api/v1/listLogs?{asked}")
        if status != HTTPStatus.OK:
            raise self._refused(status, body)
        try:
            return msgspec.json.decode(body, type=list[RemoteLog])
        except msgspec.DecodeError as error:
            raise LogsError(f"{self.address}: this is no supervisor of Stormkeeper's") from error

    def read(self, file: RemoteLog, start: int, length: int) -> bytes | None:
        """Return bytes of a file, fewer than `length` where the answer would be too long.

        None: the file of that name is another one by now, or gone: list them again.

        Raises
        ------
        LogsError
            It cannot be had from there.
        """
        asked = {"file": file.file, "start": start, "length": length, "identity": file.identity}
        status, body = self._ask(f"/api/v1/log?{urlencode(asked)}")
        if status in _CHANGED:
            return None
        if status != HTTPStatus.OK:
            raise self._refused(status, body)
        return body

    def _ask(self, path: str) -> tuple[int, bytes]:
        try:
            try:
                return self._answer(path)
            except ConnectionResetError:
                # Its place went to another client: the newest ones are served.
                return self._answer(path)
        except RpcUnavailableError as error:
            raise LogsError(str(error)) from error
        except OSError as error:
            raise LogsError(f"{self.address}: {in_words(error)}") from error
        except http.client.HTTPException as error:
            raise LogsError(f"{self.address}: this is no HTTP: {error!r}") from error

    def _answer(self, path: str) -> tuple[int, bytes]:
        client = http.client.HTTPConnection(self.address.host, self.address.port)
        with closing(client):
            client.sock = connect(self.address, _CONNECTING)
            client.sock.settimeout(_PATIENCE)
            client.request("GET", path, headers={"Connection": "close"})
            answer = client.getresponse()
            return answer.status, answer.read(_MOST_BYTES)

    def _refused(self, status: int, body: bytes) -> LogsError:
        said = body[:200].decode(errors="replace").strip()
        return LogsError(f"{self.address}: {said or f'HTTP status {status}'}")


@dataclass(frozen=True, slots=True)
class LogMachine:
    """A supervisor with workers whose logs are wanted.

    Parameters
    ----------
    host
        Its machine.
    http_port
        Where its HTTP listens; None: nowhere.
    is_there
        Whether it is registered.
    ports
        Of the workers; None: of all that have a log there.
    """

    host: str
    http_port: int | None
    is_there: bool
    ports: tuple[int, ...] | None

    @property
    def address(self) -> Address | None:
        """Where its HTTP listens, None where there is none."""
        return None if self.http_port is None else Address(self.host, self.http_port)

    @property
    def fault(self) -> str:
        """Why it has no address."""
        if not self.is_there:
            return "no supervisor is registered there: the machine, or `storm supervisor`, is down"
        return "its supervisor has no HTTP: set logviewer.port there"


def of_topology(
    assignment: Assignment | None, supervisors: Mapping[str, SupervisorInfo]
) -> dict[str, LogMachine]:
    """Return the machines that a topology's workers are on, by their supervisors' ids.

    A worker that was released is among them: it has said why it ended.
    """
    if assignment is None:
        return {}
    ports: dict[str, set[int]] = {}
    for place in (assignment.executor_node_port or {}).values():
        ports.setdefault(place.node, set()).update(place.port)
    for launch in assignment.launches or ():
        ports.setdefault(launch.node, set()).add(launch.port)
    hosts = assignment.node_host or {}
    return {
        node: _machine(hosts.get(node, node), supervisors.get(node), ports[node])
        for node in sorted(ports, key=lambda node: (hosts.get(node, node), node))
    }


def of_host(
    host: str, port: int, supervisors: Mapping[str, SupervisorInfo]
) -> dict[str, LogMachine]:
    """Return every supervisor of a machine, where a worker may have been that is there no more."""
    return {
        node: _machine(host, info, {port})
        for node, info in sorted(supervisors.items())
        if info.hostname == host
    }


def of_all(supervisors: Mapping[str, SupervisorInfo]) -> dict[str, LogMachine]:
    """Return every supervisor, where workers of a topology may have been that runs nowhere now."""
    return {
        node: LogMachine(info.hostname, info.http_port, True, None)
        for node, info in sorted(supervisors.items(), key=lambda each: (each[1].hostname, each[0]))
    }


def of_component(info: TopologyInfo, component: str) -> set[tuple[str, int]]:
    """Return the hosts and ports of the workers that a component runs in.

    Raises
    ------
    UnknownComponentError
        It runs in none.
    """
    found = {(each.host, each.port) for each in info.executors if each.component_id == component}
    if not found:
        raise unknown(info, component)
    return found


def only(
    machines: Mapping[str, LogMachine], workers: Collection[tuple[str, int]]
) -> dict[str, LogMachine]:
    """Return those of the machines and their ports that are among `workers`."""
    chosen = {}
    for node, machine in machines.items():
        ports = tuple(port for port in machine.ports or () if (machine.host, port) in workers)
        if ports:
            chosen[node] = LogMachine(machine.host, machine.http_port, machine.is_there, ports)
    return chosen


def _machine(host: str, info: SupervisorInfo | None, ports: Collection[int]) -> LogMachine:
    found = tuple(sorted(ports))
    if info is None:
        return LogMachine(host, None, False, found)
    return LogMachine(info.hostname, info.http_port, True, found)
