"""Puts a topology's records into the cluster state, where a cluster's Nimbus would."""

import getpass
import os
import time
from pathlib import Path

from stormkeeper.conf import Conf
from stormkeeper.state import fences, locks
from stormkeeper.state.storm import cluster
from stormkeeper.state.storm.leader import leading
from stormkeeper.thrift.records import (
    Assignment,
    NodeInfo,
    StormBase,
    TopologyStatus,
    WorkerResources,
)


def submit(conf: Conf, storm_id: str, *, node: str, port: int, script: Path) -> None:
    """Write the topology's `StormBase` and its `Assignment` to `node` and `port`.

    The assignment names no executors: only the worker runs the script, and its heartbeats say which
    executors it has. The records are written as a leader writes them, under a lock that is given up
    afterwards.

    Raises
    ------
    NotLeaderError
        Somebody else leads.
    StateError
        The records could not be written.
    """
    now, owner = int(time.time()), _user()
    base = StormBase(
        name=storm_id.rsplit("-", 2)[0],
        status=TopologyStatus.ACTIVE,
        num_workers=1,
        launch_time_secs=now,
        owner=owner,
    )
    assignment = Assignment(
        master_code_dir=str(script.resolve().parent),
        node_host={node: "127.0.0.1"},
        executor_node_port={},
        executor_start_time_secs={},
        worker_resources={NodeInfo(node=node, port={port}): WorkerResources()},
        owner=owner,
    )
    storm = cluster.connect(conf)
    try:
        lock = locks.take(storm.state, b"storm local")
        leader = leading(storm, fences.obtain(storm.state, lock))
        leader.activate_storm(storm_id, base)
        leader.set_assignment(storm_id, assignment)
        locks.give_up(storm.state, lock)
    finally:
        storm.disconnect()


def _user() -> str:
    """Return the user's name; the number where there is none, as in many a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
