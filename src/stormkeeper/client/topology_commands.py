"""Kills, activates, deactivates and rebalances topologies, and waits until that has its effect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stormkeeper.client import topology_view
from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.client.topology_view import COMPLETED, TopologyView
from stormkeeper.client.wait import ComponentError, Wait, WaitStatus
from stormkeeper.errors import RefusedError, RpcOutcomeUnknownError, RpcRefusedError
from stormkeeper.thrift.nimbus import TopologySummary
from stormkeeper.thrift.records import ErrorInfo, KillOptions, RebalanceOptions
from stormkeeper.topology.faults import is_crash

#: What a topology's status is at once when a command was taken that cannot be taken twice.
_STATUSES: Final = {"killTopologyWithOpts": "KILLED", "rebalance": "REBALANCING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceChange:
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


def kill(
    connection: NimbusConnection, name: str, wait_secs: int | None, *, purge: bool = False
) -> str:
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


def until_gone(connection: NimbusConnection, name: str, storm_id: str, wait: Wait) -> WaitStatus:
    """Wait until a topology that was killed is gone."""
    return wait.until(lambda: gone(topology_view.summary(connection, name), storm_id))


def set_active(connection: NimbusConnection, name: str, *, active: bool) -> str:
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


def until_status(connection: NimbusConnection, name: str, status: str, wait: Wait) -> WaitStatus:
    """Wait until a topology has a status."""
    return wait.until(lambda: has_status(topology_view.summary(connection, name), status))


def rebalance(connection: NimbusConnection, name: str, change: RebalanceChange) -> str:
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


def until_placed(
    connection: NimbusConnection, name: str, wait: Wait, workers: int | None = None
) -> WaitStatus:
    """Wait until a topology that is new, or was rebalanced, has its workers.

    Parameters
    ----------
    workers
        How many were asked for; that they are too many is told.
    """
    placed = PlacementCheck(workers)
    return wait.until(lambda: placed(topology_view.topology(connection, name)))


def until_started(connection: NimbusConnection, name: str, wait: Wait) -> WaitStatus:
    """Wait until the first batch of each query of a new topology has ended, or a worker crashed.

    The supervisor starts that worker again. But what ends a script at its start mostly does so
    each time.
    """
    placed = PlacementCheck()

    def look() -> WaitStatus:
        topology = topology_view.topology(connection, name)
        seen = placed(topology)
        health = topology.health
        is_crashing = health is not None and health.state in ("crashing", "failed")
        has_error = any(each.error is not None for each in topology.components)
        if seen.is_done or not (has_error or is_crashing):
            return seen
        crash = crash(topology_view.errors(connection, name).errors)
        if crash is None and is_crashing:
            crash = str(health)
        return seen if crash is None else WaitStatus(False, crash, has_failed=True)

    return wait.until(look)


def _asked(
    connection: NimbusConnection, found: TopologySummary, method: str, *arguments: Any
) -> None:
    asked = connection.address
    try:
        connection.call(method, *arguments)
    except (RefusedError, RpcRefusedError, RpcOutcomeUnknownError) as error:
        if isinstance(error, RefusedError) and connection.address == asked:
            raise
        now = topology_view.summary(connection, found.name)
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


#: What ``sched_status`` begins with where nothing more is to come.
_PLACED: Final = ("Fully Scheduled", "Running with fewer slots than requested")
#: What it begins with where the cluster is full.
_LACKS: Final = ("Not enough slots", "Not enough memory")
#: Seconds after which a query without a batch counts as one that waits for data, and the longest
#: that a trigger looks for data.
_IDLE_SECS: Final = 10
_CHECK_SECS: Final = 5.0
#: Seconds that a worker of a topology in which something has failed has to live to count: one that
#: fails at its start tells of itself before.
_LIFE_SECS: Final = 30


def gone(found: TopologySummary | None, storm_id: str) -> WaitStatus:
    """Return whether a topology that was killed is gone.

    Parameters
    ----------
    found
        The topology of its name, if there is one.
    storm_id
        The id of the one that was killed: its name may be another one's by now.
    """
    if found is None or found.id != storm_id:
        return WaitStatus(True, "it is gone")
    return WaitStatus(False, f"it is {found.status}, until its time is up and Nimbus removes it")


def has_status(found: TopologySummary | None, status: str) -> WaitStatus:
    """Return whether a topology has a status; one that is gone never will."""
    if found is None:
        return WaitStatus(True, "it is gone")
    return WaitStatus(found.status == status, f"it is {found.status}")


def crash(errors: Mapping[str, Sequence[ErrorInfo]]) -> str | None:
    """Return the newest report of a worker's crash among the errors of components, as it is."""
    crashes = [error for each in errors.values() for error in each if is_crash(error.error)]
    if not crashes:
        return None
    return max(crashes, key=lambda each: each.error_time_secs).error


class PlacementCheck:
    """Whether a topology has its workers; called with what each look shows.

    What a worker told last is shown until the next one in its slot tells of itself. So a worker
    counts once what it tells has changed while all was planned, be it the next one or the same.
    That is time, too, for a query that fails in its first batch.

    Parameters
    ----------
    workers
        How many were asked for; that they are too many is told.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self._first: dict[str, int] | None = None
        #: The youngest worker's uptime when each query was first seen.
        self._queries: dict[str, int] = {}

    def __call__(self, topology: TopologyView) -> WaitStatus:
        """Return whether it has them."""
        seen = running(topology)
        if not _is_planned(topology):
            self._first = None
            return seen
        if not seen.is_done:
            return seen
        now = {worker.place: worker.uptime_secs for worker in topology.workers}
        if self._first is None:
            self._first = now
        unchanged = [place for place in now if self._first.get(place) == now[place]]
        if unchanged:
            return replace(seen, is_done=False, text=f"no new pulse yet of {_listed(unchanged)}")
        text = self._first_batches(topology)
        if text:
            return replace(seen, is_done=False, text=text)
        idle = [each.name for each in topology.queries if each.last_batch is None]
        waits = f"; {_listed(idle)} wait{'s' * (len(idle) == 1)} for data" if idle else ""
        return replace(seen, text=seen.text + waits + _most(topology, self._workers))

    def _first_batches(self, topology: TopologyView) -> str:
        """Return which query's first batch has yet to end; empty: none.

        A query whose source has no data has no batch: it counts once it has waited for a while.
        """
        uptime = min((each.uptime_secs for each in topology.workers), default=0)
        for query in topology.queries:
            began = self._queries.setdefault(query.name, uptime)
            if query.last_batch is not None:
                continue
            if (query.running_secs or 0.0) >= _CHECK_SECS:
                return f"batch {query.running_batch} of {query.name} runs, its first one here"
            if not 0 <= began <= uptime - _IDLE_SECS:
                return f"the first batch of {query.name} has yet to end"
        return ""


def running(topology: TopologyView) -> WaitStatus:
    """Return whether a topology has its workers, and whether all of their queries have started.

    One whose queries have all ended needs none.
    """
    status = topology.sched_status
    if topology.status == "REBALANCING":
        return WaitStatus(False, "it is REBALANCING, until its time is up")
    if topology.status == "KILLED":
        return WaitStatus(True, "it was killed")
    if topology.status == COMPLETED:
        return WaitStatus(True, "all of its queries have ended")
    text, error = _waits_for(topology), _last_error(topology)
    if text:
        return WaitStatus(False, text, error=error)
    places = ", ".join(worker.place for worker in topology.workers)
    return WaitStatus(True, f"it runs at {places}{_fewer(status)}", error=error)


def _waits_for(topology: TopologyView) -> str:
    """Return what a topology that is to run waits for; empty: nothing."""
    if not _is_planned(topology):
        return topology.sched_status + _whose_slots(topology.sched_status)
    workers = topology.workers
    if not workers:
        return "no worker is assigned yet"
    health = topology.health
    if health is not None and health.state not in ("running", "starting") and health.text:
        return str(health)
    silent = [each.place for each in workers if not each.uptime_secs]
    if silent:
        return f"no pulse yet of {_listed(silent)}: code, environment and Spark take their time"
    return _starts(topology)


def _starts(topology: TopologyView) -> str:
    """Return which start a topology whose workers beat waits for; empty: none."""
    health, workers = topology.health, topology.workers
    # Storm's own Nimbus says nothing of its schedule, and counts executors of its own.
    is_ours = bool(topology.sched_status)
    if is_ours and _is_active(topology) and not _has_started(topology):
        return "its queries have yet to start"
    if health is not None:
        return str(health) if health.state == "starting" else ""
    youngest = min(workers, key=lambda each: each.uptime_secs)
    if youngest.uptime_secs < _LIFE_SECS and _last_error(topology):
        return f"the worker at {youngest.place} has started {youngest.uptime_secs} s ago"
    return ""


def _has_started(topology: TopologyView) -> bool:
    """Return whether all workers' queries have started, as far as the page tells."""
    workers = topology.workers
    started = sum(each.executors for each in topology.components)
    return topology.reporting_workers >= len(workers) and started >= sum(
        each.executors for each in workers
    )


def _is_active(topology: TopologyView) -> bool:
    return topology.status == "ACTIVE"


def _is_planned(topology: TopologyView) -> bool:
    status = topology.sched_status
    is_to_run = topology.status not in ("REBALANCING", "KILLED")
    return is_to_run and (not status or status.startswith(_PLACED))


def _most(topology: TopologyView, asked: int | None) -> str:
    """Return that a topology has no queries for as many workers as were asked for."""
    most = len(topology.workers)
    is_all = topology.sched_status.startswith(_PLACED[0])
    if asked is None or asked <= most or not is_all:
        return ""
    if most == 1:
        return "; it has one query to run, so one worker is the most"
    return f"; it has {most} queries to run, so {most} workers are the most"


def _fewer(status: str) -> str:
    return f" ({status})" if status.startswith(_PLACED[1]) else ""


def _whose_slots(status: str) -> str:
    return "; `storm status` shows those of all supervisors" if status.startswith(_LACKS) else ""


def _listed(places: list[str], most: int = 3) -> str:
    return ", ".join(places) if len(places) <= most else f"{len(places)} workers"


def _last_error(topology: TopologyView) -> ComponentError | None:
    errors = [
        ComponentError(each.id, each.error_time_secs or 0, each.error)
        for each in topology.components
        if each.error is not None
    ]
    return max(errors, key=lambda each: (each.time_secs, each.component), default=None)
