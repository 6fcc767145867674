"""Counts what Python's library imports: a PySpark streaming script like any other.

Nothing in it knows of Stormkeeper, and ``python plain_streaming.py`` runs it too. A worker runs it
as it is, and its query appears as a component: ``storm local examples/plain_streaming.py``.
"""

import sysconfig

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("imports")
    .master("local[2]")
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)

source = spark.conf.get("spark.imports.input", f"{sysconfig.get_path('stdlib')}/*.py")
lines = spark.readStream.option("maxFilesPerTrigger", 5).text(source)
modules = lines.select(
    F.regexp_extract("value", r"^\s*(?:import|from) +(\w+)", 1).alias("module")
).where("module != ''")

query = (
    modules.groupBy("module")
    .count()
    .orderBy(F.desc("count"))
    .writeStream.queryName("imports")
    .outputMode("complete")
    .format("console")
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
