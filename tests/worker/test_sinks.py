import contextlib

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.errors import TopologyError
from stormkeeper.worker.streaming_queries import FileSinks, ScriptCheckpoints

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def sinks():
    sinks = FileSinks()
    with sinks.installed():
        yield sinks


@pytest.fixture
def run(spark, numbers, tmp_path):
    """Writes the six files of numbers to a folder, two a batch, as a run of a query."""

    def run(checkpoint, folder=None, *, batches=None):
        reader = spark.readStream.schema("line string").option("maxFilesPerTrigger", 2)
        rows = reader.text(str(numbers[0]) if batches is None else str(batches))
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.start(str(folder or tmp_path / "out"))
        assert query.awaitTermination(60)

    return run


def rows(spark, folder):
    return spark.read.parquet(str(folder)).count()


def test_a_folder_of_another_run_is_refused_with_the_remedy(spark, run, tmp_path):
    run("first")
    out = tmp_path / "out"
    with pytest.raises(TopologyError) as refused:
        run("second")
    text = str(refused.value)
    assert f"the folder {out} belongs to another run" in text
    assert f"{out}/_spark_metadata, ends with batch 2" in text
    assert f"{tmp_path / 'second'}, has none" in text
    assert "batches 0 to 2" in text
    assert "folder of its own" in text
    assert "that run's checkpoint" in text
    assert not (tmp_path / "second").exists()
    run("second", tmp_path / "other")
    assert rows(spark, tmp_path / "other") == rows(spark, out) == 60


def test_a_run_that_goes_on_may_write_to_its_folder(spark, run, numbers, tmp_path):
    run("c")
    (numbers[0] / "more.txt").write_text("61\n62\n")
    run("c")
    assert rows(spark, tmp_path / "out") == 62
    # The sink has a batch that its query could not note as done.
    (tmp_path / "c" / "commits" / "3").unlink()
    (tmp_path / "c" / "commits" / ".3.crc").unlink(missing_ok=True)
    run("c")
    assert rows(spark, tmp_path / "out") == 62


def test_checkpoint_behind_folders_log_is_refused(run, tmp_path):
    run("long")
    few = tmp_path / "few"
    few.mkdir()
    (few / "0.txt").write_text("1\n")
    run("short", tmp_path / "elsewhere", batches=few)
    with pytest.raises(TopologyError, match=r"ends with batch 0.*batches 1 to 2"):
        run("short", batches=few)
    (few / "1.txt").write_text("2\n")
    run("short", tmp_path / "elsewhere", batches=few)
    with pytest.raises(TopologyError, match=r"ends with batch 1.*would take batch 2 for written"):
        run("short", batches=few)


@pytest.mark.parametrize("how", ["option", "options", "start", "conf", "url"])
def test_however_the_folder_is_given(spark, sinks, run, numbers, tmp_path, how):
    run("first")
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "second")
    rows = spark.readStream.text(str(numbers[0]))
    writer = rows.writeStream.format("parquet").queryName("numbers")
    given = {"checkpointLocation": checkpoint}
    if how == "option":
        writer = writer.option("PATH", out).option("checkpointlocation", checkpoint)
        given = {}
    elif how == "options":
        writer, given = writer.options(path=out, **given), {}
    elif how == "conf":
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "second"))
        given = {"path": out}
    else:
        given["path"] = f"file://{out}" if how == "url" else out
    try:
        with pytest.raises(TopologyError, match="belongs to another run"):
            writer.start(**given)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    if how in ("option", "options"):
        with pytest.raises(TopologyError, match="belongs to another run"):
            sinks.check(writer)


def test_a_table_of_another_run_is_refused(spark, numbers, tmp_path):
    rows = spark.readStream.text(str(numbers[0])).writeStream.trigger(availableNow=True)
    location = {"checkpointLocation": str(tmp_path / "first")}
    try:
        assert rows.toTable("of_numbers", format="parquet", **location).awaitTermination(60)
        rows = spark.readStream.text(str(numbers[0])).writeStream
        with pytest.raises(TopologyError, match="of_numbers belongs to another run"):
            rows.toTable("of_numbers", checkpointLocation=str(tmp_path / "second"))
    finally:
        spark.sql("DROP TABLE IF EXISTS of_numbers")


def test_sinks_with_new_or_no_folder_are_accepted(spark, numbers, tmp_path):
    rows = spark.readStream.text(str(numbers[0]))
    writer = rows.writeStream.trigger(availableNow=True)
    writer = writer.foreachBatch(lambda _batch, _number: None)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    assert query.awaitTermination(60)
    writer = rows.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
    assert writer.start().awaitTermination(60)
    assert spark.table("seen").count() == 60


def test_afterwards_pyspark_is_as_it_was():
    before = DataStreamWriter.start, DataStreamWriter.option, DataStreamWriter.toTable
    with FileSinks().installed():
        assert DataStreamWriter.start is not before[0]
    assert (DataStreamWriter.start, DataStreamWriter.option, DataStreamWriter.toTable) == before


def test_a_query_that_failed_is_started_again_in_its_checkpoint(spark, numbers, tmp_path):
    def fail(*_):
        raise ValueError("no")

    checkpoints, used = ScriptCheckpoints(lambda: str(tmp_path)), []
    with FileSinks(used.append, checkpoints.choose, checkpoints.started).installed():
        for function in (fail, lambda *_: None, lambda *_: None):
            rows = spark.readStream.text(str(numbers[0])).writeStream.queryName("again")
            query = rows.foreachBatch(function).trigger(availableNow=True).start()
            with contextlib.suppress(StreamingQueryException):
                query.awaitTermination(60)
    assert used == [f"{tmp_path}/{name}" for name in ("again", "again", "again.2")]


def test_a_writer_that_is_started_again_keeps_its_checkpoint(spark, numbers, tmp_path):
    begun, queries = [], []
    place = str(tmp_path / "c")
    with FileSinks(None, lambda _: place, lambda _, *start: begun.append(start)).installed():
        rows = spark.readStream.text(str(numbers[0])).writeStream.format("noop")
        writer = rows.trigger(availableNow=True)
        for _ in range(2):
            queries.append(writer.start())
            assert queries[-1].awaitTermination(60)
    assert begun == [(place, query) for query in queries]
