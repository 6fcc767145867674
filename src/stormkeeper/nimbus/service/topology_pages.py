"""Storm's structs for the pages of topologies and components; pure.

`stormkeeper.statistics.aggregates` computes the figures; this module adds names and errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from stormkeeper import paths
from stormkeeper.nimbus.health import RUNNING, WorkerHealth
from stormkeeper.nimbus.service.topology_conf import without_secrets
from stormkeeper.nimbus.service.views import (
    View,
    memory_of,
    resources,
    seconds,
    without_queries,
)
from stormkeeper.statistics import aggregates
from stormkeeper.statistics.aggregates import SpoutStatistics, Statistics
from stormkeeper.statistics.executor_reports import DeclaredComponent, ExecutorReport, Slot, reports
from stormkeeper.thrift.nimbus import (
    BoltAggregateStats,
    CommonAggregateStats,
    ComponentAggregateStats,
    ComponentPageInfo,
    ComponentType,
    ExecutorAggregateStats,
    ExecutorSummary,
    NumErrorsChoice,
    SpecificAggregateStats,
    SpoutAggregateStats,
    TopologyInfo,
    TopologyPageInfo,
    TopologyStats,
    WorkerSummary,
)
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ErrorInfo, ExecutorInfo

#: Newest first, by component.
Errors = Mapping[str, Sequence[ErrorInfo]]

#: The default window of a page.
ALL_TIME: Final = ":all-time"

#: A component's resources in Storm's names: zero, as memory is counted per worker of the topology.
_RESOURCES: Final = {"onheap.memory.mb": 0.0, "offheap.memory.mb": 0.0, "cpu.pcore.percent": 0.0}

#: Most errors of a component in an answer.
_TOLD: Final = 10


def executors(
    view: View, heartbeats: Mapping[Slot, ClusterWorkerHeartbeat]
) -> tuple[Mapping[str, DeclaredComponent], tuple[ExecutorReport, ...]]:
    """Return a topology's components, and the assigned executors with their newest reports.

    A script's components come from its worker's heartbeat; before the first one the script counts
    as one component. `heartbeats` are those of the topology's workers, by slot.
    """
    if view.submitted is None:
        return {}, ()
    assigned = reports(view.assignment, view.submitted.tasks, heartbeats)
    if not view.submitted.is_script:
        return view.submitted.components, assigned
    said = tuple(
        report
        for slot in {each.slot: each for each in assigned}.values()
        for report in _of_script(slot, heartbeats.get(slot.slot))
    )
    components = {each.component_id: DeclaredComponent("spout", 1, each.num_tasks) for each in said}
    return components or view.submitted.components, said


def _of_script(
    slot: ExecutorReport, beat: ClusterWorkerHeartbeat | None
) -> Iterable[ExecutorReport]:
    if beat is None:
        yield slot
        return
    alive = replace(slot, uptime_secs=beat.uptime_secs)
    if not beat.executor_stats:
        yield alive
    for tasks, stats in sorted(beat.executor_stats.items(), key=_first):
        yield replace(
            alive,
            task_start=tasks.task_start,
            task_end=tasks.task_end,
            component_id=stats.component or f"query-{tasks.task_start}",
            stats=stats,
        )


def _first(item: tuple[ExecutorInfo, object]) -> int:
    return item[0].task_start


def topology_info(
    view: View,
    heartbeats: Mapping[Slot, ClusterWorkerHeartbeat],
    errors: Errors,
    choice: NumErrorsChoice,
) -> TopologyInfo:
    """Return Storm's ``getTopologyInfo``; `choice` is the number of errors per component."""
    components, reported = executors(view, heartbeats)
    base = view.base
    most = {NumErrorsChoice.ALL: _TOLD, NumErrorsChoice.ONE: 1, NumErrorsChoice.NONE: 0}[choice]
    having_tasks = [id_ for id_, component in components.items() if component.num_tasks > 0]
    return TopologyInfo(
        id=view.storm_id,
        name=base.name,
        uptime_secs=view.uptime_secs,
        executors=[_executor(each, with_stats=True) for each in reported],
        status=base.status.name,
        errors={id_: list(errors.get(id_, ())[:most]) for id_ in {*having_tasks, *errors}},
        component_debug=dict(base.component_debug or {}),
        storm_version=view.storm_version,
        sched_status=view.shown_sched_status,
        owner=base.owner,
        replication_count=view.replication_count,
        **resources(view.requested_memory, view.assigned_memory),
        health=without_queries(view.health),
    )


def topology_page(
    view: View,
    heartbeats: Mapping[Slot, ClusterWorkerHeartbeat],
    errors: Errors,
    window: str,
    *,
    include_sys: bool,
) -> TopologyPageInfo:
    """Return Storm's ``getTopologyPageInfo``."""
    components, reported = executors(view, heartbeats)
    page = aggregates.topology_page(components, reported, window, include_sys=include_sys)
    base = view.base
    return TopologyPageInfo(
        id=view.storm_id,
        name=base.name,
        uptime_secs=view.uptime_secs,
        status=base.status.name,
        num_tasks=page.num_tasks,
        num_workers=page.num_workers,
        num_executors=page.num_executors,
        topology_conf=json.dumps(without_secrets(view.conf), sort_keys=True),
        id_to_spout_agg_stats={
            id_: _row(stats, _last(errors, id_))
            for id_, stats in page.id_to_spout_agg_stats.items()
        },
        id_to_bolt_agg_stats={
            id_: _row(stats, _last(errors, id_)) for id_, stats in page.id_to_bolt_agg_stats.items()
        },
        sched_status=view.shown_sched_status,
        topology_stats=TopologyStats(
            window_to_emitted=dict(page.topology_stats.window_to_emitted),
            window_to_transferred=dict(page.topology_stats.window_to_transferred),
            window_to_complete_latencies_ms=dict(
                page.topology_stats.window_to_complete_latencies_ms
            ),
            window_to_acked=dict(page.topology_stats.window_to_acked),
            window_to_failed=dict(page.topology_stats.window_to_failed),
        ),
        owner=base.owner,
        debug_options=(base.component_debug or {}).get(view.storm_id),
        replication_count=view.replication_count,
        workers=[_worker(view, each) for each in page.workers],
        storm_version=view.storm_version,
        topology_version=base.topology_version,
        **resources(view.requested_memory, view.assigned_memory),
        requested_regular_on_heap_memory=view.requested_memory,
        requested_shared_on_heap_memory=0.0,
        requested_regular_off_heap_memory=0.0,
        requested_shared_off_heap_memory=0.0,
        assigned_regular_on_heap_memory=view.assigned_memory,
        assigned_shared_on_heap_memory=0.0,
        assigned_regular_off_heap_memory=0.0,
        assigned_shared_off_heap_memory=0.0,
        health=view.health,
    )


def component_page(
    view: View,
    component: str,
    heartbeats: Mapping[Slot, ClusterWorkerHeartbeat],
    errors: Errors,
    window: str,
    *,
    include_sys: bool,
) -> ComponentPageInfo:
    """Return Storm's ``getComponentPageInfo``; raises `UnknownComponentError`."""
    components, reported = executors(view, heartbeats)
    page = aggregates.component_page(
        component, components, reported, window, include_sys=include_sys
    )
    return ComponentPageInfo(
        component_id=component,
        component_type=ComponentType[page.component_type.upper()],
        topology_id=view.storm_id,
        topology_name=view.base.name,
        num_executors=page.num_executors,
        num_tasks=page.num_tasks,
        window_to_stats={each: _row(stats) for each, stats in page.window_to_stats.items()},
        gsid_to_input_stats=(
            None
            if page.gsid_to_input_stats is None
            else {stream: _row(stats) for stream, stats in page.gsid_to_input_stats.items()}
        ),
        sid_to_output_stats={
            stream: _row(stats) for stream, stats in page.sid_to_output_stats.items()
        },
        exec_stats=[
            ExecutorAggregateStats(_executor(each.exec_summary), _row(each.stats))
            for each in page.exec_stats
        ],
        errors=list(errors.get(component, ())[:_TOLD]),
        debug_options=(view.base.component_debug or {}).get(component),
        topology_status=view.base.status.name,
        resources_map=dict(_RESOURCES),
    )


def worker_summaries(
    view: View, heartbeats: Mapping[Slot, ClusterWorkerHeartbeat], *, include_sys: bool
) -> list[WorkerSummary]:
    """Return a topology's workers."""
    _, reported = executors(view, heartbeats)
    found = aggregates.workers(reported, include_sys=include_sys)
    return [_worker(view, each) for each in found]


def _last(errors: Errors, component: str) -> ErrorInfo | None:
    of_it = errors.get(component)
    return of_it[0] if of_it else None


def _row(stats: Statistics, last_error: ErrorInfo | None = None) -> ComponentAggregateStats:
    common = CommonAggregateStats(
        num_executors=stats.num_executors,
        num_tasks=stats.num_tasks,
        emitted=stats.emitted,
        transferred=stats.transferred,
        acked=stats.acked,
        failed=stats.failed,
        resources_map=dict(_RESOURCES),
    )
    if isinstance(stats, SpoutStatistics):
        kind = ComponentType.SPOUT
        specific = SpecificAggregateStats(spout=SpoutAggregateStats(stats.complete_latency_ms))
    else:
        kind = ComponentType.BOLT
        specific = SpecificAggregateStats(
            bolt=BoltAggregateStats(
                execute_latency_ms=stats.execute_latency_ms,
                process_latency_ms=stats.process_latency_ms,
                executed=stats.executed,
                capacity=stats.capacity,
            )
        )
    return ComponentAggregateStats(kind, common, specific, last_error)


def _executor(report: ExecutorReport, *, with_stats: bool = False) -> ExecutorSummary:
    return ExecutorSummary(
        executor_info=ExecutorInfo(report.task_start, report.task_end),
        component_id=report.component_id,
        host=report.host,
        port=report.port,
        uptime_secs=seconds(report.uptime_secs),
        stats=report.stats if with_stats else None,
    )


def _worker(view: View, worker: aggregates.WorkerSummary) -> WorkerSummary:
    memory = memory_of(view.assignment).get((worker.supervisor_id, worker.port), 0.0)
    return WorkerSummary(
        supervisor_id=worker.supervisor_id,
        host=worker.host,
        port=worker.port,
        topology_id=view.storm_id,
        topology_name=view.base.name,
        num_executors=worker.num_executors,
        component_to_num_tasks=dict(worker.component_to_num_tasks),
        uptime_secs=seconds(worker.uptime_secs),
        **resources(memory, memory),
        owner=view.base.owner,
        health=_word(view.workers.get(paths.Slot(worker.supervisor_id or "", worker.port or 0))),
    )


def _word(health: WorkerHealth | None) -> str | None:
    """Return a worker's health as a line; None for a healthy worker."""
    if health is None or (health.state == RUNNING and not health.text):
        return None
    return f"{health.state}: {health.text}" if health.text else health.state
