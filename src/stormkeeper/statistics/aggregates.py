"""The figures of Storm's pages of a topology, a component and workers, as Storm's Thrift records.

The rules are Storm's:

- Only executors with a report count. For a window without reports, rows are zeros; figures by
  window, and capacity, do not depend on the window (``600``, ``10800``, ``86400`` seconds or
  ``:all-time``).
- Without system streams, emitted and transferred counts on system streams are left out; acked,
  failed and executed counts never are.
- A latency over several streams or executors is the sum of average times count, divided by the sum
  of the counts: a spout's acked, or a bolt's executed tuples.
- An average that is not finite counts as 0, but its count is divided by.

Sums do not depend on the order of executors and streams: counts are integers, and the terms of
averages are added exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any, Final, NamedTuple

from stormkeeper.errors import UnknownComponentError
from stormkeeper.statistics.executor_reports import (
    DeclaredComponent,
    ExecutorReport,
    Kind,
    Slot,
    is_system,
)
from stormkeeper.thrift.nimbus import (
    BoltAggregateStats,
    CommonAggregateStats,
    ComponentAggregateStats,
    ComponentType,
    SpecificAggregateStats,
    SpoutAggregateStats,
    TopologyStats,
    WorkerSummary,
)
from stormkeeper.thrift.records import ExecutorStats, GlobalStreamId

Stream = str | GlobalStreamId

#: The window of capacity.
_CAPACITY_WINDOW = "600"
_CAPACITY_SECS = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

_Counts = Mapping[str, Mapping[Any, int]]
_Averages = Mapping[str, Mapping[Any, float]]

#: A component's resources in Storm's names: zero, as memory is counted per worker.
NO_RESOURCES: Final = {"onheap.memory.mb": 0.0, "offheap.memory.mb": 0.0, "cpu.pcore.percent": 0.0}

Rows = dict[str, ComponentAggregateStats]


@dataclass(frozen=True)
class TopologyPage:
    """The figures of ``TopologyPageInfo``.

    `num_tasks` and `num_executors` are of all executors, `num_workers` of visible executors with
    reports.
    """

    num_tasks: int
    num_workers: int
    num_executors: int
    id_to_spout_agg_stats: Rows
    id_to_bolt_agg_stats: Rows
    topology_stats: TopologyStats
    workers: list[WorkerSummary]


@dataclass(frozen=True, slots=True)
class ComponentPage:
    """The figures of ``ComponentPageInfo``.

    `gsid_to_input_stats` is None for a spout. `executors` is sorted by task.
    """

    component_id: str
    component_type: Kind
    num_executors: int
    num_tasks: int
    window_to_stats: Rows
    gsid_to_input_stats: dict[GlobalStreamId, ComponentAggregateStats] | None
    sid_to_output_stats: Rows
    executors: list[tuple[ExecutorReport, ComponentAggregateStats]]


class _Counted(NamedTuple):
    executor: ExecutorReport
    kind: Kind
    measures: Measures


def topology_page(
    components: Mapping[str, DeclaredComponent],
    executors: Iterable[ExecutorReport],
    window: str,
    *,
    include_sys: bool,
) -> TopologyPage:
    """Return the page of a topology; `window` is that of the components' rows.

    As in Storm, component latencies consist of whole milliseconds: each executor's total time is
    truncated first. While no spout has reported, each has a row of zeros; likewise bolts.
    """
    executors = tuple(executors)
    reporting = _reporting(components, executors, include_sys=include_sys)
    groups: dict[str, list[_Counted]] = {}
    for one in reporting:
        groups.setdefault(one.executor.component_id, []).append(one)
    rows: dict[Kind, Rows] = {"spout": {}, "bolt": {}}
    for id_, group in groups.items():
        kind = components[id_].kind
        tally = Tally.of_truncated((one.measures for one in group), window)
        share = max(0.0, *map(_capacity, group))
        rows[kind][id_] = _row(kind, tally, *_size(group), share=share)
    unreported = [kind for kind, found in rows.items() if not found]
    for id_, component in components.items():
        is_shown = component.num_tasks > 0 and (include_sys or not is_system(id_))
        if is_shown and component.kind in unreported:
            rows[component.kind][id_] = _row(
                component.kind, Tally(), component.num_executors, component.num_tasks
            )
    return TopologyPage(
        num_tasks=sum(component.num_tasks for component in components.values()),
        num_workers=len({one.executor.slot for one in reporting}),
        num_executors=len(executors),
        id_to_spout_agg_stats=rows["spout"],
        id_to_bolt_agg_stats=rows["bolt"],
        topology_stats=_totals(reporting),
        workers=workers(executors, include_sys=include_sys),
    )


def component_page(
    component_id: str,
    components: Mapping[str, DeclaredComponent],
    executors: Iterable[ExecutorReport],
    window: str,
    *,
    include_sys: bool,
) -> ComponentPage:
    """Return the page of a component; an empty page for Storm's own unless `include_sys`.

    `window` is that of the rows of streams and executors. Raises `UnknownComponentError` if the
    topology lacks the component.
    """
    if component_id not in components:
        raise UnknownComponentError(
            f"the topology has no component {component_id!r}: its components are "
            f"{', '.join(map(repr, sorted(components))) or 'none'}"
        )
    kind = components[component_id].kind
    own = (executor for executor in executors if executor.component_id == component_id)
    counted = _reporting(components, own, include_sys=include_sys)
    every = [one.measures for one in counted]
    streams = Tally.by_stream(every, window).items()
    num_executors, num_tasks = _size(counted)
    return ComponentPage(
        component_id=component_id,
        component_type=kind,
        num_executors=num_executors,
        num_tasks=num_tasks,
        window_to_stats={
            reported: _row(kind, Tally.of(every, reported))
            for reported in sorted({reported for one in every for reported in one.windows})
        },
        gsid_to_input_stats=(
            {key: _row(kind, tally) for key, tally in streams if not isinstance(key, str)}
            if kind == "bolt"
            else None
        ),
        sid_to_output_stats={
            key: _row(kind, tally) for key, tally in streams if isinstance(key, str)
        },
        executors=[
            (
                one.executor,
                _row(kind, Tally.of([one.measures], window), share=_capacity(one)),
            )
            for one in sorted(counted, key=lambda one: one.executor.task_start)
        ],
    )


def workers(executors: Iterable[ExecutorReport], *, include_sys: bool) -> list[WorkerSummary]:
    """Return the workers of a topology's executors, by slot, with or without reports.

    ``num_executors`` includes Storm's own executors, ``component_to_num_tasks`` only with
    `include_sys`. ``uptime_secs`` is 0 without a report.
    """
    by_slot: dict[Slot, list[ExecutorReport]] = {}
    for executor in executors:
        by_slot.setdefault(executor.slot, []).append(executor)
    return [
        WorkerSummary(
            supervisor_id=supervisor_id,
            host=found[0].host,
            port=port,
            num_executors=len(found),
            component_to_num_tasks=_tasks_of_components(found, include_sys=include_sys),
            uptime_secs=max(executor.uptime_secs for executor in found),
        )
        for (supervisor_id, port), found in sorted(by_slot.items())
    ]


def _tasks_of_components(
    executors: Iterable[ExecutorReport], *, include_sys: bool
) -> dict[str, int]:
    tasks: dict[str, int] = {}
    for executor in executors:
        id_ = executor.component_id
        if include_sys or not is_system(id_):
            tasks[id_] = tasks.get(id_, 0) + executor.num_tasks
    return tasks


def _reporting(
    components: Mapping[str, DeclaredComponent],
    executors: Iterable[ExecutorReport],
    *,
    include_sys: bool,
) -> list[_Counted]:
    found = []
    for executor in executors:
        if executor.stats is not None and (include_sys or not is_system(executor.component_id)):
            kind = components[executor.component_id].kind
            of = measures(executor.stats, kind, include_sys=include_sys)
            found.append(_Counted(executor, kind, of))
    return found


def _totals(reporting: Sequence[_Counted]) -> TopologyStats:
    """Acked, failed and latencies are of spouts alone."""
    every = [one.measures for one in reporting]
    spouts = [one.measures for one in reporting if one.kind == "spout"]
    acked = counts_by_window(spouts, "acked")
    latencies = {window: Tally.of(spouts, window).latency("complete", "acked") for window in acked}
    return TopologyStats(
        window_to_emitted=counts_by_window(every, "emitted"),
        window_to_transferred=counts_by_window(every, "transferred"),
        window_to_complete_latencies_ms={
            window: latency for window, latency in latencies.items() if latency is not None
        },
        window_to_acked=acked,
        window_to_failed=counts_by_window(spouts, "failed"),
    )


def _size(group: Sequence[_Counted]) -> tuple[int, int]:
    return len(group), sum(one.executor.num_tasks for one in group)


def _capacity(one: _Counted) -> float:
    return capacity(one.measures, one.executor.uptime_secs)


def _row(
    kind: Kind, tally: Tally, num_executors: int = 0, num_tasks: int = 0, *, share: float = 0.0
) -> ComponentAggregateStats:
    """Return a row; latency is 0 if nothing was counted, `share` is a bolt's capacity."""
    common = CommonAggregateStats(
        num_executors=num_executors,
        num_tasks=num_tasks,
        emitted=tally.count("emitted"),
        transferred=tally.count("transferred"),
        acked=tally.count("acked"),
        failed=tally.count("failed"),
        resources_map=dict(NO_RESOURCES),
    )
    if kind == "spout":
        latency_ms = tally.latency("complete", "acked") or 0.0
        specific = SpecificAggregateStats(spout=SpoutAggregateStats(latency_ms))
    else:
        specific = SpecificAggregateStats(
            bolt=BoltAggregateStats(
                execute_latency_ms=tally.latency("execute", "executed") or 0.0,
                process_latency_ms=tally.latency("process", "executed") or 0.0,
                executed=tally.count("executed"),
                capacity=share,
            )
        )
    return ComponentAggregateStats(ComponentType[kind.upper()], common, specific)


@dataclass(frozen=True, slots=True)
class Measures:
    """An executor's counts and latencies, by window and stream.

    `counts` and `latencies` are by name; a latency has averages in milliseconds, and the name of
    the count that weighs them.
    """

    counts: Mapping[str, _Counts]
    latencies: Mapping[str, tuple[_Averages, str]]

    @property
    def windows(self) -> set[str]:
        """The windows with any count, also 0."""
        return {window for by_window in self.counts.values() for window in by_window}

    def terms(self, latency: str, window: str) -> Iterator[tuple[Any, float]]:
        """Yield each stream with its average times its count."""
        averages, weight = self.latencies[latency]
        weights = self.counts[weight].get(window, {})
        for stream, average in averages.get(window, {}).items():
            # Storm fails on a stream with an average and no count.
            if stream in weights:
                term = average * weights[stream]
                yield stream, term if isfinite(term) else 0.0


def measures(stats: ExecutorStats, kind: Kind, *, include_sys: bool) -> Measures:
    """Statistics of the other kind of component are ignored."""
    counts: dict[str, _Counts] = {"emitted": stats.emitted, "transferred": stats.transferred}
    if not include_sys:
        counts = {name: _of_topology(by_window) for name, by_window in counts.items()}
    spout, bolt = stats.specific.spout, stats.specific.bolt
    latencies: dict[str, tuple[_Averages, str]] = {}
    if kind == "spout" and spout is not None:
        counts.update(acked=spout.acked, failed=spout.failed)
        latencies = {"complete": (spout.complete_ms_avg, "acked")}
    elif kind == "bolt" and bolt is not None:
        counts.update(acked=bolt.acked, failed=bolt.failed, executed=bolt.executed)
        latencies = {
            "execute": (bolt.execute_ms_avg, "executed"),
            "process": (bolt.process_ms_avg, "executed"),
        }
    return Measures(counts, latencies)


@dataclass(slots=True)
class Tally:
    """A sum over executors and streams: counts, and the terms of latencies."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    terms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, executors: Iterable[Measures], window: str) -> Tally:
        """Sum executors over all streams."""
        tally = cls()
        for one in executors:
            tally._add_counts(one, window)
            for name in one.latencies:
                tally.terms[name] += (term for _, term in one.terms(name, window))
        return tally

    @classmethod
    def by_stream(cls, executors: Iterable[Measures], window: str) -> dict[Stream, Tally]:
        tallies: dict[Stream, Tally] = defaultdict(cls)
        for one in executors:
            for name, by_window in one.counts.items():
                for stream, count in by_window.get(window, {}).items():
                    tallies[stream].counts[name] += count
            for name in one.latencies:
                for stream, term in one.terms(name, window):
                    tallies[stream].terms[name].append(term)
        return dict(tallies)

    @classmethod
    def of_truncated(cls, executors: Iterable[Measures], window: str) -> Tally:
        """Sum as `of`, but truncate each executor's terms, as Storm does for a topology's page."""
        tally = cls()
        for one in executors:
            tally._add_counts(one, window)
            for name in one.latencies:
                total = _total(term for _, term in one.terms(name, window))
                tally.terms[name].append(float(_i64(int(total))))
        return tally

    def _add_counts(self, one: Measures, window: str) -> None:
        for name, by_window in one.counts.items():
            streams = by_window.get(window)
            if streams:
                self.counts[name] += sum(streams.values())

    def count(self, name: str) -> int:
        """Return a count, clamped to 64 bits."""
        return _i64(self.counts.get(name, 0))

    def total(self, latency: str) -> float:
        """In milliseconds."""
        return _total(self.terms.get(latency, ()))

    def latency(self, name: str, weight: str) -> float | None:
        """In milliseconds; None if `weight` counts 0."""
        divisor = self.counts.get(weight, 0)
        return self.total(name) / divisor if divisor > 0 else None


def counts_by_window(executors: Iterable[Measures], name: str) -> dict[str, int]:
    """Sum a count over executors and streams, by reported window."""
    sums: dict[str, int] = {}
    for one in executors:
        for window, streams in one.counts.get(name, {}).items():
            sums[window] = sums.get(window, 0) + sum(streams.values())
    return {window: _i64(count) for window, count in sums.items()}


def capacity(of: Measures, uptime_secs: int) -> float:
    """Return the share of the last ten minutes, or of a shorter life, spent executing.

    The share may exceed 1 a little, as Storm samples tuples.
    """
    secs = min(uptime_secs, _CAPACITY_SECS)
    if secs <= 0 or "execute" not in of.latencies:
        return 0.0
    return _total(term for _, term in of.terms("execute", _CAPACITY_WINDOW)) / (secs * 1000)


def _total(terms: Iterable[float]) -> float:
    try:
        return fsum(terms)
    except OverflowError:  # the sum is no finite number either
        return 0.0


def _of_topology(by_window: _Counts) -> _Counts:
    for streams in by_window.values():
        for stream in streams:
            if is_system(stream):
                return {
                    window: {each: n for each, n in counts.items() if not is_system(each)}
                    for window, counts in by_window.items()
                }
    return by_window


def _i64(count: int) -> int:
    return max(_SMALLEST, min(count, _LARGEST))
