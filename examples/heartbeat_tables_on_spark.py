r"""Keeps tables of all heartbeats, as ``storm pipeline`` does, in a Spark application of its own.

    spark-submit examples/heartbeat_tables_on_spark.py \
        'pacemaker.servers=[pacemaker-1, pacemaker-2]' pipeline.tables.dir=/data/heartbeats

What it is given is configuration, as after the ``-c`` of ``storm``; a storm.yaml is read, too.
"""

import sys

from pyspark.sql import SparkSession

from stormkeeper.conf import load
from stormkeeper.pipeline import process

spark = SparkSession.builder.appName("heartbeat-tables").getOrCreate()
process.keep(spark, load(overrides=sys.argv[1:]))
spark.stop()
