import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.nimbus.round import Deadline, left_secs, pending_deadlines
from stormkeeper.thrift.records import (
    KillOptions,
    RebalanceOptions,
    StormBase,
    TopologyActionOptions,
    TopologyStatus,
)

NOW = 1_700_000_000.0


def killed(deadline_ms, wait_secs=20, status=TopologyStatus.KILLED):
    options = TopologyActionOptions(kill_options=KillOptions(wait_secs=wait_secs))
    return StormBase("wc", status, 1, topology_action_options=options, deadline_ms=deadline_ms)


def at(secs):
    return int((NOW + secs) * 1000)


@pytest.mark.parametrize(
    ("deadline", "left"),
    [(at(20), 20), (at(7), 7), (at(0), 0), (at(-3600), 0), (at(3600), 20), (None, 20)],
)
def test_what_is_left_of_a_wait_of_20_seconds(deadline, left):
    assert left_secs(deadline, 20, now=NOW) == left


@given(st.none() | st.integers(-(2**62), 2**62), st.floats(0, 1e6), st.floats(0, 1e10))
def test_what_is_left_is_never_below_0_nor_above_the_wait(deadline, wait_secs, now):
    assert 0 <= left_secs(deadline, wait_secs, now=now) <= wait_secs


def look(before, bases, now):
    return pending_deadlines(before, bases, default_wait_secs={"t": 30, "u": 30}, now=now)


def test_the_next_leader_keeps_the_first_deadline():
    base = {"t": killed(at(20))}
    assert look({}, base, NOW + 12) == {"t": Deadline(at(20), NOW + 20)}


@pytest.mark.parametrize(("ahead", "expected"), [(3600, 0), (-3600, 20)])
def test_leader_with_another_clock_waits_no_longer(ahead, expected):
    clock = NOW + ahead
    first = look({}, {"t": killed(at(20))}, clock)
    assert first["t"].at == clock + expected
    for passed in (1, 10, 100):
        assert look(first, {"t": killed(at(20))}, clock + passed) == first


def test_a_deadline_that_was_brought_forward_counts_anew():
    first = look({}, {"t": killed(at(20))}, NOW)
    assert look(first, {"t": killed(at(5))}, NOW + 1)["t"].at == NOW + 5


@pytest.mark.parametrize(("wait_secs", "expected"), [(20, 20), (None, 30), (0, 0), (-5, 0)])
def test_a_kill_of_storm_s_nimbus_waits_from_when_it_is_seen(wait_secs, expected):
    first = look({}, {"t": killed(None, wait_secs)}, NOW)
    assert first == {"t": Deadline(None, NOW + expected)}
    assert look(first, {"t": killed(None, wait_secs)}, NOW + 9) == first


def test_a_killed_topology_without_options_waits_as_by_default():
    assert look({}, {"t": StormBase("wc", TopologyStatus.KILLED, 1)}, NOW)["t"].at == NOW + 30


def test_a_rebalance_waits_too_and_what_runs_does_not():
    options = TopologyActionOptions(rebalance_options=RebalanceOptions(wait_secs=9))
    waiting = StormBase("wc", TopologyStatus.REBALANCING, 1, topology_action_options=options)
    running = killed(at(1), status=TopologyStatus.ACTIVE)
    assert look({}, {"t": waiting, "u": running}, NOW) == {"t": Deadline(None, NOW + 9)}


def test_what_is_over_is_forgotten():
    assert look({"t": Deadline(1, 1.0)}, {}, NOW) == {}
