"""The queries of a PySpark script that has no topology: each is counted as a component.

The component has the name of the query, or else is ``query-N``, in the order of starts. It is a
spout that emits the rows which the query gives to its sink. What happens within the query is not
counted.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.topology.component import ComponentDescription
from stormkeeper.topology.plan import Executor
from stormkeeper.worker.batch_readings import Seen
from stormkeeper.worker.building import counted
from stormkeeper.worker.failure import readable_text
from stormkeeper.worker.file_sinks import Sink
from stormkeeper.worker.query_events import QueryEvents, Run
from stormkeeper.worker.statistics import Work, WorkerStatistics

log = logging.getLogger(__name__)

_OBSERVATION = "stormkeeper:sink"

#: Longest name of a checkpoint, in characters, without its checksum and number.
_LONGEST = 60


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


class ScriptCheckpoints:
    """Gives checkpoints to a script's queries that name none, the same ones in each process.

    Such a query is known by its name, or else by its sink, and by how many of the same name or sink
    were started before it in this process. So a loop over tables does not go on from the table
    before. But if the query before ended with an error, and writes to the same sink, the script
    starts that query again: it has the same checkpoint, and no rows are written twice.

    Parameters
    ----------
    folder
        Returns the folder that all checkpoints are in.
    """

    #: Starts of queries of one name that get a checkpoint. A script that starts a query again and
    #: again would fill the disk with checkpoints.
    MOST = 100

    def __init__(self, folder: Callable[[], str]) -> None:
        self._folder = folder
        self._starts = Counter[str]()
        #: The last query of each name, until it is started again.
        self._last: dict[str, tuple[Sink, StreamingQuery]] = {}

    def place(self, sink: Sink) -> str | None:
        """Return the checkpoint of a query that starts; None: it gets none.

        Spark refuses to go on from the checkpoint of a memory sink, whose rows are gone by then.
        """
        if sink.format == "memory":
            return None
        name = checkpoint_name(sink)
        before, query = self._last.pop(name, (sink, None))
        has_failed = query is not None and query.exception() is not None
        if not has_failed or (before.format, before.target) != (sink.format, sink.target):
            self._starts[name] += 1
        return self._place(name)

    def started(self, sink: Sink, place: str, query: StreamingQuery | None) -> None:
        """Take in the query that was started with a checkpoint; None: the start has failed."""
        name = checkpoint_name(sink)
        if place != self._place(name):  # another thread has started one of the same name since
            return
        if query is not None:
            self._last[name] = sink, query
        else:
            self._starts[name] -= 1

    def _place(self, name: str) -> str | None:
        number = self._starts[name]
        if number > self.MOST:
            return None
        return f"{self._folder()}/{name}" + (f".{number}" if number > 1 else "")


def checkpoint_name(sink: Sink) -> str:
    """Return the name of a folder for the checkpoint of a query, by its name or its sink; pure."""
    if sink.query:
        return _folder_name(sink.query)
    if sink.function is not None:
        function = getattr(sink.function, "func", sink.function)  # of a functools.partial
        called = getattr(function, "__qualname__", type(function).__name__)
        return _folder_name("foreach-" + called.replace("<locals>.", "").strip("<>"))
    return _folder_name("-".join(filter(None, [sink.format or "sink", sink.target])))


def _folder_name(text: str) -> str:
    """Return a text as the name of a folder, with a checksum where the name does not say all."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", text)[:_LONGEST].strip("-")
    return name if name == text else f"{name}-{zlib.crc32(text.encode()):08x}"


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
