"""Kills, activates, deactivates and rebalances topologies, and waits until that has its effect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stormkeeper.client import effects, looking
from stormkeeper.client.connection import Connection
from stormkeeper.client.waiting import Seen, Wait
from stormkeeper.errors import RefusedError, RpcOutcomeUnknownError, RpcRefusedError
from stormkeeper.thrift.nimbus import TopologySummary
from stormkeeper.thrift.records import KillOptions, RebalanceOptions

#: What a topology's status is at once when a command was taken that cannot be taken twice.
_STATUSES: Final = {"killTopologyWithOpts": "KILLED", "rebalance": "REBALANCING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a rebalance is to change; None and nothing: as it is.

    Parameters
    ----------
    wait_secs
        How long Nimbus waits before; None: ``topology.message.timeout.secs``.
    workers
        On how many slots the topology is to run, at most.
    parallelism
        Of components, by their ids.
    conf
        Values in the topology's conf.
    """

    wait_secs: int | None = None
    workers: int | None = None
    parallelism: Mapping[str, int]
    conf: Mapping[str, Any] = field(default_factory=dict)


def kill(connection: Connection, name: str, wait_secs: int | None, *, purge: bool = False) -> str:
    """Have Nimbus kill a topology; return its id.

    Parameters
    ----------
    wait_secs
        How long Nimbus waits before; None: ``topology.message.timeout.secs``.
    purge
        Whether its checkpoints are removed, too.

    Raises
    ------
    NotAliveError
        If there is none of that name.
    RefusedError
        If its status does not take it.
    """
    found = connection.nimbus.getTopologySummaryByName(name)
    _asked(connection, found, "killTopologyWithOpts", name, KillOptions(wait_secs, purge or None))
    return found.id


def until_gone(connection: Connection, name: str, storm_id: str, wait: Wait) -> Seen:
    """Wait until a topology that was killed is gone."""
    return wait.until(lambda: effects.gone(looking.summary(connection, name), storm_id))


def set_active(connection: Connection, name: str, *, active: bool) -> str:
    """Have Nimbus activate or deactivate a topology; return its id.

    Raises
    ------
    NotAliveError
        If there is none of that name.
    RefusedError
        If its status does not take it.
    """
    found = connection.nimbus.getTopologySummaryByName(name)
    _asked(connection, found, "activate" if active else "deactivate", name)
    return found.id


def until_status(connection: Connection, name: str, status: str, wait: Wait) -> Seen:
    """Wait until a topology has a status."""
    return wait.until(lambda: effects.has_status(looking.summary(connection, name), status))


def rebalance(connection: Connection, name: str, change: Change) -> str:
    """Have Nimbus rebalance a topology; return its id.

    Raises
    ------
    NotAliveError
        If there is none of that name.
    RefusedError
        If it has no such component, its conf cannot have such a value, or its status does not take
        it.
    """
    found = connection.nimbus.getTopologySummaryByName(name)
    options = RebalanceOptions(
        wait_secs=change.wait_secs,
        num_workers=change.workers,
        num_executors=dict(change.parallelism),
        topology_conf_overrides=json.dumps(dict(change.conf)) if change.conf else None,
    )
    _asked(connection, found, "rebalance", name, options)
    return found.id


def until_placed(connection: Connection, name: str, wait: Wait, workers: int | None = None) -> Seen:
    """Wait until a topology that is new, or was rebalanced, has its workers.

    Parameters
    ----------
    workers
        How many were asked for; that they are too many is told.
    """
    placed = effects.Placed(workers)
    return wait.until(lambda: placed(looking.topology(connection, name)))


def until_started(connection: Connection, name: str, wait: Wait) -> Seen:
    """Wait until the first batch of each query of a new topology has ended, or a worker crashed.

    The supervisor starts that worker again. But what ends a script at its start mostly does so
    each time.
    """
    placed = effects.Placed()

    def look() -> Seen:
        topology = looking.topology(connection, name)
        seen = placed(topology)
        health = topology.health
        is_crashing = health is not None and health.state in ("crashing", "failed")
        has_error = any(each.error is not None for each in topology.components)
        if seen.is_done or not (has_error or is_crashing):
            return seen
        crash = effects.crash(looking.errors(connection, name).errors)
        if crash is None and is_crashing:
            crash = str(health)
        return seen if crash is None else Seen(False, crash, has_failed=True)

    return wait.until(look)


def _asked(connection: Connection, found: TopologySummary, method: str, *arguments: Any) -> None:
    asked = connection.address
    try:
        connection.call(method, *arguments)
    except (RefusedError, RpcRefusedError, RpcOutcomeUnknownError) as error:
        if isinstance(error, RefusedError) and connection.address == asked:
            raise
        now = looking.summary(connection, found.name)
        status = _STATUSES.get(method)
        # It was another one a moment ago: a leader has written that, and was lost before it knew.
        if now is not None and now.id == found.id and now.status == status != found.status:
            return
        # Storm's service has no word for a status that does not take it.
        if now is not None and now.status in ("KILLED", "REBALANCING"):
            raise RefusedError(
                f"{found.name} is {now.status}, and takes no other command until that is over;"
                f" see `storm status {found.name}`"
            ) from error
        raise
