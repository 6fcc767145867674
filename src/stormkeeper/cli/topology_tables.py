"""The cluster and the topologies as tables and JSON values; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import stormkeeper
from stormkeeper.cli.output import ago, aligned, duration
from stormkeeper.client.topology_view import COMPLETED, health_of, shown_status
from stormkeeper.conf.address import supervisor_names
from stormkeeper.names import host_port, printable
from stormkeeper.topology.faults import UNSEEN_END
from stormkeeper.topology.schedule_status import ScheduleKind, schedule_kind

if TYPE_CHECKING:
    from stormkeeper.client.topology_view import ComponentView, QueryView, TopologyView, WorkerView
    from stormkeeper.thrift.nimbus import ClusterSummary, SupervisorSummary, TopologySummary
    from stormkeeper.thrift.records import ErrorInfo, NimbusSummary


#: The columns of Storm's table, with smallest widths.
_COLUMNS: Final = (
    ("Topology_name", 20),
    ("Status", 10),
    ("Num_tasks", 10),
    ("Num_workers", 12),
    ("Uptime_secs", 12),
    ("Topology_Id", 20),
    ("Owner", 20),
    # Stormkeeper's, if a topology has a health.
    ("Health", 6),
)
#: The line below the heading.
_DASHES: Final = 88

#: A supervisor's memory, in MB.
_MEMORY: Final = "memory.mb"


def storm_table(found: Sequence[TopologySummary]) -> Iterator[str]:
    """Yield the lines of Storm's table of topologies, with our column for health."""
    if not found:
        yield "No topologies running."
        return
    rows: list[tuple[str, ...]] = [
        (
            printable(each.name),
            shown_status(each.status, each.sched_status),
            str(each.num_tasks),
            str(each.num_workers),
            str(each.uptime_secs),
            printable(each.id),
            printable(each.owner or ""),
            _health(each),
        )
        for each in found
    ]
    columns: Sequence[tuple[str, int]] = _COLUMNS
    if all(each.health is None for each in found):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    head, *lines = aligned([[f"{name:{width}}" for name, width in columns], *rows], gap=" ")
    yield head
    yield "-" * _DASHES
    yield from lines


def fitting_table(found: Sequence[TopologySummary], width: int) -> Iterator[str]:
    """Yield the lines of Storm's table, or a shorter table for a small `width`."""
    lines = [*storm_table(found)]
    if not found or max(map(len, lines)) <= width:
        yield from lines
        return
    rows = [
        (
            printable(each.name),
            shown_status(each.status, each.sched_status),
            str(each.num_workers),
            duration(each.uptime_secs),
            _health(each),
        )
        for each in found
    ]
    for text in aligned([("NAME", "STATUS", "WORKERS", "UPTIME", "HEALTH"), *rows]):
        yield text if len(text) <= width else f"{text[: width - 1]}…"


def _health(topology: TopologySummary) -> str:
    health = health_of(topology.health)
    return "-" if health is None else printable(str(health))


def topology_values(each: TopologySummary) -> dict[str, Any]:
    health = health_of(each.health)
    return {
        "name": each.name,
        "id": each.id,
        "status": shown_status(each.status, each.sched_status),
        "health": None if health is None else asdict(health),
        "sched_status": each.sched_status,
        "num_tasks": each.num_tasks,
        "num_executors": each.num_executors,
        "num_workers": each.num_workers,
        "uptime_secs": each.uptime_secs,
        "owner": each.owner,
        "replication_count": each.replication_count,
    }


def topology_lines(topology: TopologyView, now: float) -> Iterator[str]:
    """Yield a topology's page; `now` is in seconds since 1970."""
    name = printable(topology.name)
    yield f"{name}: {topology.status}, submitted {ago(topology.uptime_secs)}"
    yield f"  id        {printable(topology.id)}"
    if topology.owner:
        yield f"  owner     {printable(topology.owner)}"
    if topology.health is not None:
        yield f"  health    {printable(str(topology.health))}"
    # Storm's own Nimbus reports no schedule of a running topology.
    if topology.sched_status or not topology.workers:
        yield f"  schedule  {printable(topology.sched_status) or 'not planned yet'}"
    if topology.replication_count is not None:
        nimbuses = "Nimbus" if topology.replication_count == 1 else "Nimbuses"
        yield f"  code on   {topology.replication_count} {nimbuses}"
    yield ""
    if topology.components:
        heads = ("COMPONENT", "KIND", "EXECUTORS", "TASKS", "EMITTED", "FAILED")
        yield from aligned([heads, *map(_component, topology.components)])
        yield ""
    if topology.workers:
        yield from aligned([("WORKER", "EXECUTORS", "RUNS FOR"), *map(_worker, topology.workers)])
    elif topology.status == COMPLETED:
        yield f"No workers: all queries have ended. `storm logs {name}` shows their output."
    else:
        yield "No workers."
    if topology.queries:
        yield ""
        yield from aligned(
            [("QUERY", "LAST BATCH", "RUNNING BATCH"), *map(_query, topology.queries)]
        )
    errors = [
        each
        for each in topology.components
        if each.error is not None and not _is_over(topology, each, now)
    ]
    if errors:
        yield ""
    for each in sorted(errors, key=lambda each: -(each.error_time_secs or 0)):
        when = ago(now - (each.error_time_secs or 0))
        yield f"{printable(each.id)}, {when}: {printable(each.error or '')}"


def error_lines(newest: Mapping[str, ErrorInfo], now: float) -> Iterator[str]:
    """Yield each component's whole error, the newest last; `now` is seconds since 1970."""
    if not newest:
        yield "No errors."
    for component, error in sorted(newest.items(), key=lambda each: each[1].error_time_secs):
        where = f", at {printable(error.host)}:{error.port}" if error.host else ""
        yield f"{printable(component)}, {ago(now - error.error_time_secs)}{where}:"
        yield from (f"  {printable(line)}" for line in error.error.expandtabs().splitlines())


def _component(component: ComponentView) -> tuple[str, ...]:
    numbers = (component.executors, component.tasks, component.emitted, component.failed)
    counts = ("-" if number is None else f"{number:,}" for number in numbers)
    return printable(component.id), component.kind, *counts


def _worker(worker: WorkerView) -> tuple[str, ...]:
    runs_for = printable(worker.health or "no pulse yet")
    if worker.health is None and worker.uptime_secs:
        runs_for = duration(worker.uptime_secs)
    return printable(worker.place), str(worker.executors), runs_for


def _query(query: QueryView) -> tuple[str, ...]:
    last = running = "-"
    if query.last_batch is not None:
        last = f"{query.last_batch}, {ago(query.since_last_secs or 0)}"
    if query.running_batch is not None:
        running = f"{query.running_batch}, for {duration(int(query.running_secs or 0))}"
    return printable(query.name), last, running


def _is_over(topology: TopologyView, component: ComponentView, now: float) -> bool:
    """Return whether an error is an unknown exit code, and all workers have run since."""
    if UNSEEN_END not in (component.error or ""):
        return False
    age = now - (component.error_time_secs or 0)
    return all(0 < each.uptime_secs < age for each in topology.workers)


def cluster_lines(cluster: ClusterSummary) -> Iterator[str]:
    nimbuses = [
        (
            printable(host_port(each.host, each.port)),
            "yes" if each.isLeader else "",
            duration(each.uptime_secs),
            printable(each.version),
        )
        for each in cluster.nimbuses
    ]
    yield from aligned([("NIMBUS", "LEADS", "RUNS FOR", "RELEASE"), *nimbuses])
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
    """Yield warnings of Storm's own Nimbuses; such a leader does not report the releases."""
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


def cluster_values(cluster: ClusterSummary) -> dict[str, Any]:
    """Return a cluster for JSON; memory is in MB."""
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
        "topologies": [topology_values(each) for each in cluster.topologies],
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
    status = topology.sched_status or ""
    return (
        topology.status in ("ACTIVE", "INACTIVE")
        and bool(status)
        and schedule_kind(status) not in (ScheduleKind.FULL, ScheduleKind.COMPLETED)
    )
