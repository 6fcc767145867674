"""Topologies and their assignments, written by a leader and read by anybody."""

import itertools

import pytest

from stormkeeper import paths
from stormkeeper.errors import NoNodeError, StateError, StatusError, TransactionError
from stormkeeper.state.storage import Create, Delete, digest_id
from stormkeeper.thrift.records import (
    Assignment,
    Credentials,
    DebugOptions,
    KillOptions,
    LogConfig,
    NodeInfo,
    ProfileAction,
    ProfileRequest,
    StormBase,
    TaskInfo,
    TopologyActionOptions,
    TopologyStatus,
)
from support.leaders import lead

ID = "wc-1-1700000000"


@pytest.fixture
def base():
    return StormBase(
        "wc",
        TopologyStatus.ACTIVE,
        2,
        component_executors={"split": 3, "count": 1},
        launch_time_secs=1_700_000_000,
        owner="ann",
        component_debug={"split": DebugOptions(True, 10.0)},
    )


def plain(record):
    """The record without its epoch."""
    assert record.leader_epoch is not None
    record.leader_epoch = None
    return record


def test_assignments(storm, leader):
    assert storm.assignments() == []
    assert storm.assignments_info() == {}
    assert storm.assignment_info(ID) is None
    assert storm.assignment_info_with_version(ID) is None
    assert storm.assignment_version(ID) is None
    assignment = Assignment(
        "/code", {"node": "host"}, {(1, 1): NodeInfo("node", {6700})}, {(1, 1): 5}
    )
    leader.set_assignment(ID, assignment)
    leader.set_assignment("other", Assignment("/other"))
    assert assignment.leader_epoch is None
    assert storm.assignments() == ["other", ID]
    assert plain(storm.assignment_info(ID)) == assignment
    assert storm.assignment_info_with_version(ID).version == 0
    leader.set_assignment(ID, assignment)
    record, version = storm.assignment_info_with_version(ID)
    assert (plain(record), version) == (assignment, 1)
    assert storm.assignment_version(ID) == 1
    found = storm.assignments_info()
    assert {name: plain(found[name]) for name in found} == {
        ID: assignment,
        "other": Assignment("/other"),
    }


def test_storm_bases(storm, leader, base):
    assert storm.active_storms() == []
    assert storm.storm_base(ID) is None
    assert storm.storm_bases() == {}
    leader.activate_storm(ID, base)
    assert storm.active_storms() == [ID]
    assert plain(storm.storm_base(ID)) == base
    assert list(storm.storm_bases()) == [ID]


def test_an_id_is_found_by_its_name(storm, leader, base):
    assert storm.storm_id_by_name("wc") is None
    leader.activate_storm("a-1-1", StormBase("a", TopologyStatus.ACTIVE, 1))
    leader.activate_storm(ID, base)
    assert storm.storm_id_by_name("wc") == ID
    assert storm.storm_id_by_name("wc-1") is None


def test_every_record_says_which_leader_wrote_it(storm, open_storm, base):
    epochs = []
    for _ in range(2):
        process = open_storm()
        leader = lead(process)
        leader.activate_storm(ID, base)
        epochs.append(storm.storm_base(ID).leader_epoch)
        assert epochs[-1] == leader.fence.epoch
        process.disconnect()
    assert epochs[0] < epochs[1]


def test_change_has_the_epoch_of_its_own_leader(storm, memory, leader, open_storm, base):
    leader.activate_storm(ID, base)
    memory.delete_node(leader.fence.path)
    successor = lead(open_storm())
    successor.deactivate_storm(ID)
    assert storm.storm_base(ID).leader_epoch == successor.fence.epoch > leader.fence.epoch


# ---- changes -------------------------------------------------------------------------------------


def test_an_update_changes_what_it_says(storm, leader, base):
    leader.activate_storm(ID, base)
    options = TopologyActionOptions(kill_options=KillOptions(30))
    leader.update_storm(
        ID,
        StormBase(
            None,
            TopologyStatus.KILLED,
            0,
            topology_action_options=options,
            prev_status=TopologyStatus.ACTIVE,
        ),
    )
    base.status = TopologyStatus.KILLED
    base.topology_action_options = options
    base.prev_status = TopologyStatus.ACTIVE
    assert plain(storm.storm_base(ID)) == base


def test_an_update_merges_by_component(storm, leader, base):
    leader.activate_storm(ID, base)
    leader.update_storm(
        ID,
        StormBase(
            "",
            None,
            5,
            component_executors={"split": 4, "new": 1},
            component_debug={"count": DebugOptions(False, 0.0)},
        ),
    )
    base.num_workers = 5
    base.component_executors = {"split": 4, "count": 1, "new": 1}
    base.component_debug["count"] = DebugOptions(False, 0.0)
    assert plain(storm.storm_base(ID)) == base


KILLED = StormBase(
    None,
    TopologyStatus.KILLED,
    None,
    topology_action_options=TopologyActionOptions(kill_options=KillOptions(30)),
    prev_status=TopologyStatus.ACTIVE,
)


def test_an_update_clears_what_it_is_told_to(storm, leader, base):
    """As when a rebalance is over: back to the status before, and nothing more to be done."""
    leader.activate_storm(ID, base)
    leader.update_storm(ID, KILLED)
    back = StormBase(None, TopologyStatus.ACTIVE, None)
    leader.update_storm(ID, back)
    assert storm.storm_base(ID).prev_status is TopologyStatus.ACTIVE
    leader.update_storm(ID, back, clear=("topology_action_options", "prev_status"))
    assert plain(storm.storm_base(ID)) == base


def test_what_is_cleared_and_said_anew_is_what_is_said(storm, leader, base):
    leader.activate_storm(ID, base)
    leader.update_storm(
        ID,
        StormBase(None, None, None, component_executors={"new": 1}, owner="bob"),
        clear={"component_executors", "component_debug", "owner"},
    )
    found = storm.storm_base(ID)
    assert (found.component_executors, found.component_debug) == ({"new": 1}, None)
    assert (found.owner, found.name) == ("bob", "wc")


@pytest.mark.parametrize("field", ["name", "status", "num_workers", "leader_epoch", "strange"])
def test_what_every_base_has_is_not_cleared(storm, leader, base, field):
    leader.activate_storm(ID, base)
    with pytest.raises(ValueError, match=f"'{field}' of a StormBase cannot be cleared; .*owner"):
        leader.update_storm(ID, KILLED, clear=["owner", field])
    assert plain(storm.storm_base(ID)) == base


def test_a_topology_without_components_is_given_some(storm, leader):
    leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
    leader.update_storm(ID, StormBase(None, None, None, component_executors={"a": 1}))
    assert storm.storm_base(ID).component_executors == {"a": 1}


def test_a_topology_is_deactivated(storm, leader, base):
    leader.activate_storm(ID, base)
    leader.deactivate_storm(ID)
    base.status = TopologyStatus.INACTIVE
    assert plain(storm.storm_base(ID)) == base


def test_what_there_is_not_cannot_be_changed(storm, leader):
    with pytest.raises(NoNodeError, match=f"there is no topology {ID}"):
        leader.deactivate_storm(ID)
    with pytest.raises(NoNodeError, match=f"there is no topology {ID}"):
        leader.update_storm(ID, StormBase(None, TopologyStatus.KILLED, None))
    assert storm.active_storms() == []


def test_what_a_change_raises_is_raised_and_changes_nothing(storm, leader, base):
    def refuse(_):
        raise StatusError("not now")

    leader.activate_storm(ID, base)
    with pytest.raises(StatusError, match="not now"):
        leader.change_storm(ID, refuse)
    assert plain(storm.storm_base(ID)) == base


def meddle(monkeypatch, leader, change):
    """Have `change` happen right before whatever the leader commits."""
    writer = leader._writer
    original = writer.commit
    changing = []

    def commit(operations):
        if not changing:  # what `change` does itself is left alone
            changing.append(True)
            change()
            changing.clear()
        return original(operations)

    monkeypatch.setattr(writer, "commit", commit)


def test_a_change_by_another_in_between_is_kept(storm, leader, base, monkeypatch):
    leader.activate_storm(ID, base)
    workers = iter([7])

    def other():
        if (number := next(workers, None)) is not None:
            leader.update_storm(ID, StormBase(None, None, number))

    meddle(monkeypatch, leader, other)
    leader.deactivate_storm(ID)
    found = storm.storm_base(ID)
    assert (found.status, found.num_workers) == (TopologyStatus.INACTIVE, 7)
    workers = iter([11])
    leader.change_storm(ID, lambda base: StormBase("new", base.status, base.num_workers + 1))
    found = storm.storm_base(ID)
    assert (found.name, found.num_workers) == ("new", 12)


def test_a_topology_that_goes_in_between_is_not_made_again(
    storm, leader, memory, base, monkeypatch
):
    leader.activate_storm(ID, base)
    meddle(monkeypatch, leader, lambda: memory.delete_node(paths.storm(ID)))
    with pytest.raises(NoNodeError):
        leader.deactivate_storm(ID)
    assert storm.active_storms() == []


def test_one_does_not_fight_for_ever(leader, memory, base, monkeypatch):
    leader.activate_storm(ID, base)
    data = memory.get_data(paths.storm(ID))
    meddle(monkeypatch, leader, lambda: memory.set_data(paths.storm(ID), data))
    with pytest.raises(StateError, match="other sessions changed it 20 times"):
        leader.deactivate_storm(ID)


# ---- removal -------------------------------------------------------------------------------------


def fill(leader, base):
    """Write all that a leader writes of a topology."""
    leader.activate_storm(ID, base)
    leader.set_assignment(ID, Assignment("/code"))
    leader.set_credentials(ID, Credentials({"a": "b"}))
    leader.set_topology_log_config(ID, LogConfig({}))
    for port in range(6700, 6704):
        leader.set_worker_profile_request(
            ID, ProfileRequest(NodeInfo("node", {port}), ProfileAction.JSTACK_DUMP)
        )
    for task in range(1, 5):
        leader.set_task(ID, task, TaskInfo("split"))


#: What workers write in, which goes on its own.
APART = {paths.WORKERBEATS, paths.ERRORS, paths.BACKPRESSURE, paths.TASKBEATS, paths.TASKERRORS}


def nodes_of(memory, storm_id):
    """All nodes of a topology that a removal is to remove."""
    found = []
    levels = [["/"]]
    while levels[-1]:
        level = []
        for path in levels[-1]:
            level += [f"{path.rstrip('/')}/{name}" for name in memory.get_children(path)]
        levels.append(level)
        found += [path for path in level if paths.storm_id_of(path) == storm_id]
    return [path for path in found if paths.first_level(path) not in APART]


class CrashError(Exception):
    """The end of a process."""


class Crashing:
    """Lets so many commits of a session through, and ends the process in the next."""

    def __init__(self, session, left, *, applied):
        self._original = session.commit
        self._left = left
        self._applied = applied
        self.operations = []
        session.commit = self._commit

    def _commit(self, operations):
        crash = self._left == 0
        self._left -= 1
        if crash and not self._applied:
            raise CrashError
        try:
            results = self._original(operations)
        except TransactionError:
            if crash:
                raise CrashError from None
            raise
        self.operations.append(operations)
        if crash:
            raise CrashError
        return results


def test_all_of_a_topology_is_removed_and_nothing_else(storm, leader, memory, base):
    fill(leader, base)
    leader.activate_storm("other", base)
    leader.set_assignment("other", Assignment("/other"))
    leader.remove_storm(ID)
    assert nodes_of(memory, ID) == []
    assert storm.active_storms() == storm.assignments() == ["other"]
    leader.remove_storm(ID)
    leader.remove_storm("never there")


def test_base_and_assignment_are_removed_last_and_together(leader, base):
    fill(leader, base)
    watched = Crashing(leader._writer.session, -1, applied=True)
    leader.remove_storm(ID)
    *_, last = watched.operations
    assert [operation.path for operation in last if isinstance(operation, Delete)] == [
        paths.storm(ID),
        paths.assignment(ID),
    ]


@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
def test_crash_at_any_write_of_a_removal_can_be_repaired(storm, memory, open_storm, base, applied):
    for writes in itertools.count():
        process = open_storm()
        leader = lead(process)
        leader._writer._batch = 2
        fill(leader, base)
        Crashing(process.state, writes, applied=applied)
        try:
            leader.remove_storm(ID)
        except CrashError:
            ended = False
        else:
            ended = True
        process.disconnect()
        left = nodes_of(memory, ID)
        # Whatever is left, somebody who reads what topologies there are finds it.
        assert bool(left) == (ID in storm.active_storms()) == (ID in storm.assignments())
        successor = open_storm()
        lead(successor).remove_storm(ID)
        successor.disconnect()
        assert nodes_of(memory, ID) == []
        if ended:
            break
    assert writes > 8


@pytest.mark.parametrize("path", [paths.storm(ID), paths.assignment(ID)])
def test_what_is_half_gone_is_removed(leader, memory, base, path):
    fill(leader, base)
    memory.delete_node(path)
    leader.remove_storm(ID)
    assert nodes_of(memory, ID) == []


def test_what_others_left_below_is_removed_too(leader, memory, base):
    fill(leader, base)
    memory.set_data(f"{paths.storm(ID)}/strange/below", b"")
    leader.remove_storm(ID)
    assert nodes_of(memory, ID) == []


def test_one_does_not_delete_for_ever(leader, memory, base, monkeypatch):
    fill(leader, base)
    meddle(monkeypatch, leader, lambda: memory.set_data(f"{paths.storm(ID)}/strange", b""))
    with pytest.raises(StateError, match="other sessions keep adding nodes below"):
        leader.remove_storm(ID)


# ---- whom a topology's nodes let in --------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda leader, conf: leader.activate_storm(
            ID, StormBase("a", TopologyStatus.ACTIVE, 1), conf
        ),
        lambda leader, conf: leader.set_assignment(ID, Assignment("/code"), conf),
        lambda leader, conf: leader.set_credentials(ID, Credentials({}), conf),
        lambda leader, conf: leader.set_topology_log_config(ID, LogConfig({}), conf),
    ],
)
def test_a_topologys_digest_is_let_in(leader, monkeypatch, write):
    session, made = leader._writer.session, []
    original = session.commit

    def commit(operations):
        made.extend(one for one in operations if isinstance(one, Create))
        return original(operations)

    monkeypatch.setattr(session, "commit", commit)
    write(leader, {"storm.zookeeper.topology.auth.payload": "ann:secret"})
    assert {one.workers_digest for one in made} == {digest_id("ann:secret")}
    for conf in ({"storm.zookeeper.topology.auth.payload": None}, None):
        session.delete_node(made[-1].path)
        made.clear()
        write(leader, conf)
        assert {one.workers_digest for one in made} == {None}
