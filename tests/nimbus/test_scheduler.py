"""The leader's loop on a store: from what is there to what it writes, without a poll in between."""

import threading
import time
from types import MappingProxyType

import pytest

from stormkeeper.conf import load
from stormkeeper.errors import NotLeaderError, OutcomeUnknownError, SerializationError
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.nimbus import lifecycle, scheduler
from stormkeeper.nimbus.action_writer import ActionWriter
from stormkeeper.nimbus.cleanup import CheckpointRetention, Cleaner
from stormkeeper.nimbus.cluster_status import ClusterStatusTracker
from stormkeeper.nimbus.lifecycle import Command, ConfChanges, Event
from stormkeeper.nimbus.round import Timeouts
from stormkeeper.nimbus.scheduler import LeaderDuties, Scheduler
from stormkeeper.nimbus.submitted import Submitted, TopologyCache
from stormkeeper.state import leader_lock
from stormkeeper.state.storm.cluster import StormClusterState, leader_state
from stormkeeper.thrift.nimbus import StormTopology
from stormkeeper.thrift.records import (
    ClusterWorkerHeartbeat,
    NimbusSummary,
    RebalanceOptions,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.description import of_topology
from support.leaders import lead
from support.topologies import make
from support.waiting import until

ID, OTHER = "wc-1-1700000000", "other-2-1700000000"
#: Its checkpoints can be reached from every machine.
SHARED = "shared-3-1700000000"

#: What happens by itself happens after an hour.
HOUR = 3600.0
TIMES = Timeouts(monitor=HOUR, launch=HOUR, limits=LivenessLimits(HOUR, HOUR), kept=HOUR)


def submitted(**conf):
    description = of_topology(make({"words": ((), 2), "counts": (("words",), 3)}))
    return Submitted(StormTopology({}, {}, {}), MappingProxyType(conf), description)


class Code(dict):
    """The code of topologies, by their ids."""

    revision = 0

    def version(self, storm_id):
        return self.get(storm_id) and 1


class Nimbus:
    """A Nimbus of which only the leader's loop runs."""

    def __init__(self, session, times):
        self.storm = StormClusterState(session, Codec())
        self.leader = lead(self.storm)
        shared = submitted(**{"topology.checkpoint.shared": True})
        code = Code({ID: submitted(), OTHER: submitted(), SHARED: shared})
        self.status = ClusterStatusTracker()
        self.removed = []
        offset = time.time() - time.monotonic()
        self.scheduler = Scheduler(
            self.storm,
            TopologyCache(code, load(files=())),
            times,
            self.status,
            conf_changes=ConfChanges(None),
            master_code_dir="/code",
            clock=lambda: offset + time.monotonic(),
            on_removed=lambda storm_id, owner: self.removed.append((storm_id, owner)),
        )
        retention = CheckpointRetention(tuple, kept_secs=None, clock=time.time)
        cleaner = Cleaner(
            *(self.storm, tuple, retention), period_secs=HOUR, kept_secs=HOUR, clock=time.monotonic
        )
        self.duties = LeaderDuties(self.scheduler, cleaner, self.status)
        self.duties.begin(self.leader)

    def submit(self, storm_id=ID):
        base = StormBase("wc", TopologyStatus.ACTIVE, 1, {}, int(time.time()), "somebody")
        self.leader.activate_storm(storm_id, base)

    def say(self, event, storm_id=ID, **options):
        command = Command(event, int(time.time() * 1000), **options)
        self.leader.change_storm(storm_id, lambda base: lifecycle.after(storm_id, base, command))
        self.duties.current().wake()

    def launches(self, storm_id=ID):
        assignment = self.storm.assignment_info(storm_id)
        return [] if assignment is None else assignment.launches

    def assigned(self, storm_id=ID):
        """Wait until a topology has a worker that is not to stop, and return its launch."""
        return until(lambda: [each for each in self.launches(storm_id) if not each.released])[0]

    def close(self):
        self.duties.end()
        self.storm.disconnect()


@pytest.fixture
def start(memory):
    opened = []

    def start(times=TIMES):
        opened.append(Nimbus(memory.open(), times))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def machine(memory):
    """A supervisor's session; its record is what a test makes of it."""
    storm = StormClusterState(memory.open(), Codec())

    def say(id_="sup", used_ports=(), **facts):
        facts = {"stormkeeper": "0.1.0", **facts}
        info = SupervisorInfo(1, f"{id_}.example", id_, list(used_ports), [6700], **facts)
        storm.supervisor_heartbeat(id_, info)

    yield say
    storm.disconnect()


def test_a_topology_is_assigned_when_it_comes(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    launch = nimbus.assigned()
    assert (launch.node, launch.port, launch.queries) == ("sup", 6700, ["counts"])
    assert launch.claim.epoch == nimbus.leader.fence.epoch
    assignment = nimbus.storm.assignment_info(ID)
    assert assignment.node_host == {"sup": "sup.example"}
    assert sorted(assignment.executor_node_port) == [(1, 3), (4, 5)]
    assert (assignment.master_code_dir, assignment.owner) == ("/code", "somebody")
    until(lambda: nimbus.scheduler.sched_status() == {ID: "Fully Scheduled"})


def test_waiting_topology_is_assigned_when_a_supervisor_comes(start, machine):
    nimbus = start()
    nimbus.submit()
    until(lambda: "Not enough slots" in nimbus.scheduler.sched_status().get(ID, ""))
    machine()
    nimbus.assigned()


def test_a_kill_removes_a_topology_on_its_deadline(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    nimbus.assigned()
    nimbus.say(Event.KILL, wait_secs=1)
    deadline = nimbus.storm.storm_base(ID).deadline_ms / 1000
    until(lambda: nimbus.storm.active_storms() == [])
    assert time.time() >= deadline
    assert nimbus.storm.assignments() == []
    until(lambda: nimbus.removed == [(ID, "somebody")])


def test_rebalanced_worker_is_placed_once_it_stopped(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    first = nimbus.assigned()
    nimbus.say(Event.REBALANCE, rebalance=RebalanceOptions(num_workers=3))
    until(lambda: [each.released for each in nimbus.launches()] == [True])
    machine(stopped_workers={6700: first.claim})
    assert nimbus.assigned().claim.counter > first.claim.counter
    until(lambda: nimbus.storm.storm_base(ID).num_workers == 3)
    assert nimbus.storm.storm_base(ID).status is TopologyStatus.ACTIVE


def test_slot_is_reused_when_its_supervisor_frees_it(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    nimbus.assigned()
    machine(used_ports=[6700])
    nimbus.submit(OTHER)
    nimbus.say(Event.KILL)
    until(lambda: nimbus.storm.active_storms() == [OTHER])
    until(lambda: "Not enough slots" in nimbus.scheduler.sched_status().get(OTHER, ""))
    assert nimbus.launches(OTHER) == []
    machine()
    nimbus.assigned(OTHER)


def test_queries_with_shared_checkpoints_leave_a_lost_machine(start, machine, memory):
    """By time alone: nothing tells that a worker does not beat."""
    nimbus = start(Timeouts(monitor=HOUR, launch=0.5, limits=LivenessLimits(0.1, 0.5), kept=HOUR))
    lost = StormClusterState(memory.open(), Codec())
    lost.supervisor_heartbeat(
        "lost", SupervisorInfo(1, "lost", "lost", [], [6700, 6701], stormkeeper="0.1.0")
    )
    for storm_id in (ID, SHARED):
        nimbus.submit(storm_id)
        assert nimbus.assigned(storm_id).node == "lost"
    assert lost.begin_claim(ID, "counts", nimbus.assigned(ID).claim)
    lost.disconnect()
    machine()
    until(lambda: [each.node for each in nimbus.launches(SHARED)] == ["sup"])
    assert [each.node for each in nimbus.launches(ID)] == ["lost"]
    until(lambda: "Waits for the machine" in nimbus.scheduler.sched_status()[ID])


def test_an_unclaimed_query_leaves_a_lost_machine(start, machine, memory):
    """And its worker can claim it no more."""
    nimbus = start(Timeouts(monitor=HOUR, launch=0.5, limits=LivenessLimits(0.1, 0.5), kept=HOUR))
    lost = StormClusterState(memory.open(), Codec())
    lost.supervisor_heartbeat(
        "lost", SupervisorInfo(1, "lost", "lost", [], [6700], stormkeeper="0.1.0")
    )
    nimbus.submit()
    claim = nimbus.assigned().claim
    lost.disconnect()
    machine()
    until(lambda: [each.node for each in nimbus.launches()] == ["sup"])
    assert not nimbus.storm.begin_claim(ID, "counts", claim)
    assert nimbus.storm.begin_claim(ID, "counts", nimbus.assigned().claim)


def test_it_warns_of_a_nimbus_of_storms_own_once(start, machine, memory, caplog):
    java = StormClusterState(memory.open(), Codec())
    java.add_nimbus_host(NimbusSummary("java.example", 6627, 1, False, "2.8.8"))
    ours = NimbusSummary("ours.example", 6627, 1, False, "0.1.0", stormkeeper="0.1.0")
    java.add_nimbus_host(ours)
    java.add_nimbus_host(NimbusSummary("old.example", 6627, 1, False, "0.1.0"))
    nimbus = start()
    machine()
    for storm_id in (ID, OTHER):
        nimbus.submit(storm_id)
        until(lambda storm_id=storm_id: storm_id in nimbus.scheduler.sched_status())
    assert [r.args for r in caplog.records if "is a Nimbus of Storm" in r.message] == [
        ("java.example", "2.8.8")
    ]
    java.disconnect()


def test_a_reign_that_goes_on_gives_no_claim_twice(start, machine):
    """After an interruption that the session has survived."""
    nimbus = start()
    machine()
    nimbus.submit()
    first = nimbus.assigned()
    nimbus.say(Event.KILL)
    until(lambda: nimbus.storm.active_storms() == [])
    nimbus.duties.end()
    assert nimbus.duties.leader is None
    again = leader_state(nimbus.storm, nimbus.leader.fence)
    nimbus.duties.begin(again)
    nimbus.submit(OTHER)
    second = nimbus.assigned(OTHER)
    assert second.claim.epoch == first.claim.epoch
    assert second.claim.counter > first.claim.counter


@pytest.mark.parametrize("is_written", [True, False])
def test_after_a_write_of_unknown_outcome_it_reads_again(start, machine, monkeypatch, is_written):
    nimbus = start()
    nimbus.submit()
    until(nimbus.scheduler.sched_status)
    write = nimbus.leader.set_assignments
    outcomes = iter([is_written])

    def set_assignments(assignments, **options):
        for applies in outcomes:
            if applies:
                write(assignments, **options)
            raise OutcomeUnknownError("the connection was lost")
        return write(assignments, **options)

    monkeypatch.setattr(nimbus.leader, "set_assignments", set_assignments)
    machine()
    until(lambda: nimbus.scheduler.sched_status() == {ID: "Fully Scheduled"})
    # Of one that may be written the claim is not given again, and one that is stays as it is.
    assert [each.claim.counter for each in nimbus.launches()] == [0 if is_written else 1]
    assert nimbus.status.status.failures == 1


@pytest.fixture
def several(start, machine, monkeypatch):
    """A Nimbus that is to place three topologies once it leads; a round writes a single one."""
    monkeypatch.setattr(scheduler, "_ROUND_SECS", 0.02)
    record = ActionWriter._record

    def slow(self, action):
        time.sleep(0.03)
        return record(self, action)

    monkeypatch.setattr(ActionWriter, "_record", slow)
    nimbus = start()
    nimbus.duties.end()
    for storm_id in (ID, OTHER, SHARED):
        machine(f"sup-{storm_id}")
        nimbus.submit(storm_id)
    return nimbus


def test_a_long_plan_is_written_in_several_rounds(several):
    rounds = several.status.status.rounds
    several.duties.begin(several.leader)
    nodes = {several.assigned(storm_id).node for storm_id in (ID, OTHER, SHARED)}
    assert len(nodes) == 3
    until(lambda: set(several.scheduler.sched_status().values()) == {"Fully Scheduled"})
    until(lambda: several.status.status.rounds > rounds + 3)
    assert several.status.status.actions == {"assign": 3}


def test_assignment_that_cannot_be_encoded_keeps_no_other(several, monkeypatch):
    encode = several.leader._assignment_write

    def encode_others(new, seen):
        if new.storm_id == OTHER:
            raise SerializationError("it does not fit")
        return encode(new, seen)

    monkeypatch.setattr(several.leader, "_assignment_write", encode_others)
    several.duties.begin(several.leader)
    for storm_id in (ID, SHARED):
        several.assigned(storm_id)
    until(lambda: several.status.status.failures)
    assert several.launches(OTHER) == []


def test_news_are_planned_before_the_rest_is_written(several, monkeypatch):
    steps, planned = [], several.scheduler._planned
    write = several.leader.set_assignments

    def timed(rounds):
        began = time.monotonic()
        plan = planned(rounds)
        steps.append(time.monotonic() - began)
        return plan

    def slow(assignments, **options):
        write(assignments, **options)
        time.sleep(3 * steps[-1])
        steps.append("write")
        several.scheduler.wake()

    monkeypatch.setattr(several.scheduler, "_planned", timed)
    monkeypatch.setattr(several.leader, "set_assignments", slow)
    several.duties.begin(several.leader)
    for storm_id in (ID, OTHER, SHARED):
        several.assigned(storm_id)
    until(lambda: steps.count("write") == 3)
    assert ["write" if each == "write" else "plan" for each in steps[:6]] == ["plan", "write"] * 3


def test_whoever_leads_next_keeps_the_deadline(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    worker = nimbus.assigned()
    nimbus.say(Event.KILL, wait_secs=2)
    deadline = nimbus.storm.storm_base(ID).deadline_ms / 1000
    nimbus.duties.end()
    for lock in leader_lock.queue(nimbus.storm.state):
        leader_lock.give_up(nimbus.storm.state, lock)
    other = start()
    assert [each.claim for each in other.launches()] == [worker.claim]
    until(lambda: other.storm.active_storms() == [])
    assert time.time() >= deadline


def test_a_topology_whose_queries_have_all_ended_is_completed(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    nimbus.assigned()
    last = ClusterWorkerHeartbeat(ID, {}, 1, 1)
    nimbus.storm.set_query_ended(ID, "counts", last)
    nimbus.scheduler.wake()
    until(lambda: nimbus.scheduler.sched_status() == {ID: "Completed"})
    assert nimbus.launches() == []


def test_a_call_waits_for_a_reign_that_is_about_to_begin(start):
    nimbus = start()
    nimbus.duties.end()
    with pytest.raises(NotLeaderError):
        nimbus.duties.current()
    begins = threading.Timer(0.1, nimbus.duties.begin, [nimbus.leader])
    begins.start()
    assert nimbus.duties.current(lambda: True).leader is nimbus.leader
    begins.join()


def test_what_is_seen_is_the_leaders(start, machine):
    nimbus = start()
    machine()
    nimbus.submit()
    nimbus.assigned()
    until(lambda: nimbus.status.status.free_slots == 0 and nimbus.status.status.supervisors == 1)
    seen = nimbus.status.status
    assert (seen.epoch, seen.slots, dict(seen.topologies)) == (
        nimbus.leader.fence.epoch,
        1,
        {"active": 1},
    )
    assert seen.actions == {"assign": 1}
    nimbus.duties.end()
    assert (nimbus.status.status.epoch, nimbus.status.status.slots) == (None, 0)
