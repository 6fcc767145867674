"""The three shapes of cluster in which Pacemaker's own performance test was made, and how large."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from stormkeeper.errors import ConfigError

#: Above every port that a worker of 6700 and up can have stands the end of all ports.
_MOST_WORKERS_PER_NODE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Profile:
    """How large a simulated cluster is.

    Parameters
    ----------
    nodes, workers_per_node, topologies
        How many.
    bolts
        Bolts that a topology has, from and to; it has one or two spouts besides.
    executors
        Executors of spouts and bolts that a worker has on average. It has one acker besides, and
        the executor ``__system``.
    streams
        Streams beyond the first that a component emits, at most.
    """

    nodes: int
    workers_per_node: int
    topologies: int
    bolts: tuple[int, int]
    executors: float
    streams: int

    @property
    def workers(self) -> int:
        """How many workers it has."""
        return self.nodes * self.workers_per_node

    def sized(
        self, nodes: int | None, workers_per_node: int | None, topologies: int | None
    ) -> Profile:
        """Return this profile in another size.

        Parameters
        ----------
        nodes, workers_per_node
            None: as they are.
        topologies
            None: as many for each worker as there are now.

        Raises
        ------
        ConfigError
            When a number is out of range, or there are more topologies than workers.
        """
        sized = replace(
            self,
            nodes=self.nodes if nodes is None else nodes,
            workers_per_node=self.workers_per_node
            if workers_per_node is None
            else workers_per_node,
        )
        if topologies is None:
            topologies = max(1, round(self.topologies * sized.workers / self.workers))
        if sized.workers_per_node > _MOST_WORKERS_PER_NODE:
            raise ConfigError(
                f"{sized.workers_per_node} workers of a node are more than it has ports for: at"
                f" most {_MOST_WORKERS_PER_NODE}"
            )
        if not 1 <= topologies <= sized.workers:
            raise ConfigError(
                f"{topologies} topologies do not go with {sized.workers} workers: each topology"
                " has one worker or more"
            )
        return replace(sized, topologies=topologies)


PROFILES: Final = {
    "small": Profile(277, 24, 400, bolts=(3, 6), executors=5.0, streams=1),
    "large": Profile(277, 24, 100, bolts=(6, 10), executors=6.0, streams=2),
    "huge": Profile(277, 24, 1, bolts=(24, 24), executors=115.0, streams=3),
}
