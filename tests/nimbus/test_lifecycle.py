import copy

import pytest

from stormkeeper.errors import StatusError
from stormkeeper.nimbus.lifecycle import Command, Event, after, is_purged
from stormkeeper.thrift.records import (
    KillOptions,
    RebalanceOptions,
    StormBase,
    TopologyActionOptions,
    TopologyStatus,
)

ACTIVE, INACTIVE, REBALANCING, KILLED = TopologyStatus
NOW_MS = 1_700_000_000_000


def base(status, **fields):
    return StormBase("wc", status, 2, {"split": 3}, owner="alice", **fields)


def become(before, event, **facts):
    kept = copy.deepcopy(before)
    found = after("wc-1-17", before, Command(event, NOW_MS, **facts))
    assert before == kept, "what was given stays as it is"
    return found


@pytest.mark.parametrize(
    ("event", "outcomes"),
    [
        # from ACTIVE, INACTIVE, REBALANCING, KILLED
        (Event.ACTIVATE, [ACTIVE, ACTIVE, None, None]),
        (Event.INACTIVATE, [INACTIVE, INACTIVE, None, None]),
        (Event.REBALANCE, [REBALANCING, REBALANCING, None, None]),
        (Event.KILL, [KILLED, KILLED, KILLED, KILLED]),
        (Event.DO_REBALANCE, [ACTIVE, INACTIVE, ACTIVE, KILLED]),
        (Event.REMOVE, [ACTIVE, INACTIVE, REBALANCING, "gone"]),
    ],
)
def test_what_each_status_makes_of_each_event(event, outcomes):
    for status, outcome in zip(TopologyStatus, outcomes, strict=True):
        if outcome is None:
            with pytest.raises(StatusError, match=f"wc-1-17 is {status.name}, and cannot"):
                become(base(status), event)
        elif outcome == "gone":
            assert become(base(status), event) is None
        else:
            assert become(base(status), event).status is outcome


@pytest.mark.parametrize(
    ("status", "event", "message"),
    [
        (
            REBALANCING,
            Event.INACTIVATE,
            "the topology wc-1-17 is REBALANCING, and cannot deactivate: try again when the"
            " rebalance is done",
        ),
        (
            KILLED,
            Event.REBALANCE,
            "the topology wc-1-17 is KILLED, and cannot rebalance: submit it again when it is gone",
        ),
    ],
)
def test_an_error_says_what_to_do(status, event, message):
    with pytest.raises(StatusError) as caught:
        become(base(status), event)
    assert str(caught.value) == message


@pytest.mark.parametrize("status", [ACTIVE, INACTIVE])
def test_what_changes_nothing_changes_nothing(status):
    same = Event.ACTIVATE if status is ACTIVE else Event.INACTIVATE
    for event in (same, Event.DO_REBALANCE, Event.REMOVE):
        assert become(base(status), event) == base(status)


def test_a_kill_is_kept_with_its_deadline():
    killed = become(base(ACTIVE), Event.KILL, wait_secs=20)
    options = TopologyActionOptions(kill_options=KillOptions(wait_secs=20))
    assert killed == base(KILLED, topology_action_options=options, deadline_ms=NOW_MS + 20_000)


@pytest.mark.parametrize(("wait_secs", "left"), [(5, 5), (20, 20), (90, 20)])
def test_of_two_kills_the_earlier_deadline_counts(wait_secs, left):
    first = become(base(ACTIVE), Event.KILL, wait_secs=20)
    second = become(first, Event.KILL, wait_secs=wait_secs)
    assert second.deadline_ms == NOW_MS + left * 1000
    assert second.topology_action_options.kill_options.wait_secs == left


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("wait_secs", "left"), [(5, 5), (90, 20)])
def test_of_two_kills_one_that_purges_is_enough(first, second, wait_secs, left):
    killed = become(base(ACTIVE), Event.KILL, wait_secs=20, purge=first)
    again = become(killed, Event.KILL, wait_secs=wait_secs, purge=second)
    assert is_purged(again)
    assert is_purged(killed) == first
    assert again.deadline_ms == NOW_MS + left * 1000
    assert again.topology_action_options.kill_options.wait_secs == left


def test_a_killed_topology_without_a_deadline_gets_one():
    assert become(base(KILLED), Event.KILL, wait_secs=5).deadline_ms == NOW_MS + 5000


def test_a_kill_ends_a_rebalance():
    before = become(base(INACTIVE), Event.REBALANCE, wait_secs=60)
    killed = become(before, Event.KILL, wait_secs=90)
    assert (killed.status, killed.prev_status) == (KILLED, None)
    assert killed.deadline_ms == NOW_MS + 90_000
    assert killed.topology_action_options.rebalance_options is None
    assert become(killed, Event.DO_REBALANCE) == killed


@pytest.mark.parametrize("status", [ACTIVE, INACTIVE])
def test_a_rebalance_changes_what_was_asked_for_and_goes_back(status):
    asked = RebalanceOptions(num_workers=5, num_executors={"count": 4})
    waiting = become(base(status), Event.REBALANCE, wait_secs=60, rebalance=asked)
    assert (waiting.status, waiting.prev_status) == (REBALANCING, status)
    assert waiting.deadline_ms == NOW_MS + 60_000
    assert waiting.topology_action_options.rebalance_options.wait_secs == 60
    assert (waiting.num_workers, asked.wait_secs) == (2, None)
    done = become(waiting, Event.DO_REBALANCE)
    expected = base(status)
    expected.num_workers, expected.component_executors = 5, {"split": 3, "count": 4}
    assert done == expected


@pytest.mark.parametrize("asked", [None, RebalanceOptions(num_workers=0)])
def test_a_rebalance_that_asks_for_nothing_changes_nothing(asked):
    waiting = become(base(ACTIVE), Event.REBALANCE, rebalance=asked)
    assert become(waiting, Event.DO_REBALANCE) == base(ACTIVE)
