"""Builds the streaming queries of a topology by calling its functions, with all rows counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.errors import TopologyError, WorkerError
from stormkeeper.topology import faults
from stormkeeper.topology.component import Component
from stormkeeper.topology.plan import Edge, Plan, Query
from stormkeeper.worker.counting import observation
from stormkeeper.worker.failure import readable
from stormkeeper.worker.query_events import ROWS


@dataclass(frozen=True)
class Built:
    """A query, ready to be started."""

    query: Query
    writer: DataStreamWriter


def build(
    plan: Plan,
    components: Mapping[str, Component],
    spark: SparkSession,
    conf: Mapping[str, Any],
    checkpoint: Callable[[str], str],
) -> list[Built]:
    """Call the functions of every component, once per query, and return the queries.

    Nothing is started: a fault in one query is found before another one runs.

    Parameters
    ----------
    plan
        What to build.
    components
        The topology's components by id, with their functions.
    spark, conf
        What functions get that ask for it.
    checkpoint
        Returns where a query, by its id, keeps its checkpoint.

    Raises
    ------
    TopologyError
        When a function returned what its component may not return.
    WorkerError
        When a function raised; the message has its traceback.
    """
    return [
        _build_query(query, components, spark, conf, checkpoint(query.id)) for query in plan.queries
    ]


def counted(frame: DataFrame, name: str) -> DataFrame:
    """Return `frame` with its rows counted in every micro-batch, under `name`."""
    return frame.observe(name, F.count(F.lit(1)).alias(ROWS))


def _build_query(
    query: Query,
    components: Mapping[str, Component],
    spark: SparkSession,
    conf: Mapping[str, Any],
    checkpoint: str,
) -> Built:
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
    return Built(query, writer.queryName(query.id).option("checkpointLocation", checkpoint))


def _input(frame: DataFrame, edge: Edge, parallelism: int) -> DataFrame:
    rows = counted(frame, observation(edge))
    return rows.repartition(parallelism) if parallelism > 1 else rows


def _call(component: Component, inputs: list[DataFrame], services: Mapping[str, Any]) -> Any:
    positional, keywords = component.arguments(inputs, services)
    try:
        return component.function(*positional, **keywords)
    except BaseException as error:  # also SystemExit, whose exit code 0 would say that all is done
        raise WorkerError(
            f"the {component.kind} {component.id!r} failed:\n{readable(error)}", component.id
        ) from error


def _output(component: Component, returned: Any) -> DataFrame:
    who = f"the {component.kind} {component.id!r}"
    if isinstance(returned, DataStreamWriter):
        if component.kind == "spout":
            raise TopologyError(
                f"{who} returned a DataStreamWriter, which ends a query: a spout returns the "
                "DataFrame, and a bolt that reads from it writes it"
            )
        raise TopologyError(faults.writer_read(component.id))
    if not isinstance(returned, DataFrame):
        raise TopologyError(f"{who} returned {_described(returned)}, not a DataFrame")
    if not returned.isStreaming:
        how = "spark.readStream" if component.kind == "spout" else "the DataFrames of its inputs"
        raise TopologyError(
            f"{who} returned a batch DataFrame, whose rows end: make a streaming one from {how}"
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
