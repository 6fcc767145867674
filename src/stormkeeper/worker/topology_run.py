"""A topology's queries: built by calling the components' functions, and run until their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.daemon.spark import Starts
from stormkeeper.errors import ClaimedError, TopologyError, WorkerError
from stormkeeper.topology import faults
from stormkeeper.topology.plan import Edge, Plan, Query
from stormkeeper.topology.topology import Component
from stormkeeper.worker.checkpoint_claims import Claims
from stormkeeper.worker.executor_counts import counted, observation
from stormkeeper.worker.failure import readable, readable_text
from stormkeeper.worker.running_queries import QueryEvents, QueryRun
from stormkeeper.worker.spark_session import check_jvm

log = logging.getLogger(__name__)

#: Longest wait of the next query for a query's first batch, in seconds: queries with Python workers
#: that start at the same time cause the transient failure that is retried below.
_FIRST_BATCH_SECS = 60.0

_LOOK_SECS = 0.1


@dataclass(frozen=True)
class BuiltQuery:
    """A query that is ready to start."""

    query: Query
    writer: DataStreamWriter


def build(
    plan: Plan,
    components: Mapping[str, Component],
    spark: SparkSession,
    conf: Mapping[str, Any],
    checkpoint: Callable[[str], str],
) -> list[BuiltQuery]:
    """Build all queries of a plan; starts none, so that a fault is found before any query runs.

    Raises `TopologyError` if a function returns what its component must not return, and
    `WorkerError` with a traceback if a function raises.
    """
    return [
        _build_query(query, components, spark, conf, checkpoint(query.id)) for query in plan.queries
    ]


def _build_query(
    query: Query,
    components: Mapping[str, Component],
    spark: SparkSession,
    conf: Mapping[str, Any],
    checkpoint: str,
) -> BuiltQuery:
    frames: dict[str, DataFrame] = {}
    for component in [components[described.id] for described in query.components]:
        inputs = [
            _input(frames[source], Edge(source, component.id, position), component.parallelism)
            for position, source in enumerate(component.inputs)
        ]
        returned = _call(component, inputs, {"spark": spark, "conf": conf})
        try:
            if component.id != query.id:
                frames[component.id] = _output(component, returned)
            else:
                writer = _writer(component, returned)
        except TopologyError as error:
            raise TopologyError(f"{component.place}: {error}".removeprefix(": ")) from error
    return BuiltQuery(query, writer.queryName(query.id).option("checkpointLocation", checkpoint))


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
    built: BuiltQuery
    query: StreamingQuery
    #: Spark's id of the run; the query object would have to ask the JVM.
    run_id: str
    starts: Starts


class TopologyRun:
    """The running queries of a topology; `on_end` gets queries that end without an error."""

    def __init__(
        self,
        built: Sequence[BuiltQuery],
        events: QueryEvents,
        stopping: Callable[[], bool],
        claims: Claims,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._built = built
        self._events = events
        self._stopping = stopping
        self._claims = claims
        self._on_end = on_end
        self._running: list[_Running] = []

    def run(self) -> list[str]:
        """Start the queries in order, and wait until all have ended or a stop is asked.

        Skips queries that a later launch has claimed. Returns the ids of queries that a stop has
        kept from their end. Raises `WorkerError` if a query failed or the JVM has ended.
        """
        for position, built in enumerate(self._built):
            if self._stopping():
                return [one.query.id for one in (*self._started, *self._built[position:])]
            try:
                self._claims.take(built.query.id)
            except ClaimedError:  # logged by the claims
                continue
            query = self._start(built)
            running = _Running(built, query, str(query.runId), Starts())
            self._running.append(running)
            log.info("the query %s runs", built.query.id)
            self._wait_first_batch(running)
        while self._running and not self._stopping():
            self._events.wait(self._any_ended, _LOOK_SECS)
            check_jvm(self._events.sessions)
            for running in [r for r in self._running if self._has_ended(r)]:
                self._handle_end(running)
        return [built.query.id for built in self._started]

    @property
    def _started(self) -> list[BuiltQuery]:
        return [running.built for running in self._running]

    def _start(self, built: BuiltQuery) -> StreamingQuery:
        try:
            return built.writer.start()
        except (PySparkException, Py4JError) as error:
            raise WorkerError(
                f"the query {built.query.id!r} did not start:\n{readable(error)}", built.query.id
            ) from error

    def _wait_first_batch(self, running: _Running) -> None:
        deadline = time.monotonic() + _FIRST_BATCH_SECS
        while time.monotonic() < deadline and not self._stopping():
            run = self._run(running)
            if self._has_ended(running) or (run is not None and run.batches):
                return
            if running.query.status["message"].startswith("Waiting"):
                return
            self._events.wait(self._any_ended, _LOOK_SECS)

    def _handle_end(self, running: _Running) -> None:
        run = self._run(running)
        error = run.error if run is not None else None
        id_ = running.built.query.id
        if not self._claims.is_kept(id_):  # Spark ends the older of two launches with an error
            self._running.remove(running)
            return
        if error is None:
            if not self._stopping():
                log.info("the query %s has ended", id_)
                self._running.remove(running)
                self._on_end(id_)
            return
        if self._stopping():
            return
        pause = running.starts.next_pause(error, has_batch=run is not None and bool(run.batches))
        if pause is None:
            raise WorkerError(f"the query {id_!r} failed:\n{readable_text(error)}", id_)
        log.warning(
            "the query %s lost a Python worker that was slow to start; starting it again", id_
        )
        time.sleep(pause)
        running.query = self._start(running.built)
        running.run_id = str(running.query.runId)
        self._wait_first_batch(running)

    def _run(self, running: _Running) -> QueryRun | None:
        return self._events.run(running.run_id)

    def _has_ended(self, running: _Running) -> bool:
        run = self._run(running)
        return run is not None and run.ended

    def _any_ended(self) -> bool:
        return any(self._has_ended(running) for running in self._running)
