"""Simulated clusters for tests: small ones, at times that the test gives."""

import gzip

from stormkeeper.simulation import cluster
from stormkeeper.simulation.cluster import PROFILES
from stormkeeper.simulation.model import Simulation, Writer
from stormkeeper.simulation.process import truth_lines
from stormkeeper.simulation.troubles import Troubles
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import Compression, Release, deserialize

#: When every simulation begins.
BEGIN = 1_700_000_000.0

PERIOD_SECS = 3.0


def simulation(
    *,
    nodes=3,
    workers_per_node=2,
    topologies=2,
    profile="small",
    seed=0,
    count_every=2,
    names_components=False,
    compression=Compression.GZIP,
    release=Release.STORM_2,
    round_secs=None,
    period_secs=PERIOD_SECS,
):
    """Return a simulation, with troubles where rounds are given, and the list of what it tells."""
    told = []
    made = Simulation(
        cluster.plan(
            PROFILES[profile].sized(nodes, workers_per_node, topologies), seed=seed, now=BEGIN
        ),
        Writer(compression, release, names_components=names_components),
        period_secs=period_secs,
        count_every=count_every,
        seed=seed,
        now=BEGIN,
        tell=told.append,
    )
    if round_secs is not None:
        Troubles(made, seed=seed, begin=BEGIN, round_secs=round_secs)
    return made, told


def write_truth(path, told):
    """Write what a simulation told as its process does."""
    with truth_lines(path) as tell:
        for event in told:
            tell(event)


def details(beat):
    """Return a heartbeat's bytes as they are sent."""
    return beat.start + beat.end


def read(data):
    """Read a heartbeat as any reader of Storm's does."""
    return deserialize(ClusterWorkerHeartbeat, data)


def unzipped(data):
    """Return a heartbeat's bytes as Python's own gzip has them."""
    return gzip.decompress(data)


def as_told(record):
    """Return the executors of a heartbeat as the truth has them, but for their components."""
    return {
        info.task_start: {
            "task_start": info.task_start,
            "task_end": info.task_end,
            "emitted": stats.emitted,
            "transferred": stats.transferred,
            **_specific(stats.specific),
        }
        for info, stats in record.executor_stats.items()
    }


def told_executors(event):
    """Return the executors of a ``worker_ended`` by their tasks, without components."""
    return {
        told["task_start"]: {key: value for key, value in told.items() if key != "component"}
        for told in event["last"]["executors"]
    }


def _specific(specific):
    if specific.spout is not None:
        names = ("acked", "failed", "complete_ms_avg")
        return {name: getattr(specific.spout, name) for name in names}
    names = ("acked", "failed", "process_ms_avg", "executed", "execute_ms_avg")
    return {
        name: {
            window: [[key.componentId, key.streamId, value] for key, value in by_input.items()]
            for window, by_input in getattr(specific.bolt, name).items()
        }
        for name in names
    }
