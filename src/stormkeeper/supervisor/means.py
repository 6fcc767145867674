"""What the slots' thread works with, and what can be seen of its slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stormkeeper.supervisor.checkpoints import CheckpointRemoval
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.environments import Environments
from stormkeeper.supervisor.launching import Launching
from stormkeeper.supervisor.local_state import LocalState
from stormkeeper.supervisor.registration import Machine, Registration
from stormkeeper.supervisor.reports import Reports
from stormkeeper.supervisor.slots import SlotStatus
from stormkeeper.supervisor.times import Times
from stormkeeper.supervisor.topology_code import TopologyCode
from stormkeeper.supervisor.worker_processes import WorkerProcesses

#: What is said of a topology whose assignment has no launches.
FOREIGN: Final = (
    "is not run here: a Nimbus that is not ours, such as Java's, has placed it on this supervisor;"
    " stop that Nimbus and kill the topology, or give this supervisor another storm.zookeeper.root"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the thread works with.

    Parameters
    ----------
    machine
        Whose slots.
    times
        How long each step of a slot's life may take.
    monitor_secs, beat_secs
        How often the workers' processes are looked at, and their signs of life.
    ended_queries
        Returns which queries of a topology have said that they were done.
    """

    machine: Machine
    times: Times
    monitor_secs: float
    beat_secs: float
    ended_queries: Callable[[str], frozenset[str]]
    state: LocalState
    processes: WorkerProcesses
    directories: Directories
    code: TopologyCode
    environments: Environments
    checkpoints: CheckpointRemoval
    launching: Launching
    registration: Registration
    reports: Reports


@dataclass(frozen=True, slots=True)
class Seen:
    """How the slots are, for whoever looks.

    Parameters
    ----------
    turned_at
        When the thread last did its regular work, in seconds of a monotonic clock.
    slots
        By port.
    memory
        What each worker takes with all that it started, in bytes, by its slot's port.
    launches, crashes, problems
        How many there have been.
    foreign
        The topologies that another Nimbus has placed here, which do not run.
    """

    turned_at: float
    slots: Mapping[int, SlotStatus] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    launches: int = 0
    crashes: int = 0
    problems: int = 0
    foreign: frozenset[str] = frozenset()
