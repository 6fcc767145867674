"""The figures of Storm's pages: a topology's, a component's, and the workers'.

Functions take the window ("600", "10800", "86400" seconds or ":all-time") and whether Storm's own
components and streams count (`include_sys`). For a window without reports the rows are zeros;
figures by window, and capacity, do not depend on it. Only executors with a report count, unless
stated otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any, ClassVar, NamedTuple

from stormkeeper.errors import UnknownComponentError
from stormkeeper.statistics.executor_reports import (
    DeclaredComponent,
    ExecutorReport,
    Kind,
    Slot,
    is_system,
)
from stormkeeper.thrift.records import ExecutorStats, GlobalStreamId


@dataclass(frozen=True, slots=True)
class SpoutStatistics:
    """A row of a spout: Storm's ``ComponentAggregateStats``.

    Executors and tasks are 0 except in the row of a component. The latency is in milliseconds, and
    0 if nothing was acked.
    """

    kind: ClassVar[Kind] = "spout"

    num_executors: int
    num_tasks: int
    emitted: int
    transferred: int
    acked: int
    failed: int
    complete_latency_ms: float


@dataclass(frozen=True, slots=True)
class BoltStatistics:
    """A row of a bolt: Storm's ``ComponentAggregateStats``.

    Executors and tasks are 0 except in the row of a component; capacity is 0 except in the rows of
    components and executors. Latencies are in milliseconds, and 0 if nothing was executed.
    """

    kind: ClassVar[Kind] = "bolt"

    num_executors: int
    num_tasks: int
    emitted: int
    transferred: int
    acked: int
    failed: int
    execute_latency_ms: float
    process_latency_ms: float
    executed: int
    capacity: float


Statistics = SpoutStatistics | BoltStatistics


@dataclass(frozen=True, slots=True)
class TopologyStatistics:
    """A topology's totals by window: Storm's ``TopologyStats``.

    Emitted and transferred tuples are those of all components; the others are those of spouts. A
    window without acked tuples has no latency.
    """

    window_to_emitted: Mapping[str, int]
    window_to_transferred: Mapping[str, int]
    window_to_complete_latencies_ms: Mapping[str, float]
    window_to_acked: Mapping[str, int]
    window_to_failed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """A slot and the worker, with or without reports; Storm's ``WorkerSummary``.

    `num_executors` includes Storm's own; `component_to_num_tasks` only if requested. `uptime_secs`
    is 0 without a report.
    """

    supervisor_id: str
    host: str
    port: int
    num_executors: int
    component_to_num_tasks: Mapping[str, int]
    uptime_secs: int


@dataclass(frozen=True, slots=True)
class TopologyPage:
    """The figures of ``TopologyPageInfo``.

    `num_tasks` and `num_executors` include Storm's own components, and executors without reports;
    `num_workers` counts slots with a report of an executor that is not hidden.
    """

    num_tasks: int
    num_workers: int
    num_executors: int
    id_to_spout_agg_stats: Mapping[str, SpoutStatistics]
    id_to_bolt_agg_stats: Mapping[str, BoltStatistics]
    topology_stats: TopologyStatistics
    workers: tuple[WorkerSummary, ...]


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """A row of an executor: Storm's ``ExecutorAggregateStats``."""

    exec_summary: ExecutorReport
    stats: Statistics


@dataclass(frozen=True, slots=True)
class ComponentPage:
    """The figures of ``ComponentPageInfo``.

    `gsid_to_input_stats` is None for a spout; for a bolt it has executed, acked and failed tuples
    of each incoming stream. `sid_to_output_stats` has emitted and transferred tuples of each
    stream, and a spout's acked and failed ones. `exec_stats` is sorted by task.
    """

    component_id: str
    component_type: Kind
    num_executors: int
    num_tasks: int
    window_to_stats: Mapping[str, Statistics]
    gsid_to_input_stats: Mapping[GlobalStreamId, Statistics] | None
    sid_to_output_stats: Mapping[str, Statistics]
    exec_stats: tuple[ExecutorStatistics, ...]


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
    """Return the page of a topology.

    As in Storm, component latencies consist of whole milliseconds: each executor's total time is
    truncated first. And while no spout has reported, each is shown with zeros; likewise bolts.
    `window` is that of the components' rows.
    """
    executors = tuple(executors)
    reporting = _reporting(components, executors, include_sys=include_sys)
    groups: dict[str, list[_Counted]] = {}
    for one in reporting:
        groups.setdefault(one.executor.component_id, []).append(one)
    spouts: dict[str, SpoutStatistics] = {}
    bolts: dict[str, BoltStatistics] = {}
    for id_, group in groups.items():
        tally = Tally.of_truncated((one.measures for one in group), window)
        if components[id_].kind == "spout":
            spouts[id_] = _spout(tally, *_size(group))
        else:
            bolts[id_] = _bolt(tally, *_size(group), max(0.0, *map(_capacity, group)))
    silent = {
        id_: component
        for id_, component in components.items()
        if component.num_tasks > 0 and (include_sys or not is_system(id_))
    }
    if not spouts:
        spouts = {
            id_: _spout(Tally(), component.num_executors, component.num_tasks)
            for id_, component in silent.items()
            if component.kind == "spout"
        }
    if not bolts:
        bolts = {
            id_: _bolt(Tally(), component.num_executors, component.num_tasks)
            for id_, component in silent.items()
            if component.kind == "bolt"
        }
    return TopologyPage(
        num_tasks=sum(component.num_tasks for component in components.values()),
        num_workers=len({one.executor.slot for one in reporting}),
        num_executors=len(executors),
        id_to_spout_agg_stats=spouts,
        id_to_bolt_agg_stats=bolts,
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

    `window` is that of the rows of streams and executors.

    Raises
    ------
    UnknownComponentError
        The topology has no such component.
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
        exec_stats=tuple(
            ExecutorStatistics(
                one.executor, _row(kind, Tally.of([one.measures], window), _capacity(one))
            )
            for one in sorted(counted, key=lambda one: one.executor.task_start)
        ),
    )


def workers(executors: Iterable[ExecutorReport], *, include_sys: bool) -> tuple[WorkerSummary, ...]:
    """Return the workers of a topology's executors, by slot.

    `include_sys` is whether tasks of Storm's own components count.
    """
    by_slot: dict[Slot, list[ExecutorReport]] = {}
    for executor in executors:
        by_slot.setdefault(executor.slot, []).append(executor)
    return tuple(
        WorkerSummary(
            supervisor_id=supervisor_id,
            host=found[0].host,
            port=port,
            num_executors=len(found),
            component_to_num_tasks=_tasks_of_components(found, include_sys=include_sys),
            uptime_secs=max(executor.uptime_secs for executor in found),
        )
        for (supervisor_id, port), found in sorted(by_slot.items())
    )


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


def _totals(reporting: Sequence[_Counted]) -> TopologyStatistics:
    every = [one.measures for one in reporting]
    spouts = [one.measures for one in reporting if one.kind == "spout"]
    acked = counts_by_window(spouts, "acked")
    latencies = {window: Tally.of(spouts, window).latency("complete", "acked") for window in acked}
    return TopologyStatistics(
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


def _row(kind: Kind, tally: Tally, share: float = 0.0) -> Statistics:
    return _spout(tally) if kind == "spout" else _bolt(tally, share=share)


def _spout(tally: Tally, num_executors: int = 0, num_tasks: int = 0) -> SpoutStatistics:
    return SpoutStatistics(
        num_executors=num_executors,
        num_tasks=num_tasks,
        emitted=tally.count("emitted"),
        transferred=tally.count("transferred"),
        acked=tally.count("acked"),
        failed=tally.count("failed"),
        complete_latency_ms=tally.latency("complete", "acked") or 0.0,
    )


def _bolt(
    tally: Tally, num_executors: int = 0, num_tasks: int = 0, share: float = 0.0
) -> BoltStatistics:
    return BoltStatistics(
        num_executors=num_executors,
        num_tasks=num_tasks,
        emitted=tally.count("emitted"),
        transferred=tally.count("transferred"),
        acked=tally.count("acked"),
        failed=tally.count("failed"),
        execute_latency_ms=tally.latency("execute", "executed") or 0.0,
        process_latency_ms=tally.latency("process", "executed") or 0.0,
        executed=tally.count("executed"),
        capacity=share,
    )


Stream = str | GlobalStreamId

#: The window of capacity, whichever window is requested.
_CAPACITY_WINDOW = "600"
_CAPACITY_SECS = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

_Counts = Mapping[str, Mapping[Any, int]]
_Averages = Mapping[str, Mapping[Any, float]]


@dataclass(frozen=True, slots=True)
class Measures:
    """An executor's counts and latencies, by window and stream.

    Parameters
    ----------
    counts
        By name: "emitted", "transferred", "acked", "failed", and a bolt's "executed".
    latencies
        By name: averages in milliseconds, and the count that weighs them. A spout has "complete", a
        bolt "execute" and "process".
    """

    counts: Mapping[str, _Counts]
    latencies: Mapping[str, tuple[_Averages, str]]

    @property
    def windows(self) -> set[str]:
        """The windows with any count, also 0."""
        return {window for by_window in self.counts.values() for window in by_window}


def measures(stats: ExecutorStats, kind: Kind, *, include_sys: bool) -> Measures:
    """Return the measures of an executor; statistics of the other kind of component are ignored."""
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
        """Return the sum over executors in a window, on all streams."""
        tally = cls()
        for one in executors:
            _spread(one, window, lambda _: tally)
        return tally

    @classmethod
    def by_stream(cls, executors: Iterable[Measures], window: str) -> dict[Stream, Tally]:
        """Return the sum over executors in a window for each stream."""
        tallies: dict[Stream, Tally] = defaultdict(cls)
        for one in executors:
            _spread(one, window, tallies.__getitem__)
        return dict(tallies)

    @classmethod
    def of_truncated(cls, executors: Iterable[Measures], window: str) -> Tally:
        """Sum as `of`, but truncate each executor's terms to a whole number.

        Storm does so only for a topology's page.
        """
        tally = cls()
        for one in executors:
            part = cls.of([one], window)
            for name, count in part.counts.items():
                tally.counts[name] += count
            for name in part.terms:
                tally.terms[name].append(float(_i64(int(part.total(name)))))
        return tally

    def count(self, name: str) -> int:
        """Return a count, clamped to 64 bits."""
        return _i64(self.counts.get(name, 0))

    def total(self, latency: str) -> float:
        """Return the sum of average times count, in milliseconds."""
        try:
            return fsum(self.terms.get(latency, ()))
        except OverflowError:  # the sum is no finite number either
            return 0.0

    def latency(self, name: str, weight: str) -> float | None:
        """Return an average in milliseconds; None if `weight` counts 0."""
        divisor = self.counts.get(weight, 0)
        return self.total(name) / divisor if divisor > 0 else None


def counts_by_window(executors: Iterable[Measures], name: str) -> dict[str, int]:
    """Return the sum of a count over executors and streams, by reported window."""
    sums: dict[str, int] = {}
    for one in executors:
        for window, streams in one.counts.get(name, {}).items():
            sums[window] = sums.get(window, 0) + sum(streams.values())
    return {window: _i64(count) for window, count in sums.items()}


def capacity(of: Measures, uptime_secs: int) -> float:
    """Return the share of the last ten minutes that a bolt's executor spent executing.

    Storm samples tuples, so it may exceed 1 a little. For a worker younger than ten minutes it is
    the share of its uptime; 0 without uptime.
    """
    secs = min(uptime_secs, _CAPACITY_SECS)
    if secs <= 0:
        return 0.0
    return Tally.of([of], _CAPACITY_WINDOW).total("execute") / (secs * 1000)


def _spread(of: Measures, window: str, tally_of: Callable[[Any], Tally]) -> None:
    """Add an executor's measures of a window to the tally of each stream."""
    for name, by_window in of.counts.items():
        for stream, count in by_window.get(window, {}).items():
            tally_of(stream).counts[name] += count
    for name, (averages, weight) in of.latencies.items():
        weights = of.counts[weight].get(window, {})
        for stream, average in averages.get(window, {}).items():
            # Storm fails on a stream with an average and no count.
            if stream in weights:
                tally_of(stream).terms[name].append(_product(average, weights[stream]))


def _product(average: float, count: int) -> float:
    term = average * count
    return term if isfinite(term) else 0.0


def _of_topology(by_window: _Counts) -> _Counts:
    return {
        window: {stream: count for stream, count in streams.items() if not is_system(stream)}
        for window, streams in by_window.items()
    }


def _i64(count: int) -> int:
    return max(_SMALLEST, min(count, _LARGEST))
