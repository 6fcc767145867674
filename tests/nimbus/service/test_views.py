"""What a request costs: as many questions to the store for a hundred topologies as for one."""

import threading
from collections import Counter

import pytest

from stormkeeper.conf import Address
from stormkeeper.heartbeats.stores import PacemakerHeartbeats
from stormkeeper.local import reservations
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    CrashSeries,
    LaunchClaim,
    NodeInfo,
    QueryActivity,
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
from support.waiting import until

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


def test_a_list_shows_changed_records_at_once(nimbus):
    def listed():
        found = [each.decoded() for each in nimbus.handler.getTopologySummaries()]
        assert found == [each.decoded() for each in nimbus.handler.getClusterInfo().topologies]
        return {each.name: (each.status, each.num_workers) for each in found}

    assert listed() == {}
    activate(nimbus, 0)
    assert listed() == {"wc0": ("ACTIVE", 1)}
    activate(nimbus, 1)
    nimbus.leader.activate_storm("wc0-0-1700000000", StormBase("wc0", TopologyStatus.KILLED, 1))
    nimbus.leader.set_assignment("wc1-1-1700000000", Assignment("x"))
    assert listed() == {"wc0": ("KILLED", 1), "wc1": ("ACTIVE", 0)}
    nimbus.leader.remove_storm("wc0-0-1700000000")
    assert listed() == {"wc1": ("ACTIVE", 0)}


def test_a_lists_health_follows_the_heartbeats(nimbus):
    activate(nimbus, 0)
    storm_id = "wc0-0-1700000000"
    launch = WorkerLaunch("sup", 6700, LaunchClaim(7, 1), ["q"], 1_699_999_990, 512.0)
    nimbus.leader.set_assignment(storm_id, Assignment("x", {"sup": "h"}, launches=[launch]))
    nimbus.storm.supervisor_heartbeat("sup", SupervisorInfo(1, "h", used_ports=[6700], slots={}))
    nimbus.told = {storm_id: "Fully Scheduled"}

    def health():
        [listed] = nimbus.handler.getTopologySummaries()
        return listed.decoded().health

    assert health().text == "launched 10 s ago"
    beat = ClusterWorkerHeartbeat(storm_id, {}, 1, 5, queries=[QueryActivity("q")])
    nimbus.storm.set_worker_heartbeat(storm_id, "sup", 6700, beat)
    until(lambda: health().state == "running")


def test_a_list_is_shown_without_a_pacemaker(tmp_path):
    pool = PacemakerPool([Address("127.0.0.1", reservations.reserve())])
    session = MemoryEnsemble().session()
    storm = StormClusterState(session, Codec(), heartbeats=PacemakerHeartbeats(pool))
    with nimbuses(tmp_path, storm) as [nimbus]:
        activate(nimbus, 0)
        launch = WorkerLaunch("sup", 6700, LaunchClaim(7, 1), ["q"], 1_699_999_990, 512.0)
        assignment = Assignment("x", {"sup": "h"}, launches=[launch])
        nimbus.leader.set_assignment("wc0-0-1700000000", assignment)
        nimbus.storm.supervisor_heartbeat(
            "sup", SupervisorInfo(1, "h", used_ports=[6700], slots={})
        )
        nimbus.told = {"wc0-0-1700000000": "Fully Scheduled"}
        [listed] = nimbus.handler.getTopologySummaries()
        health = listed.decoded().health
        assert health == nimbus.handler.getTopologySummaryByName("wc0").health
        assert health.text == "its supervisor says so: no Pacemaker can be read"


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
    assert listed.decoded().health.text.endswith(": ValueError: no day")
    page = nimbus.handler.getTopologyPageInfo(storm_id, "600", True)
    assert page.health.crashes.error == "ValueError: no day"
    counts, age_secs = nimbus.handler.count_health()
    assert (counts["crashing"], counts["running"]) == (1, 0)
    assert age_secs >= 0
