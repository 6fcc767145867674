"""The heartbeat pipeline on Spark: source, decoding, liveness, statistics, tables."""
