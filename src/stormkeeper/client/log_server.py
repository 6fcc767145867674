"""The supervisors that have the logs of a topology's workers, and an HTTP client for the logs."""

from __future__ import annotations

import http.client
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec

from stormkeeper.client.topology_view import unknown_component
from stormkeeper.conf.address import Address
from stormkeeper.errors import LogsError, RpcUnavailableError
from stormkeeper.rpc.connection import connect, in_words
from stormkeeper.thrift.nimbus import TopologyInfo
from stormkeeper.thrift.records import Assignment, SupervisorInfo

#: A dead machine delays the others by this time.
_CONNECT_SECS: Final = 3.0
_READ_SECS: Final = 10.0
#: More than any supervisor sends.
_MOST_BYTES: Final = 16 * 1024 * 1024

#: The file is gone, or another file has its name.
_CHANGED: Final = frozenset(
    (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
)


@dataclass(frozen=True, slots=True)
class LogMachine:
    """A supervisor with logs; `http_port` None: no HTTP; `ports` None: all workers."""

    host: str
    http_port: int | None
    is_there: bool
    ports: tuple[int, ...] | None

    @property
    def address(self) -> Address | None:
        return None if self.http_port is None else Address(self.host, self.http_port)

    @property
    def fault(self) -> str:
        if not self.is_there:
            return "no supervisor is registered there: the machine, or `storm supervisor`, is down"
        return "its supervisor has no HTTP: set logviewer.port there"


def machines_of_topology(
    assignment: Assignment | None, supervisors: Mapping[str, SupervisorInfo]
) -> dict[str, LogMachine]:
    """Return the machines of a topology's workers, also released workers, by supervisor id."""
    if assignment is None:
        return {}
    ports: dict[str, set[int]] = {}
    for place in (assignment.executor_node_port or {}).values():
        ports.setdefault(place.node, set()).update(place.port)
    # A released worker's log says why the worker ended.
    for launch in assignment.launches or ():
        ports.setdefault(launch.node, set()).add(launch.port)
    hosts = assignment.node_host or {}
    return {
        node: _machine(hosts.get(node, node), supervisors.get(node), ports[node])
        for node in sorted(ports, key=lambda node: (hosts.get(node, node), node))
    }


def machines_of_host(
    host: str, port: int, supervisors: Mapping[str, SupervisorInfo]
) -> dict[str, LogMachine]:
    """Return all supervisors of a host, for the log of a past worker at `port`."""
    return {
        node: LogMachine(host, info.http_port, True, (port,))
        for node, info in sorted(supervisors.items())
        if info.hostname == host
    }


def all_machines(supervisors: Mapping[str, SupervisorInfo]) -> dict[str, LogMachine]:
    """Return all supervisors, for a topology without workers."""
    return {
        node: LogMachine(info.hostname, info.http_port, True, None)
        for node, info in sorted(supervisors.items(), key=lambda each: (each[1].hostname, each[0]))
    }


def workers_of_component(info: TopologyInfo, component: str) -> set[tuple[str, int]]:
    """Return host and port of a component's workers; raises `UnknownComponentError`."""
    found = {(each.host, each.port) for each in info.executors if each.component_id == component}
    if not found:
        raise unknown_component(info, component)
    return found


def with_workers(
    machines: Mapping[str, LogMachine], workers: Collection[tuple[str, int]]
) -> dict[str, LogMachine]:
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


class RemoteLog(msgspec.Struct, frozen=True):
    """A listed log file; `identity` survives a rename."""

    #: ``ID/PORT/NAME``.
    file: str
    port: int
    identity: str
    size: int
    #: Seconds since 1970.
    modified: float


class LogServer:
    """An HTTP client for a supervisor's logs, with a connection for each request."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def files(self, storm_id: str) -> list[RemoteLog]:
        """Return the logs of a topology's workers, the current log of each slot last.

        Raises `LogsError` if the supervisor does not answer, or refuses.
        """
        query = urlencode({"topoId": storm_id, "details": "yes"})
        status, body = self._get(f"/api/v1/listLogs?{query}")
        if status != HTTPStatus.OK:
            raise self._refused(status, body)
        try:
            return msgspec.json.decode(body, type=list[RemoteLog])
        except msgspec.DecodeError as error:
            raise LogsError(f"{self.address}: this is no supervisor of Stormkeeper's") from error

    def read(self, file: RemoteLog, start: int, length: int) -> bytes | None:
        """Return up to `length` bytes, or None if names changed: list the files again.

        Raises `LogsError` as `files` does.
        """
        query = {"file": file.file, "start": start, "length": length, "identity": file.identity}
        status, body = self._get(f"/api/v1/log?{urlencode(query)}")
        if status in _CHANGED:
            return None
        if status != HTTPStatus.OK:
            raise self._refused(status, body)
        return body

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            try:
                return self._answer(path)
            except ConnectionResetError:
                # The server dropped this connection for a newer connection.
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
            client.sock = connect(self.address, _CONNECT_SECS)
            client.sock.settimeout(_READ_SECS)
            client.request("GET", path, headers={"Connection": "close"})
            answer = client.getresponse()
            return answer.status, answer.read(_MOST_BYTES)

    def _refused(self, status: int, body: bytes) -> LogsError:
        said = body[:200].decode(errors="replace").strip()
        return LogsError(f"{self.address}: {said or f'HTTP status {status}'}")
