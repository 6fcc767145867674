"""A worker's heartbeat: Storm's ``ClusterWorkerHeartbeat``, with its executors' statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    QueryActivity,
    SpoutStats,
)
from stormkeeper.topology.plan import Executor
from stormkeeper.worker.statistics import Figures

#: The one stream that a component has; Storm's name for a stream without one.
STREAM = "default"

#: Storm samples one tuple in twenty; our counts are of all rows.
RATE = 1.0


def heartbeat(
    storm_id: str,
    executors: Iterable[tuple[Executor, Figures]],
    *,
    time_secs: int,
    uptime_secs: int,
    completed: bool = False,
    inactive: bool = False,
    queries: Sequence[QueryActivity] = (),
    jvm_silent_ms: int | None = None,
    waiting: str | None = None,
) -> ClusterWorkerHeartbeat:
    """Return the record of a heartbeat.

    Parameters
    ----------
    storm_id
        The topology's id.
    executors
        The executors with their statistics; none while the worker is starting.
    time_secs
        Wall-clock time, in seconds since 1970.
    uptime_secs
        Age of the worker.
    completed
        Whether all of its queries have ended by themselves, well.
    inactive
        Whether its queries wait, as the topology is not active.
    queries
        What each query does that runs.
    jvm_silent_ms
        How long the worker's JVM has not answered; None while it answers.
    waiting
        What the worker waits for; None: for nothing.
    """
    return ClusterWorkerHeartbeat(
        storm_id=storm_id,
        executor_stats={
            ExecutorInfo(task_start=executor.task_start, task_end=executor.task_end): stats(
                executor, figures
            )
            for executor, figures in executors
        },
        time_secs=time_secs,
        uptime_secs=uptime_secs,
        completed=completed or None,
        inactive=inactive or None,
        queries=[*queries] or None,
        jvm_silent_ms=jvm_silent_ms,
        waiting=waiting,
    )


def stats(executor: Executor, figures: Figures) -> ExecutorStats:
    """Return the record of one executor's statistics.

    Rows are counted when their micro-batch is committed, and count as acked then. So none ever
    fails. Spark does not measure the time of a single component, so a bolt has no latencies.
    """
    nothing: dict[str, dict[Any, Any]] = {window: {} for window in figures.emitted}
    if executor.component.kind == "spout":
        specific = ExecutorSpecificStats(
            spout=SpoutStats(
                acked=_by_stream(figures.emitted),
                failed=nothing,
                complete_ms_avg={
                    window: {} if ms is None else {STREAM: ms}
                    for window, ms in figures.complete_ms.items()
                },
            )
        )
    else:
        executed = {
            window: {
                GlobalStreamId(componentId=source, streamId=STREAM): rows
                for source, rows in by_source.items()
            }
            for window, by_source in figures.executed.items()
        }
        specific = ExecutorSpecificStats(
            bolt=BoltStats(
                acked=executed,
                failed=nothing,
                process_ms_avg=nothing,
                executed=executed,
                execute_ms_avg=nothing,
            )
        )
    return ExecutorStats(
        emitted=_by_stream(figures.emitted) if executor.emits else nothing,
        transferred=_by_stream(figures.transferred) if executor.emits else nothing,
        specific=specific,
        rate=RATE,
        component=executor.component.id,
        # Left out as long as there is nothing to say, which is nearly always.
        partial_batches=dict(figures.partial) if any(figures.partial.values()) else None,
    )


def _by_stream(totals: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {window: {STREAM: rows} for window, rows in totals.items()}
