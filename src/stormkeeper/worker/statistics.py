"""Counts per executor over Storm's windows: the last 600, 10800 and 86400 seconds, and all time.

Pure: every call is given the time, in seconds of one clock that never goes back. As in Storm, a
window consists of twenty buckets. So it forgets in steps of a twentieth of its length: a count is
in it for 19 to 20 of these steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stormkeeper.topology.plan import Executor

#: Lengths of Storm's windows in seconds.
WINDOWS = (600, 10800, 86400)

#: Storm's name of the window that never forgets.
ALL_TIME = ":all-time"

#: Storm's ``NUM_STAT_BUCKETS``.
BUCKETS = 20


class RollingSum:
    """The sum of what was added within the last `window_secs`, to within a bucket."""

    def __init__(self, window_secs: float, buckets: int = BUCKETS) -> None:
        self._bucket_secs = window_secs / buckets
        self._buckets = buckets
        self._sums: deque[tuple[int, float]] = deque()  # (number of the bucket, sum), in order

    def add(self, amount: float, now: float) -> None:
        """Add `amount` at `now`."""
        number = int(now / self._bucket_secs)
        if self._sums and self._sums[-1][0] >= number:
            last, before = self._sums.pop()
            self._sums.append((last, before + amount))
        else:
            self._sums.append((number, amount))
        self._forget(now)

    def total(self, now: float) -> float:
        """Return the sum at `now`; an int where only ints were added."""
        self._forget(now)
        return sum(amount for _, amount in self._sums)

    def _forget(self, now: float) -> None:
        oldest = int(now / self._bucket_secs) - self._buckets + 1
        while self._sums and self._sums[0][0] < oldest:
            self._sums.popleft()


class WindowedSum:
    """A sum over each of Storm's windows and over all time."""

    def __init__(self) -> None:
        self._rolling = {str(secs): RollingSum(secs) for secs in WINDOWS}
        self._all_time: float = 0

    def add(self, amount: float, now: float) -> None:
        """Add `amount` at `now`."""
        self._all_time += amount
        for rolling in self._rolling.values():
            rolling.add(amount, now)

    def totals(self, now: float) -> dict[str, float]:
        """Return the sums at `now` by window: "600", "10800", "86400", ":all-time"."""
        return {w: rolling.total(now) for w, rolling in self._rolling.items()} | {
            ALL_TIME: self._all_time
        }


@dataclass(frozen=True, slots=True)
class Work:
    """What one executor did in one committed micro-batch, in rows.

    Parameters
    ----------
    emitted
        Rows of its output.
    transferred
        The same, once for each component of the query that took them.
    executed
        Rows that came in, by the component that they came from.
    took_ms
        Duration of the whole micro-batch, from looking for data to the commit.
    partial
        Whether the rows are those of a part of the batch, as nobody has read all of it.
    """

    emitted: int = 0
    transferred: int = 0
    executed: Mapping[str, int] = field(default_factory=dict)
    took_ms: float = 0.0
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """An executor's statistics at one moment, everything by window.

    `executed` is by window and input. `complete_ms` is the mean duration of the micro-batches in
    which the emitted rows went through, weighted by these rows; None where there were none.
    `partial` is the number of micro-batches whose rows were counted in part.
    """

    emitted: Mapping[str, int]
    transferred: Mapping[str, int]
    executed: Mapping[str, Mapping[str, int]]
    complete_ms: Mapping[str, float | None]
    partial: Mapping[str, int]


class ExecutorStatistics:
    """The running counts of one executor."""

    def __init__(self, inputs: Iterable[str] = ()) -> None:
        self._emitted = WindowedSum()
        self._transferred = WindowedSum()
        self._row_ms = WindowedSum()
        self._partial = WindowedSum()
        self._executed = {source: WindowedSum() for source in inputs}

    def record(self, work: Work, now: float) -> None:
        """Add what was done in a batch that ended at `now`."""
        self._emitted.add(work.emitted, now)
        self._transferred.add(work.transferred, now)
        self._row_ms.add(work.emitted * work.took_ms, now)
        self._partial.add(work.partial, now)
        for source, rows in work.executed.items():
            self._executed[source].add(rows, now)

    def figures(self, now: float) -> Figures:
        """Return the counts at `now`."""
        emitted = self._emitted.totals(now)
        row_ms = self._row_ms.totals(now)
        executed = {source: total.totals(now) for source, total in self._executed.items()}
        return Figures(
            emitted=_whole(emitted),
            transferred=_whole(self._transferred.totals(now)),
            executed={
                window: {source: int(totals[window]) for source, totals in executed.items()}
                for window in emitted
            },
            complete_ms={
                window: row_ms[window] / rows if rows else None for window, rows in emitted.items()
            },
            partial=_whole(self._partial.totals(now)),
        )


class WorkerStatistics:
    """The statistics of all executors of a worker; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executors: dict[tuple[str, str], tuple[Executor, ExecutorStatistics]] = {}

    def add(self, executor: Executor) -> None:
        """Take in an executor, with all counts zero."""
        with self._lock:
            self._executors[executor.query, executor.component.id] = (
                executor,
                ExecutorStatistics(executor.component.inputs),
            )

    def record(self, query: str, work: Mapping[str, Work], now: float) -> None:
        """Add what the components of `query`, by their ids, did in a batch that ended at `now`."""
        with self._lock:
            for component, done in work.items():
                self._executors[query, component][1].record(done, now)

    def snapshot(self, now: float) -> list[tuple[Executor, Figures]]:
        """Return all executors with their counts at `now`, by task."""
        with self._lock:
            found = [(executor, s.figures(now)) for executor, s in self._executors.values()]
        return sorted(found, key=lambda pair: pair[0].task_start)


def _whole(totals: Mapping[str, float]) -> dict[str, int]:
    return {window: int(total) for window, total in totals.items()}
