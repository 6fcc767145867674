"""Tables that agree with a simulation's truth, and each way in which they may not."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pipeline.looks import Looks

from pipeline import agreement, truth
from support.simulations import write_truth

BEGIN = 1_700_000_000.0
LOOKS = Looks(
    trigger_secs=5.0, statistics_secs=15.0, late_secs=9.0, timeout_secs=30.0, analyses_secs=3.0
)
#: When the tables were read.
NOW = BEGIN + 200.0


def started(node, at=BEGIN, *, age=1000.0):
    return {"event": "worker_started", "at": at, **worker(node), "started_at": at - age}


def ended(begun, at, why=truth.AT_END):
    last = {
        "server": "a:6699",
        "acknowledged_at": at,
        "sent_at": at - 0.001,
        "time_secs": int(at),
        "uptime_secs": int(at - begun["started_at"]),
    }
    named = {key: begun[key] for key in ("storm_id", "node", "port", "started_at")}
    return {"event": "worker_ended", "at": at, **named, "why": why, "failed": 0, "last": last}


def worker(node):
    return {"storm_id": "t-1-1", "node": node, "port": 6700}


class Tables:
    """What a pipeline has made of it, one table a list of rows; a test spoils them."""

    def __init__(self, **tables):
        self.rows = tables

    def arrow(self, name, columns=None):
        rows = self.rows[name]
        return pa.Table.from_pylist(
            rows, None if rows or columns is None else pa.schema({c: pa.null() for c in columns})
        )

    def files(self, _name):
        """Nothing was counted."""
        return []


def when(at):
    return datetime.fromtimestamp(at, UTC)


def event(node, kind, at, age=0.0):
    return {**worker(node), "event": kind, "at": when(at), "age_secs": age, "timeout_secs": 30.0}


def alert(node, since=BEGIN + 65):
    subject = {"id": f"node_late {node}", "rule": "node_late", "subject": node, "node": node}
    return {**subject, "storm_id": None, "evidence": "late", "since": when(since)}


@pytest.fixture
def world(tmp_path):
    """Four workers: one lives, one dies, one is restarted, one is on a node that is silent."""
    lives, dies, silent = started("lives"), started("dies"), started("silent")
    first, second = started("restarts"), started("restarts", BEGIN + 83, age=0.0)
    quiet = {"kind": "node_late", "node": "silent", "since": BEGIN + 50, "until": BEGIN + 75}
    told = [
        {"event": "run", "period_secs": 3.0, "tells_counters": False},
        *(lives, dies, silent, first, second),
        {"event": "trouble", **quiet},
        ended(lives, NOW - 2),
        ended(dies, BEGIN + 60, "died"),
        ended(silent, NOW - 1),
        ended(first, BEGIN + 80, "restarted"),
        ended(second, NOW - 2),
    ]
    file = tmp_path / "truth.jsonl"
    write_truth(file, told)
    known = [one["last"] | one for one in told if one["event"] == "worker_ended"]
    known.remove(next(one for one in known if one["why"] == "restarted"))
    present = [
        {
            **worker(one["node"]),
            "last_seen": when(one["acknowledged_at"]),
            "updated_at": when(NOW),
            "status": "dead" if one["node"] == "dies" else "alive",
        }
        for one in known
    ]
    reports = [
        {**worker(one["node"]), "time_secs": one["time_secs"], "uptime_secs": one["uptime_secs"]}
        for one in known
    ]
    events = [
        event("dies", "dead", BEGIN + 90, 33.0),
        event("restarts", "restarted", BEGIN + 83),
        event("silent", "late", BEGIN + 59),
        event("silent", "back", BEGIN + 76),
    ]
    return SimpleNamespace(
        truth=truth.load(file),
        liveness=Tables(worker_liveness=present, worker_events=events),
        statistics=Tables(worker_reports=reports),
        alerts=Tables(alerts=[], alert_history=[alert("silent")]),
    )


def compared(world, began=BEGIN):
    return agreement.compare(
        world.truth, world.liveness, world.statistics, world.alerts, LOOKS, began
    )


def test_tables_that_are_true_break_no_rule(world):
    verdict = compared(world)
    assert verdict.lines() == []
    assert verdict.found_after == [3.0]
    assert verdict.tried["a death was not found"] == 1
    assert verdict.tried["a restart was not found"] == 1
    assert verdict.tried["a worker of a silent node was not found back"] == 1
    assert verdict.tried["a trouble raised no alert"] == 1


def spoil(world, spoiled):
    present = world.liveness.rows["worker_liveness"]
    reports = world.statistics.rows["worker_reports"]
    events = world.liveness.rows["worker_events"]
    match spoiled:
        case "a worker is in the tables that there never was":
            events.append(event("nobody", "started", BEGIN))
        case "a worker is lost":
            del present[0]
        case "a worker's report is lost":
            del reports[0]
        case "a newest pulse is missing":
            present[0]["last_seen"] = when(NOW - 5)
        case "a status is wrong":
            present[0]["status"] = "late"
        case "a newest report is missing":
            reports[0]["time_secs"] -= 3
        case "a worker is called dead that beat":
            events.append(event("lives", "dead", BEGIN + 100, 31.0))
        case "a death was not found":
            del events[0]
        case "a death was found later than two triggers after its timeout":
            events[0]["age_secs"] = 30.0 + LOOKS.two + 1
        case "a worker is called restarted that was not":
            events.append(event("lives", "restarted", BEGIN + 100))
        case "a restart was not found":
            del events[1]
        case "a worker of a silent node was not found late":
            del events[2]
        case "a worker of a silent node was not found back":
            del events[3]
        case "an alert is false":
            world.alerts.rows["alerts"].append(alert("lives"))
        case "a trouble raised no alert":
            world.alerts.rows["alert_history"].clear()
        case "a worker of a killed topology is still there":
            world.truth.deleted["t-1-1"] = BEGIN + 100


@pytest.mark.parametrize(
    "rule",
    [
        "a worker is in the tables that there never was",
        "a worker is lost",
        "a worker's report is lost",
        "a newest pulse is missing",
        "a status is wrong",
        "a newest report is missing",
        "a worker is called dead that beat",
        "a death was not found",
        "a death was found later than two triggers after its timeout",
        "a worker is called restarted that was not",
        "a restart was not found",
        "a worker of a silent node was not found late",
        "a worker of a silent node was not found back",
        "a worker of a killed topology is still there",
        "an alert is false",
        "a trouble raised no alert",
    ],
)
def test_what_is_not_true_is_found(world, rule):
    spoil(world, rule)
    verdict = compared(world)
    assert [*verdict.broken] == [rule]
    assert verdict.lines()[0].startswith(f"{rule}: ")


def test_who_comes_later_than_the_tables_has_started_once(world):
    rule = "a worker was not told once to have started"
    early = BEGIN - 100
    assert len(compared(world, early).broken[rule]) == 4
    nodes = ("lives", "dies", "silent", "restarts")
    events = world.liveness.rows["worker_events"]
    events += [event(node, "started", BEGIN) for node in nodes]
    assert compared(world, early).lines() == []
    events.append(event("lives", "started", BEGIN + 9))
    assert len(compared(world, early).broken[rule]) == 1


def test_who_was_of_a_killed_topology_is_gone_once(world):
    world.truth.deleted["t-1-1"] = BEGIN + 150
    events = world.liveness.rows["worker_events"]
    events += [event("lives", "started", BEGIN), event("lives", "gone", BEGIN + 152)]
    rule = "a worker of a killed topology was not told once to be gone"
    assert rule not in compared(world).broken
    del events[-1]
    assert len(compared(world).broken[rule]) == 1


def test_who_was_silent_for_as_long_is_rightly_called_dead(world):
    world.truth.troubles[0]["until"] = BEGIN + 90
    events = world.liveness.rows["worker_events"]
    events[3]["at"] = when(BEGIN + 91)
    events.append(event("silent", "dead", BEGIN + 80, 31.0))
    assert compared(world).lines() == []


def test_who_paused_for_as_long_is_rightly_called_dead(world):
    dead = event("lives", "dead", BEGIN + 85, 31.0)
    world.liveness.rows["worker_events"].append(dead)
    world.truth.pauses["t-1-1", "lives", 6700].append((BEGIN + 54, BEGIN + 85))
    assert compared(world).lines() == []
    world.truth.pauses["t-1-1", "lives", 6700][:] = [(BEGIN + 54, BEGIN + 70)]
    assert [*compared(world).broken] == ["a worker is called dead that beat"]


@pytest.mark.parametrize(("at", "age"), [(75.0, 5.0), (77.9, 2.1), (80.9, 0.1), (84.9, 0.1)])
def test_return_is_dated_by_the_newest_pulse_that_was_read(world, at, age):
    world.liveness.rows["worker_events"][3] = event("silent", "back", BEGIN + at, age)
    assert compared(world).lines() == []


@pytest.mark.parametrize(
    ("kind", "at", "age"),
    [
        ("late", 53.9, 9.0),
        ("late", 61.1, 9.0),
        ("back", 72.9, 0.0),
        ("back", 76.0, 14.1),
        ("back", 90.1, 0.0),
    ],
)
def test_who_was_silent_is_late_and_back_when_it_was(world, kind, at, age):
    world.liveness.rows["worker_events"][2 if kind == "late" else 3] = event(
        "silent", kind, BEGIN + at, age
    )
    assert [*compared(world).broken] == [f"a worker of a silent node was not found {kind}"]
