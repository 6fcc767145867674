"""The arithmetic of Storm's statistics: counts, weighed averages, capacity.

The rules are Storm's:

- Without system streams, emitted and transferred counts on system streams are left out; acked,
  failed and executed counts never are.
- A latency over several streams or executors is the sum of average times count, divided by the sum
  of the counts. A spout's is weighed by acked tuples, a bolt's by executed ones.
- An average that is not finite counts as 0, but its count is divided by.

Sums do not depend on the order of executors and streams: counts are integers, and the terms of
averages are kept apart until they are added up exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any

from stormkeeper.statistics.executor_reports import Kind, is_system
from stormkeeper.thrift.records import ExecutorStats, GlobalStreamId

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
