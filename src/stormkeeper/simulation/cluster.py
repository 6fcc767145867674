"""The simulated cluster: its nodes and topologies, and which worker runs what; from a seed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from stormkeeper import paths
from stormkeeper.simulation import components as parts
from stormkeeper.simulation.activity import Activity, Ramp
from stormkeeper.simulation.components import SYSTEM_BOLT, Component
from stormkeeper.simulation.profiles import Profile

#: How every simulated topology's name begins, so that nobody takes it for a real one.
PREFIX: Final = "simulated-"

#: Port of the first worker of a node, as in Storm.
_FIRST_PORT: Final = 6700


@dataclass(frozen=True, slots=True)
class Executor:
    """One executor: its component, its task, and its part of the component's work."""

    component: Component
    task: int
    share: float


@dataclass(frozen=True, slots=True)
class Growth:
    """From `since` to `until`, each component has `streams` more every `step_secs`; they stay."""

    since: float
    until: float
    step_secs: float
    streams: int

    def added(self, at: float) -> int:
        """Return how many streams are added by then."""
        steps = int((min(at, self.until) - self.since) / self.step_secs) + 1
        return self.streams * steps if at >= self.since else 0


@dataclass(slots=True)
class Topology:
    """A topology, and what was planted in it."""

    storm_id: str
    components: list[Component]
    activity: Activity
    #: Nodes and ports of its workers at the beginning.
    slots: list[paths.Slot]
    #: By task: an executor whose work is not that of the others.
    skewed: dict[int, Activity] = field(default_factory=dict)
    #: By component: how its latencies rise.
    slowed: dict[str, Ramp] = field(default_factory=dict)
    growth: Growth | None = None

    @property
    def name(self) -> str:
        """Its name, without number and time."""
        return self.storm_id.rsplit("-", 2)[0]

    def workers(self) -> list[tuple[Executor, ...]]:
        """Return what each worker runs: every so-manyth executor, as Storm spreads them."""
        every = [
            Executor(component, component.first_task + number, share)
            for component in self.components
            for number, share in enumerate(component.shares)
        ]
        count = len(self.slots)
        return [(_SYSTEM, *every[worker::count]) for worker in range(count)]


#: Every worker has one.
_SYSTEM: Final = Executor(SYSTEM_BOLT, -1, 1.0)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes by their ids, and topologies."""

    nodes: list[str]
    topologies: list[Topology]


def plan(profile: Profile, *, seed: int, now: float) -> Cluster:
    """Return a cluster of that shape; the same for the same `seed` but for the time in its ids.

    Parameters
    ----------
    profile
        Its shape and size.
    seed
        Decides everything.
    now
        When its topologies were submitted, in seconds since 1970.
    """
    random = Random(f"cluster {seed}")
    nodes = [_node(random, number) for number in range(profile.nodes)]
    ports = range(_FIRST_PORT, _FIRST_PORT + profile.workers_per_node)
    slots = [paths.Slot(node, port) for port in ports for node in nodes]
    topologies, taken = [], 0
    for number, workers in enumerate(_sizes(random, profile.workers, profile.topologies), start=1):
        made = parts.topology(
            random,
            workers=workers,
            bolts=random.randint(*profile.bolts),
            executors=profile.executors,
            streams=profile.streams,
        )
        activity = Activity(
            swing=random.uniform(0.0, 0.3),
            period_secs=random.choice((3600.0, 86400.0)),
            phase=random.uniform(0.0, 6.28),
        )
        storm_id = f"{PREFIX}{seed}-{number:03d}-{number}-{int(now)}"
        topologies.append(Topology(storm_id, made, activity, slots[taken : taken + workers]))
        taken += workers
    return Cluster(nodes, topologies)


def _node(random: Random, number: int) -> str:
    id_ = uuid.UUID(int=random.getrandbits(128), version=4)
    return f"{id_}-10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _sizes(random: Random, workers: int, topologies: int) -> Sequence[int]:
    """Spread workers over topologies: few have many, most have few, each has one or more."""
    weights = [random.lognormvariate(0.0, 0.7) for _ in range(topologies)]
    left = workers - topologies
    sizes = [1 + int(left * weight / sum(weights)) for weight in weights]
    for number in range(workers - sum(sizes)):
        sizes[number % topologies] += 1
    return sizes
