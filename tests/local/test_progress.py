"""What a local run waits for, and when its pipeline starts."""

from dataclasses import replace

import pytest

from stormkeeper.client.topology_view import HealthView, TopologyView, WorkerView
from stormkeeper.local import run_view
from stormkeeper.local.pacemaker_watch import ComponentCounts, RunSnapshot, WorkerPulses
from stormkeeper.local.run_view import PIPELINE_AFTER_SECS, is_completed, is_pipeline_due, waits_for
from stormkeeper.paths import WorkerId


def seen(components):
    worker = WorkerId("wc-1-1", "local", 6700)
    return RunSnapshot([], [WorkerPulses(worker, "127.0.0.1:1", 1, 0.0, components)])


def on(port):
    return WorkerView(
        host="h", port=port, supervisor_id="local", supervisor="h", executors=1, uptime_secs=1
    )


FOUND = TopologyView(
    id="wc-1-1",
    name="wc",
    status="ACTIVE",
    sched_status="Fully Scheduled",
    uptime_secs=1,
    owner="",
    replication_count=2,
    components=(),
    workers=(),
    reporting_workers=0,
)
NOBODY = RunSnapshot([], [])
STARTING = seen({})
NO_BATCH = seen({"lines": ComponentCounts(), "words": ComponentCounts()})
COUNTED = seen({"lines": ComponentCounts(emitted=7), "words": ComponentCounts()})


@pytest.mark.parametrize(
    ("snapshot", "starts", "said"),
    [
        (NOBODY, False, run_view.WORKER_STARTS),
        (STARTING, False, run_view.SPARK_STARTS),
        (NO_BATCH, False, run_view.FIRST_BATCH),
        (NO_BATCH, True, run_view.FIRST_BATCH),
        (COUNTED, True, run_view.PIPELINE_STARTS),
        (COUNTED, False, ""),
    ],
)
def test_what_is_waited_for(snapshot, starts, said):
    asked = {"nimbus_view": FOUND, "pipeline_starts": starts}
    assert waits_for(snapshot, is_submitted=True, **asked) == said
    assert waits_for(snapshot, is_submitted=False, **asked) == run_view.SUBMITS


def test_what_nimbus_waits_for_is_said_as_long_as_nobody_runs():
    told = replace(FOUND, sched_status="Not enough slots: 1 of 2 queries")
    asked = {"is_submitted": True, "nimbus_view": told, "pipeline_starts": False}
    assert waits_for(NOBODY, **asked) == told.sched_status
    assert waits_for(STARTING, **asked) == run_view.SPARK_STARTS


@pytest.mark.parametrize(
    ("health", "said"),
    [
        (HealthView(state="starting", text="Spark starts, for 3 s"), ""),
        (HealthView(state="running"), ""),
        (HealthView(state="running", text="batch 3 of q has run for 25 s"), "batch 3 of q has run"),
        (HealthView(state="stuck", text="no pulse for 40 s"), "stuck: no pulse for 40 s"),
    ],
)
def test_what_hinders_a_topology_that_runs_is_said(health, said):
    asked = {
        "is_submitted": True,
        "nimbus_view": replace(FOUND, health=health),
        "pipeline_starts": False,
    }
    assert waits_for(COUNTED, **asked).startswith(said)
    assert bool(waits_for(COUNTED, **asked)) is bool(said)


def test_completed_needs_every_worker_or_nimbus_to_say_so():
    done = RunSnapshot([], [replace(COUNTED.workers[0], completed=True)])
    assert not is_completed(done, None)
    assert not is_completed(done, FOUND)
    assert not is_completed(COUNTED, replace(FOUND, workers=(on(6700),)))
    assert is_completed(done, replace(FOUND, workers=(on(6700),)))
    assert not is_completed(done, replace(FOUND, workers=(on(6700), on(6701))))
    assert is_completed(NOBODY, replace(FOUND, sched_status="Completed"))


@pytest.mark.parametrize("snapshot", [NOBODY, STARTING, NO_BATCH])
def test_the_pipeline_waits_for_the_first_rows_but_not_for_ever(snapshot):
    assert not is_pipeline_due(snapshot, 0.0)
    assert not is_pipeline_due(snapshot, PIPELINE_AFTER_SECS - 1)
    assert is_pipeline_due(snapshot, PIPELINE_AFTER_SECS)


def test_the_pipeline_starts_with_the_first_rows():
    assert is_pipeline_due(COUNTED, 0.0)
