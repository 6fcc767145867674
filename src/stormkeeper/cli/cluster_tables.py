"""A cluster as lines for people, and as an object for JSON; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import stormkeeper
from stormkeeper.cli import tables
from stormkeeper.cli.columns import aligned
from stormkeeper.cli.durations import duration
from stormkeeper.client.topology_view import health_of
from stormkeeper.conf.address import supervisor_names
from stormkeeper.names import host_port, printable

if TYPE_CHECKING:
    from stormkeeper.thrift.nimbus import ClusterSummary, SupervisorSummary, TopologySummary
    from stormkeeper.thrift.records import NimbusSummary

#: What a supervisor has for its workers, in MB.
_MEMORY: Final = "memory.mb"

#: What ``sched_status`` begins with where a topology has all that it is to have.
_IN_PLACE: Final = ("Fully Scheduled", "Completed")


def of_cluster(cluster: ClusterSummary) -> Iterator[str]:
    """Yield what there is to say of a cluster."""
    yield from aligned(
        [
            ("NIMBUS", "LEADS", "RUNS FOR", "RELEASE"),
            *(
                (
                    printable(host_port(each.host, each.port)),
                    "yes" if each.isLeader else "",
                    duration(each.uptime_secs),
                    printable(each.version),
                )
                for each in cluster.nimbuses
            ),
        ]
    )
    for nimbus in cluster.nimbuses:
        if nimbus.disk_fault:
            yield (
                f"the Nimbus {printable(host_port(nimbus.host, nimbus.port))} takes no uploads:"
                f" {printable(nimbus.disk_fault)}"
            )
    yield from _java_nimbuses(cluster)
    yield ""
    names = supervisor_names({each.supervisor_id: each.host for each in cluster.supervisors})
    if cluster.supervisors:
        rows = [_row(names[each.supervisor_id], each) for each in cluster.supervisors]
        heads = ("SUPERVISOR", "FREE SLOTS", "FREE MEMORY", "RUNS FOR", "RELEASE")
        yield from aligned([heads, *rows])
    else:
        yield "No supervisors: nothing can run. Start `storm supervisor` on each machine."
    for each in cluster.supervisors:
        if each.java_only:
            yield (
                f"{printable(names[each.supervisor_id])} is Storm"
                f" {printable(each.version or '')}, runs Java topologies only"
            )
        if each.refuses:
            yield (
                f"{printable(names[each.supervisor_id])} takes no new work:"
                f" {printable(each.refuses)}"
            )
    yield ""
    number = len(cluster.topologies)
    yield f"{number} {'topology' if number == 1 else 'topologies'}; `storm list` lists them"
    for topology in cluster.topologies:
        health = health_of(topology.health)
        if health is not None and health.text:
            yield f"{printable(topology.name)}: {printable(str(health))}"
        elif health is None and _waits(topology):
            yield f"{printable(topology.name)}: {printable(topology.sched_status or '')}"


def _java_nimbuses(cluster: ClusterSummary) -> Iterator[str]:
    """Yield a warning of Storm's own Nimbuses; one that leads tells nothing of the others."""
    leader = next((each for each in cluster.nimbuses if each.isLeader), None)
    if leader is None:
        return
    for each in [leader] if _is_java(leader) else cluster.nimbuses:
        if _is_java(each):
            advice = "it leads, and" if each.isLeader else "stop it, as it"
            yield (
                f"{printable(host_port(each.host, each.port))} is Storm {printable(each.version)}:"
                f" {advice} runs Java topologies only"
            )


def _is_java(nimbus: NimbusSummary) -> bool:
    return nimbus.stormkeeper is None and nimbus.version != stormkeeper.UNNAMED_VERSION


def as_values(cluster: ClusterSummary) -> dict[str, Any]:
    """Return a cluster as an object for JSON; memory is in MB."""
    return {
        "nimbuses": [
            {
                "host": each.host,
                "port": each.port,
                "leader": each.isLeader,
                "stormkeeper": each.stormkeeper,
                "uptime_secs": each.uptime_secs,
                "version": each.version,
                "disk_fault": each.disk_fault,
            }
            for each in cluster.nimbuses
        ],
        "supervisors": [
            {
                "id": each.supervisor_id,
                "host": each.host,
                "slots": each.num_workers,
                "used_slots": each.num_used_workers,
                "memory_mb": _memory(each),
                "used_memory_mb": each.used_mem,
                "uptime_secs": each.uptime_secs,
                "version": each.version,
                "refuses": each.refuses,
                "java_only": bool(each.java_only),
            }
            for each in cluster.supervisors
        ],
        "topologies": [tables.as_values(each) for each in cluster.topologies],
    }


def _row(name: str, supervisor: SupervisorSummary) -> tuple[str, ...]:
    slots, memory = supervisor.num_workers, _memory(supervisor)
    free = max(0, slots - supervisor.num_used_workers)
    free_mb = None if memory is None else max(0.0, memory - (supervisor.used_mem or 0.0))
    return (
        printable(name),
        "none" if supervisor.java_only else f"{free} of {slots}",
        "-" if free_mb is None else f"{free_mb:,.0f} of {memory:,.0f} MB",
        duration(supervisor.uptime_secs),
        printable(supervisor.version or "-"),
    )


def _memory(supervisor: SupervisorSummary) -> float | None:
    return (supervisor.total_resources or {}).get(_MEMORY)


def _waits(topology: TopologySummary) -> bool:
    """Return whether a topology that is to run has less than it asks for."""
    status = topology.sched_status or ""
    return (
        topology.status in ("ACTIVE", "INACTIVE")
        and bool(status)
        and not status.startswith(_IN_PLACE)
    )
