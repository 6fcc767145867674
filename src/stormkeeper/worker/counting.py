"""From the rows observed on the edges of a query to what its components did.

Every edge of a query, from a component to one that reads from it, has one observation: a name
and a count of the rows that passed in the micro-batch. All of a component's counts follow from
those. A component that is read twice in a query is computed twice by Spark, each time counted on
its own edge, so a branch that takes only some rows (``limit``) falsifies no other's count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stormkeeper.topology.plan import Edge, Plan, Query
from stormkeeper.worker.batch_readings import Seen
from stormkeeper.worker.query_events import Run
from stormkeeper.worker.statistics import Work, WorkerStatistics

#: What our observations are named with, so that a user's own stay apart.
_PREFIX = "stormkeeper:"


def observation(edge: Edge) -> str:
    """Return the observation's name: the same at every start, unique in a query."""
    return f"{_PREFIX}{edge.source}>{edge.target}:{edge.position}"


def work(query: Query, seen: Seen, took_ms: float) -> dict[str, Work]:
    """Return what each component of `query` did in a micro-batch.

    Parameters
    ----------
    query
        The query.
    seen
        What its observations saw; one that is missing counts none, as Spark leaves out what it
        found to be empty without running it.
    took_ms
        Duration of the micro-batch.
    """
    rows = {edge: seen.rows.get(observation(edge), 0) for edge in query.edges}
    partial = {
        component
        for edge in query.edges
        if observation(edge) in seen.partial
        for component in (edge.source, edge.target)
    }
    done = {}
    for component in query.components:
        given = [count for edge, count in rows.items() if edge.source == component.id]
        taken: dict[str, int] = {}
        for edge, count in rows.items():
            if edge.target == component.id:
                taken[edge.source] = taken.get(edge.source, 0) + count
        done[component.id] = Work(
            # Its DataFrame has the rows that the reader of most of them saw.
            emitted=max(given, default=0),
            transferred=sum(given),
            executed=taken,
            took_ms=took_ms,
            partial=component.id in partial,
        )
    return done


class TopologyCounts:
    """Counts the micro-batches of a topology's queries, which Spark knows by the queries' ids."""

    def __init__(
        self,
        plan: Plan,
        statistics: WorkerStatistics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queries = {query.id: query for query in plan.queries}
        self._statistics = statistics
        self._clock = clock
        for executor in plan.executors:
            statistics.add(executor)

    def started(self, run: Run) -> None:
        """Take in that a query starts."""

    def batch(self, run: Run, seen: Seen, took_ms: float) -> None:
        """Take in a committed micro-batch."""
        query = self._queries.get(run.name or "")
        if query is not None:
            self._statistics.record(query.id, work(query, seen, took_ms), self._clock())

    def ended(self, run: Run) -> None:
        """Take in the end of a query."""
