r"""Keeps tables of all heartbeats, as ``storm pipeline`` does, in a Spark application of its own.

    spark-submit examples/heartbeat_tables_on_spark.py \
        'pacemaker.servers=[pacemaker-1, pacemaker-2]' pipeline.tables.dir=/data/heartbeats

What it is given is configuration, as after the ``-c`` of ``storm``; a storm.yaml is read, too.
"""

import logging
import sys

from pyspark.sql import SparkSession

from stormkeeper.conf import load
from stormkeeper.pipeline import process

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
spark = SparkSession.builder.appName("heartbeat-tables").getOrCreate()
spark.sparkContext.setLogLevel("WARN")  # else Spark tells of every batch
process.keep(spark, load(overrides=sys.argv[1:]))
spark.stop()
