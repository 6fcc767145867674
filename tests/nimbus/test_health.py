"""How topologies do, by what supervisors and heartbeats say."""

from math import inf

import pytest

from stormkeeper.nimbus import health
from stormkeeper.nimbus.health import Beat, Limits
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import (
    Assignment,
    CrashSeries,
    LaunchClaim,
    QueryActivity,
    SlotReport,
    SupervisorInfo,
    TopologyStatus,
    WorkerActivity,
    WorkerLaunch,
)

NOW = 1_700_000_000
SLOT, CLAIM = Slot("s", 6700), LaunchClaim(7, 1)
LIMITS = Limits(beat_secs=30, launch_secs=120, batch_secs=600)
DONE = QueryActivity("out", 7, 1_000)
ERROR = "it ended with exit code 1"


def report(state, since=10, count=0, reason=None, claim=CLAIM):
    series = CrashSeries(count, NOW - 60, ERROR) if count else None
    return SlotReport(claim, state, NOW - since, series, reason)


def supervisor(slot=None, *, used=True, tells=True):
    slots = {} if slot is None else {6700: slot}
    used_ports = [6700] if used else []
    return SupervisorInfo(NOW, "host", "s", used_ports, [6700], slots=slots if tells else None)


def beat(*queries, age=1.0, uptime=50, **more):
    return Beat(WorkerActivity(uptime, queries=list(queries) or None, **more), age)


def told(
    supervisor=None,
    beat=None,
    *,
    launched=300,
    can_read=True,
    sched_status="Fully Scheduled",
    status=TopologyStatus.ACTIVE,
    ended=None,
):
    """Return a topology's health, as ``state`` or ``state: text``; None where it has none."""
    launch = WorkerLaunch("s", 6700, CLAIM, ["out"], NOW - launched, 100.0)
    beats = None if not can_read else {} if beat is None else {SLOT: beat}
    found = health.workers(
        Assignment("x", launches=[launch]),
        {} if supervisor is None else {"s": supervisor},
        beats,
        LIMITS,
        NOW,
        ended=ended,
    )
    one = health.of_topology(status, sched_status, found, {"s": "host"})
    return one and (f"{one.state}: {one.text}" if one.text else one.state)


@pytest.mark.parametrize(
    ("slot", "beat", "said"),
    [
        (None, beat(DONE), "running"),
        (None, beat(DONE, QueryActivity("b", None, None, 3, 25_000)), "running: batch 3 of b has"),
        (
            None,
            beat(QueryActivity("b", 2, 9, 3, 610_000)),
            "stuck: batch 3 of b has run for 10 min",
        ),
        (None, beat(DONE, jvm_silent_ms=40_000), "stuck: its JVM has not answered for 41 s"),
        (None, beat(DONE, age=14.0), "running"),
        (None, beat(DONE, age=16.0), "running: no pulse for 16 s"),
        (
            None,
            beat(DONE, age=16.0, jvm_silent_ms=9_000),
            "stuck: its JVM has not answered for 25 s",
        ),
        (None, beat(age=16.0, waiting="no executor"), "waiting: no executor"),
        (None, beat(age=16.0, uptime=9), "starting: Spark and its queries start, for 9 s"),
        (None, beat(DONE, age=45.0), "stuck: no pulse for 45 s"),
        (None, beat(waiting="no executor has come"), "waiting: no executor has come"),
        (None, beat(inactive=True), "running: inactive: its queries wait"),
        (None, beat(uptime=9), "starting: Spark and its queries start, for 9 s"),
        (report("waiting_for_environment"), None, "starting: waiting for environment, for 10 s"),
        (
            report("waiting_for_code", reason="no Nimbus answers"),
            None,
            "waiting: no Nimbus answers",
        ),
        (report("ending", reason="it was silent"), beat(DONE), "stuck: it is ended: it was silent"),
        (report("backing_off", count=1), None, f"crashing: once, 60 s ago: {ERROR}"),
        (report("backing_off", count=4), beat(DONE), "crashing: 4 times in a row in 60 s"),
        (report("running", count=4), beat(DONE), "crashing: 4 times in a row in 60 s: it"),
        (report("running", count=1), beat(DONE), "running"),
        (report("running", count=1), beat(uptime=9), "crashing: once, 60 s ago"),
        (report("running", 31, count=1), beat(uptime=9), "starting: Spark"),
        (report("failed", reason=ERROR), None, f"failed: it is not started again: {ERROR}"),
        (report("backing_off", count=4, claim=LaunchClaim(7, 0)), beat(DONE), "running"),
    ],
)
def test_a_worker_counts_by_its_supervisor_until_it_runs(slot, beat, said):
    assert told(supervisor(slot), beat).startswith(said)


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (supervisor(), {}, "stuck: no pulse has come since its launch 5 min ago, and its process"),
        (supervisor(), {"launched": 20}, "starting: launched 20 s ago"),
        (supervisor(), {"can_read": False}, "running: its supervisor says so: no Pacemaker can be"),
        (supervisor(tells=False), {}, "starting: launched 5 min ago"),
        (supervisor(used=False), {}, "starting: launched 5 min ago"),
        (None, {}, "waiting: its supervisor is not there"),
        # A heartbeat that was received before the launch is of a worker of before.
        (supervisor(), {"launched": 20, "beat": beat(DONE, age=25.0)}, "starting: launched 20 s"),
        (supervisor(), {"beat": beat(DONE, age=None), "launched": inf}, "running"),
    ],
)
def test_a_worker_without_a_pulse_is_shown_too(given, more, said):
    assert told(given, **more).startswith(said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sched_status": "Not enough slots: 1 slot is missing"}, "waiting: Not enough slots"),
        ({"sched_status": "No Pacemaker can say yet whether it lives"}, "running"),
        ({"sched_status": "Completed"}, None),
        ({"status": TopologyStatus.KILLED}, None),
        ({"ended": frozenset()}, "running"),
        ({"ended": {"out"}, "beat": beat(QueryActivity("other", 0, 5))}, "running"),
        ({"ended": frozenset(), "beat": beat(QueryActivity("other", 0, 5))}, "starting: out has"),
        (
            {"sched_status": "Running with fewer slots than requested (1/2)"},
            "running: Running with fewer slots than requested (1/2)",
        ),
    ],
)
def test_what_scheduling_tells_counts_too(more, said):
    found = told(supervisor(), **{"beat": beat(DONE), **more})
    assert found is None if said is None else found.startswith(said)


def test_a_topology_is_what_its_worst_worker_is():
    launches = [
        WorkerLaunch("s", port, LaunchClaim(7, port), ["out"], NOW - 300, 1.0)
        for port in range(6700, 6704)
    ]
    crashing = {
        port: report("backing_off", count=port - 6699, claim=LaunchClaim(7, port))
        for port in (6701, 6702)
    }
    info = SupervisorInfo(NOW, "host", "s", [6700, 6703], slots=crashing)
    beats = {SLOT: beat(DONE), Slot("s", 6703): beat(DONE, age=31.0)}
    found = health.workers(Assignment("x", launches=launches), {"s": info}, beats, LIMITS, NOW)
    assert [one.state for one in found.values()] == ["running", "crashing", "crashing", "stuck"]
    one = health.of_topology(TopologyStatus.ACTIVE, "Fully Scheduled", found, {"s": "host"})
    assert one.state == "crashing"
    assert one.text.startswith("host:6701: 2 times in a row in 60 s: ")
    assert "; host:6702: 3 times in a row" in one.text
    assert one.crashes.count == 3
    assert [each.query for each in one.queries] == ["out", "out"]
    assert health.counts([one, None])["crashing"] == 1


def test_the_workers_own_error_replaces_its_exit_code():
    found = health.of_topology(
        TopologyStatus.ACTIVE,
        "Fully Scheduled",
        {SLOT: health.WorkerHealth("crashing", f"once: {ERROR}", CrashSeries(1, NOW, ERROR))},
        {},
    )
    whole = health.with_error(found, "ValueError: " + "x" * 200)
    assert whole.text.startswith("once: ValueError: xxx")
    assert len(whole.crashes.error) == 160
    assert health.with_error(found, "") == found
    nothing = CrashSeries(2, NOW, "")
    forgotten = health.TopologyHealth("crashing", "2 times in a row in 60 s", nothing)
    assert health.with_error(forgotten, "no day").text == "2 times in a row in 60 s: no day"
