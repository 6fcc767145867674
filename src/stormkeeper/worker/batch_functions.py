"""Wraps every function that any code of this process gives to ``foreachBatch``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

#: What a user hands to ``foreachBatch``: called with the batch's DataFrame and its number.
BatchFunction = Callable[[Any, int], Any]


def query_id(batch: Any) -> str | None:
    """Return Spark's id of the query that a batch is of; only in its ``foreachBatch`` function.

    Spark has no public interface for this. The name is that of Spark 4.3.
    """
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if found is None else str(found)


@contextlib.contextmanager
def wrapped(wrap: Callable[[BatchFunction], BatchFunction]) -> Iterator[None]:
    """Have `wrap` applied to every function that is given to ``foreachBatch`` from now on."""
    for_each_batch = DataStreamWriter.foreachBatch

    def wrapping(writer: DataStreamWriter, func: Callable[[Any, int], None]) -> DataStreamWriter:
        return for_each_batch(writer, wrap(func))

    DataStreamWriter.foreachBatch = wrapping  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        DataStreamWriter.foreachBatch = for_each_batch  # type: ignore[method-assign]
