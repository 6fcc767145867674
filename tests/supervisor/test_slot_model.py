"""What a slot is to run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper import conf
from stormkeeper.supervisor.environments import BUILD_SECS, CHECK_SECS
from stormkeeper.supervisor.slot_model import (
    WORKER_END_SECS,
    CrashSeries,
    Restart,
    SlotAssignment,
    SlotTimeouts,
)
from stormkeeper.worker import shutdown

WORK = SlotAssignment("counts-1-1", {"out": "1-1-a", "in": "1-2-b"})


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (replace(WORK, claims={"in": "2-1-a", "out": "2-2-b"}), True),
        (replace(WORK, claims={"out": "1-1-a"}), False),
        (replace(WORK, storm_id="counts-2-1"), False),
        (None, False),
    ],
)
def test_the_same_work_is_the_same_queries_of_the_same_topology(other, is_same):
    assert WORK.is_same_work(other) is is_same


def test_when_it_runs_again_is_no_part_of_a_start():
    assert WORK.is_same_start(replace(WORK, restart=Restart.ALWAYS))
    crashed = replace(WORK, crashes=CrashSeries(2, 1_700_000_000, "disk full"))
    assert WORK.is_same_start(crashed)
    assert crashed.is_same_start(WORK)
    assert not WORK.is_same_start(replace(WORK, memory_bytes=2))
    assert not WORK.is_same_start(None)


def test_the_order_of_queries_is_no_change():
    assert replace(WORK, claims=dict(reversed(WORK.claims.items()))) == WORK


@pytest.mark.parametrize("restart", Restart)
def test_what_a_configuration_says_of_restarts(restart):
    assert Restart.from_conf(conf.defaults()) is Restart.ON_FAILURE
    chosen = conf.defaults().with_values({"topology.restart": restart.value})
    assert Restart.from_conf(chosen) is restart


def test_storms_defaults():
    times = SlotTimeouts.from_conf(conf.defaults())
    assert (times.start, times.silence) == (120, 30)
    assert times.grace == WORKER_END_SECS + 3


def test_a_worker_has_the_time_that_it_may_take_to_end():
    assert shutdown.END_SECS == WORKER_END_SECS


def test_builder_times_out_before_the_slot():
    assert SlotTimeouts().preparation > BUILD_SECS + CHECK_SECS


@given(st.integers(1, 10_000))
def test_waits_grow_to_their_limit(count):
    times = SlotTimeouts()
    for wait, most in ((times.delay, times.last_delay), (times.retry, times.last_retry)):
        assert 0 <= wait(count) <= wait(count + 1) <= most
    assert times.delay(10_000) == times.last_delay
