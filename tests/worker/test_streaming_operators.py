"""Each operator of Spark's streaming that runs Python code, in a session as a worker starts it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from stormkeeper.daemon import spark as engine
from support.waiting import DEADLINE_SECS, until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: What transformWithState keeps its state in.
ROCKS_DB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
    ".RocksDBStateStoreProvider"
}
WORDS = ["to", "be", "or", "not", "to", "be"]
COUNTS = {("to", 2), ("be", 2), ("or", 1), ("not", 1)}
SCHEMA = "word string, count long"


@pytest.fixture(scope="module")
def spark():
    # Spark's Python workers have no such module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    is_shared = SparkContext._active_spark_context is not None
    session = engine.session(
        {**engine.LOCAL_CHECKPOINTS, **ROCKS_DB, "spark.master": "local[2]"}, "operators"
    )
    session.conf.set("spark.sql.shuffle.partitions", "1")
    # Spark looks for Python data sources in the active session, which this makes it.
    session.createDataFrame([(1,)], "number int")
    yield session
    if is_shared:
        for key in (*engine.LOCAL_CHECKPOINTS, *ROCKS_DB, "spark.sql.shuffle.partitions"):
            session.conf.unset(key)
    else:
        engine.end(session)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def words(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "words.txt").write_text("\n".join(WORDS))
    return spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "word")


@pytest.fixture
def rows(tmp_path):
    """Runs a query to its end; returns the rows that it gave."""

    def run(frame, mode="update"):
        found = set()
        writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.foreachBatch(lambda batch, _: found.update(map(tuple, batch.collect())))
        assert writer.start().awaitTermination(DEADLINE_SECS)
        return found

    return run


def test_map_in_pandas(words, rows):
    def upper(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield pd.DataFrame({"word": batch["word"].str.upper()})

    assert rows(words.mapInPandas(upper, "word string")) == {("TO",), ("BE",), ("OR",), ("NOT",)}


def test_map_in_arrow(words, rows):
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    assert rows(words.mapInArrow(same, "word string")) == {("to",), ("be",), ("or",), ("not",)}


def test_apply_in_arrow_and_in_pandas_of_each_batch(words):
    def count(table: pa.Table) -> pa.Table:
        return pa.table({"word": [table["word"][0].as_py()], "count": [table.num_rows]})

    def again(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    def of_batch(batch):
        counted = batch.groupBy("word").applyInArrow(count, SCHEMA)
        return counted.groupBy("word").applyInPandas(again, SCHEMA)

    found = set()
    writer = words.writeStream.trigger(availableNow=True).foreachBatch(
        lambda batch, _: found.update(map(tuple, of_batch(batch).collect()))
    )
    assert writer.start().awaitTermination(DEADLINE_SECS)
    assert found == COUNTS


def test_apply_in_pandas_with_state(words, rows):
    def count(key, frames, state):
        total = (state.get[0] if state.exists else 0) + sum(map(len, frames))
        state.update((total,))
        yield pd.DataFrame({"word": [key[0]], "count": [total]})

    kept = (SCHEMA, "count long", "update", GroupStateTimeout.NoTimeout)
    assert rows(words.groupBy("word").applyInPandasWithState(count, *kept)) == COUNTS


class _Counter(StatefulProcessor):
    def init(self, handle):
        self._count = handle.getValueState("count", "count long")

    def _add(self, number):
        total = (self._count.get()[0] if self._count.exists() else 0) + number
        self._count.update((total,))
        return total

    def close(self):
        pass


class PandasCounter(_Counter):
    def handleInputRows(self, key, rows, timerValues):  # noqa: ARG002, N802, N803
        yield pd.DataFrame({"word": [key[0]], "count": [self._add(sum(map(len, rows)))]})


class RowCounter(_Counter):
    def handleInputRows(self, key, rows, timerValues):  # noqa: ARG002, N802, N803
        yield Row(word=key[0], count=self._add(sum(1 for _ in rows)))


def test_transform_with_state_in_pandas(words, rows):
    grouped = words.groupBy("word")
    assert (
        rows(grouped.transformWithStateInPandas(PandasCounter(), SCHEMA, "Update", "None"))
        == COUNTS
    )


def test_transform_with_state_of_rows(words, rows):
    grouped = words.groupBy("word")
    assert rows(grouped.transformWithState(RowCounter(), SCHEMA, "Update", "None")) == COUNTS


class Numbers(DataSource):
    """Three numbers a batch; and what it writes, it writes to files."""

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "number int"

    def simpleStreamReader(self, schema):  # noqa: ARG002, N802
        return NumbersReader()

    def streamWriter(self, schema, overwrite):  # noqa: ARG002, N802
        return NumbersWriter(self.options["path"])


class NumbersReader(SimpleDataSourceStreamReader):
    def initialOffset(self):  # noqa: N802
        return {"next": 0}

    def read(self, start):
        end = {"next": min(start["next"] + 3, 6)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):  # noqa: N802
        return iter([(each,) for each in range(start["next"], end["next"])])

    def commit(self, end):
        pass


class NumbersWriter(DataSourceStreamWriter):
    def __init__(self, path):
        self._path = path

    def write(self, iterator):
        with Path(self._path).open("a") as file:
            file.writelines(f"{row.number}\n" for row in iterator)
        return WriterCommitMessage()

    def commit(self, messages, batchId):  # noqa: N803
        pass

    def abort(self, messages, batchId):  # noqa: N803
        pass


def test_a_python_data_source_reads_and_writes(spark, tmp_path):
    spark.dataSource.register(Numbers)
    writer = spark.readStream.format("numbers").load().writeStream.format("numbers")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("path", str(tmp_path / "out")).start()
    out = tmp_path / "out"
    until(lambda: query.exception() or (out.exists() and "5" in out.read_text()))
    query.stop()
    assert query.exception() is None
    assert sorted(out.read_text().split()) == list("012345")
