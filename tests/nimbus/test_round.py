"""One round of a leader, of records to actions: what it remembers, and when it looks again."""

import copy
from dataclasses import replace

import pytest

from stormkeeper import paths
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.heartbeats.stores import Heartbeat, Heartbeats
from stormkeeper.nimbus.lifecycle import Command, Event, after
from stormkeeper.nimbus.round import RoundMemory, Timeouts, decide
from stormkeeper.nimbus.scheduling import cluster
from stormkeeper.nimbus.scheduling.cluster import Crashes, Topology
from stormkeeper.nimbus.scheduling.planning import Assign, FinishRebalance, Remove
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.thrift.records import (
    CrashSeries,
    SlotReport,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from support.clusters import EPOCH, NOW
from support.followed import WholeReadings

TIMES = Timeouts(monitor=10.0, launch=120.0, limits=LivenessLimits(9.0, 30.0), kept=300.0)
ID = "wc-1-1700000000"
FACTS = Topology(id="", queries=("q",), memory_mb=100.0, is_shared=False)
SERVER = "a:6699"


class Leader:
    """A leader that decides about records, which its actions change."""

    def __init__(self, *, epoch=EPOCH):
        self.epoch = epoch
        self.readings = WholeReadings()
        self.memory = RoundMemory()
        self.bases = {}
        self.assignments = {}
        self.supervisors = {
            "s": SupervisorInfo(NOW, "host", "s", [], [6700, 6701], stormkeeper="0.1.0")
        }
        self.unreadable = frozenset()
        self.ages = {}
        self.facts = {}

    def submit(self, storm_id=ID, facts=FACTS):
        self.bases[storm_id] = StormBase("wc", TopologyStatus.ACTIVE, 1, {}, NOW)
        self.facts[storm_id] = facts

    def say(self, event, storm_id=ID, **options):
        command = Command(event, NOW * 1000, **options)
        self.bases[storm_id] = after(storm_id, self.bases[storm_id], command)

    def look(self, secs=0.0, read_secs=0.0):
        """Decide so many seconds after now, carry it out, and return the decision.

        `read_secs` is how long it takes until the heartbeats are read as well.
        """
        beats = {path: Heartbeat(SERVER, age, 1, 1, None) for path, age in self.ages.items()}
        coverage = {SERVER: Coverage(NOW, position=Position("i", 1), horizon_secs=1e6)}
        snapshot = ClusterSnapshot(
            bases=dict(self.bases),
            assignments=dict(self.assignments),
            supervisors=copy.deepcopy(self.supervisors),
            nimbuses={},
            unreadable=self.unreadable,
            heartbeats=self.readings.read(Heartbeats(beats, coverage), secs + read_secs),
            heartbeats_at=NOW + secs + read_secs,
        )
        now = NOW + secs
        decision = decide(
            self.memory,
            snapshot,
            self.facts,
            now=now,
            epoch=self.epoch,
            timeouts=TIMES,
            default_wait_secs={},
        )
        self.memory = decision.memory
        for action in decision.actions:
            self.carry_out(action)
        return decision

    def carry_out(self, action):
        id_ = action.storm_id
        if isinstance(action, Assign):
            record = cluster.assignment_record(action.launches, (), master_code_dir="/c", hosts={})
            self.assignments[id_] = record
        elif isinstance(action, Remove):
            del self.bases[id_]
            self.assignments.pop(id_, None)
        elif isinstance(action, FinishRebalance):
            self.say(Event.DO_REBALANCE)

    def beats(self, age_secs, storm_id=ID):
        for launch in self.assignments[storm_id].launches:
            self.ages[paths.workerbeat(storm_id, launch.node, launch.port)] = age_secs

    def claims(self, storm_id=ID):
        return [each.claim.counter for each in self.assignments[storm_id].launches]


@pytest.fixture
def leader():
    leader = Leader()
    leader.submit()
    leader.look()
    leader.beats(0.0)
    return leader


def test_topology_gets_a_worker_then_nothing_is_left(leader):
    assert [each.queries for each in leader.assignments[ID].launches] == [["q"]]
    assert leader.look(1).actions == ()
    assert leader.memory.texts == {ID: "Fully Scheduled"}


def test_unreadable_supervisor_does_not_count_as_lost(leader):
    del leader.supervisors["s"]
    leader.unreadable = frozenset({paths.supervisor("s")})
    assert leader.look(1).memory.watch.lost_at == {}
    leader.unreadable = frozenset()
    assert leader.look(2).memory.watch.lost_at == {"s": NOW + 2}


def crashing(leader, count):
    """Have the supervisor of the one worker say how often it has crashed in a row."""
    [launch] = leader.assignments[ID].launches
    series = CrashSeries(count, NOW - 60, "it ended with exit code 1")
    report = SlotReport(launch.claim, "backing_off", NOW, series)
    leader.supervisors[launch.node].slots = {launch.port: report}
    return series


@pytest.mark.parametrize("is_gone", [False, True], ids=["moved", "its supervisor is lost"])
def test_crashes_are_counted_on_at_another_supervisor(is_gone):
    leader = Leader()
    leader.submit(facts=replace(FACTS, is_shared=True))
    leader.look()
    series = crashing(leader, 4)
    assert leader.look(1).actions == ()
    leader.supervisors["t"] = SupervisorInfo(
        NOW, "other", "t", [], [6700], uptime_secs=999, stormkeeper="0.1.0"
    )
    leader.supervisors["s"].uptime_secs = 999
    if is_gone:
        del leader.supervisors["s"]
    [action] = leader.look(200).actions
    [launch] = action.launches
    assert (launch.slot.node, launch.crashes) == ("t", Crashes(4, NOW - 60, series.error))
    [record] = leader.assignments[ID].launches
    assert record.crashes == series
    # The next supervisor counts on from there.
    crashing(leader, 5)
    leader.look(201)
    assert [each.count for each in leader.memory.crashes.values()] == [5]


def test_it_looks_again_when_the_period_is_over(leader):
    assert leader.look(1).next_round_at == NOW + 1 + TIMES.monitor


def test_it_looks_again_when_a_kill_is_due_and_then_removes(leader):
    leader.say(Event.KILL, wait_secs=4)
    decision = leader.look(1)
    assert (decision.actions, decision.next_round_at) == ((), NOW + 4)
    assert leader.look(4).actions == (Remove(ID),)
    assert leader.look(5).next_round_at == NOW + 5 + TIMES.monitor


def test_deadline_holds_despite_other_clocks(leader):
    leader.say(Event.KILL, wait_secs=4)
    leader.bases[ID].deadline_ms += 3_600_000
    assert leader.look(1).next_round_at == NOW + 1 + 4
    assert leader.look(3).next_round_at == NOW + 5


def test_it_looks_again_when_a_worker_may_be_dead(leader):
    leader.beats(25.0)
    next_round_at = leader.look(30).next_round_at
    assert NOW + 35 < next_round_at < NOW + 36
    leader.beats(25.0 + next_round_at - (NOW + 30))
    decision = leader.look(next_round_at - NOW)
    assert [each.status for each in leader.memory.watch.rows] == ["dead"]
    assert decision.next_round_at == next_round_at + TIMES.monitor


def test_silence_counts_from_the_pulse_in_a_slow_round(leader):
    leader.look(1, read_secs=20)  # it beat at 21
    for secs, status in ((29, "alive"), (50, "late"), (52, "dead")):
        leader.beats(secs - 21.0)
        cluster_seen = leader.look(secs).cluster
        [launch] = cluster_seen.topologies[ID].launches
        assert cluster_seen.workers.get(launch.claim, "alive") == status


def test_it_looks_again_when_a_worker_has_not_begun_to_beat(leader):
    leader.ages.clear()
    leader.look(1)
    assert NOW + 121 < leader.look(115).next_round_at < NOW + 122


def test_a_rebalance_releases_and_places_again_under_a_new_claim(leader):
    leader.say(Event.REBALANCE, wait_secs=2)
    assert leader.look(1).next_round_at == NOW + 2
    assert [type(each) for each in leader.look(2).actions] == [Assign, FinishRebalance]
    assert [each.released for each in leader.assignments[ID].launches] == [True]
    [was] = leader.claims()
    claim = leader.assignments[ID].launches[0].claim
    leader.supervisors["s"].stopped_workers = {6700: claim}
    leader.look(3)
    assert leader.claims() > [was]


def test_no_claim_is_given_twice_after_a_removal(leader):
    [first] = leader.claims()
    leader.say(Event.KILL)
    leader.look(1)
    leader.submit("other-2-1700000000")
    leader.look(2)
    assert leader.claims("other-2-1700000000") > [first]


def test_what_is_told_of_a_topology_goes_with_it(leader):
    leader.say(Event.KILL)
    leader.look(1)
    assert leader.memory.texts == {}


def test_nothing_is_decided_about_a_topology_that_is_blocked():
    leader = Leader()
    leader.submit(facts=replace(FACTS, blocked="its code is not here"))
    assert leader.look().actions == ()
    assert leader.memory.texts == {ID: "Waits: its code is not here"}


def test_a_supervisor_that_takes_no_work_gets_none():
    leader = Leader()
    leader.submit()
    leader.supervisors["s"].refuses = "the disk is full"
    assert leader.look().actions == ()
    leader.supervisors["s"].refuses = None
    assert [type(each) for each in leader.look(1).actions] == [Assign]


def test_queries_that_have_ended_are_not_placed_again(leader):
    leader.facts[ID] = replace(FACTS, ended=frozenset({"q"}))
    [action] = leader.look(1).actions
    assert action == Assign(ID, ())
    assert leader.memory.texts == {ID: "Completed"}
