"""The queries of a PySpark script that has no topology: each is counted as a component.

The component has the name of the query, or else is ``query-N``, in the order of starts. It is a
spout that emits the rows which the query gives to its sink. What happens within the query is not
counted.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.topology.component import ComponentDescription
from stormkeeper.topology.plan import Executor
from stormkeeper.worker.batch_readings import Seen
from stormkeeper.worker.building import counted
from stormkeeper.worker.failure import readable_text
from stormkeeper.worker.query_events import QueryEvents, Run
from stormkeeper.worker.statistics import Work, WorkerStatistics

log = logging.getLogger(__name__)

_OBSERVATION = "stormkeeper:sink"


class ScriptQueries:
    """The queries of a plain script, as components with statistics.

    Tasks are numbered in the order in which the queries first start, as they are not known before.

    Parameters
    ----------
    statistics
        Where they are counted.
    one
        The id of the one component that all of them are in a cluster; None: each is its own.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        statistics: WorkerStatistics,
        one: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._statistics = statistics
        self._one = one
        self._clock = clock
        self._lock = threading.Lock()
        self._components: dict[str, str] = {}  # by the query's name, else by its id

    def component(self, run: Run) -> str:
        """Return the component of a query: the same at a restart in this process."""
        with self._lock:
            key = self._one or run.name or run.query_id
            if key not in self._components:
                task = len(self._components) + 1
                name = self._one or run.name or f"query-{task}"
                while name in self._components.values():
                    name += "'"
                self._components[key] = name
                component = ComponentDescription(name, "spout", (), 1)
                self._statistics.add(Executor(component, name, task, task))
            return self._components[key]

    def started(self, run: Run) -> None:
        """Take in that a query starts."""
        self.component(run)

    def batch(self, run: Run, seen: Seen, took_ms: float) -> None:
        """Take in a committed micro-batch."""
        rows = sum(n for name, n in seen.rows.items() if name.startswith(_OBSERVATION))
        partial = any(name.startswith(_OBSERVATION) for name in seen.partial)
        name = self.component(run)
        done = Work(emitted=rows, transferred=rows, took_ms=took_ms, partial=partial)
        self._statistics.record(name, {name: done}, self._clock())

    def ended(self, run: Run) -> None:
        """Take in the end of a query; the script may not look for errors itself."""
        if run.error is not None:
            cause = readable_text(run.error).rpartition("\n")[2]
            name = run.name or self.component(run)
            log.warning("the query %s has ended with an error: %s", name, cause)

    @property
    def any(self) -> bool:
        """Whether a query was ever started."""
        return bool(self._components)


@contextlib.contextmanager
def writes_counted(events: QueryEvents) -> Iterator[None]:
    """Have every streaming frame counted that is written by any code of this process."""
    write_stream = ClassicDataFrame.__dict__["writeStream"]
    numbers = itertools.count(1)

    def counting(frame: DataFrame) -> DataStreamWriter:
        events.attach(frame.sparkSession)
        if frame.isStreaming:
            frame = counted(frame, f"{_OBSERVATION}-{next(numbers)}")
        writer: DataStreamWriter = write_stream.__get__(frame)
        return writer

    ClassicDataFrame.writeStream = property(counting)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        ClassicDataFrame.writeStream = write_stream  # type: ignore[method-assign]
