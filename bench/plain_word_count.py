"""The example's query over a folder in plain PySpark: what Spark itself takes.

    python bench/plain_word_count.py FOLDER [spark.key=value ...]

Prints a line for each batch, as the example does, and ends after the first one.
"""

import sys
from collections import Counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

folder, *settings = sys.argv[1:]
builder = SparkSession.builder.appName("plain-word-count").master("local[*]")
for setting in settings:
    key, _, value = setting.partition("=")
    builder = builder.config(key, value)
spark = builder.getOrCreate()
lines = spark.readStream.option("maxFilesPerTrigger", 2).text(folder)
words = lines.select(F.explode(F.split("value", r"\W+")).alias("word")).where("word != ''")


def show(batch, number):
    totals = Counter(dict(batch.collect()))
    print(f"batch {number}: {len(totals):,} different words", flush=True)


query = (
    words.groupBy("word")
    .count()
    .writeStream.outputMode("complete")
    .trigger(processingTime="1 second")
    .foreachBatch(show)
    .start()
)
while query.lastProgress is None and query.isActive:
    query.awaitTermination(0.1)
query.stop()
