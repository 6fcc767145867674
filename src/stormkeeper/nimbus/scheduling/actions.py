"""What a plan says is to be done, each with one write, in the order of the plan.

Each says what is to be, not what is to change: to do one twice is to do it once. After all of them
were done, a plan of the same moment has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stormkeeper.nimbus.scheduling.cluster import Launch


@dataclass(frozen=True, slots=True)
class Remove:
    """A topology, or what is left of one, is to be gone."""

    storm_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These are to be a topology's workers, by slot; whoever is not among them is to stop."""

    storm_id: str
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class FinishRebalance:
    """A topology is to have the status and the settings that its rebalance leads to.

    That is `stormkeeper.nimbus.lifecycle.Event.DO_REBALANCE`.
    """

    storm_id: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """A topology's ``sched_status`` is to be this text."""

    storm_id: str
    text: str


Action = Remove | Assign | FinishRebalance | SetStatus


def counter_after(actions: Iterable[Action], epoch: int, counter: int) -> int:
    """Return the least counter that no claim of a reign has had after these actions.

    A leader keeps it, and so gives no claim twice, not even that of a write whose outcome it does
    not know, or of a topology that is gone.

    Parameters
    ----------
    epoch, counter
        The reign's, and the counter before.
    """
    claims = (
        launch.claim
        for action in actions
        if isinstance(action, Assign)
        for launch in action.launches
    )
    return max([counter, *(claim.counter + 1 for claim in claims if claim.epoch == epoch)])
