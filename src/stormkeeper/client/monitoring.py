"""What a component has emitted, from one look at Nimbus to the next; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import UnknownComponentError
from stormkeeper.thrift.nimbus import ExecutorSummary, TopologyInfo

#: Since a worker has started.
_ALL_TIME: Final = ":all-time"

#: Where an executor runs, and its tasks.
_Executor = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Look:
    """What a look has shown of a component.

    Parameters
    ----------
    executors
        How many there are.
    counts
        Of those that have reported something on the stream, since their worker has started.
    streams
        Those on which anything was reported.
    """

    executors: int
    counts: Mapping[_Executor, int]
    streams: frozenset[str]


@dataclass(frozen=True, slots=True)
class Row:
    """What happened between two looks.

    Parameters
    ----------
    executors
        How many there are.
    ms
        Time between the looks.
    count
        Tuples, or rows, in it; at the first look: since the workers have started.
    """

    executors: int
    ms: int
    count: int

    @property
    def per_ms(self) -> float:
        """Tuples a millisecond, which are thousands a second."""
        return self.count / self.ms if self.ms else 0.0


def components(info: TopologyInfo) -> list[str]:
    """Return the components that a topology has executors of, sorted."""
    return sorted({each.component_id for each in info.executors})


def unknown(info: TopologyInfo, component: str) -> UnknownComponentError:
    """Return the error that a topology has no executor of a component."""
    there = ", ".join(components(info)) or "none, as it runs nowhere"
    return UnknownComponentError(f"{info.name} has no component {component}; it has {there}")


def look(info: TopologyInfo, component: str, stream: str, watched: str) -> Look:
    """Return what there is to see of a component.

    Parameters
    ----------
    watched
        What is counted: "emitted" or "transferred".

    Raises
    ------
    UnknownComponentError
        The topology has no executor of it.
    """
    executors = [each for each in info.executors if each.component_id == component]
    if not executors:
        raise unknown(info, component)
    by_stream = {_executor(each): _counts(each, watched) for each in executors}
    return Look(
        len(executors),
        {each: counts[stream] for each, counts in by_stream.items() if stream in counts},
        frozenset(name for counts in by_stream.values() for name in counts),
    )


class Counting:
    """Counts from one look to the next.

    An executor that has started again, elsewhere or where it was, begins at 0. What one has said is
    known for as long as it says nothing, as while another Nimbus begins to lead.
    """

    def __init__(self) -> None:
        self._known: dict[_Executor, int] = {}
        self._last_ms: int | None = None

    def row(self, now: Look, at_ms: int) -> Row:
        """Return what has happened since the look before this one.

        Parameters
        ----------
        at_ms
            When it was, in milliseconds of a clock that goes on.
        """
        count = 0
        for each, value in now.counts.items():
            before = self._known.get(each, 0)
            count += value - before if before <= value else value
        self._known.update(now.counts)
        passed = 0 if self._last_ms is None else at_ms - self._last_ms
        self._last_ms = at_ms
        return Row(now.executors, passed, count)


def _executor(summary: ExecutorSummary) -> _Executor:
    tasks = summary.executor_info
    return summary.host, summary.port, tasks.task_start, tasks.task_end


def _counts(summary: ExecutorSummary, watched: str) -> Mapping[str, int]:
    if summary.stats is None:
        return {}
    windows: Mapping[str, Mapping[str, int]] = getattr(summary.stats, watched)
    return windows.get(_ALL_TIME, {})
