"""When a pending kill or rebalance is due, on the clock of the Nimbus that leads now.

A deadline is written on the clock of whoever led then. Clocks differ, so what is left by it is
never less than nothing, and never more than the wait that was asked for. A leader works that out
once, when it first sees the deadline, and counts down on its own clock from there: one that is
behind would else find the whole wait left each time that it looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stormkeeper.nimbus import lifecycle
from stormkeeper.thrift.records import StormBase, TopologyStatus

#: Statuses that wait for a deadline.
_WAITING: Final = (TopologyStatus.KILLED, TopologyStatus.REBALANCING)


@dataclass(frozen=True, slots=True)
class Due:
    """A deadline as it was written, in milliseconds since 1970, and when it is by our clock.

    `at` is in seconds, on the clock of whoever made it; `deadline_ms` is None where the base has
    none, such as one that Storm's Nimbus wrote.
    """

    deadline_ms: int | None
    at: float


def left_secs(deadline_ms: int | None, wait_secs: float, *, now: float) -> float:
    """Return how much of a wait is left, from 0 to `wait_secs`.

    Parameters
    ----------
    deadline_ms
        When it ends, in milliseconds since 1970; None: it begins now.
    wait_secs
        How long it was to take.
    now
        In seconds since 1970.
    """
    if deadline_ms is None:
        return wait_secs
    return min(max(0.0, deadline_ms / 1000 - now), wait_secs)


def due(
    before: Mapping[str, Due],
    bases: Mapping[str, StormBase],
    *,
    default_wait_secs: Mapping[str, float],
    now: float,
) -> dict[str, Due]:
    """Return when each topology's pending kill or rebalance is due; others are left out.

    Parameters
    ----------
    before
        What was returned the last time.
    bases
        By the ids of their topologies.
    default_wait_secs
        What a topology waits whose base does not say how long: ``topology.message.timeout.secs``.
    now
        In seconds since 1970, on a clock that never jumps.
    """
    found = {}
    for storm_id, base in bases.items():
        # A rebalance whose conf is not saved yet is not carried out before that.
        if base.status not in _WAITING or lifecycle.unsaved_conf(base) is not None:
            continue
        known = before.get(storm_id)
        if known is None or known.deadline_ms != base.deadline_ms:
            wait_secs = _wait_secs(base, default_wait_secs.get(storm_id, 0.0))
            at = now + left_secs(base.deadline_ms, wait_secs, now=now)
            known = Due(base.deadline_ms, at)
        found[storm_id] = known
    return found


def _wait_secs(base: StormBase, default: float) -> float:
    options = base.topology_action_options
    asked = None if options is None else options.kill_options or options.rebalance_options
    return default if asked is None or asked.wait_secs is None else max(0.0, asked.wait_secs)
