"""When what was asked has its effect."""

from dataclasses import replace

import pytest

from stormkeeper.client import topology_commands
from stormkeeper.client.topology_commands import ComponentError
from stormkeeper.client.topology_view import (
    ComponentView,
    HealthView,
    QueryView,
    TopologyView,
    WorkerView,
)
from stormkeeper.thrift.nimbus import TopologySummary


def summary(status, storm_id="wc-1-17"):
    return TopologySummary(storm_id, "wc", 1, 1, 1, 17, status)


def topology(
    status="ACTIVE",
    sched_status="Fully Scheduled",
    uptimes=(),
    errors=(),
    started=None,
    reporting=None,
):
    """One with a worker for each uptime, of which so many have started their query."""
    errors = [*errors, *[(None, None)] * (len(uptimes) - len(errors))]
    return TopologyView(
        id="wc-1-17",
        name="wc",
        status=status,
        sched_status=sched_status,
        uptime_secs=17,
        owner="alice",
        replication_count=1,
        components=tuple(
            ComponentView(
                id=f"c{n}",
                kind="bolt",
                executors=int(started is None or n < started),
                tasks=1,
                error=error,
                error_time_secs=when,
            )
            for n, (error, when) in enumerate(errors)
        ),
        workers=tuple(
            WorkerView(
                host="node",
                port=6700 + n,
                supervisor_id="s",
                supervisor="node",
                executors=1,
                uptime_secs=secs,
            )
            for n, secs in enumerate(uptimes)
        ),
        reporting_workers=len(uptimes) if reporting is None else reporting,
    )


def test_killed_topology_is_gone_when_its_id_is_unknown():
    assert topology_commands.gone_status(None, "wc-1-17").is_done
    assert topology_commands.gone_status(summary("ACTIVE", "wc-2-18"), "wc-1-17").is_done
    seen = topology_commands.gone_status(summary("KILLED"), "wc-1-17")
    assert not seen.is_done
    assert "KILLED" in seen.text


def test_a_status_is_there_or_never_will_be():
    assert topology_commands.named_status(summary("INACTIVE"), "INACTIVE").is_done
    assert not topology_commands.named_status(summary("ACTIVE"), "INACTIVE").is_done
    assert topology_commands.named_status(None, "INACTIVE") == topology_commands.WaitStatus(
        True, "it is gone"
    )


@pytest.mark.parametrize(
    ("found", "is_done", "text"),
    [
        (topology(uptimes=[5, 9]), True, "it runs at node:6700, node:6701"),
        # Storm's own Nimbus says nothing of its schedule.
        (topology(sched_status="", uptimes=[5]), True, "it runs at node:6700"),
        (topology(sched_status=""), False, "no worker is assigned yet"),
        (topology(uptimes=[5, 0]), False, "no pulse yet of node:6701: code"),
        (topology(uptimes=[5, 9], started=1), False, "its queries have yet to start"),
        # Before any executor has reported, a page shows those that are meant to be.
        (topology(uptimes=[5], reporting=0), False, "its queries have yet to start"),
        (topology("INACTIVE", uptimes=[5], started=0), True, "it runs at node:6700"),
        # Storm's own counts system components in its workers alone.
        (topology(sched_status="", uptimes=[5], started=0), True, "it runs at node:6700"),
        (topology(uptimes=[0] * 4), False, "no pulse yet of 4 workers: code"),
        (
            topology(sched_status="Running with fewer slots than requested (1/2)", uptimes=[5]),
            True,
            "it runs at node:6700 (Running with fewer slots than requested (1/2))",
        ),
        (
            topology(sched_status="Not enough slots: 1 slot is missing", uptimes=[5]),
            False,
            "Not enough slots: 1 slot is missing; `storm status` shows the slots",
        ),
        (topology("COMPLETED", "Completed"), True, "all of its queries have ended"),
        (topology(status="REBALANCING", uptimes=[5]), False, "it is REBALANCING"),
        (topology(status="KILLED", uptimes=[5]), True, "it was killed"),
    ],
)
def test_a_topology_is_there_when_all_of_its_workers_have_told(found, is_done, text):
    seen = topology_commands.running_status(found)
    assert seen.is_done is is_done
    assert seen.text.startswith(text)


def test_while_it_is_not_there_the_newest_error_is_told():
    errors = [("OSError: old", 10), ("ValueError: no day", 20), (None, None)]
    seen = topology_commands.running_status(topology(uptimes=[0], errors=errors))
    newest = ComponentError("c1", 20, "ValueError: no day")
    assert seen.error == newest
    assert "no day" not in seen.text  # it would be said again with each text
    young = topology_commands.running_status(topology(uptimes=[90, 29], errors=errors))
    text = "the worker at node:6701 has started 29 s ago"
    assert young == topology_commands.WaitStatus(False, text, error=newest)


def query(name="q", last=None, running=None, secs=None):
    return QueryView(name=name, last_batch=last, running_batch=running, running_secs=secs)


def looks(*shown):
    """Return what a new topology's workers wait for, by what each look shows after the first."""
    placed = topology_commands.PlacementCheck()
    placed(topology(uptimes=[1]))
    return [
        placed(replace(topology(uptimes=[uptime]), health=health, queries=tuple(queries)))
        for uptime, health, *queries in shown
    ]


RUNS, STARTS = (
    HealthView(state="running"),
    HealthView(state="starting", text="Spark starts, for 3 s"),
)


def test_the_first_batch_of_each_query_is_waited_for():
    starting, both, first, other, done = looks(
        (2, STARTS),
        (20, RUNS, query("a"), query("b")),
        (40, RUNS, query("a", 0), query("b", None, 0, 6.0)),
        (60, RUNS, query("a", 3), query("b", None, 0, 26.0)),
        (80, RUNS, query("a", 4), query("b", 0)),
    )
    assert (starting.is_done, starting.text) == (False, "starting: Spark starts, for 3 s")
    assert (both.is_done, both.text) == (False, "the first batch of a is not complete yet")
    assert first.text == other.text == "batch 0 of b runs, its first one here"
    assert (done.is_done, done.text) == (True, "it runs at node:6700")


def test_a_query_that_waits_for_data_is_not_waited_for():
    *before, done = looks(
        (20, RUNS, query("a", 0), query("b")),
        (29, RUNS, query("a", 0), query("b", None, 0, 0.2)),
        (30, RUNS, query("a", 0), query("b")),
    )
    assert not any(each.is_done for each in before)
    assert (done.is_done, done.text) == (True, "it runs at node:6700; b waits for data")


def test_many_queries_that_wait_for_data_are_counted():
    names = ("b", "c", "d", "e")
    *before, done = looks(
        (20, RUNS, query("a", 0), *map(query, names)),
        (29, RUNS, query("a", 0), *map(query, names)),
        (30, RUNS, query("a", 0), *map(query, names)),
    )
    assert not any(each.is_done for each in before)
    assert done.text == "it runs at node:6700; 4 queries wait for data"


@pytest.mark.parametrize("state", ["stuck", "waiting", "crashing"])
def test_what_is_not_well_is_waited_for_and_said(state):
    health = HealthView(state=state, text="its JVM has not answered for 40 s")
    [seen] = looks((20, health, query("a", 0)))
    assert (seen.is_done, seen.text) == (False, str(health))


def test_last_pulse_of_a_replaced_worker_does_not_count():
    placed = topology_commands.PlacementCheck()
    assert placed(topology(status="REBALANCING", uptimes=[9])).text.startswith("it is REBALANCING")
    seen = placed(topology(uptimes=[10, 7]))
    assert seen == topology_commands.WaitStatus(False, "no new pulse yet of node:6700, node:6701")
    # One goes on, and the other one is new.
    assert placed(topology(uptimes=[13, 7])).text == "no new pulse yet of node:6701"
    assert placed(topology(uptimes=[13, 0])).text.startswith("no pulse yet of node:6701")
    assert placed(topology(uptimes=[13, 2])).is_done


@pytest.mark.parametrize(
    ("asked", "uptimes", "said"),
    [
        (9, [1], "; it has one query to run, so one worker is the most"),
        (3, [1, 2], "; it has 2 queries to run, so 2 workers are the most"),
        (2, [1, 2], ""),
        (None, [1], ""),
    ],
)
def test_more_workers_than_queries_are_told_of(asked, uptimes, said):
    placed = topology_commands.PlacementCheck(asked)
    assert not placed(topology(uptimes=[10 * secs for secs in uptimes])).is_done
    seen = placed(topology(uptimes=uptimes))
    assert seen == topology_commands.WaitStatus(
        True, topology_commands.running_status(topology(uptimes=uptimes)).text + said
    )


def test_too_few_slots_are_no_reason_to_speak_of_queries():
    status = "Running with fewer slots than requested (1/2)"
    placed = topology_commands.PlacementCheck(2)
    placed(topology(sched_status=status, uptimes=[9]))
    assert placed(topology(sched_status=status, uptimes=[1])).text.endswith(f"({status})")


def test_pulses_before_the_new_schedule_do_not_count():
    placed = topology_commands.PlacementCheck()
    waits = "Waits until the worker at node:6700 is known to have stopped"
    assert not placed(topology(uptimes=[10])).is_done
    assert placed(topology(sched_status=waits, uptimes=[13])).text == waits
    assert not placed(topology(uptimes=[13])).is_done
    assert placed(topology(uptimes=[1])).is_done
    assert topology_commands.PlacementCheck()(topology("COMPLETED", "Completed")).is_done
    assert topology_commands.PlacementCheck()(topology(status="KILLED", uptimes=[5])).is_done
