"""Kills, activates, deactivates and rebalances topologies, and waits for the effect.

A wait outlasts a Nimbus that does not answer: the command was accepted, and another Nimbus may lead
soon.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from stormkeeper.client import topology_view
from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.client.topology_view import COMPLETED, TopologyView
from stormkeeper.errors import RefusedError, RpcError, RpcOutcomeUnknownError, RpcRefusedError
from stormkeeper.thrift.nimbus import TopologySummary
from stormkeeper.thrift.records import ErrorInfo, KillOptions, RebalanceOptions
from stormkeeper.topology.faults import is_crash
from stormkeeper.topology.schedule_status import PLACED, ScheduleKind, schedule_kind

#: A topology's status after a command that cannot be repeated.
_STATUSES: Final = {"killTopologyWithOpts": "KILLED", "rebalance": "REBALANCING"}

#: Time without a batch after which a query counts as waiting for data.
_IDLE_SECS: Final = 10
#: Longest time of a trigger that only checks for data.
_CHECK_SECS: Final = 5.0
#: Uptime after which a worker of a topology with errors counts as started.
_LIFE_SECS: Final = 30
#: Delay of an error, as the report of a crash, which includes the error, may follow.
_CRASH_REPORT_SECS: Final = 5.0
PERIOD_SECS: Final = 0.5

#: More names are counted.
_MOST_NAMED: Final = 3

_DURATION: Final = re.compile(r"\b\d+ (?:s|min|h|d)\b")


def says_more(text: str, before: str) -> bool:
    """Return whether two texts differ in more than durations.

    Examples
    --------
    >>> says_more("it starts, for 3 s", "it starts, for 2 s"), says_more("it runs", "it starts")
    (False, True)
    """
    return _DURATION.sub("", text) != _DURATION.sub("", before)


@dataclass(frozen=True, slots=True)
class ComponentError:
    """The newest error of a component in a line, and the time in seconds since 1970."""

    component: str
    time_secs: int
    line: str


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """A check's result: done, failed, or not yet; `text` says why."""

    is_done: bool
    text: str
    has_failed: bool = False
    error: ComponentError | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits up to `secs` seconds; 0: a single check.

    `say` gets each check's text and the seconds passed; `tell` gets each new error.
    """

    secs: float
    say: Callable[[str, float], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[ComponentError], None] = lambda _: None

    def until(self, check: Callable[[], WaitStatus]) -> WaitStatus:
        """Check until the effect is there, or has failed; return the last status."""
        began, reported = self.clock(), None
        while True:
            try:
                status = check()
            except RpcError as error:
                status = WaitStatus(False, f"Nimbus does not answer: {error}")
            passed = self.clock() - began
            if status.error is not None and status.error != reported and not status.has_failed:
                reported = status.error
                self.tell(reported)
            if status.is_done or status.has_failed or passed >= self.secs:
                return status
            self.say(status.text, passed)
            self.sleep(min(PERIOD_SECS, self.secs - passed))


def kill(
    connection: NimbusConnection, name: str, wait_secs: int | None, *, purge: bool = False
) -> str:
    """Kill a topology, with `purge` including the checkpoints, and return the id.

    `wait_secs` None: ``topology.message.timeout.secs``. Raises `NotAliveError` for an unknown name,
    `RefusedError` if the topology's status does not allow the command.
    """
    return _call(connection, "killTopologyWithOpts", name, KillOptions(wait_secs, purge or None))


def set_active(connection: NimbusConnection, name: str, *, active: bool) -> str:
    """Activate or deactivate a topology, and return the id; raises as `kill`."""
    return _call(connection, "activate" if active else "deactivate", name)


def rebalance(
    connection: NimbusConnection,
    name: str,
    *,
    wait_secs: int | None = None,
    workers: int | None = None,
    parallelism: Mapping[str, int],
    conf: Mapping[str, Any] | None = None,
) -> str:
    """Rebalance a topology, and return the id; `wait_secs` and errors as `kill`.

    Also raises `RefusedError` for an unknown component or an invalid conf.
    """
    options = RebalanceOptions(
        wait_secs=wait_secs,
        num_workers=workers,
        num_executors=dict(parallelism),
        topology_conf_overrides=json.dumps(dict(conf)) if conf else None,
    )
    return _call(connection, "rebalance", name, options)


def wait_until_gone(
    connection: NimbusConnection, name: str, storm_id: str, wait: Wait
) -> WaitStatus:
    return wait.until(lambda: gone_status(topology_view.find_topology(connection, name), storm_id))


def wait_for_status(connection: NimbusConnection, name: str, status: str, wait: Wait) -> WaitStatus:
    return wait.until(lambda: named_status(topology_view.find_topology(connection, name), status))


def wait_for_workers(
    connection: NimbusConnection, name: str, wait: Wait, workers: int | None = None
) -> WaitStatus:
    """Wait until all workers of a rebalanced topology run; `workers` were requested."""
    check = PlacementCheck(workers)
    return wait.until(lambda: check(topology_view.get_topology(connection, name)))


def wait_for_first_batches(connection: NimbusConnection, name: str, wait: Wait) -> WaitStatus:
    """Wait until each query of a new topology has completed a batch, or a worker has crashed.

    The supervisor restarts a crashed worker, but a fault at a script's start mostly repeats.
    """
    placed = PlacementCheck()
    first_seen: dict[ComponentError, float] = {}

    def check() -> WaitStatus:
        topology = topology_view.get_topology(connection, name)
        status = placed(topology)
        health = topology.health
        is_crashing = health is not None and health.state in ("crashing", "failed")
        if status.error is not None:
            now = wait.clock()
            if now < first_seen.setdefault(status.error, now) + _CRASH_REPORT_SECS:
                status = replace(status, error=None)
        has_error = any(each.error is not None for each in topology.components)
        if status.is_done or not (has_error or is_crashing):
            return status
        crash = newest_crash(topology_view.get_info(connection, name, with_errors=True).errors)
        if crash is None and is_crashing:
            crash = str(health)
        return status if crash is None else WaitStatus(False, crash, has_failed=True)

    return wait.until(check)


def gone_status(found: TopologySummary | None, storm_id: str) -> WaitStatus:
    """Return whether a killed topology is gone; a new topology may have the name."""
    if found is None or found.id != storm_id:
        return WaitStatus(True, "it is gone")
    return WaitStatus(False, f"it is {found.status} until its wait is over and Nimbus removes it")


def named_status(found: TopologySummary | None, status: str) -> WaitStatus:
    """Return whether a topology has a status; a removed topology ends the wait."""
    if found is None:
        return WaitStatus(True, "it is gone")
    return WaitStatus(found.status == status, f"it is {found.status}")


def newest_crash(errors: Mapping[str, Sequence[ErrorInfo]]) -> str | None:
    """Return the newest report of a worker's crash among errors by component.

    A first line that repeats the last, the exception of a traceback, is dropped.
    """
    crashes = [error for each in errors.values() for error in each if is_crash(error.error)]
    if not crashes:
        return None
    report = max(crashes, key=lambda each: each.error_time_secs).error
    first, _, rest = report.partition("\n")
    is_repeated = bool(first.strip()) and rest.rstrip().rpartition("\n")[2].strip() == first.strip()
    return rest if is_repeated else report


class PlacementCheck:
    """Checks whether all workers of a topology run; call the object with each view.

    Nimbus shows the last heartbeat of a slot's previous worker until the next worker beats. So a
    worker counts when its uptime has changed since the schedule was complete, which gives a query
    time to fail in the first batch. `workers` were requested.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self._first: dict[str, int] | None = None
        #: The youngest worker's uptime when each query was first seen.
        self._queries: dict[str, int] = {}

    def __call__(self, topology: TopologyView) -> WaitStatus:
        status = running_status(topology)
        if not _is_planned(topology):
            self._first = None
            return status
        if not status.is_done:
            return status
        now = {worker.place: worker.uptime_secs for worker in topology.workers}
        if self._first is None:
            self._first = now
        unchanged = [place for place in now if self._first.get(place) == now[place]]
        if unchanged:
            text = f"no new pulse yet of {_listed(unchanged)}"
            return replace(status, is_done=False, text=text)
        text = self._missing_batch(topology)
        if text:
            return replace(status, is_done=False, text=text)
        idle = [each.name for each in topology.queries if each.last_batch is None]
        listed = _listed(idle, "queries")
        waits = f"; {listed} wait{'s' * (len(idle) == 1)} for data" if idle else ""
        return replace(status, text=status.text + waits + _surplus(topology, self._workers))

    def _missing_batch(self, topology: TopologyView) -> str:
        """Return the incomplete first batch; a query without data has none."""
        uptime = min((each.uptime_secs for each in topology.workers), default=0)
        # All at once, as idle queries wait side by side.
        for query in topology.queries:
            self._queries.setdefault(query.name, uptime)
        for query in topology.queries:
            began = self._queries[query.name]
            if query.last_batch is not None:
                continue
            if (query.running_secs or 0.0) >= _CHECK_SECS:
                return f"batch {query.running_batch} of {query.name} runs, its first one here"
            if not 0 <= began <= uptime - _IDLE_SECS:
                return f"the first batch of {query.name} is not complete yet"
        return ""


def running_status(topology: TopologyView) -> WaitStatus:
    """Return whether all workers and queries run; ended queries need no worker."""
    if topology.status == "REBALANCING":
        return WaitStatus(False, "it is REBALANCING until its wait is over")
    if topology.status == "KILLED":
        return WaitStatus(True, "it was killed")
    if topology.status == COMPLETED:
        return WaitStatus(True, "all of its queries have ended")
    text, error = _missing(topology), _last_error(topology)
    if text:
        return WaitStatus(False, text, error=error)
    places = ", ".join(worker.place for worker in topology.workers)
    schedule = topology.sched_status
    fewer = f" ({schedule})" if schedule_kind(schedule) is ScheduleKind.FEWER_SLOTS else ""
    return WaitStatus(True, f"it runs at {places}{fewer}", error=error)


def _missing(topology: TopologyView) -> str:
    """Return why a topology waits, or ""."""
    if not _is_planned(topology):
        schedule = topology.sched_status
        if schedule_kind(schedule) in (ScheduleKind.LACKS_SLOTS, ScheduleKind.LACKS_MEMORY):
            return f"{schedule}; `storm status` shows the slots of all supervisors"
        return schedule
    workers = topology.workers
    if not workers:
        return "no worker is assigned yet"
    health = topology.health
    if health is not None and health.state not in ("running", "starting") and health.text:
        return str(health)
    silent = [each.place for each in workers if not each.uptime_secs]
    if silent:
        return f"no pulse yet of {_listed(silent)}: code, environment and Spark take their time"
    return _missing_start(topology)


def _missing_start(topology: TopologyView) -> str:
    health, workers = topology.health, topology.workers
    # Storm's Nimbus reports no schedule, and counts system components as executors.
    is_ours = bool(topology.sched_status)
    if is_ours and topology.status == "ACTIVE" and not _has_started(topology):
        return "its queries have yet to start"
    if health is not None:
        return str(health) if health.state == "starting" else ""
    youngest = min(workers, key=lambda each: each.uptime_secs)
    if youngest.uptime_secs < _LIFE_SECS and _last_error(topology):
        return f"the worker at {youngest.place} has started {youngest.uptime_secs} s ago"
    return ""


def _has_started(topology: TopologyView) -> bool:
    workers = topology.workers
    started = sum(each.executors for each in topology.components)
    return topology.reporting_workers >= len(workers) and started >= sum(
        each.executors for each in workers
    )


def _is_planned(topology: TopologyView) -> bool:
    schedule = topology.sched_status
    should_run = topology.status not in ("REBALANCING", "KILLED")
    return should_run and (not schedule or schedule_kind(schedule) in PLACED)


def _surplus(topology: TopologyView, requested: int | None) -> str:
    """Note that a topology has fewer queries than requested workers."""
    most = len(topology.workers)
    is_whole = schedule_kind(topology.sched_status) is ScheduleKind.FULL
    if requested is None or requested <= most or not is_whole:
        return ""
    if most == 1:
        return "; it has one query to run, so one worker is the most"
    return f"; it has {most} queries to run, so {most} workers are the most"


def _listed(names: list[str], what: str = "workers") -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} {what}"


def _last_error(topology: TopologyView) -> ComponentError | None:
    errors = [
        ComponentError(each.id, each.error_time_secs or 0, each.error)
        for each in topology.components
        if each.error is not None
    ]
    return max(errors, key=lambda each: (each.time_secs, each.component), default=None)


def _call(connection: NimbusConnection, method: str, name: str, *args: Any) -> str:
    """Call a method for a topology, and return the id.

    A lost answer is no error if the topology's status shows the effect.
    """
    found = connection.nimbus.getTopologySummaryByName(name)
    leader = connection.address
    try:
        connection.call(method, name, *args)
    except (RefusedError, RpcRefusedError, RpcOutcomeUnknownError) as error:
        if isinstance(error, RefusedError) and connection.address == leader:
            raise
        now = topology_view.find_topology(connection, name)
        status = _STATUSES.get(method)
        # A changed status: the lost leader has carried out the command.
        if now is not None and now.id == found.id and now.status == status != found.status:
            return found.id
        # Storm's service has no error for this.
        if now is not None and now.status in ("KILLED", "REBALANCING"):
            raise RefusedError(
                f"{name} is {now.status}, and takes no other command until that is over;"
                f" see `storm status {name}`"
            ) from error
        raise
    return found.id
