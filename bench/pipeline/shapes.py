"""What is measured: simulated clusters, and how often the pipeline looks at them."""

import math
from dataclasses import dataclass, replace

from stormkeeper.pipeline.table_updates import WORKERS_OF_PART


@dataclass(frozen=True)
class Shape:
    """One run.

    Parameters
    ----------
    name
        As the results have it.
    profile, nodes, workers_per_node, topologies
        Of `storm simulate`; no number: the profile's.
    period_secs
        From one heartbeat of a worker to the next.
    count_every
        In which of a worker's heartbeats its counters are new: what the simulation costs most.
    connections
        How many the nodes share; None: each has one.
    trigger_secs, statistics_secs
        The pipeline's.
    troubles
        Whether troubles are planted.
    components
        Whether executors name their components, as ours do and Storm's own do not.
    counters
        Whether the truth has counters.
    bars
        Names of figures, and what each may be at most.
    """

    name: str
    profile: str = "small"
    nodes: int | None = None
    workers_per_node: int | None = None
    topologies: int | None = None
    period_secs: float = 3.0
    count_every: int = 5
    connections: int | None = None
    trigger_secs: float = 5.0
    statistics_secs: float = 15.0
    troubles: bool = True
    components: bool = False
    counters: bool = True
    bars: tuple[tuple[str, float], ...] = ()

    @property
    def workers(self) -> int:
        return (self.nodes or NODES) * (self.workers_per_node or WORKERS_PER_NODE)

    @property
    def rate(self) -> float:
        """Heartbeats a second of all workers."""
        return self.workers / self.period_secs

    @property
    def parts(self) -> int:
        """In how many parts statistics are made: as many as a pipeline would that finds workers.

        That of the bench starts before there are any.
        """
        return math.ceil(self.workers / WORKERS_OF_PART)


NODES = 277
WORKERS_PER_NODE = 24

#: Pulses a second whose cost is to be linear, each decoded, and how much more the last may take.
RATES = (2_000, 4_000, 8_000)
LINEAR = 4.4

#: Shared by the connections of the larger shapes: a connection for each node costs the simulation
#: as much as half of its heartbeats.
FEW = 16

_RATE = Shape(
    "rates",
    count_every=20,
    connections=FEW,
    # Shorter than the period, so that no pulse is overwritten before it is read.
    trigger_secs=1.5,
    statistics_secs=0.0,
    troubles=False,
    # As our own workers do, and as a pipeline with a Nimbus has it of Storm's.
    components=True,
    counters=False,
)

SHAPES = {
    shape.name: shape
    for shape in (
        Shape("small"),
        Shape("large", profile="large", connections=FEW, count_every=10),
        Shape(
            "huge",
            profile="huge",
            connections=FEW,
            count_every=40,
            # Thirteen million rows, which one core takes most of a minute to sum up and to write.
            statistics_secs=60.0,
            # Else each of a million executors is a component by itself.
            components=True,
            counters=False,
        ),
        Shape(
            "fleet",
            nodes=3_000,
            connections=FEW,
            count_every=20,
            statistics_secs=60.0,
            counters=False,
            bars=(("pipeline CPU, %", 100.0), ("pipeline PSS, MiB", 2_048.0)),
        ),
        Shape(
            "quick",
            trigger_secs=0.5,
            troubles=False,
            counters=False,
            bars=(("liveness lag p50, s", 1.0),),
        ),
    )
}


def of_rates():
    """Return a shape for each of `RATES`: so many workers that beat as often as all do."""
    return [
        replace(
            _RATE,
            name=f"rates-{rate}",
            nodes=round(rate * _RATE.period_secs / WORKERS_PER_NODE),
        )
        for rate in RATES
    ]
