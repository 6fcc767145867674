"""Decoding of pulses: ``raw.transform(heartbeats).transform(statistics)``.

The compiled engine decodes if it was built, else the engine in Python.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, explode
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.errors import SerializationError
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoding.layout import HEARTBEAT, HEARTBEAT_BYTES
from stormkeeper.pipeline.decoding.plain import Builder
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import uncompressed

#: The paths that `paths.parse_workerbeat` accepts.
_WORKERBEAT: Final = "^/workerbeats/(?P<storm_id>[^/]+)/(?P<node>[^/]+)-(?P<port>[0-9]{1,9})$"

#: Values converted to Python at once.
_AT_ONCE: Final = 512


def heartbeats(df: DataFrame) -> DataFrame:
    """Decode the pulses of the ``pacemaker`` source, and drop all other rows.

    Adds the columns of `rows.TYPED`; an executor's ``component`` is null from Storm's own workers.
    For an undecodable pulse, ``error`` says why, and the heartbeat's columns are null.
    """
    return typed(df.where(col("kind") == rows.PULSE)).drop("kind", "health")


def statistics(df: DataFrame) -> DataFrame:
    """Lay out the statistics in `heartbeats` rows, a row per window and stream.

    Columns mean the same as in ``executor_stats``, where an executor without a component's name
    gets one, and a window without counts a row.
    """
    worker = ["storm_id", "node", "port", "server", "received_at", "time_secs"]
    executor = ["task_start", "task_end", "component", "kind"]
    return (
        df.select(*worker, explode("executors").alias("executor"))
        .select(
            *worker,
            *(f"executor.{name}" for name in executor),
            explode("executor.counters").alias("counter"),
        )
        .select(*worker, *executor, "counter.*")
    )


def typed(df: DataFrame) -> DataFrame:
    """Decode as `heartbeats` does, and keep the source's other rows, with null in typed columns."""
    return df.mapInArrow(_decode_for_spark, from_arrow_schema(rows.OF_SPARK))


def _decode_for_spark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in decode_batches(batches):
        yield batch.cast(rows.OF_SPARK)


def decode_batches(
    batches: Iterator[pa.RecordBatch], engine: Engine | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode Arrow batches of the source, in order, into batches limited by size."""
    for batch in batches:
        if batch["details"].null_count == batch.num_rows:
            yield _typed(batch, {name: pa.nulls(len(batch), of) for name, of in HEARTBEAT.items()})
            continue
        start = 0
        for count, heartbeat in decode(_values(batch["details"]), engine):
            yield _typed(batch.slice(start, count), heartbeat)
            start += count


def _values(details: pa.Array) -> Iterator[bytes | None]:
    for start in range(0, len(details), _AT_ONCE):
        yield from details.slice(start, _AT_ONCE).to_pylist()


def _typed(batch: pa.RecordBatch, heartbeat: dict[str, pa.Array]) -> pa.RecordBatch:
    workers = pc.extract_regex(batch["path"], _WORKERBEAT)
    columns = {
        **{name: pc.struct_field(workers, name) for name in WorkerId._fields},
        **heartbeat,
        "bytes": pc.binary_length(batch["details"]).cast(pa.int64()),
        # Spark passes times in the session's time zone.
        **{name: batch[name].cast(rows.TYPED.field(name).type) for name in rows.PASSED_ON},
    }
    columns["port"] = columns["port"].cast(pa.int32())
    return pa.RecordBatch.from_pydict(columns, schema=rows.TYPED)


log = logging.getLogger(__name__)

_MODULE: Final = "stormkeeper.pipeline.decoding._compiled"

#: Limits of the values that become columns together: number, and bytes with names.
_MOST: Final = 512

_MOST_BYTES: Final = 32 * 1024 * 1024


class Engine(NamedTuple):
    """An engine, ``compiled`` or ``interpreted``.

    The compiled builder's `add` returns False for a heartbeat left to the interpreted builder.
    """

    name: str
    builder: type[Builder]


INTERPRETED: Final = Engine("interpreted", Builder)


def load() -> Engine:
    try:
        return Engine("compiled", import_module(_MODULE).Builder)
    except ImportError:
        return INTERPRETED


def warn_if_interpreted() -> None:
    try:
        import_module(_MODULE)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        log.warning(
            "heartbeats are decoded in plain Python, with about fifteen times the CPU: %s;"
            " install a C compiler and Python's headers (Debian: apt-get install gcc python3-dev),"
            " then stormkeeper anew",
            "no C compiler was there when stormkeeper was installed"
            if is_absent
            else f"the compiled module cannot be loaded: {error}",
        )


def decode(
    values: Iterable[bytes | None], engine: Engine | None = None
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Decode pulses' values (None: no value) into the columns `layout.HEARTBEAT`.

    Yields a number of values, and their columns. ``error`` says why a value is refused.
    """
    engine = engine or _default()
    builder = engine.builder()
    for value in values:
        after = _add(builder, value)
        if after is not None:
            yield from _finished(builder)
            builder = engine.builder()
            yield from _finished(after)
        elif len(builder) >= _MOST or builder.weight >= _MOST_BYTES:
            yield from _finished(builder)
            builder = engine.builder()
    yield from _finished(builder)


_default = cache(load)


def _finished(builder: Builder) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    if len(builder):
        yield len(builder), builder.finish()


def _add(builder: Builder, value: bytes | None) -> Builder | None:
    """Add a value, if need be to another builder, which is returned."""
    if value is None:
        builder.refuse(None)
        return None
    try:
        data = uncompressed(ClusterWorkerHeartbeat, value, HEARTBEAT_BYTES)
        if builder.add(data):
            return None
        other = INTERPRETED.builder()
        other.add(data)
    except SerializationError as error:
        builder.refuse(str(error))
        return None
    return other
