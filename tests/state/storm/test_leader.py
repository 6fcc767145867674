"""What a leader writes is let through by its lock, or refused, whatever it believes."""

import inspect
import typing

import pytest

from stormkeeper import paths
from stormkeeper.conf import defaults
from stormkeeper.errors import NotLeaderError
from stormkeeper.state import leader_lock
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.leader_lock import Fence
from stormkeeper.state.storage import Check, ClusterState, StateReader, StateWriter
from stormkeeper.state.storm import cluster
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState, leader_state
from stormkeeper.state.storm.daemon_records import NewAssignment
from stormkeeper.state.storm.record_io import LeaderWriter, RecordWriter, SessionWriter
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from stormkeeper.thrift.records import (
    Assignment,
    Checkpoints,
    Credentials,
    LogConfig,
    NodeInfo,
    ProfileAction,
    ProfileRequest,
    StormBase,
    TaskInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from support.leaders import lead, obtain_fence
from support.stores import settings_for

ID = "wc-1-1700000000"
REQUEST = ProfileRequest(NodeInfo("node", {6700}), ProfileAction.JMAP_DUMP)
KEPT = Checkpoints(ID, ID, "wc", None, False, {"q": "node"})

#: Everything that a leader can write.
WRITES = {
    "set_assignment": lambda on: on.set_assignment(ID, Assignment("/code")),
    "set_assignments": lambda on: on.set_assignments(
        [NewAssignment(ID, Assignment("/code"))],
        seen=on.view.caught_up(),
        on_written=lambda _: None,
    ),
    "activate_storm": lambda on: on.activate_storm(ID, StormBase("a", TopologyStatus.ACTIVE, 1)),
    "update_storm": lambda on: on.update_storm(ID, StormBase(None, TopologyStatus.KILLED, None)),
    "change_storm": lambda on: on.change_storm(ID, lambda base: base),
    "deactivate_storm": lambda on: on.deactivate_storm(ID),
    "remove_storm": lambda on: on.remove_storm(ID),
    "remove_settings": lambda on: on.remove_settings(ID),
    "setup_heartbeats": lambda on: on.setup_heartbeats(ID),
    "teardown_heartbeats": lambda on: on.teardown_heartbeats(ID),
    "setup_errors": lambda on: on.setup_errors(ID),
    "teardown_errors": lambda on: on.teardown_errors(ID),
    "setup_backpressure": lambda on: on.setup_backpressure(ID),
    "remove_backpressure": lambda on: on.remove_backpressure(ID),
    "set_task": lambda on: on.set_task(ID, 1, TaskInfo("split")),
    "set_credentials": lambda on: on.set_credentials(ID, Credentials({})),
    "set_topology_log_config": lambda on: on.set_topology_log_config(ID, LogConfig({})),
    "set_worker_profile_request": lambda on: on.set_worker_profile_request(ID, REQUEST),
    "set_checkpoints": lambda on: on.set_checkpoints(KEPT),
    "change_checkpoints": lambda on: on.change_checkpoints(KEPT, 0),
    "forget_checkpoints": lambda on: on.forget_checkpoints(ID, 0),
    "delete_topology_profile_requests": lambda on: on.delete_topology_profile_requests(ID, REQUEST),
    "remove_blobstore_key": lambda on: on.remove_blobstore_key("key"),
    "set_blob_key_sequence": lambda on: on.set_blob_key_sequence("key", 1, None),
    "remove_blob_key_sequence": lambda on: on.remove_blob_key_sequence("key"),
}

#: What a topology has before each of them.
EXISTING = ("activate_storm", "set_assignment")


def snapshot(state, path="/"):
    """All nodes with their values and versions, but for the locks."""
    nodes = {}
    for name in state.get_children(path):
        below = f"{path.rstrip('/')}/{name}"
        if below != paths.LEADER_LOCK:
            nodes[below] = state.get_data_with_version(below)
            nodes |= snapshot(state, below)
    return nodes


def test_everything_that_a_leader_writes_is_tried_here():
    reads = {name for name in dir(cluster.StormReads) if not name.startswith("_")}
    assert set(WRITES) == {
        name
        for name, _ in inspect.getmembers(LeaderClusterState, inspect.isfunction)
        if not name.startswith("_") and name not in reads
    }


@pytest.mark.parametrize("gone", ["deleted", "set", "expired"])
@pytest.mark.parametrize("write", WRITES)
def test_without_its_lock_nothing_is_written(open_storm, ensemble, memory, write, gone):
    process = open_storm()
    leader = lead(process)
    for existing in EXISTING:
        WRITES[existing](leader)
    if gone == "deleted":
        memory.delete_node(leader.fence.path)
    elif gone == "set":
        memory.set_data(leader.fence.path, b"revoked")
    else:
        ensemble.expire(process.state)
    before = snapshot(memory)
    for _ in range(2):
        with pytest.raises(NotLeaderError, match=leader.fence.path):
            WRITES[write](leader)
    assert snapshot(memory) == before


DIRECT = ("set_data", "delete_node", "mkdirs", "set_ephemeral_node", "create_sequential")


@pytest.mark.parametrize("write", WRITES)
def test_no_write_of_a_leader_goes_past_its_lock(leader, monkeypatch, write):
    """It commits operations that begin with the check of its lock, and does nothing else."""
    for existing in EXISTING:
        WRITES[existing](leader)
    session = leader._writer.session
    checked = []

    def refuse(*_, **__):
        raise AssertionError("a leader wrote without its lock")

    for name in DIRECT:
        monkeypatch.setattr(session, name, refuse)
    original = session.commit

    def commit(operations):
        checked.append(operations[0])
        return original(operations)

    monkeypatch.setattr(session, "commit", commit)
    WRITES[write](leader)
    assert set(checked) == {Check(leader.fence.path, 0)}


def test_only_a_fenced_writer_makes_a_leader(storm, memory):
    for writer in (memory, storm):
        with pytest.raises(TypeError, match="a FencedWriter, not through a"):
            LeaderClusterState(writer, Codec())
    hints = typing.get_type_hints(LeaderClusterState.__init__)
    assert hints["writer"] is FencedWriter


def test_a_lock_that_is_none_makes_no_leader(open_storm, memory):
    process = open_storm()
    lock = leader_lock.take(process.state)
    second = leader_lock.take(process.state)
    another_s = leader_lock.take(memory)
    memory.mkdirs(paths.STORMS)
    before = snapshot(memory)
    refused = {
        Fence(paths.STORMS, memory.get_stat(paths.STORMS).created): NotLeaderError,
        Fence(lock.path, lock.created + 1): NotLeaderError,
        Fence(second.path, second.created): NotLeaderError,
        Fence(another_s.path, another_s.created): NotLeaderError,
        lock: TypeError,
        None: TypeError,
        "x": TypeError,
    }
    for fence, error in refused.items():
        with pytest.raises(error):
            leader_state(process, fence)
        with pytest.raises(error):
            LeaderClusterState(FencedWriter(process.state, fence), Codec())
    fence = obtain_fence(process.state, lock)
    leader_lock.give_up(process.state, lock)
    with pytest.raises(NotLeaderError):
        leader_state(process, fence)
    assert snapshot(memory) == before
    assert list(process.handles) == []


def test_the_types_say_who_may_write():
    hints = {
        cls: typing.get_type_hints(cls)
        for cls in (
            RecordWriter,
            SessionWriter,
            LeaderWriter,
            StormClusterState,
            LeaderClusterState,
        )
    }
    assert {cls: hint["_writer"] for cls, hint in hints.items()} == {
        RecordWriter: StateWriter,
        SessionWriter: StateWriter,
        LeaderWriter: FencedWriter,
        StormClusterState: StateWriter,
        LeaderClusterState: FencedWriter,
    }
    # What a leader has beside its writer, it reads.
    assert {cls: hint["_state"] for cls, hint in hints.items()} == {
        RecordWriter: StateReader,
        SessionWriter: ClusterState,
        LeaderWriter: StateReader,
        StormClusterState: ClusterState,
        LeaderClusterState: StateReader,
    }
    assert not issubclass(LeaderClusterState, SessionWriter)
    assert not issubclass(StormClusterState, LeaderWriter)


def test_whoever_writes_for_leaders_is_of_the_leaders_kind():
    """No operation that a session does not have is defined for any store but a fenced one."""
    for name in set(dir(LeaderClusterState)) - set(dir(StormClusterState)) - {"fence"}:
        (owner,) = (cls for cls in LeaderClusterState.__mro__ if name in vars(cls))
        assert issubclass(owner, LeaderWriter), name


def test_second_leadership_needs_another_lock(open_storm):
    process = open_storm()
    former = lead(process)
    process.state.delete_node(former.fence.path)
    again = lead(process)
    assert again.fence.epoch > former.fence.epoch
    WRITES["activate_storm"](again)
    with pytest.raises(NotLeaderError):
        WRITES["activate_storm"](former)


def test_end_of_leadership_keeps_the_session(open_storm):
    process = open_storm()
    leader = lead(process)
    leader.disconnect()
    assert process.active_storms() == []


@pytest.mark.zookeeper
def test_a_leader_on_zookeeper(zookeeper_server, zookeeper_root):
    settings = settings_for(zookeeper_server, zookeeper_root)
    storms = [StormClusterState(ZooKeeperState(settings), Codec()) for _ in range(2)]
    try:
        first, lock = lead(storms[0]), leader_lock.take(storms[1].state)
        for name in EXISTING + tuple(WRITES):
            if name not in ("update_storm", "remove_storm"):
                WRITES[name](first)
            if name == "deactivate_storm":
                assert first.storm_base(ID).status is TopologyStatus.INACTIVE
        first.remove_storm(ID)
        assert first.active_storms() == first.assignments() == []
        for name in EXISTING:
            WRITES[name](first)
        with pytest.raises(NotLeaderError, match="is before it"):
            obtain_fence(storms[1].state, lock)
        storms[1].state.delete_node(first.fence.path)
        second = leader_state(storms[1], obtain_fence(storms[1].state, lock))
        WRITES["deactivate_storm"](second)
        assert second.storm_base(ID).leader_epoch == second.fence.epoch > first.fence.epoch
        before = snapshot(storms[1].state)
        for write in WRITES.values():
            with pytest.raises(NotLeaderError):
                write(first)
        assert snapshot(storms[1].state) == before
        second.remove_storm(ID)
        assert second.active_storms() == second.assignments() == []
    finally:
        for storm in storms:
            storm.disconnect()


@pytest.mark.zookeeper
def test_a_server_makes_the_directories_and_a_worker_does_not(zookeeper_settings):
    conf = {**defaults(), **zookeeper_settings()}
    storm = cluster.connect(conf)
    try:
        assert {f"/{name}" for name in storm.state.get_children("/")} == set(paths.DIRECTORIES)
        assert storm.state.get_data(paths.STORMS) == b"\x07"
    finally:
        storm.disconnect()
    storm = cluster.connect(
        {**conf, "storm.zookeeper.root": conf["storm.zookeeper.root"] + "-worker"},
        role=cluster.Role.WORKER,
    )
    storm.disconnect()


@pytest.mark.parametrize(
    ("write", "cls"),
    [
        (lambda on, wrong: on.set_assignment(ID, wrong), "Assignment"),
        (lambda on, wrong: on.activate_storm(ID, wrong), "StormBase"),
        (lambda on, wrong: on.update_storm(ID, wrong), "StormBase"),
        (lambda on, wrong: on.set_task(ID, 1, wrong), "TaskInfo"),
        (lambda on, wrong: on.set_credentials(ID, wrong), "Credentials"),
        (lambda on, wrong: on.set_topology_log_config(ID, wrong), "LogConfig"),
        (lambda on, wrong: on.set_worker_profile_request(ID, wrong), "ProfileRequest"),
        (lambda on, wrong: on.delete_topology_profile_requests(ID, wrong), "ProfileRequest"),
    ],
)
@pytest.mark.parametrize("wrong", [None, {}, NodeInfo("node", {6700})])
def test_another_record_than_belongs_there_is_refused(leader, memory, write, cls, wrong):
    WRITES["activate_storm"](leader)
    told = f"expected a record of class {cls}, not {type(wrong).__name__}"
    with pytest.raises(TypeError, match=told):
        write(leader, wrong)
    assert not memory.node_exists(paths.assignment(ID))
    assert leader.storm_base(ID).name == "a"
