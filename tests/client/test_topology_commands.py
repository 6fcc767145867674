"""Topologies that are killed, activated, deactivated, rebalanced."""

import pytest

from stormkeeper.client import topology_commands, topology_view
from stormkeeper.client.nimbus_connection import connect
from stormkeeper.client.topology_commands import Wait, WaitStatus
from stormkeeper.errors import (
    CallRefusedError,
    NotAliveError,
    OutcomeUnknownError,
    RefusedError,
    RpcRefusedError,
)
from stormkeeper.thrift.nimbus import InvalidTopologyException
from stormkeeper.thrift.records import CrashSeries, TopologyHealth
from stormkeeper.topology.faults import crash
from support.small_nimbus import SmallNimbus
from support.waiting import DEADLINE_SECS

CRASH = crash(6700, 1, "it ended with exit code 1") + ":\nTraceback …\nValueError: no day"


@pytest.fixture
def wait():
    return Wait(DEADLINE_SECS, lambda _text, _passed: None, sleep=lambda _secs: None)


def test_one_is_killed_and_gone_in_time(connected, nimbus, wait):
    nimbus.has("wc")
    storm_id = topology_commands.kill(connected, "wc", 5)
    assert nimbus.calls == [("kill", "wc", 5)]
    assert topology_commands.wait_until_gone(connected, "wc", storm_id, wait).is_done
    assert topology_view.find_topology(connected, "wc") is None


def test_what_is_not_there_is_not_killed(connected):
    with pytest.raises(NotAliveError, match="there is no topology wc"):
        topology_commands.kill(connected, "wc", None)


def test_deactivated_and_activated(connected, nimbus, wait):
    standing = nimbus.has("wc")
    assert topology_commands.set_active(connected, "wc", active=False) == standing.id
    assert topology_commands.wait_for_status(connected, "wc", "INACTIVE", wait).is_done
    assert standing.status == "INACTIVE"
    topology_commands.set_active(connected, "wc", active=True)
    assert topology_commands.wait_for_status(connected, "wc", "ACTIVE", wait).is_done
    assert standing.status == "ACTIVE"


def test_a_status_that_does_not_take_it_is_named(connected, nimbus):
    nimbus.has("wc").status = "REBALANCING"
    with pytest.raises(RefusedError, match="wc is REBALANCING, and takes no other command until"):
        topology_commands.set_active(connected, "wc", active=True)


def test_another_internal_error_stays_one(connected, nimbus):
    nimbus.has("wc")
    nimbus.activate = None  # which nobody can call
    with pytest.raises(RpcRefusedError, match="Internal error processing activate"):
        topology_commands.set_active(connected, "wc", active=True)


def test_rebalanced_with_what_was_asked_for(connected, nimbus, wait):
    nimbus.has("wc")
    topology_commands.rebalance(connected, "wc", wait_secs=0, workers=2, parallelism={"words": 4})
    assert nimbus.calls == [("rebalance", "wc", 0, 2, {"words": 4})]
    assert topology_commands.wait_for_workers(connected, "wc", wait).is_done


def test_how_long_nimbus_waits_is_the_topologys(connected, nimbus):
    nimbus.has("wc", **{"topology.message.timeout.secs": 3})
    assert topology_view.kill_wait_secs(connected, "wc") == 3.0


def test_one_whose_code_is_lost_can_be_killed_like_others(connected, nimbus):
    """Nimbus knows its own conf alone then, and waits as that says."""
    nimbus.has("wc")

    def lost(_):
        raise CallRefusedError("the code of wc is not on this Nimbus")

    nimbus.getTopologyConf = lost
    nimbus.getNimbusConf = lambda: '{"topology.message.timeout.secs": 4}'
    assert topology_view.kill_wait_secs(connected, "wc") == 4.0


def test_a_new_one_whose_worker_crashes_is_waited_for_no_more(connected, nimbus, wait):
    standing = nimbus.has("wc")
    standing.errs(CRASH)
    seen = topology_commands.wait_for_first_batches(connected, "wc", wait)
    assert seen == WaitStatus(False, CRASH, has_failed=True)


def test_cause_of_a_crash_is_reported_once(connected, nimbus, wait):
    standing = nimbus.has("wc")
    standing.errs(f"ValueError: no day\n{CRASH}")
    seen = topology_commands.wait_for_first_batches(connected, "wc", wait)
    assert seen == WaitStatus(False, CRASH, has_failed=True)


def test_error_is_held_back_for_the_report_of_a_crash(connected, nimbus):
    now, told = [100.0], []

    def sleep(secs):
        now[0] += secs

    wait = Wait(60, lambda *_: None, lambda: now[0], sleep, lambda _: told.append(now[0]))
    nimbus.has("wc").errs("its code cannot be fetched: no Nimbus answers")
    assert topology_commands.wait_for_first_batches(connected, "wc", wait).is_done
    assert told == [105.0]


def test_a_crash_of_which_no_error_tells_ends_the_wait(connected, nimbus, wait):
    standing = nimbus.has("wc")
    series = CrashSeries(2, 17, "it ended by SIGKILL")
    standing.health = TopologyHealth("crashing", "2 times in a row: it ended by SIGKILL", series)
    seen = topology_commands.wait_for_first_batches(connected, "wc", wait)
    text = "crashing: 2 times in a row: it ended by SIGKILL"
    assert seen == WaitStatus(False, text, has_failed=True)


def test_a_new_one_that_something_hinders_is_waited_for(connected, nimbus, wait):
    standing = nimbus.has("wc")
    standing.errs("its code cannot be fetched: no Nimbus answers")
    assert topology_commands.wait_for_first_batches(connected, "wc", wait).is_done
    assert standing.workers[0].uptime_secs >= 30


@pytest.mark.parametrize("reigns_on", [True, False])
@pytest.mark.parametrize("command", ["rebalance", "killTopologyWithOpts"])
def test_what_a_leader_has_done_without_knowing_it_is_done(cluster, command, reigns_on):
    former, heir = SmallNimbus(), SmallNimbus()
    settings = cluster(former, heir)
    storm_id, heir.topologies = former.has("wc").id, former.topologies
    do = getattr(former, command)

    def do_and_fail(*arguments):
        do(*arguments)
        if not reigns_on:
            former.leader = heir.leader
        raise OutcomeUnknownError("the connection was lost")

    def refuse(*_):
        raise InvalidTopologyException("the topology cannot, as it is REBALANCING")

    setattr(former, command, do_and_fail)
    heir.rebalance = refuse
    with connect(settings) as connected:
        if command == "rebalance":
            assert topology_commands.rebalance(connected, "wc", parallelism={}) == storm_id
        else:
            assert topology_commands.kill(connected, "wc", None) == storm_id
