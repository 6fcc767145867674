"""The heartbeat pipeline on Spark: source, decoding, liveness, statistics, tables."""

from stormkeeper import extras

extras.require("spark", "the heartbeat pipeline, with the data source pacemaker,")
