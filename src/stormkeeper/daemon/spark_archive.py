"""Makes the archive of Spark's classes, which a JVM maps instead of reading the jars.

``python -m stormkeeper.daemon.spark_archive`` writes it into this Python's environment: a query
runs, and the JVM dumps the loaded classes (class data sharing, JEP 350). A JVM with another version
or other jars ignores it.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stormkeeper.daemon import spark, spark_environment
from stormkeeper.errors import EngineError

#: Limits of the query and the writing; both take about ten.
QUERY_SECS = 120
WRITING_SECS = 240.0


def make() -> Path:
    """Make the archive anew and return the path; the old archive serves until then.

    Raises `EngineError` if Java is missing, Spark does not start, or the JVM writes nothing.
    """
    spark_environment.prepare()
    archive = spark.archive_place()
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = spark.settings(spark.LOCAL_CHECKPOINTS, "spark-archive", archive=False)
        settings["spark.driver.defaultJavaOptions"] += " " + shlex.join(
            [f"-XX:ArchiveClassesAtExit={new}", *spark.QUIET_ABOUT_CLASSES]
        )
        session = spark.session(settings, "spark-archive")
        try:
            _run_a_query(session, Path(folder, "lines"))
        finally:
            spark.end(session, WRITING_SECS)
    if not new.is_file():
        raise EngineError(f"the JVM has not written {new}: is there space for 200 MB?")
    new.replace(archive)
    return archive


def _run_a_query(session: SparkSession, folder: Path) -> None:
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("to be or not to be\n" * 10)
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
    words = lines.select(F.explode(F.split("value", r"\W+")).alias("word")).where("word != ''")
    counts = words.observe("words", F.count(F.lit(1)).alias("rows")).groupBy("word").count()
    query = (
        counts.writeStream.outputMode("complete")
        .option("checkpointLocation", str(folder.with_name("checkpoint")))
        .trigger(availableNow=True)
        .foreachBatch(_collect)
        .start()
    )
    if not query.awaitTermination(QUERY_SECS):
        raise EngineError(f"Spark did not count three files in {QUERY_SECS} s")


def _collect(batch: DataFrame, _: int) -> None:
    batch.collect()


if __name__ == "__main__":
    print(f"Spark's classes are in {make()}")
