"""A reign: what a Nimbus has while it leads, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stormkeeper.state.storm.cluster import LeaderClusterState


@dataclass(frozen=True, slots=True)
class Reign:
    """What whoever serves a call that only a leader can serve works with.

    Parameters
    ----------
    leader
        The leader's calls. They are fenced: once this Nimbus leads no more, each of them is
        refused.
    wake
        Has scheduling look at once at what was written; returns at once. Nobody has to call it:
        scheduling has watches, and a period.
    """

    leader: LeaderClusterState
    wake: Callable[[], None]


#: Returns the reign that this Nimbus is in; raises `NotLeaderError` while it does not lead.
Reigns = Callable[[], Reign]
