"""On which machines a topology's workers are, and where their logs can be had; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stormkeeper.client.monitoring import unknown
from stormkeeper.conf.address import Address
from stormkeeper.thrift.nimbus import TopologyInfo
from stormkeeper.thrift.records import Assignment, SupervisorInfo


@dataclass(frozen=True, slots=True)
class Machine:
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
) -> dict[str, Machine]:
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


def of_host(host: str, port: int, supervisors: Mapping[str, SupervisorInfo]) -> dict[str, Machine]:
    """Return every supervisor of a machine, where a worker may have been that is there no more."""
    return {
        node: _machine(host, info, {port})
        for node, info in sorted(supervisors.items())
        if info.hostname == host
    }


def of_all(supervisors: Mapping[str, SupervisorInfo]) -> dict[str, Machine]:
    """Return every supervisor, where workers of a topology may have been that runs nowhere now."""
    return {
        node: Machine(info.hostname, info.http_port, True, None)
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
    machines: Mapping[str, Machine], workers: Collection[tuple[str, int]]
) -> dict[str, Machine]:
    """Return those of the machines and their ports that are among `workers`."""
    chosen = {}
    for node, machine in machines.items():
        ports = tuple(port for port in machine.ports or () if (machine.host, port) in workers)
        if ports:
            chosen[node] = Machine(machine.host, machine.http_port, machine.is_there, ports)
    return chosen


def _machine(host: str, info: SupervisorInfo | None, ports: Collection[int]) -> Machine:
    found = tuple(sorted(ports))
    if info is None:
        return Machine(host, None, False, found)
    return Machine(info.hostname, info.http_port, True, found)
