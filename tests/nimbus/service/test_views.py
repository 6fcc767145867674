"""What a request costs: as many questions to the store for a hundred topologies as for one."""

import threading
from collections import Counter

import pytest

from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import (
    Assignment,
    CrashSeries,
    LaunchClaim,
    NodeInfo,
    SlotReport,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
    WorkerLaunch,
)
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.faults import crash, crash_with_cause
from support.memory_state import MemoryEnsemble
from support.nimbus_service import nimbuses

MANY = 100


class Counted:
    """A session that counts what the thread of the test asks of it."""

    def __init__(self, session):
        self._session = session
        self._thread = threading.current_thread()
        self.calls = Counter()

    def __getattr__(self, name):
        found = getattr(self._session, name)
        if callable(found) and threading.current_thread() is self._thread:
            self.calls[name] += 1
        return found


@pytest.fixture
def counted():
    return Counted(MemoryEnsemble().session())


@pytest.fixture
def nimbus(counted, tmp_path):
    with nimbuses(tmp_path, StormClusterState(counted, Codec())) as [nimbus]:
        yield nimbus


def activate(nimbus, number):
    storm_id = f"wc{number}-{number}-1700000000"
    nimbus.leader.activate_storm(storm_id, StormBase(f"wc{number}", TopologyStatus.ACTIVE, 1))
    place = NodeInfo("sup", {6700 + number})
    nimbus.leader.set_assignment(storm_id, Assignment("x", {"sup": "h"}, {(1, 1): place}))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("getClusterInfo", ()),
        ("getTopologySummaries", ()),
        ("getTopologySummaryByName", ("wc0",)),
        ("getTopologyInfoByName", ("wc0",)),
        ("getTopologyPageInfo", ("wc0-0-1700000000", "600", True)),
        ("getOwnerResourceSummaries", (None,)),
        ("getTopologyHistory", (None,)),
        ("getSupervisorAssignments", ("sup",)),
        ("isTopologyNameAllowed", ("other",)),
    ],
)
def test_no_read_is_made_for_each_topology(nimbus, counted, method, arguments):
    def asked():
        counted.calls.clear()
        getattr(nimbus.handler, method)(*arguments)
        return dict(counted.calls)

    activate(nimbus, 0)
    of_one = asked()
    assert sum(of_one.values()) < 16
    for number in range(1, MANY):
        activate(nimbus, number)
    assert len(nimbus.handler.getTopologySummaries()) == MANY
    assert asked() == of_one


def test_a_topology_that_crashes_is_told_with_its_error(nimbus):
    activate(nimbus, 0)
    storm_id, claim = "wc0-0-1700000000", LaunchClaim(7, 1)
    launch = WorkerLaunch("sup", 6700, claim, ["out"], 1_700_000_000, 512.0)
    nimbus.leader.set_assignment(storm_id, Assignment("x", {"sup": "h"}, launches=[launch]))
    ended = "it ended with exit code 1"
    series = CrashSeries(3, 1_700_000_000, ended)
    report = SlotReport(claim, "backing_off", 1_700_000_000, series)
    nimbus.storm.supervisor_heartbeat("sup", SupervisorInfo(1, "h", slots={6700: report}))
    nimbus.told = {storm_id: "Fully Scheduled"}
    found = nimbus.handler.getTopologySummaryByName("wc0")
    assert (found.health.state, found.health.crashes) == ("crashing", series)
    assert found.sched_status.startswith("Fully Scheduled; crashing: 3 times in a row in ")

    cause = "Traceback (most recent call last):\n  …\nValueError: no day"
    text = crash_with_cause(crash(6700, 3, ended), cause)
    nimbus.storm.report_error(storm_id, "out", text, host="h", port=6700)
    [listed] = nimbus.handler.getTopologySummaries()
    assert listed.health.text.endswith(": ValueError: no day")
    page = nimbus.handler.getTopologyPageInfo(storm_id, "600", True)
    assert page.health.crashes.error == "ValueError: no day"
    assert nimbus.handler.count_health()["crashing"] == 1
    assert nimbus.handler.count_health()["running"] == 0
