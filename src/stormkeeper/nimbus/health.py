"""Health of a topology beside the status: running, starting, waiting, stuck or crashing; pure.

A worker's health is its supervisor's report until the worker runs, and then its newest heartbeat. A
topology has the health of its worst worker. A long batch may still end: it is shown at once, and
counts as stuck after `Limits.batch_secs`. Silence is shown after half of `Limits.beat_secs`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stormkeeper.paths import Slot
from stormkeeper.thrift.records import (
    Assignment,
    CrashSeries,
    QueryActivity,
    SlotReport,
    SupervisorInfo,
    TopologyHealth,
    TopologyStatus,
    WorkerActivity,
    WorkerLaunch,
)
from stormkeeper.topology.schedule_status import PLACED, ScheduleKind, schedule_kind

RUNNING: Final = "running"
STARTING: Final = "starting"
WAITING: Final = "waiting"
STUCK: Final = "stuck"
CRASHING: Final = "crashing"
FAILED: Final = "failed"

_DONE: Final = "completed"

#: From good to bad.
STATES: Final = (RUNNING, STARTING, WAITING, STUCK, CRASHING, FAILED)

_LONG_BATCH_SECS: Final = 20
#: After a single crash a worker counts as running only then.
_PROVEN_SECS: Final = 30
_LONGEST: Final = 160

#: Schedules of topologies that do not wait for a worker's place.
_IN_PLACE: Final = PLACED | {ScheduleKind.NO_PULSE, ScheduleKind.NO_PACEMAKER}


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest silences of a healthy worker, in seconds."""

    #: Since the newest heartbeat: ``nimbus.task.timeout.secs``.
    beat_secs: float = 30
    #: Since the launch of a worker that has not beaten: ``nimbus.task.launch.secs``.
    launch_secs: float = 120
    #: Since a running batch began: ``topology.stuck.batch.secs``.
    batch_secs: float = 600


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's newest heartbeat; Java Pacemakers report no age."""

    activity: WorkerActivity
    age_secs: float | None


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """Health of a worker: a state of `STATES`, the reason, crashes in a row, and queries."""

    state: str
    text: str = ""
    crashes: CrashSeries | None = None
    queries: Sequence[QueryActivity] = ()


def workers(
    assignment: Assignment | None,
    supervisors: Mapping[str, SupervisorInfo],
    beats: Mapping[Slot, Beat] | None,
    limits: Limits,
    now: float,
    *,
    ended: Collection[str] | None = None,
) -> dict[Slot, WorkerHealth]:
    """Return the health of a topology's workers that have not completed.

    `beats` are None if no Pacemaker answered. `ended` are queries that ended for good: a worker is
    starting until all others run; with None, for scripts and in lists, until one query runs.
    """
    found = {}
    for launch in (assignment.launches if assignment is not None else None) or ():
        slot = Slot(launch.node, launch.port)
        supervisor = supervisors.get(launch.node)
        one = None
        if not launch.released:
            beat = None if beats is None else beats.get(slot)
            # An earlier worker may have sent it.
            if beat is not None and (beat.age_secs or 0) > now - launch.start_time_secs:
                beat = None
            one = _of_report(launch, supervisor, beat, now)
            if one is None and not (beat is not None and beat.activity.completed):
                one = (
                    _of_silence(launch, supervisor, limits, now, can_read=beats is not None)
                    if beat is None
                    else _of_beat(beat, limits)
                )
                if one.state == RUNNING and beat is not None and ended is not None:
                    one = _until_all_run(one, set(launch.queries) - set(ended), beat)
        if one is not None and one.state != _DONE:
            found[slot] = one
    return found


def of_topology(
    status: TopologyStatus,
    sched_status: str | None,
    found: Mapping[Slot, WorkerHealth],
    hosts: Mapping[str, str],
) -> TopologyHealth | None:
    """Return a topology's health; None while killed or rebalanced, or after completion.

    `sched_status` None is unknown; `hosts` are host names by supervisor id.
    """
    is_to_run = status in (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE)
    kind = schedule_kind(sched_status)
    if not is_to_run or kind is ScheduleKind.COMPLETED:
        return None
    all_ = [(hosts.get(slot.node, slot.node), slot.port, one) for slot, one in found.items()]
    sched_text = sched_status or ""
    if sched_text and kind not in _IN_PLACE:
        all_.append(("", 0, WorkerHealth(WAITING, sched_text)))
    if not all_:
        if sched_status is None:
            return None
        return TopologyHealth(WAITING, sched_text or "no worker is assigned yet")
    worst = max(all_, key=lambda each: STATES.index(each[2].state))[2].state
    of_it = [each for each in all_ if each[2].state == worst]
    texts = list(
        dict.fromkeys(
            f"{host}:{port}: {one.text}" if host and one.text and len(found) > 1 else one.text
            for host, port, one in of_it
            if one.text
        )
    )
    text = "; ".join(texts[:2]) + (f"; and {len(texts) - 2} more" if len(texts) > 2 else "")
    if worst == RUNNING and not text and kind is ScheduleKind.FEWER_SLOTS:
        text = sched_text
    series = [one.crashes for *_, one in of_it if one.crashes is not None]
    crashes = max(series, key=lambda each: each.count, default=None)
    return TopologyHealth(
        worst,
        text,
        crashes if worst in (CRASHING, FAILED) else None,
        sorted((query for *_, one in all_ for query in one.queries), key=lambda each: each.query),
    )


def with_error(health: TopologyHealth | None, error: str | None) -> TopologyHealth | None:
    """Return a crashing topology's health with the error that the worker itself reported."""
    if health is None or health.crashes is None or not error:
        return health
    line = shortened(error)
    crashes = CrashSeries(health.crashes.count, health.crashes.since_secs, line)
    was, text = shortened(health.crashes.error), health.text
    text = text.replace(was, line) if was else f"{text}: {line}"
    return TopologyHealth(health.state, text, crashes, health.queries)


def shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def ago(secs: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if secs >= 2 * unit:
            return f"{secs / unit:.0f} {name}"
    return f"{max(0, secs):.0f} s"


def _of_report(
    launch: WorkerLaunch, supervisor: SupervisorInfo | None, beat: Beat | None, now: float
) -> WorkerHealth | None:
    report = _report(launch, supervisor)
    if report is None or (report.state == "running" and report.crashes is None):
        return None
    crashes, reason = report.crashes, shortened(report.reason or "")
    since = ago(now - report.since_secs)
    if crashes is not None and (crashes.count > 1 or not _is_proven(report, beat, now)):
        found = WorkerHealth(CRASHING, _crashed(crashes, now), crashes)
        if report.state == "running":
            found = replace(found, text=f"{found.text}; it has run for {since} since")
    elif reason and report.state == "ending":
        found = WorkerHealth(STUCK, f"it is ended: {reason}")
    elif reason and crashes is None:
        found = WorkerHealth(WAITING, reason)
    else:
        found = WorkerHealth(STARTING, f"{report.state.replace('_', ' ')}, for {since}")
    if report.state == "failed":
        return WorkerHealth(FAILED, f"it is not started again: {reason}", crashes)
    if report.state == "completed":
        return WorkerHealth(_DONE)
    return found if report.state != "running" or found.state == CRASHING else None


def _crashed(crashes: CrashSeries, now: float) -> str:
    since, error = ago(now - crashes.since_secs), shortened(crashes.error)
    often = f"{crashes.count} times in a row in {since}"
    if crashes.count == 1:
        often = f"once, {since} ago"
    return f"{often}: {error}" if error else often  # a supervisor forgets it with its restart


def _report(launch: WorkerLaunch, supervisor: SupervisorInfo | None) -> SlotReport | None:
    report = ((supervisor.slots if supervisor is not None else None) or {}).get(launch.port)
    return report if report is not None and report.claim == launch.claim else None


def _is_proven(report: SlotReport, beat: Beat | None, now: float) -> bool:
    if report.state != "running" or now - report.since_secs < 1:
        return False
    if now - report.since_secs >= _PROVEN_SECS:
        return True
    queries = (beat.activity.queries if beat is not None else None) or ()
    return any(each.last_batch is not None for each in queries)


def _of_silence(
    launch: WorkerLaunch,
    supervisor: SupervisorInfo | None,
    limits: Limits,
    now: float,
    *,
    can_read: bool,
) -> WorkerHealth:
    if supervisor is None:
        return WorkerHealth(WAITING, "its supervisor is not there")
    runs = launch.port in (supervisor.used_ports or ()) and supervisor.slots is not None
    if runs and not can_read:
        return WorkerHealth(RUNNING, "its supervisor says so: no Pacemaker can be read")
    secs = now - launch.start_time_secs
    if runs and secs > limits.launch_secs:
        return WorkerHealth(
            STUCK, f"no pulse has come since its launch {ago(secs)} ago, and its process runs"
        )
    return WorkerHealth(STARTING, f"launched {ago(secs)} ago")


def _of_beat(beat: Beat, limits: Limits) -> WorkerHealth:
    activity, age = beat.activity, beat.age_secs or 0.0
    queries = [_aged(each, age) for each in activity.queries or ()]
    longest = max(queries, key=lambda each: each.running_ms or 0, default=None)
    batch_secs = 0.0 if longest is None else (longest.running_ms or 0) / 1000
    state, text = RUNNING, ""
    if age > limits.beat_secs:
        state, text = STUCK, f"no pulse for {ago(age)}"
    elif activity.jvm_silent_ms is not None:
        state = STUCK
        text = f"its JVM has not answered for {ago(activity.jvm_silent_ms / 1000 + age)}"
    elif activity.waiting:
        state, text = WAITING, shortened(activity.waiting)
    elif longest is not None and batch_secs >= _LONG_BATCH_SECS:
        state = STUCK if batch_secs >= limits.batch_secs else RUNNING
        text = f"batch {longest.running_batch} of {longest.query} has run for {ago(batch_secs)}"
    elif activity.inactive:
        text = "inactive: its queries wait"
    elif not queries:
        state, text = STARTING, f"Spark and its queries start, for {ago(activity.uptime_secs)}"
    if state == RUNNING and age > limits.beat_secs / 2:
        text = f"no pulse for {ago(age)}"
    return WorkerHealth(state, text, queries=queries)


def _until_all_run(one: WorkerHealth, queries: set[str], beat: Beat) -> WorkerHealth:
    missing = sorted(queries - {each.query for each in one.queries})
    if not missing or beat.activity.inactive:
        return one
    return replace(one, state=STARTING, text=f"{', '.join(missing[:3])} has yet to start")


def _aged(query: QueryActivity, age_secs: float) -> QueryActivity:
    """Return a query's activity at the heartbeat with durations until now."""
    age_ms = int(1000 * age_secs)
    return QueryActivity(
        query.query,
        query.last_batch,
        None if query.since_last_ms is None else query.since_last_ms + age_ms,
        query.running_batch,
        None if query.running_ms is None else query.running_ms + age_ms,
    )


def counts(healths: Iterable[TopologyHealth | None]) -> dict[str, int]:
    found = dict.fromkeys(STATES, 0)
    for health in healths:
        if health is not None:
            found[health.state] += 1
    return found
