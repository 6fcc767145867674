"""What is found in a survey that should not be there, and what is not."""

import json
from pathlib import Path

import pytest

from stormkeeper import paths
from stormkeeper.errors import AccessDeniedError
from stormkeeper.state import fenced_writer, leader_lock, survey
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.leader_lock import Fence
from stormkeeper.state.storage import NodeData, NodeStat
from stormkeeper.state.storm.cluster import LeaderClusterState
from stormkeeper.state.storm.record_io import stamped
from stormkeeper.state.survey import ADVICE, StateProblem, Survey, check
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    Credentials,
    ErrorInfo,
    LogConfig,
    NimbusSummary,
    NodeInfo,
    ProfileAction,
    ProfileRequest,
    StormBase,
    SupervisorInfo,
    TaskHeartbeat,
    TaskInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from support.interposed import Interposed
from support.memory_state import MemoryEnsemble
from support.transactions import Transaction

VECTORS = Path(__file__).parent.parent / "vectors"
ID = "wc-1-1700000000"
GONE = "gone-2-1700000000"
CODEC = Codec()

#: What a topology has beside its base and its assignment.
KEPT = {
    paths.error_prefix(ID, "split") + "0000000000": "/errors",
    paths.last_error(ID, "split"): "/errors",
    paths.workerbeat(ID, "s-1", 6700): "/workerbeats",
    paths.taskbeat(ID, 1): "/taskbeats",
    paths.task_error_prefix(ID, 1) + "0000000000": "/taskerrors",
    paths.task(ID, 1): "/tasks",
    paths.credentials(ID): "/credentials",
    paths.log_config(ID): "/logconfigs",
    paths.profiler_config(ID, "h", 6700, "JPROFILE_STOP"): "/profilerconfigs",
    paths.backpressure(ID, "s-1", 6700): "/backpressure",
}

#: What ends with the session of whoever made it.
EPHEMERAL = (
    paths.supervisor("s-1"),
    paths.nimbus("n1:6627:0"),
    paths.blob_holder("key", "n1:6627:0", 1),
    paths.backpressure(ID, "s-1", 6700),
    paths.error_prefix(ID, "split") + "0000000000",
    paths.task_error_prefix(ID, 1) + "0000000000",
    f"{paths.LEADER_LOCK}/_c_0-latch-0000000000",
)


#: What is written at each first level.
RECORDS = {
    paths.STORMS: StormBase("wc", TopologyStatus.ACTIVE, 1),
    paths.ASSIGNMENTS: Assignment("/dir"),
    paths.SUPERVISORS: SupervisorInfo(1, "h"),
    paths.NIMBUSES: NimbusSummary("n1", 6627, 1, True, "2.8.8"),
    paths.ERRORS: ErrorInfo("boom", 1),
    paths.TASKERRORS: ErrorInfo("boom", 1),
    paths.WORKERBEATS: ClusterWorkerHeartbeat(ID, {}, 1, 1),
    paths.TASKBEATS: TaskHeartbeat(1, 1),
    paths.TASKS: TaskInfo("split"),
    paths.CREDENTIALS: Credentials({"k": "v"}),
    paths.LOG_CONFIGS: LogConfig(),
    paths.PROFILER_CONFIGS: ProfileRequest(NodeInfo("h", {1}), ProfileAction.JPROFILE_STOP),
}


def value(path):
    """What may be at `path`."""
    top = paths.first_level(path)
    return CODEC.write(RECORDS[top]) if top in RECORDS else b""


@pytest.fixture
def ensemble():
    ensemble = MemoryEnsemble()
    yield ensemble
    for session in list(ensemble._sessions):
        session.close()


@pytest.fixture
def state(ensemble):
    return ensemble.session()


@pytest.fixture
def lead(ensemble, monkeypatch):
    """Makes leaders, whether or not another one leads still."""
    monkeypatch.setattr(fenced_writer, "verify_fence", lambda *_: None)

    def lead():
        session = ensemble.session()
        lock = leader_lock.take(session)
        fence = Fence(lock.path, lock.created)
        return LeaderClusterState(FencedWriter(session, fence), CODEC)

    return lead


@pytest.fixture
def found(state):
    """What is found in the store now."""

    def found():
        return check(survey.read(state))

    return found


def kinds(findings):
    return [(finding.kind, finding.path) for finding in findings]


def fill(state):
    for path in KEPT:
        put = state.set_ephemeral_node if path in EPHEMERAL else state.set_data
        put(path, value(path))


def test_nothing_at_all(found):
    assert found() == []


def test_a_cluster_that_is_well(state, lead, found):
    for directory in paths.DIRECTORIES:
        state.mkdirs(directory)
    lead().activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
    lead().set_assignment(ID, Assignment("/dir"))
    fill(state)
    for path in EPHEMERAL:
        state.set_ephemeral_node(path, value(path))
    state.set_data(paths.blob_key_sequence("key"), b"\0\0\0\1")
    state.set_data("/unknown/node", b"?")
    assert found() == []


@pytest.mark.parametrize("name", ["znodes-gzip.jsonl", "znodes-zstd.jsonl"])
def test_what_storm_itself_writes_is_well(name):
    nodes = {}
    for line in (VECTORS / name).read_text().splitlines():
        node = json.loads(line)
        path = "/" + node["path"].partition("/")[2].partition("/")[2]
        stat = NodeStat(node["version"], 1, 1, 1, int(node["ephemeral"]), 0)
        nodes[path] = NodeData(bytes.fromhex(node["hex"] or ""), stat)
    assert len(nodes) > 20
    assert check(Survey(nodes)) == []


class TestAssignmentWithoutTopology:
    def test_it_is_found(self, lead, found):
        lead().set_assignment(ID, Assignment("/dir"))
        (finding,) = found()
        assert kinds([finding]) == [("assignment-without-topology", f"/assignments/{ID}")]
        assert ID in finding.message
        assert "delete the assignment, with `storm.state.delete_node(path)`" in ADVICE[finding.kind]

    def test_assigned_and_unassigned_topologies_are_no_problem(self, lead, found):
        leader = lead()
        leader.set_assignment(ID, Assignment("/dir"))
        leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
        leader.activate_storm(GONE, StormBase("killed", TopologyStatus.KILLED, 1))
        assert found() == []


class TestEphemeralWithoutSession:
    @pytest.mark.parametrize("path", EPHEMERAL)
    def test_a_persistent_node_is_found(self, state, found, path):
        state.set_data(paths.storm(ID), value(paths.STORMS))
        state.set_data(path, value(path))
        assert kinds(found()) == [("ephemeral-without-session", path)]

    @pytest.mark.parametrize("path", EPHEMERAL)
    def test_one_of_a_session_is_not(self, state, found, path):
        state.set_data(paths.storm(ID), value(paths.STORMS))
        state.set_ephemeral_node(path, value(path))
        assert found() == []


class TestUnreadable:
    @pytest.mark.parametrize("data", [b"", b"\x07", b"junk", b"\x1f\x8bjunk"])
    @pytest.mark.parametrize(
        "path",
        [
            paths.storm(ID),
            paths.assignment(ID),
            paths.supervisor("s-1"),
            paths.nimbus("n1:6627:0"),
            paths.workerbeat(ID, "s-1", 6700),
            paths.credentials(ID),
        ],
    )
    def test_a_value_that_is_not_what_should_be_there_is_found(self, state, found, path, data):
        state.set_data(paths.storm(ID), value(paths.STORMS))
        state.delete_node(path)
        state.set_ephemeral_node(path, data)
        (finding,) = found()
        assert kinds([finding]) == [("unreadable", path)]
        assert type(RECORDS[paths.first_level(path)]).__name__ in finding.message
        assert "junk" not in finding.message

    @pytest.mark.parametrize(
        ("path", "data"),
        [
            (paths.blob_key_sequence("key"), b"\0\0"),
            (paths.LEADER_INFO, b"nimbus1"),
            ("/secretkeys/NIMBUS/wc/1", b"junk"),
        ],
    )
    def test_what_is_no_record_is_too(self, state, found, path, data):
        state.set_data(path, data)
        assert kinds(found()) == [("unreadable", path)]

    def test_what_nobody_knows_and_what_nobody_is_shown_is_not(self, state, found):
        state.set_data("/unknown/node", b"?")
        state.set_data(paths.LEADER_INFO, b"\xac\xed\x00\x05sr")
        state.set_data(paths.storm(ID), value(paths.STORMS))
        state.set_data(paths.credentials(ID), value(paths.CREDENTIALS))
        assert found() == []


class TestLeftBehind:
    @pytest.mark.parametrize("path", KEPT)
    def test_what_is_kept_of_a_topology_that_is_gone_is_found_once(self, state, found, path):
        put = state.set_ephemeral_node if path in EPHEMERAL else state.set_data
        put(path, value(path))
        state.set_data(paths.storm("another-3-1700000000"), value(paths.STORMS))
        assert kinds(found()) == [("left-behind", f"{KEPT[path]}/{ID}")]

    def test_what_is_kept_of_one_that_is_there_is_not(self, state, found):
        fill(state)
        assert len(found()) == len(set(KEPT.values()))
        state.set_data(paths.storm(ID), value(paths.STORMS))
        assert found() == []

    def test_an_empty_directory_is_left_behind_too(self, state, found):
        state.mkdirs(paths.errors(ID))
        state.mkdirs("/workerbeats")
        assert kinds(found()) == [("left-behind", f"/errors/{ID}")]

    def test_nothing_else_is_told_of_it(self, state, found):
        state.set_data(paths.error_prefix(ID, "split") + "0000000000", b"junk, and persistent")
        assert kinds(found()) == [("left-behind", f"/errors/{ID}")]

    def test_heartbeats_in_pacemakers(self):
        nodes = {f"/storms/{ID}": NodeData(value(paths.STORMS), NodeStat(0, 1, 1, 1, 0, 0))}
        there = [f"/workerbeats/{ID}", f"/taskbeats/{ID}"]
        assert check(Survey(nodes, in_pacemakers=there)) == []
        gone = [f"/workerbeats/{GONE}", f"/taskbeats/{GONE}"]
        findings = check(Survey(nodes, in_pacemakers=there + gone))
        assert kinds(findings) == [("left-behind", path) for path in gone]
        assert all("Pacemakers" in finding.message for finding in findings)


class TestOlderEpoch:
    def write_all(self, leader):
        leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
        leader.set_assignment(ID, Assignment("/dir"))
        leader.set_credentials(ID, Credentials({"k": "v"}))
        leader.set_topology_log_config(ID, LogConfig())
        request = ProfileRequest(NodeInfo("h", {6700}), ProfileAction.JPROFILE_STOP)
        leader.set_worker_profile_request(ID, request)
        leader.set_task(ID, 1, TaskInfo("split"))

    def test_one_leader_after_the_other_is_well(self, lead, found):
        first, second = lead(), lead()
        self.write_all(first)
        # Whoever led first wrote what nobody has written since: that is how it should be.
        second.set_assignment(ID, Assignment("/other"))
        assert found() == []

    def test_each_late_record_of_an_older_leader_is_found(self, lead, found):
        older, newer = lead(), lead()
        newer.activate_storm(GONE, StormBase("first", TopologyStatus.ACTIVE, 1))
        # Nobody has asked it whether it leads, as nobody would ask who writes without a lock.
        self.write_all(older)
        findings = found()
        assert kinds(findings) == [
            ("older-epoch", f"/assignments/{ID}"),
            ("older-epoch", f"/credentials/{ID}"),
            ("older-epoch", f"/logconfigs/{ID}"),
            ("older-epoch", f"/profilerconfigs/{ID}/h_6700_JPROFILE_STOP"),
            ("older-epoch", f"/storms/{ID}"),
            ("older-epoch", f"/tasks/{ID}/1"),
        ]
        for finding in findings:
            assert f"epoch {older.fence.epoch} wrote" in finding.message
            assert f"epoch {newer.fence.epoch} had written /storms/{GONE}" in finding.message

    def test_lock_that_waited_before_it_led_is_no_problem(self, lead, found):
        leading, waiting = lead(), lead()
        leading.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
        waiting.set_assignment(ID, Assignment("/dir"))
        waiting.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 2))
        assert found() == []

    def test_records_without_an_epoch_say_nothing(self, state, lead, found):
        lead().activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
        state.set_data(paths.assignment(ID), CODEC.write(Assignment("/storm's own")))
        state.set_data(paths.credentials(ID), b"no record at all")
        assert kinds(found()) == [("unreadable", paths.credentials(ID))]

    def test_one_change_with_several_records_has_no_order(self, found, state):
        base = CODEC.write(stamped(StormBase("wc", TopologyStatus.ACTIVE, 1), 5))
        assignment = CODEC.write(stamped(Assignment("/dir"), 5))
        for directory in (paths.STORMS, paths.ASSIGNMENTS):
            state.mkdirs(directory)
        both = Transaction(state.commit).create(paths.storm(ID), base)
        both.create(paths.assignment(ID), assignment).commit()
        assert found() == []


class TestWhatCouldNotBeLookedAt:
    """It is taken to be there: nobody is told to delete what may be needed."""

    @pytest.fixture
    def denied(self):
        return set()

    @pytest.fixture
    def found(self, state, denied):
        def refuse(call):
            def ask(wanted, *rest):
                if denied & set(wanted):
                    raise AccessDeniedError("we are nobody")
                return call(wanted, *rest)

            return ask

        limited = Interposed(
            state,
            read_many=refuse(state.read_many),
            children_many=refuse(state.children_many),
        )
        return lambda: check(survey.read(limited))

    @pytest.mark.parametrize("path", [paths.STORMS, paths.storm(ID)])
    def test_a_topology(self, state, found, denied, path):
        state.set_data(paths.storm(ID), value(paths.STORMS))
        state.set_data(paths.assignment(ID), value(paths.ASSIGNMENTS))
        fill(state)
        denied.add(path)
        assert found() == []

    def test_what_is_of_a_topology_that_is_gone(self, state, found, denied):
        state.set_data(paths.credentials(GONE), b"")
        denied.add(paths.credentials(GONE))
        assert kinds(found()) == [("left-behind", f"/credentials/{GONE}")]


def test_findings_come_by_kind_and_then_by_path(state, lead, found):
    lead().activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
    state.set_data(paths.assignment(GONE), value(paths.ASSIGNMENTS))
    state.set_data(paths.supervisor("s-2"), value(paths.SUPERVISORS))
    state.set_data(paths.supervisor("s-1"), b"junk")
    state.mkdirs(paths.errors(GONE))
    assert kinds(found()) == [
        ("assignment-without-topology", f"/assignments/{GONE}"),
        ("unreadable", "/supervisors/s-1"),
        ("ephemeral-without-session", "/supervisors/s-1"),
        ("ephemeral-without-session", "/supervisors/s-2"),
        ("left-behind", f"/errors/{GONE}"),
    ]
    assert all(isinstance(finding, StateProblem) for finding in found())
    assert list(dict.fromkeys(finding.kind for finding in found())) == list(ADVICE)[:4]
