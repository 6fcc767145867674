"""The streaming queries of a worker: of a topology, or started by a script itself.

`FileSinks` watches all streaming writers of this process. A file sink logs its batches in
``_spark_metadata`` and skips a batch whose number is in the log. A query with a new checkpoint
counts from 0: in the folder of an earlier run Spark would silently drop its first rows. A
checkpoint has each batch before the sink does, so a log beyond the query's checkpoint belongs to
another run, and the start is refused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark import Starts
from stormkeeper.errors import ClaimedError, TopologyError, WorkerError
from stormkeeper.topology import faults
from stormkeeper.topology.plan import Edge, Plan, Query
from stormkeeper.topology.topology import Component
from stormkeeper.worker.checkpoint_claims import Claims
from stormkeeper.worker.executor_counts import counted, observation
from stormkeeper.worker.failure import readable, readable_text
from stormkeeper.worker.query_events import QueryEvents, QueryRun
from stormkeeper.worker.spark_watch import check_jvm

log = logging.getLogger(__name__)

#: Longest wait of the next query for a query's first batch: Python workers that start at the same
#: time cause the transient failure that is retried below.
_FIRST_BATCH_SECS = 60.0

_LOOK_SECS = 0.1

_LOG = "_spark_metadata"

#: A writer's options, by name in lower case, with the settings below.
_Options = dict[str, Any]
_QUERY = "query name"
#: No option of Spark's has a blank in its name.
_FORMAT, _TABLE, _FUNCTION = "sink format", "sink table", "sink function"
_CHOSEN = "chosen checkpoint"

_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"

_METHODS = (
    *("option", "options", "queryName", "format", "foreachBatch", "foreach"),
    *("start", "toTable"),
)

_LONGEST = 60


def build(
    plan: Plan,
    components: Mapping[str, Component],
    spark: SparkSession,
    conf: Mapping[str, Any],
    checkpoint: Callable[[str], str],
) -> dict[str, DataStreamWriter]:
    """Build the writers of all queries of a plan, by query id.

    Starts none, so that a fault is found before any query runs. Raises `TopologyError` if a
    component's function returns a wrong type, `WorkerError` with a traceback if a function raises.
    """
    built = {}
    for query in plan.queries:
        writer = _build_query(query, components, {"spark": spark, "conf": conf})
        writer = writer.queryName(query.id).option("checkpointLocation", checkpoint(query.id))
        built[query.id] = writer
    return built


def _build_query(
    query: Query, components: Mapping[str, Component], services: Mapping[str, Any]
) -> DataStreamWriter:
    frames: dict[str, DataFrame] = {}
    for component in [components[described.id] for described in query.components]:
        inputs = [
            _input(frames[source], Edge(source, component.id, position), component.parallelism)
            for position, source in enumerate(component.inputs)
        ]
        returned = _call(component, inputs, services)
        try:
            if component.id != query.id:
                frames[component.id] = _output(component, returned)
            else:
                writer = _writer(component, returned)
        except TopologyError as error:
            raise TopologyError(f"{component.place}: {error}".removeprefix(": ")) from error
    return writer


def _input(frame: DataFrame, edge: Edge, parallelism: int) -> DataFrame:
    rows = counted(frame, observation(edge))
    return rows.repartition(parallelism) if parallelism > 1 else rows


def _call(component: Component, inputs: list[DataFrame], services: Mapping[str, Any]) -> Any:
    positional, keywords = component.arguments(inputs, services)
    try:
        return component.function(*positional, **keywords)
    except BaseException as error:  # also SystemExit, whose exit code 0 would mean completion
        raise WorkerError(
            f"the {component.kind} {component.id!r} failed:\n{readable(error)}", component.id
        ) from error


def _output(component: Component, returned: Any) -> DataFrame:
    name = f"the {component.kind} {component.id!r}"
    if isinstance(returned, DataStreamWriter):
        if component.kind == "spout":
            raise TopologyError(
                f"{name} returned a DataStreamWriter, which ends a query: a spout returns the "
                "DataFrame, and a bolt that reads from it writes it"
            )
        raise TopologyError(faults.writer_read(component.id))
    if not isinstance(returned, DataFrame):
        raise TopologyError(f"{name} returned {_described(returned)}, not a DataFrame")
    if not returned.isStreaming:
        how = "spark.readStream" if component.kind == "spout" else "the DataFrames of its inputs"
        raise TopologyError(
            f"{name} returned a batch DataFrame, whose rows end: make a streaming one from {how}"
        )
    if component.kind == "spout" and component.parallelism > 1:
        return returned.repartition(component.parallelism)
    return returned


def _writer(sink: Component, returned: Any) -> DataStreamWriter:
    if isinstance(returned, DataFrame):
        raise TopologyError(faults.frame_unread(sink.id))
    if isinstance(returned, StreamingQuery):
        returned.stop()
        raise TopologyError(faults.starts_itself(sink.id))
    if not isinstance(returned, DataStreamWriter):
        raise TopologyError(faults.no_writer(sink.id, _described(returned)))
    return returned


def _described(returned: Any) -> str:
    if returned is None:
        return faults.NOTHING
    return f"{returned!r} ({type(returned).__name__})"


@dataclass
class _Running:
    id: str
    query: StreamingQuery
    #: Spark's run id; the query object would ask the JVM.
    run_id: str
    starts: Starts


@dataclass(eq=False, repr=False)
class TopologyRun:
    """The running queries of a topology; `on_end` gets queries that end without an error."""

    built: Mapping[str, DataStreamWriter]
    events: QueryEvents
    stopping: Callable[[], bool]
    claims: Claims
    on_end: Callable[[str], None] = lambda _: None
    _running: list[_Running] = field(default_factory=list, init=False)

    def run(self) -> list[str]:
        """Start the queries in order, and wait until all have ended or a stop is asked.

        Skips queries that a later worker has claimed. Returns the ids of queries that a stop kept
        from ending. Raises `WorkerError` if a query or the JVM failed.
        """
        ids = [*self.built]
        for position, id_ in enumerate(ids):
            if self.stopping():
                return [*self._started, *ids[position:]]
            try:
                self.claims.take(id_)
            except ClaimedError:  # logged by the claims
                continue
            query = self._start(id_)
            running = _Running(id_, query, str(query.runId), Starts())
            self._running.append(running)
            log.info("the query %s runs", id_)
            self._wait_first_batch(running)
        while self._running and not self.stopping():
            self.events.wait(self._any_ended, _LOOK_SECS)
            check_jvm(self.events.sessions)
            for running in [r for r in self._running if self._has_ended(r)]:
                self._handle_end(running)
        return self._started

    @property
    def _started(self) -> list[str]:
        return [running.id for running in self._running]

    def _start(self, id_: str) -> StreamingQuery:
        try:
            return self.built[id_].start()
        except (PySparkException, Py4JError) as error:
            raise WorkerError(
                f"the query {id_!r} did not start:\n{readable(error)}", id_
            ) from error

    def _wait_first_batch(self, running: _Running) -> None:
        deadline = time.monotonic() + _FIRST_BATCH_SECS
        while time.monotonic() < deadline and not self.stopping():
            run = self._run(running)
            if self._has_ended(running) or (run is not None and run.batches):
                return
            if running.query.status["message"].startswith("Waiting"):
                return
            self.events.wait(self._any_ended, _LOOK_SECS)

    def _handle_end(self, running: _Running) -> None:
        run = self._run(running)
        error = run.error if run is not None else None
        id_ = running.id
        if not self.claims.is_kept(id_):  # Spark ends the older of two runs with an error
            self._running.remove(running)
            return
        if error is None:
            if not self.stopping():
                log.info("the query %s has ended", id_)
                self._running.remove(running)
                self.on_end(id_)
            return
        if self.stopping():
            return
        pause = running.starts.next_pause(error, has_batch=run is not None and bool(run.batches))
        if pause is None:
            raise WorkerError(f"the query {id_!r} failed:\n{readable_text(error)}", id_)
        log.warning(
            "the query %s lost a Python worker that was slow to start; starting it again", id_
        )
        time.sleep(pause)
        running.query = self._start(running.id)
        running.run_id = str(running.query.runId)
        self._wait_first_batch(running)

    def _run(self, running: _Running) -> QueryRun | None:
        return self.events.run(running.run_id)

    def _has_ended(self, running: _Running) -> bool:
        run = self._run(running)
        return run is not None and run.ended

    def _any_ended(self) -> bool:
        return any(self._has_ended(running) for running in self._running)


class Sink(NamedTuple):
    """A writer's query name and sink, as far as set."""

    query: str | None = None
    format: str | None = None
    target: str | None = None
    function: object = None


@dataclass(eq=False)
class FileSinks:
    """Records the options of this process's streaming writers, and refuses folders of other runs.

    `checkpoint` may choose the checkpoint of a query that names none; `started` then gets the
    query, or None after a failure. `on_start` gets each writer's checkpoint and may raise.
    """

    on_start: Callable[[str | None], None] | None = None
    checkpoint: Callable[[Sink], str | None] = lambda _: None
    started: Callable[[Sink, str, StreamingQuery | None], None] = lambda *_: None

    def __post_init__(self) -> None:
        self._known: WeakKeyDictionary[DataStreamWriter, _Options] = WeakKeyDictionary()

    def check(self, writer: DataStreamWriter) -> None:
        """Raise `TopologyError` if the writer's folder has another run's log."""
        options = self._known.get(writer, {})
        if options.get("path"):
            _check(str(options["path"]), options)

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Record options, and check each writer that any code starts."""
        methods = {name: self._recording(getattr(DataStreamWriter, name)) for name in _METHODS}
        return spark_callbacks.replaced(DataStreamWriter, **methods)

    def _recording(self, method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def recording(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            writer = given.pop(next(iter(given)))  # the first parameter, whatever its name
            self._record(writer, given)
            if method.__name__ not in ("start", "toTable"):
                return method(*args, **kwargs)
            with self._starting(writer) as started:
                if method.__name__ == "start":
                    self.check(writer)
                else:
                    location = _location(given["tableName"])
                    if location is not None:
                        _check(location, self._known[writer])
                started.append(method(*args, **kwargs))
            return started[0]

        return recording

    @contextlib.contextmanager
    def _starting(self, writer: DataStreamWriter) -> Iterator[list[StreamingQuery]]:
        """Set a writer's checkpoint; the caller appends the started query to the list."""
        known = self._known[writer]
        sink, started = _sink(known), list[StreamingQuery]()
        location, chosen = _checkpoint(SparkSession.active(), known), None
        is_first = location is None
        if is_first:
            location = chosen = self.checkpoint(sink)
            if chosen is not None:
                writer.option("checkpointLocation", chosen)
                known[_CHOSEN] = chosen
        elif location == known.get(_CHOSEN):  # a second start of the writer
            chosen = location
        try:
            if self.on_start is not None:
                self.on_start(location)
            yield started
        finally:
            if chosen is not None and (started or is_first):
                self.started(sink, chosen, started[0] if started else None)

    def _record(self, writer: DataStreamWriter, given: Mapping[str, Any]) -> None:
        known = self._known.setdefault(writer, {})
        found = {"path": given.get("path"), _QUERY: given.get("queryName")}
        found |= {_FORMAT: given.get("source") or given.get("format")}
        found |= {_TABLE: given.get("tableName"), _FUNCTION: given.get("func") or given.get("f")}
        found |= {given.get("key", ""): given.get("value"), **given.get("options", {})}
        known |= {name.lower(): value for name, value in found.items() if value is not None}


def _sink(known: Mapping[str, Any]) -> Sink:
    target = known.get(_TABLE) or known.get("path") or known.get("topic")
    return Sink(known.get(_QUERY), known.get(_FORMAT), target, known.get(_FUNCTION))


def _check(folder: str, options: Mapping[str, Any]) -> None:
    spark = SparkSession.active()
    checkpoint = _checkpoint(spark, options)
    try:
        written = _newest(_names(spark, f"{folder}/{_LOG}"))
        begun = _newest(_names(spark, f"{checkpoint}/offsets")) if checkpoint else None
    except (PySparkException, Py4JError):  # Spark's own error will name the cause
        return
    if written is None or (begun is not None and begun >= written):
        return
    known = "has none" if begun is None else f"ends with batch {begun}"
    first = 0 if begun is None else begun + 1
    taken = f"batch {first}" if first == written else f"the batches {first} to {written}"
    raise TopologyError(
        f"the folder {folder} belongs to another run: its log of batches, {folder}/{_LOG}, ends "
        f"with batch {written}, and the checkpoint of this query, {checkpoint or 'a new one'}, "
        f"{known}. Spark would take {taken} for written, and drop the rows. Write each run to a "
        "folder of its own, or move this one away; to go on where that run ended, start the query "
        "with that run's checkpoint, if there still is one: `storm submit --from` does that, and "
        "storm local keeps only a checkpoint that the script names"
    )


def _checkpoint(spark: SparkSession, options: Mapping[str, Any]) -> str | None:
    if options.get("checkpointlocation"):
        return str(options["checkpointlocation"])
    root, name = spark.conf.get(_CHECKPOINTS, None), options.get(_QUERY)
    return f"{root}/{name}" if root and name else None


def _newest(names: Iterable[str]) -> int | None:
    numbers = (re.fullmatch(r"(\d+)(?:\.compact)?", name) for name in names)
    return max((int(number[1]) for number in numbers if number), default=None)


def _names(spark: SparkSession, folder: str) -> list[str]:
    """List a folder on any of Spark's file systems; Spark's public reader hides such files."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(path):
        return []
    return [str(status.getPath().getName()) for status in files.listStatus(path)]


def _location(table: str) -> str | None:
    spark = SparkSession.active()
    try:
        if not spark.catalog.tableExists(table):
            return None
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    except PySparkException:
        return None
    return next((str(row[1]) for row in described if row[0] == "Location"), None)


class ScriptCheckpoints:
    """Checkpoints for a script's queries that name none: the same in each process.

    A query is known by its name, or else its sink, and by the number of earlier starts, so that a
    loop over tables gets a checkpoint for each. A failed query that starts again with the same sink
    keeps its checkpoint, so that no row is written twice.
    """

    #: Most checkpoints of one name: a script's loop must not fill the disk.
    MOST = 100

    def __init__(self, folder: Callable[[], str]) -> None:
        self._folder = folder
        self._starts = Counter[str]()
        self._last: dict[str, tuple[Sink, StreamingQuery]] = {}

    def choose(self, sink: Sink) -> str | None:
        """Return the checkpoint of a query that starts, if any.

        A memory sink gets none: its rows are gone at the next start, and Spark refuses to go on.
        """
        if sink.format == "memory":
            return None
        name = checkpoint_name(sink)
        before, query = self._last.pop(name, (sink, None))
        has_failed = query is not None and query.exception() is not None
        if not has_failed or (before.format, before.target) != (sink.format, sink.target):
            self._starts[name] += 1
        return self._place(name)

    def started(self, sink: Sink, location: str, query: StreamingQuery | None) -> None:
        """Record a checkpoint's query; None: the start has failed."""
        name = checkpoint_name(sink)
        if location != self._place(name):  # another thread has started the same name since
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
    """Return a checkpoint's folder name, from the query's name or sink."""
    if sink.query:
        return _folder_name(sink.query)
    if sink.function is not None:
        function = getattr(sink.function, "func", sink.function)  # of a functools.partial
        called = getattr(function, "__qualname__", type(function).__name__)
        return _folder_name("foreach-" + called.replace("<locals>.", "").strip("<>"))
    return _folder_name("-".join(filter(None, [sink.format or "sink", sink.target])))


def _folder_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "-", text)[:_LONGEST].strip("-")
    return name if name == text else f"{name}-{zlib.crc32(text.encode()):08x}"
