"""Views of the cluster and the topologies, from Nimbus's reports."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Final

from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.conf.address import supervisor_names
from stormkeeper.errors import NotAliveError, RpcRefusedError, UnknownComponentError
from stormkeeper.names import host_port
from stormkeeper.thrift.nimbus import (
    ClusterSummary,
    ComponentAggregateStats,
    GetInfoOptions,
    NumErrorsChoice,
    TopologyInfo,
    TopologyPageInfo,
    TopologySummary,
)
from stormkeeper.thrift.records import TopologyHealth
from stormkeeper.topology.faults import newest_line
from stormkeeper.topology.schedule_status import ScheduleKind, schedule_kind

#: Shown for a topology whose queries have all ended by themselves.
COMPLETED: Final = "COMPLETED"

#: The window since a worker's start.
_ALL_TIME: Final = ":all-time"
_KILL_WAIT: Final = "topology.message.timeout.secs"

# The views' field names are the keys of `storm status --json`.


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentView:
    """A spout or bolt; counts are rows since the workers' start, None if unknown.

    `error` is the newest error in a line, at `error_time_secs` since 1970.
    """

    id: str
    kind: str
    executors: int
    tasks: int
    emitted: int | None = None
    failed: int | None = None
    error: str | None = None
    error_time_secs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker; `uptime_secs` is 0 before the first heartbeat, `health` None if all is well.

    `supervisor` is the host, or a name if host and port are ambiguous.
    """

    host: str
    port: int
    supervisor_id: str | None
    supervisor: str
    executors: int
    uptime_secs: int
    health: str | None = None

    @property
    def place(self) -> str:
        return host_port(self.supervisor, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """A topology's health; `state` is running, starting, waiting, stuck, crashing or failed.

    `crashes` in a row began at `since_secs` since 1970; `error` is the last in a line.
    """

    state: str
    text: str = ""
    crashes: int | None = None
    since_secs: int | None = None
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.text}" if self.text else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryView:
    """A query's last completed batch and running batch, if any."""

    name: str
    last_batch: int | None = None
    since_last_secs: float | None = None
    running_batch: int | None = None
    running_secs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyView:
    """A topology with components and workers.

    `reporting_workers` counts workers whose heartbeats report executors; until then, Nimbus shows
    the planned components.
    """

    id: str
    name: str
    status: str
    sched_status: str
    uptime_secs: int
    owner: str
    replication_count: int | None
    components: tuple[ComponentView, ...]
    workers: tuple[WorkerView, ...]
    reporting_workers: int
    health: HealthView | None = None
    queries: tuple[QueryView, ...] = ()


def list_topologies(connection: NimbusConnection) -> list[TopologySummary]:
    return sorted(connection.nimbus.getTopologySummaries(), key=lambda each: each.name)


def get_cluster(connection: NimbusConnection) -> ClusterSummary:
    """Return Nimbuses, supervisors and topologies, sorted."""
    found = connection.nimbus.getClusterInfo()
    return ClusterSummary(
        supervisors=sorted(found.supervisors, key=lambda each: (each.host, each.supervisor_id)),
        topologies=sorted(found.topologies, key=lambda each: each.name),
        nimbuses=sorted(found.nimbuses, key=lambda each: (each.host, each.port)),
    )


def find_topology(connection: NimbusConnection, name: str) -> TopologySummary | None:
    try:
        return connection.nimbus.getTopologySummaryByName(name)
    except NotAliveError:
        return None


def get_topology(connection: NimbusConnection, name: str) -> TopologyView:
    """Return a view; raises `NotAliveError` for an unknown name."""
    found = connection.nimbus.getTopologySummaryByName(name)
    return view_of_page(connection.nimbus.getTopologyPageInfo(found.id, _ALL_TIME, False))


def get_info(connection: NimbusConnection, name: str, *, with_errors: bool = False) -> TopologyInfo:
    """Return a topology, also with each component's newest error; raises `NotAliveError`."""
    options = GetInfoOptions(NumErrorsChoice.ONE if with_errors else NumErrorsChoice.NONE)
    return connection.nimbus.getTopologyInfoByNameWithOpts(name, options)


def components_of(info: TopologyInfo) -> list[str]:
    """Return the components with executors, sorted."""
    return sorted({each.component_id for each in info.executors})


def unknown_component(info: TopologyInfo, component: str) -> UnknownComponentError:
    there = ", ".join(components_of(info)) or "none, as it runs nowhere"
    return UnknownComponentError(f"{info.name} has no component {component}; it has {there}")


def view_of_page(page: TopologyPageInfo) -> TopologyView:
    """Return the view of Nimbus's page, with components and workers sorted."""
    components = [
        _component(id_, kind, stats)
        for kind, by_id in (
            ("spout", page.id_to_spout_agg_stats),
            ("bolt", page.id_to_bolt_agg_stats),
        )
        for id_, stats in sorted((by_id or {}).items())
    ]
    names = supervisor_names(
        {each.supervisor_id or "": each.host or "?" for each in page.workers or ()}
    )
    places = Counter((each.host, each.port) for each in page.workers or ())
    workers = [
        WorkerView(
            host=each.host or "?",
            port=each.port or 0,
            supervisor_id=each.supervisor_id,
            supervisor=(
                names[each.supervisor_id or ""]
                if places[each.host, each.port] > 1
                else each.host or "?"
            ),
            executors=each.num_executors or 0,
            uptime_secs=each.uptime_secs or 0,
            health=each.health,
        )
        for each in page.workers or ()
    ]
    return TopologyView(
        id=page.id,
        name=page.name or page.id,
        status=shown_status(page.status, page.sched_status),
        sched_status=_without(page.sched_status or "", page.health),
        uptime_secs=page.uptime_secs or 0,
        owner=page.owner or "",
        replication_count=page.replication_count,
        components=tuple(components),
        workers=tuple(sorted(workers, key=lambda each: (each.supervisor, each.port))),
        reporting_workers=page.num_workers or 0,
        health=health_of(page.health),
        queries=tuple(
            QueryView(
                name=each.query,
                last_batch=each.last_batch,
                since_last_secs=_secs(each.since_last_ms),
                running_batch=each.running_batch,
                running_secs=_secs(each.running_ms),
            )
            for each in (page.health.queries if page.health is not None else None) or ()
        ),
    )


def health_of(found: TopologyHealth | None) -> HealthView | None:
    """Return a topology's health; None if the topology should not run, or without a report."""
    if found is None:
        return None
    if found.crashes is None:
        return HealthView(state=found.state, text=found.text)
    crashes = found.crashes
    return HealthView(
        state=found.state,
        text=found.text,
        crashes=crashes.count,
        since_secs=crashes.since_secs,
        error=crashes.error,
    )


def _without(sched_status: str, health: TopologyHealth | None) -> str:
    """Remove the health that Nimbus appends for Storm's tools."""
    if health is None:
        return sched_status
    return sched_status.removesuffix(f"; {health.state}: {health.text}")


def _secs(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def shown_status(status: str | None, sched_status: str | None) -> str:
    """Return the status to show; Storm has no status for a completed topology.

    Examples
    --------
    >>> shown_status("ACTIVE", "Completed"), shown_status("KILLED", "Completed")
    ('COMPLETED', 'KILLED')
    """
    if status in ("ACTIVE", "INACTIVE") and schedule_kind(sched_status) is ScheduleKind.COMPLETED:
        return COMPLETED
    return status or "?"


def kill_wait_secs(connection: NimbusConnection, name: str) -> float:
    """Return Nimbus's default wait before a kill or rebalance."""
    found = connection.nimbus.getTopologySummaryByName(name)
    try:
        conf = connection.nimbus.getTopologyConf(found.id)
    except RpcRefusedError:
        # The topology's code is lost or damaged; Nimbus then uses its own conf.
        conf = connection.nimbus.getNimbusConf()
    return float(json.loads(conf)[_KILL_WAIT])


def _component(id_: str, kind: str, stats: ComponentAggregateStats) -> ComponentView:
    common, error = stats.common_stats, stats.last_error
    return ComponentView(
        id=id_,
        kind=kind,
        executors=(common.num_executors if common else None) or 0,
        tasks=(common.num_tasks if common else None) or 0,
        emitted=common.emitted if common else None,
        failed=common.failed if common else None,
        error=None if error is None else newest_line(error.error),
        error_time_secs=None if error is None else error.error_time_secs,
    )
