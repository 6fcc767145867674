"""Sinks and checkpoints of all streaming writers of this process.

A file sink keeps a log of its batches in ``_spark_metadata`` and skips a batch whose number is in
the log. A query with a new checkpoint counts from 0: in the folder of an earlier run Spark would
silently drop its first rows. A checkpoint has each batch before the sink does, so a log that goes
beyond the query's checkpoint belongs to another run, and the start is refused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.errors import TopologyError

_LOG = "_spark_metadata"

#: Options of a writer, by name in lower case, with the settings below.
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


class Sink(NamedTuple):
    """A writer's query name and sink, as far as set."""

    query: str | None = None
    format: str | None = None
    target: str | None = None
    function: object = None


class FileSinks:
    """Records the options of this process's streaming writers, and refuses folders of other runs.

    `checkpoint` may choose the checkpoint of a query that names none; then `started` gets the
    query, or None after a failure. `on_start` gets the checkpoint of each writer and may raise.
    """

    def __init__(
        self,
        on_start: Callable[[str | None], None] | None = None,
        checkpoint: Callable[[Sink], str | None] = lambda _: None,
        started: Callable[[Sink, str, StreamingQuery | None], None] = lambda *_: None,
    ) -> None:
        self._started = started
        self._on_start = on_start
        self._checkpoint = checkpoint
        self._known: WeakKeyDictionary[DataStreamWriter, _Options] = WeakKeyDictionary()

    def check(self, writer: DataStreamWriter) -> None:
        """Raise `TopologyError` if the writer's folder has the log of another run."""
        options = self._known.get(writer, {})
        if options.get("path"):
            _check(str(options["path"]), options)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Record options from now on, and check each writer that any code starts."""
        methods = {name: getattr(DataStreamWriter, name) for name in _METHODS}
        for name, method in methods.items():
            setattr(DataStreamWriter, name, self._recording(method))
        try:
            yield
        finally:
            for name, method in methods.items():
                setattr(DataStreamWriter, name, method)

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
            location = chosen = self._checkpoint(sink)
            if chosen is not None:
                writer.option("checkpointLocation", chosen)
                known[_CHOSEN] = chosen
        elif location == known.get(_CHOSEN):  # a second start of the writer
            chosen = location
        try:
            if self._on_start is not None:
                self._on_start(location)
            yield started
        finally:
            if chosen is not None and (started or is_first):
                self._started(sink, chosen, started[0] if started else None)

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
    """Return the highest number among a log's files, such as ``7`` or ``9.compact``."""
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

    A query is known by its name, or else its sink, and by the number of earlier starts of the same,
    so that a loop over tables gets a checkpoint for each. A query that failed and is started again
    with the same sink keeps its checkpoint, so that no row is written twice.
    """

    #: Most checkpoints of one name: a script that starts a query in a loop must not fill the disk.
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
        """Record the query that was started with a checkpoint; None: the start has failed."""
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
    """Return the folder name of a query's checkpoint, from the query's name or sink."""
    if sink.query:
        return _folder_name(sink.query)
    if sink.function is not None:
        function = getattr(sink.function, "func", sink.function)  # of a functools.partial
        called = getattr(function, "__qualname__", type(function).__name__)
        return _folder_name("foreach-" + called.replace("<locals>.", "").strip("<>"))
    return _folder_name("-".join(filter(None, [sink.format or "sink", sink.target])))


def _folder_name(text: str) -> str:
    """Return a text as a folder name, with a checksum if characters were replaced or cut."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", text)[:_LONGEST].strip("-")
    return name if name == text else f"{name}-{zlib.crc32(text.encode()):08x}"
