"""Calls that read a topology: executors and errors, conf, and the pages of Storm's UI.

Any Nimbus answers. `stormkeeper.statistics.aggregates` computes the figures; this module adds names
and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import CallerError, UnknownComponentError
from stormkeeper.nimbus.health import RUNNING, WorkerHealth
from stormkeeper.nimbus.service.context import CallGroup, ServiceContext
from stormkeeper.nimbus.service.views import View, ViewReader, memory_of, resources, seconds
from stormkeeper.statistics import aggregates
from stormkeeper.statistics.executor_reports import DeclaredComponent, ExecutorReport, Slot, reports
from stormkeeper.thrift.nimbus import (
    ComponentPageInfo,
    ComponentType,
    ExecutorAggregateStats,
    ExecutorSummary,
    GetInfoOptions,
    NumErrorsChoice,
    StormTopology,
    TopologyInfo,
    TopologyPageInfo,
    WorkerSummary,
)
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo, StormBase

Beats = Mapping[Slot, ClusterWorkerHeartbeat]

ALL_TIME: Final = ":all-time"

_MOST_ERRORS: Final = 10
_ERRORS: Final = {
    NumErrorsChoice.ALL: _MOST_ERRORS,
    NumErrorsChoice.ONE: 1,
    NumErrorsChoice.NONE: 0,
}


class PageCalls(CallGroup):
    """The calls that read a topology."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._views = ViewReader(context)

    def getTopologyInfo(self, storm_id: str, /) -> TopologyInfo:
        return self.getTopologyInfoWithOpts(storm_id, GetInfoOptions())

    def getTopologyInfoByName(self, name: str, /) -> TopologyInfo:
        return self.getTopologyInfoByNameWithOpts(name, GetInfoOptions())

    def getTopologyInfoByNameWithOpts(self, name: str, options: GetInfoOptions, /) -> TopologyInfo:
        return self._info(*self._topology_by_name(name), options)

    def getTopologyInfoWithOpts(self, storm_id: str, options: GetInfoOptions, /) -> TopologyInfo:
        return self._info(storm_id, self._base(storm_id), options)

    def getTopologyPageInfo(
        self, storm_id: str, window: str | None, include_sys: bool, /
    ) -> TopologyPageInfo:
        view, beats = self._views.read_with_heartbeats(storm_id, self._base(storm_id))
        errors = self._context.storm.topology_errors(storm_id)
        components, reported = executors(view, beats)
        page = aggregates.topology_page(
            components, reported, window or ALL_TIME, include_sys=include_sys
        )
        for id_, row in (page.id_to_spout_agg_stats | page.id_to_bolt_agg_stats).items():
            row.last_error = next(iter(errors.get(id_, ())), None)
        fields = {**view.common_fields, **vars(page)}
        fields |= {"health": view.health, "workers": _with_details(view, page.workers)}
        return TopologyPageInfo(
            **fields,
            topology_conf="{}" if view.submitted is None else view.submitted.shown_conf,
            debug_options=(view.base.component_debug or {}).get(storm_id),
            topology_version=view.base.topology_version,
            requested_regular_on_heap_memory=view.requested_memory,
            requested_shared_on_heap_memory=0.0,
            requested_regular_off_heap_memory=0.0,
            requested_shared_off_heap_memory=0.0,
            assigned_regular_on_heap_memory=view.assigned_memory,
            assigned_shared_on_heap_memory=0.0,
            assigned_regular_off_heap_memory=0.0,
            assigned_shared_off_heap_memory=0.0,
        )

    def getComponentPageInfo(
        self, storm_id: str, component: str, window: str | None, include_sys: bool, /
    ) -> ComponentPageInfo:
        view, beats = self._views.read_with_heartbeats(storm_id, self._base(storm_id))
        components, reported = executors(view, beats)
        try:
            page = aggregates.component_page(
                component, components, reported, window or ALL_TIME, include_sys=include_sys
            )
        except UnknownComponentError as error:
            raise CallerError(str(error)) from error
        errors = self._context.storm.topology_errors(storm_id).get(component, ())
        return ComponentPageInfo(
            component_id=component,
            component_type=ComponentType[page.component_type.upper()],
            topology_id=storm_id,
            topology_name=view.base.name,
            num_executors=page.num_executors,
            num_tasks=page.num_tasks,
            window_to_stats=page.window_to_stats,
            gsid_to_input_stats=page.gsid_to_input_stats,
            sid_to_output_stats=page.sid_to_output_stats,
            exec_stats=[
                ExecutorAggregateStats(_executor(report), row) for report, row in page.executors
            ],
            errors=list(errors[:_MOST_ERRORS]),
            debug_options=(view.base.component_debug or {}).get(component),
            topology_status=view.base.status.name,
            resources_map=dict(aggregates.NO_RESOURCES),
        )

    def getTopologyConf(self, storm_id: str, /) -> str:
        self._base(storm_id)
        return self._submitted(storm_id).shown_conf

    def getTopology(self, storm_id: str, /) -> StormTopology:
        """Return a running topology: here without components of Storm's own."""
        return self.getUserTopology(storm_id)

    def getUserTopology(self, storm_id: str, /) -> StormTopology:
        self._base(storm_id)
        return self._submitted(storm_id).topology

    def _info(self, storm_id: str, base: StormBase, options: GetInfoOptions) -> TopologyInfo:
        most = _ERRORS[options.num_err_choice or NumErrorsChoice.ALL]
        view, beats = self._views.read_with_heartbeats(storm_id, base)
        errors = self._context.storm.topology_errors(storm_id) if most else {}
        components, reported = executors(view, beats)
        having_tasks = [id_ for id_, component in components.items() if component.num_tasks > 0]
        return TopologyInfo(
            **view.common_fields,
            executors=[_executor(each, with_stats=True) for each in reported],
            errors={id_: list(errors.get(id_, ())[:most]) for id_ in {*having_tasks, *errors}},
            component_debug=dict(view.base.component_debug or {}),
        )


def executors(
    view: View, heartbeats: Beats
) -> tuple[Mapping[str, DeclaredComponent], tuple[ExecutorReport, ...]]:
    """Return a topology's components, and the assigned executors with their newest reports.

    A script's components come from its worker's heartbeat; before, it counts as one component.
    """
    if view.submitted is None:
        return {}, ()
    assigned = reports(view.assignment, view.submitted.tasks, heartbeats)
    if not view.submitted.is_script:
        return view.submitted.components, assigned
    found = tuple(
        report
        for slot in {each.slot: each for each in assigned}.values()
        for report in _of_script(slot, heartbeats.get(slot.slot))
    )
    components = {
        each.component_id: DeclaredComponent("spout", 1, each.num_tasks) for each in found
    }
    return components or view.submitted.components, found


def _of_script(
    slot: ExecutorReport, beat: ClusterWorkerHeartbeat | None
) -> Iterable[ExecutorReport]:
    if beat is None:
        yield slot
        return
    alive = replace(slot, uptime_secs=beat.uptime_secs)
    if not beat.executor_stats:
        yield alive
    for tasks, stats in sorted(beat.executor_stats.items(), key=lambda item: item[0].task_start):
        yield replace(
            alive,
            task_start=tasks.task_start,
            task_end=tasks.task_end,
            component_id=stats.component or f"query-{tasks.task_start}",
            stats=stats,
        )


def worker_summaries(view: View, heartbeats: Beats, *, include_sys: bool) -> list[WorkerSummary]:
    _, reported = executors(view, heartbeats)
    return _with_details(view, aggregates.workers(reported, include_sys=include_sys))


def _executor(report: ExecutorReport, *, with_stats: bool = False) -> ExecutorSummary:
    return ExecutorSummary(
        executor_info=ExecutorInfo(report.task_start, report.task_end),
        component_id=report.component_id,
        host=report.host,
        port=report.port,
        uptime_secs=seconds(report.uptime_secs),
        stats=report.stats if with_stats else None,
    )


def _with_details(view: View, workers: list[WorkerSummary]) -> list[WorkerSummary]:
    """Add to workers what only the records say."""
    memory = memory_of(view.assignment)
    for worker in workers:
        slot = paths.Slot(worker.supervisor_id or "", worker.port or 0)
        vars(worker).update(resources(memory.get(slot, 0.0), memory.get(slot, 0.0)))
        worker.topology_id = view.storm_id
        worker.topology_name = view.base.name
        worker.uptime_secs = seconds(worker.uptime_secs or 0)
        worker.owner = view.base.owner
        worker.health = _health_text(view.workers.get(slot))
    return workers


def _health_text(health: WorkerHealth | None) -> str | None:
    if health is None or (health.state == RUNNING and not health.text):
        return None
    return f"{health.state}: {health.text}" if health.text else health.state
