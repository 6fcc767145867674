"""What Storm's Nimbus reads in a round, read once by our client: every record, and every heartbeat.

Storm reads the topologies, the supervisors, the assignments, and the heartbeat of each assigned
worker, and decodes all of them. The records of a directory are asked for at once here, which Storm
does not; heartbeats one after the other, as there is no other call in Storm's Pacemaker.
"""

import time

from nimbus import cluster
from stormkeeper import paths
from stormkeeper.state.storm import cluster as storm_cluster
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    StormBase,
    SupervisorInfo,
)
from stormkeeper.thrift.serialization import deserialize

RECORDS = {
    paths.STORMS: StormBase,
    paths.SUPERVISORS: SupervisorInfo,
    paths.ASSIGNMENTS: Assignment,
}


def measure(settings, say):
    """Return what one round of Storm's reads, and the decoding, takes."""
    storm = storm_cluster.connect(cluster.loaded(settings))
    try:
        began, used = time.monotonic(), time.process_time()
        requests, size, assignments = _records(storm)
        beats = 0
        for storm_id, assignment in assignments.items():
            for one in assignment.launches:
                found = storm.heartbeats.read(paths.workerbeat(storm_id, one.node, one.port))
                requests += 1
                if found is not None:
                    size += len(found.value)
                    deserialize(ClusterWorkerHeartbeat, found.value)
                    beats += 1
        secs, cpu = time.monotonic() - began, time.process_time() - used
    finally:
        storm.disconnect()
    say(f"Storm's way: {requests:,} reads, {beats:,} heartbeats, in {secs:.1f} s")
    return {
        "Storm's way: reads a round": requests,
        "Storm's way: KiB a round": size / 1024,
        "Storm's way: s a round": secs,
        "Storm's way: CPU, s a round": cpu,
    }


def _records(storm):
    requests = size = 0
    found = {}
    for top, cls in RECORDS.items():
        nodes = storm.state.children_data(top)
        requests += 1 + len(nodes)
        size += sum(len(node.data) for node in nodes.values())
        found[cls] = {name: deserialize(cls, node.data) for name, node in nodes.items()}
    return requests, size, found[Assignment]
