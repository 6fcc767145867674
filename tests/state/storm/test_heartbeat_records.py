import time

import pytest

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.heartbeats.stores import PacemakerHeartbeats
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.paths import Slot
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.state.storm import heartbeat_records
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.heartbeat_records import ExecutorBeat
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    LaunchClaim,
    NodeInfo,
    TaskHeartbeat,
    WorkerLaunch,
)
from stormkeeper.thrift.serialization import Codec, Release, serialize
from support.heartbeats import spout
from support.interposed import Interposed
from support.leaders import lead

STORM = "wc-1-1700000000"


def beat(*executors, time_secs=1_700_000_300, uptime_secs=42):
    """A heartbeat of executors of one task each, which emitted as many as their task's number."""
    stats = {ExecutorInfo(task, task): spout(task) for task in executors}
    return ClusterWorkerHeartbeat(STORM, stats, time_secs, uptime_secs)


@pytest.fixture
def over_pacemaker(two_pacemakers):
    """Heartbeats in two Pacemakers."""
    heartbeats = PacemakerHeartbeats(PacemakerPool(two_pacemakers))
    yield heartbeats
    for top in (paths.WORKERBEATS, paths.TASKBEATS):
        heartbeats.remove(top)
    heartbeats.close()


@pytest.fixture(params=["nodes", "pacemaker"])
def heartbeats(request, memory):
    """Heartbeats in either place."""
    if request.param == "nodes":
        return NodeHeartbeats(memory)
    return request.getfixturevalue("over_pacemaker")


@pytest.fixture
def cluster(memory, heartbeats):
    """The typed state with them."""
    return StormClusterState(memory, Codec(), heartbeats=heartbeats)


def test_heartbeats_are_read_back_by_slot(cluster):
    beats = {Slot("sup-a-10.0.0.1", 6700): beat(1, 2), Slot("sup-b", 6701): beat(3)}
    assert cluster.worker_heartbeats(STORM) == {}
    assert cluster.heartbeat_storms() == []
    for slot, said in beats.items():
        cluster.set_worker_heartbeat(STORM, *slot, said)
    assert cluster.worker_heartbeats(STORM) == beats
    assert cluster.worker_heartbeat(STORM, "sup-b", 6701) == beats["sup-b", 6701]
    assert cluster.heartbeat_storms() == [STORM]


def test_a_heartbeat_from_before_a_launch_is_of_a_former_worker(cluster):
    kept, former, other = Slot("sup", 6700), Slot("sup", 6701), Slot("sup", 6702)
    for slot in (kept, former, other):
        cluster.set_worker_heartbeat(STORM, *slot, beat(1))
    launched = {kept: time.time() - 100, former: time.time() + 100}
    found = cluster.aged_heartbeats(STORM, launched)
    assert [slot for slot, each in found.items() if not each.is_former] == [kept, other]


def test_a_heartbeat_replaces_the_one_before_and_can_be_removed(cluster):
    for uptime_secs in (1, 4):
        cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(uptime_secs=uptime_secs))
    assert cluster.worker_heartbeat(STORM, "sup", 6700).uptime_secs == 4
    cluster.remove_worker_heartbeat(STORM, "sup", 6700)
    cluster.remove_worker_heartbeat(STORM, "sup", 6700)
    assert cluster.worker_heartbeat(STORM, "sup", 6700) is None


def test_unreadable_heartbeat_raises_alone_and_is_skipped(cluster, heartbeats):
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1))
    heartbeats.beat(paths.workerbeat(STORM, "sup", 6701), b"no heartbeat")
    heartbeats.beat(f"{paths.workerbeats(STORM)}/nobody's", b"")
    with pytest.raises(SerializationError, match=rf"^/workerbeats/{STORM}/sup-6701: "):
        cluster.worker_heartbeat(STORM, "sup", 6701)
    assert list(cluster.worker_heartbeats(STORM)) == [("sup", 6700)]
    assert cluster.unreadable == 1


def test_queries_that_have_ended_stay_ended_and_are_no_workers(cluster, memory):
    assert cluster.ended_queries(STORM) == frozenset()
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1))
    for query in ("totals", "a query/6701"):
        cluster.set_query_ended(STORM, query, beat(1))
    assert cluster.ended_queries(STORM) == {"totals", "a query/6701"}
    assert list(cluster.worker_heartbeats(STORM)) == [("sup", 6700)]
    assert cluster.unreadable == 0
    # Pacemakers forget; the nodes are there all the same, and go with the topology.
    assert "totals-ended" in memory.get_children(paths.workerbeats(STORM))
    lead(cluster).teardown_heartbeats(STORM)
    assert cluster.ended_queries(STORM) == frozenset()


def launched(**facts):
    launch = WorkerLaunch("sup", 6700, LaunchClaim(7, 3), ["q"], 0, 0, **facts)
    return Assignment("/code", launches=[launch])


def test_only_an_assigned_launch_records_a_claim_once(cluster):
    leader, claim = lead(cluster), LaunchClaim(7, 3)
    path = paths.query_claim(STORM, "q")
    assert cluster.begin_claim(STORM, "q", claim), "there is no assignment"
    released = launched(tells_claims=True, released=True)
    for taken_back in (released, Assignment("/code", launches=[])):
        leader.set_assignment(STORM, taken_back)
        assert not cluster.begin_claim(STORM, "q", claim)
    leader.set_assignment(STORM, launched())
    assert cluster.begin_claim(STORM, "q", claim)
    assert not cluster.state.node_exists(path), "nothing depends on it"
    leader.set_assignment(STORM, launched(tells_claims=True))
    assert [cluster.begin_claim(STORM, "q", claim) for _ in range(2)] == [True, True]
    assert cluster.state.node_exists(path)
    assert cluster.ended_queries(STORM) == frozenset()
    assert cluster.worker_heartbeats(STORM) == {}


def test_unchanged_heartbeats_are_decoded_once(cluster, monkeypatch):
    for port in (6700, 6701):
        cluster.set_worker_heartbeat(STORM, "sup", port, beat(port))
    first = cluster.worker_heartbeats(STORM)
    cluster.set_worker_heartbeat(STORM, "sup", 6701, beat(1))
    second = cluster.worker_heartbeats(STORM)
    assert second == {("sup", 6700): beat(6700), ("sup", 6701): beat(1)}
    assert second["sup", 6700] is first["sup", 6700]
    monkeypatch.setattr(heartbeat_records, "_MOST_DECODED", 0)
    cluster.set_worker_heartbeat(STORM, "sup", 6701, beat(2))
    third = cluster.worker_heartbeats(STORM)
    assert third == {("sup", 6700): beat(6700), ("sup", 6701): beat(2)}
    assert third["sup", 6700] is first["sup", 6700], "what was read before is still there"
    assert cluster.worker_heartbeats(STORM)["sup", 6700] is not first["sup", 6700]


def test_followed_activities_are_those_of_the_heartbeats(cluster, heartbeats, caplog):
    other = "other-1-1"
    follower = cluster.follow_activities()
    assert follower.read()[1] == {}
    for storm_id in (STORM, other):
        for port in (6700, 6701):
            cluster.set_worker_heartbeat(storm_id, "sup", port, beat(port, uptime_secs=port))
    began, first = follower.read()
    assert {
        id_: {slot: each.activity.uptime_secs for slot, each in slots.items()}
        for id_, slots in first.items()
    } == {id_: {("sup", 6700): 6700, ("sup", 6701): 6701} for id_ in (STORM, other)}
    assert all(each.received_at >= began - 60 for each in first[STORM].values())
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1, uptime_secs=1))
    heartbeats.beat(paths.workerbeat(STORM, "sup", 6701), b"nonsense")
    kept = dict(first[STORM])
    _, second = follower.read()
    assert [each.activity.uptime_secs for each in second[STORM].values()] == [1]
    assert second[other] is first[other], "nothing has changed there"
    assert first[STORM] == kept
    assert caplog.text.count(f"{STORM}/sup-6701 is left out: ") == 1
    cluster.remove_worker_heartbeat(STORM, "sup", 6700)
    assert follower.read()[1].keys() == {other}


def test_a_released_launch_records_no_claim(cluster, monkeypatch):
    leader = lead(cluster)
    leader.set_assignment(STORM, launched(tells_claims=True))
    mkdirs = cluster.state.mkdirs

    def released(path):
        mkdirs(path)
        leader.set_assignment(STORM, launched(tells_claims=True, released=True))

    monkeypatch.setattr(cluster.state, "mkdirs", released)
    assert not cluster.begin_claim(STORM, "q", LaunchClaim(7, 3))
    assert not cluster.state.node_exists(paths.query_claim(STORM, "q"))


@pytest.mark.parametrize("ours", Release)
@pytest.mark.parametrize("theirs", Release)
def test_heartbeats_for_another_storm_are_read_and_told_of_once(
    memory, heartbeats, caplog, ours, theirs
):
    cluster = StormClusterState(memory, Codec(release=ours), heartbeats=heartbeats)
    for port in (6700, 6701):
        path = paths.workerbeat(STORM, "sup", port)
        heartbeats.beat(path, serialize(beat(1), release=theirs))
    for _ in range(2):
        assert set(cluster.worker_heartbeats(STORM).values()) == {beat(1)}
    assert caplog.text.count(f"is written for Storm {theirs.value}") == (theirs is not ours)
    assert ("storm.meta.serialization.release" in caplog.text) == (theirs is not ours)


def test_of_executors_only_what_their_own_slot_says_counts(cluster):
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1, 2, time_secs=100, uptime_secs=10))
    # Executor 2 has moved to 6701, whose last heartbeat has 3, which has moved away from there.
    cluster.set_worker_heartbeat(STORM, "sup", 6701, beat(2, 3, time_secs=200, uptime_secs=20))
    # This slot is no part of the assignment.
    cluster.set_worker_heartbeat(STORM, "sup", 6702, beat(3))
    assigned = {
        (1, 1): NodeInfo("sup", {6700}),
        (2, 2): NodeInfo("sup", {6701}),
        (3, 3): NodeInfo("sup", {6703}),
    }
    assert cluster.executor_beats(STORM, assigned) == {
        ExecutorInfo(1, 1): ExecutorBeat(spout(1), 100, 10, "sup", 6700),
        ExecutorInfo(2, 2): ExecutorBeat(spout(2), 200, 20, "sup", 6701),
    }
    assert cluster.executor_beats(STORM, {}) == {}
    assert cluster.executor_beats(STORM, None) == {}


def test_a_topologys_heartbeats_are_asked_for_together(memory):
    storm = StormClusterState(memory, Codec())
    slots = [Slot("sup", port) for port in range(6700, 6704)]
    for slot in slots:
        storm.set_worker_heartbeat(STORM, *slot, beat(1))
    asked = []

    def counting(name):
        def call(*arguments):
            asked.append(name)
            return getattr(memory, name)(*arguments)

        return call

    counted = ("get_children", "children_many", "get_data", "read_many")
    calls = {name: counting(name) for name in counted}
    counting_storm = StormClusterState(Interposed(memory, **calls), Codec())
    assert len(counting_storm.worker_heartbeats(STORM)) == 4
    assert asked == ["children_many", "read_many"]
    asked.clear()
    assigned = {(port, port): NodeInfo("sup", {port}) for _, port in slots}
    counting_storm.executor_beats(STORM, assigned)
    assert asked == ["children_many", "read_many"]


def test_an_executor_of_several_tasks_is_one(cluster):
    said = ClusterWorkerHeartbeat(STORM, {ExecutorInfo(2, 4): spout(7)}, 1, 1)
    cluster.set_worker_heartbeat(STORM, "sup", 6700, said)
    beats = cluster.executor_beats(STORM, {(2, 4): NodeInfo("sup", {6700})})
    assert [executor.task_end for executor in beats] == [4]


def test_what_the_assignment_does_not_name_is_not_even_decoded(cluster, heartbeats):
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1))
    heartbeats.beat(paths.workerbeat(STORM, "sup", 6701), b"no heartbeat")
    assert len(cluster.executor_beats(STORM, {(1, 1): NodeInfo("sup", {6700})})) == 1
    assert cluster.unreadable == 0


def test_leader_makes_and_deletes_the_heartbeats_directory(cluster, ensemble):
    bare = ensemble.session()
    leader = lead(cluster)
    leader.setup_heartbeats(STORM)
    assert bare.get_data(paths.workerbeats(STORM)) == DIRECTORY
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1))
    cluster.set_task_heartbeat(STORM, 1, TaskHeartbeat(1_700_000_000, 5))
    leader.teardown_heartbeats(STORM)
    leader.teardown_heartbeats(STORM)
    assert cluster.heartbeat_storms() == []
    assert cluster.heartbeat_tasks(STORM) == []
    assert not bare.node_exists(paths.workerbeats(STORM))
    assert not bare.node_exists(paths.taskbeats(STORM))
    bare.close()


def test_heartbeats_that_are_half_gone_are_still_listed(cluster, monkeypatch):
    leader = lead(cluster)
    leader.setup_heartbeats(STORM)
    cluster.set_worker_heartbeat(STORM, "sup", 6700, beat(1))
    cluster.set_task_heartbeat(STORM, 1, TaskHeartbeat(1_700_000_000, 5))
    in_nodes = isinstance(cluster.heartbeats, NodeHeartbeats)
    where, call = (leader._writer, "delete_node") if in_nodes else (leader._heartbeats, "remove")
    delete = getattr(where, call)
    deleted = []

    def listed_meanwhile(path):
        assert cluster.heartbeat_storms() == [STORM]
        delete(path)
        deleted.append(path)

    monkeypatch.setattr(where, call, listed_meanwhile)
    leader.teardown_heartbeats(STORM)
    assert deleted == [paths.taskbeats(STORM), paths.workerbeats(STORM)]


def test_workers_beat_without_a_place_made_for_them(storm):
    storm.set_worker_heartbeat(STORM, "sup", 6700, beat(1))
    assert len(storm.worker_heartbeats(STORM)) == 1
