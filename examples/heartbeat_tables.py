"""Keeps tables of all heartbeats, as ``storm pipeline`` does, wherever Nimbus places it.

    storm submit examples/heartbeat_tables.py -c pipeline.tables.dir=/data/heartbeats
    storm local examples/heartbeat_tables.py --no-pipeline -c pipeline.tables.dir=/data/heartbeats

It reads the cluster's own Pacemakers: `pacemaker.servers` of the machine's storm.yaml.
"""

from stormkeeper.pipeline import topology_api
from stormkeeper.topology import Topology

topology = Topology(
    "heartbeat-tables",
    conf={
        # Each batch is read from what Pacemakers hold then: older batches are of no use.
        "spark.sql.streaming.minBatchesToRetain": "10",
    },
)


@topology.spout
def ages(spark, conf):
    return topology_api.ages(spark, conf)


@topology.spout
def pulses(spark, conf):
    return topology_api.pulses(spark, conf)


@topology.bolt(ages)
def liveness(ages, conf):
    return topology_api.liveness(ages, conf)


@topology.bolt(pulses)
def statistics(pulses, conf):
    return topology_api.statistics(pulses, conf)
