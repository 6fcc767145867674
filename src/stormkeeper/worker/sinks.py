"""Knows the sinks of all streaming writers, and refuses a file sink that belongs to another run.

A file sink (``format("parquet")`` and the like) keeps a log of its batches in ``_spark_metadata``,
beside its files. It passes over a batch whose number is in the log, as one that it wrote before a
crash. But a query with a new checkpoint counts from 0 again. In the folder of an earlier run, its
batches seem to be written already, up to the last number of that run. Spark drops their rows and
says nothing.

A query's checkpoint has each batch before the sink sees it. So a log that goes beyond its query's
checkpoint belongs to another query. The batches up to its end would be lost.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
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

#: Of a writer: its options, their names in lower case, and the name of its query.
_Options = dict[str, Any]
_QUERY = "query name"
#: The same of its sink. No option of Spark's has a blank in its name.
_FORMAT, _TABLE, _FUNCTION = "sink format", "sink table", "sink function"
#: The checkpoint that a writer was given here.
_GIVEN = "given checkpoint"

#: Where queries keep their checkpoints that do not say it themselves, below it by name.
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


#: What says something of a writer, or starts it.
_METHODS = (
    *("option", "options", "queryName", "format", "foreachBatch", "foreach"),
    *("start", "toTable"),
)


class Sink(NamedTuple):
    """What a writer says of its query and of its sink; None where it says nothing."""

    query: str | None = None
    format: str | None = None
    #: The table, path or topic that is written to.
    target: str | None = None
    #: What ``foreachBatch`` or ``foreach`` was given.
    function: object = None


class FileSinks:
    """Knows the options of this process's streaming writers, and refuses what would write nothing.

    A writer does not tell what was set: that is noted as it is set, through its public methods.

    Parameters
    ----------
    on_start
        Told of each writer that any code is about to start where its checkpoint is to be, None
        where Spark makes one up. What it raises keeps the writer from its start. None: nobody is.
    checkpoint
        Returns the checkpoint of a query that names none, by what is known of its sink; None: Spark
        is to make one up.
    started
        Called after the start of a query that has its checkpoint from `checkpoint`: with its sink,
        the checkpoint and the query, None if the start has failed.
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
        """Look at a writer that is about to be started.

        Raises
        ------
        TopologyError
            When its folder has the log of another run, with batches that this one would repeat.
        """
        options = self._known.get(writer, {})
        if options.get("path"):
            _check(str(options["path"]), options)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Note what is set from now on, and check each writer that any code starts."""
        methods = {name: getattr(DataStreamWriter, name) for name in _METHODS}
        for name, method in methods.items():
            setattr(DataStreamWriter, name, self._noting(method))
        try:
            yield
        finally:
            for name, method in methods.items():
                setattr(DataStreamWriter, name, method)

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def noting(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            writer = given.pop(next(iter(given)))  # however the method calls it
            self._note(writer, given)
            if method.__name__ not in ("start", "toTable"):
                return method(*args, **kwargs)
            with self._starting(writer) as started:
                if method.__name__ == "start":
                    self.check(writer)
                else:
                    place = _location(given["tableName"])
                    if place is not None:
                        _check(place, self._known[writer])
                started.append(method(*args, **kwargs))
            return started[0]

        return noting

    @contextlib.contextmanager
    def _starting(self, writer: DataStreamWriter) -> Iterator[list[StreamingQuery]]:
        """Give a writer its checkpoint; the started query is to be put into the list."""
        known = self._known[writer]
        sink, started = _sink(known), list[StreamingQuery]()
        place, given = _checkpoint(SparkSession.active(), known), None
        is_first = place is None
        if is_first:
            place = given = self._checkpoint(sink)
            if given is not None:
                writer.option("checkpointLocation", given)
                known[_GIVEN] = given
        elif place == known.get(_GIVEN):  # the writer is started again
            given = place
        try:
            if self._on_start is not None:
                self._on_start(place)
            yield started
        finally:
            if given is not None and (started or is_first):
                self._started(sink, given, started[0] if started else None)

    def _note(self, writer: DataStreamWriter, given: Mapping[str, Any]) -> None:
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
    except (PySparkException, Py4JError):  # Spark's own look at the folder will say why
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
        "storm local keeps none but that which the script names"
    )


def _checkpoint(spark: SparkSession, options: Mapping[str, Any]) -> str | None:
    """Return where a query keeps its checkpoint; None where Spark makes one up."""
    if options.get("checkpointlocation"):
        return str(options["checkpointlocation"])
    root, name = spark.conf.get(_CHECKPOINTS, None), options.get(_QUERY)
    return f"{root}/{name}" if root and name else None


def _newest(names: Iterable[str]) -> int | None:
    """Return the highest number among a log's files: ``7``, or ``9.compact`` for those up to it."""
    numbers = (re.fullmatch(r"(\d+)(?:\.compact)?", name) for name in names)
    return max((int(number[1]) for number in numbers if number), default=None)


def _names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the files in a folder on any of Spark's file systems.

    Spark's public interface passes over files such as these; its JVM lists them.
    """
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


log = logging.getLogger(__name__)


#: Longest name of a checkpoint, in characters, without its checksum and number.
_LONGEST = 60


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
