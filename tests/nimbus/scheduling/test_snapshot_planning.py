"""From the records in a store to a plan, and back into the store."""

import pytest

from stormkeeper import paths
from stormkeeper.heartbeats.liveness import LivenessLimits, Status
from stormkeeper.nimbus.lifecycle import Command, Event, after
from stormkeeper.nimbus.round import pending_deadlines
from stormkeeper.nimbus.scheduling.cluster import (
    Topology,
    assignment_record,
)
from stormkeeper.nimbus.scheduling.cluster_memo import ClusterMemo, cluster_from_snapshot
from stormkeeper.nimbus.scheduling.followed_workers import LivenessMemory, judge_workers
from stormkeeper.nimbus.scheduling.planning import Assign, FinishRebalance, Remove, plan
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import (
    Assignment,
    LaunchClaim,
    NodeInfo,
    RebalanceOptions,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from support.clusters import NOW
from support.leaders import lead
from support.memory_state import MemoryEnsemble

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)
FACTS = {id_: Topology(id="", queries=("q", "r"), memory_mb=512.0, is_shared=True) for id_ in "tu"}


class Cluster:
    """A store in memory, and a leader who plans what it reads there and writes what it planned."""

    def __init__(self):
        self._secs = 0
        self.memory = MemoryEnsemble().session()
        heartbeats = NodeHeartbeats(self.memory, clock=lambda: self._secs)
        self.storm = StormClusterState(self.memory, Codec(), heartbeats=heartbeats)
        self.leader = lead(self.storm)
        self._follower, self._memo = heartbeats.follower(), ClusterMemo()
        self._watch, self._due = LivenessMemory(), {}
        self.statuses = {}

    def read(self, secs=0):
        self._secs = secs
        # Supervisors' values may wait otherwise.
        snapshot = self.storm.snapshot(is_synced=True, follower=self._follower)
        epoch = self.leader.fence.epoch
        self._watch, statuses = judge_workers(
            self._watch,
            self._memo.launches(snapshot),
            snapshot.supervisors.keys(),
            snapshot.heartbeats,
            now=NOW + secs,
            epoch=epoch,
            limits=LIMITS,
            launch_secs=120,
            supervisor_secs=60,
        )
        self._due = pending_deadlines(
            self._due, snapshot.bases, default_wait_secs={}, now=NOW + secs
        )
        return cluster_from_snapshot(
            snapshot,
            facts=FACTS,
            due={id_: each.at for id_, each in self._due.items()},
            statuses=statuses | self.statuses,
            now=NOW + secs,
            epoch=epoch,
            next_counter=0,
            launch_secs=120,
            memo=ClusterMemo(),
        )

    def plan(self, secs=0):
        """Plan and write, and return what was written."""
        before = self.read(secs)
        actions = plan(before)
        for action in actions:
            id_ = action.storm_id
            if isinstance(action, Assign):
                record = assignment_record(action.launches, (), master_code_dir="/c", hosts={})
                self.leader.set_assignment(id_, record)
            elif isinstance(action, Remove):
                self.leader.remove_storm(id_)
            elif isinstance(action, FinishRebalance):
                self.command(id_, Event.DO_REBALANCE)
        return [
            action for action in actions if isinstance(action, Assign | Remove | FinishRebalance)
        ]

    def command(self, id_, event, **facts):
        base = after(id_, self.storm.storm_base(id_), Command(event, NOW * 1000, **facts))
        self.leader.activate_storm(id_, base)

    def supervise(self, name, **facts):
        facts = {"stormkeeper": "0.1.0", **facts}
        info = SupervisorInfo(NOW, f"{name}.example", meta=[6700, 6701], uptime_secs=999, **facts)
        self.storm.supervisor_heartbeat(name, info)

    def submit(self, id_, workers=2):
        self.leader.activate_storm(id_, StormBase(id_, TopologyStatus.ACTIVE, workers))

    def places(self, id_):
        record = self.storm.assignment_info(id_)
        return [f"{one.node}:{one.port}" for one in record.launches if not one.released]


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.storm.disconnect()


def test_written_plan_leaves_nothing_to_do(cluster):
    cluster.supervise("a")
    cluster.supervise("b")
    cluster.submit("t")
    [assign] = cluster.plan()
    assert {each.claim.epoch for each in assign.launches} == {cluster.leader.fence.epoch}
    assert cluster.places("t") == ["a:6700", "b:6700"]
    assert cluster.plan(1) == []


def test_a_rebalance_and_a_kill_go_their_way(cluster):
    cluster.supervise("a")
    cluster.submit("t")
    cluster.plan()
    asked = RebalanceOptions(num_workers=1)
    cluster.command("t", Event.REBALANCE, wait_secs=5, rebalance=asked)
    assert cluster.plan(4) == []
    cluster.plan(5)
    assert cluster.places("t") == []
    assert cluster.storm.storm_base("t").status is TopologyStatus.ACTIVE
    assert cluster.plan(6) == []
    released = cluster.storm.assignment_info("t").launches
    cluster.supervise("a", stopped_workers={one.port: one.claim for one in released})
    cluster.plan(7)
    assert cluster.places("t") == ["a:6700"]
    cluster.command("t", Event.KILL, wait_secs=20)
    assert cluster.plan(19) == []
    assert cluster.plan(20) == [Remove("t")]
    assert cluster.storm.assignments() == cluster.storm.active_storms() == []


def test_a_worker_that_never_beats_is_launched_elsewhere(cluster):
    cluster.supervise("a")
    cluster.submit("t", workers=1)
    cluster.plan()
    cluster.supervise("b")
    assert cluster.plan(1) == []
    assert cluster.plan(121) == []
    cluster.plan(122)
    assert cluster.places("t") == ["b:6700"]


def test_what_nobody_has_the_code_of_waits(cluster):
    cluster.supervise("a")
    cluster.submit("strange")
    before = cluster.read()
    assert before.topologies["strange"].blocked == "its code is not here, and says what to run"
    assert cluster.plan() == []


def test_an_assignment_whose_base_is_gone_is_removed(cluster):
    cluster.leader.set_assignment("t", Assignment("/c"))
    assert cluster.plan() == [Remove("t")]


@pytest.mark.parametrize(
    ("path", "what"), [(paths.storm("t"), "base"), (paths.assignment("t"), "assignment")]
)
def test_unreadable_record_blocks_a_topology(cluster, path, what):
    cluster.supervise("a")
    cluster.submit("t", workers=1)
    cluster.plan()
    cluster.supervise("a", used_ports=[6700])
    cluster.memory.set_data(path, b"garbage")
    assert cluster.read().topologies["t"].blocked == f"its {what} cannot be read"
    cluster.submit("u", workers=1)
    assert [each.storm_id for each in cluster.plan()] == ["u"]
    assert cluster.places("u") == ["a:6701"]


def test_unreadable_supervisor_keeps_its_workers(cluster):
    cluster.supervise("a")
    cluster.submit("t", workers=1)
    cluster.plan()
    cluster.supervise("b")
    cluster.memory.set_data(paths.supervisor("a"), b"garbage")
    [claim] = (launch.claim for launch in cluster.read().topologies["t"].launches)
    cluster.statuses = {claim: Status.DEAD}
    cluster.submit("u")
    assert [each.storm_id for each in cluster.plan()] == ["u"]
    assert cluster.places("u") == ["b:6700", "b:6701"]


def test_a_java_nimbus_s_slots_are_in_use(cluster):
    cluster.supervise("a")
    cluster.submit("t")
    theirs = Assignment("/c", executor_node_port={(1, 1): NodeInfo("a", {6700})})
    cluster.leader.set_assignment("t", theirs)
    cluster.read()
    assert cluster._watch.assigned.by_path == {}
    cluster.submit("u")
    assert [each.storm_id for each in cluster.plan()] == ["u"]
    assert cluster.places("u") == ["a:6701"]


def test_a_supervisor_says_why_it_gets_nothing(cluster):
    cluster.supervise("a", stopped_workers={6700: LaunchClaim(1, 2)}, refuses="the disk is full")
    found = cluster_from_snapshot(
        cluster.storm.snapshot(),
        facts={},
        due={},
        statuses={},
        now=NOW,
        epoch=1,
        next_counter=3,
        launch_secs=60,
        memo=ClusterMemo(),
    )
    assert found.supervisors["a"].refuses == "the disk is full"
    assert (found.now, found.epoch, found.next_counter, found.launch_secs) == (NOW, 1, 3, 60)
