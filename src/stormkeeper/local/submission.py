"""Puts a topology's records into the cluster state, where a cluster's Nimbus would."""

import getpass
import time
from pathlib import Path

from stormkeeper.conf import Conf
from stormkeeper.state import factory, paths
from stormkeeper.thrift.records import (
    Assignment,
    NodeInfo,
    StormBase,
    TopologyStatus,
    WorkerResources,
)
from stormkeeper.thrift.serialization import compression_for, serialize


def submit(conf: Conf, storm_id: str, *, node: str, port: int, script: Path) -> None:
    """Write the topology's `StormBase` and its `Assignment` to `node` and `port`.

    Which executors run there is the worker's to say, in its heartbeats: the script is executed
    by the worker alone.

    Raises
    ------
    StateError
        The records could not be written.
    """
    compression = compression_for(conf["storm.meta.serialization.delegate"])
    now = int(time.time())
    base = StormBase(
        name=storm_id.rsplit("-", 2)[0],
        status=TopologyStatus.ACTIVE,
        num_workers=1,
        launch_time_secs=now,
        owner=getpass.getuser(),
    )
    assignment = Assignment(
        master_code_dir=str(script.resolve().parent),
        node_host={node: "127.0.0.1"},
        executor_node_port={},
        executor_start_time_secs={},
        worker_resources={NodeInfo(node=node, port={port}): WorkerResources()},
        owner=getpass.getuser(),
    )
    state = factory.connect(conf)
    try:
        state.set_data(paths.storm(storm_id), serialize(base, compression))
        state.set_data(paths.assignment(storm_id), serialize(assignment, compression))
    finally:
        state.close()
