"""An assignment that was decided from records is written only if they have not changed."""

import pytest

from stormkeeper import paths
from stormkeeper.errors import ChangedMeanwhileError, NotLeaderError, SerializationError
from stormkeeper.state.storm.daemon_records import NewAssignment
from stormkeeper.thrift.records import Assignment, StormBase, TopologyStatus

ID = "wc-1-1"


@pytest.fixture
def seen(leader):
    leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
    return leader.view.caught_up()


def directory(leader, storm_id=ID):
    found = leader.assignment_info(storm_id)
    return None if found is None else found.master_code_dir


def assign(leader, text, *, seen, base=None, ids=(ID,)):
    written = []
    try:
        leader.set_assignments(
            [NewAssignment(each, Assignment(text), base=base) for each in ids],
            seen=seen,
            on_written=lambda new: written.append(new.storm_id),
        )
    finally:
        assert written == [each for each in ids if directory(leader, each) == text]


def test_unchanged_topology_is_assigned_and_assigned_again(leader, seen):
    assign(leader, "/one", seen=seen)
    assign(leader, "/two", seen=leader.view.caught_up())
    assert directory(leader) == "/two"


def test_changed_base_refuses_the_assignment(leader, seen):
    leader.deactivate_storm(ID)
    with pytest.raises(ChangedMeanwhileError, match=f"{ID} was not assigned"):
        assign(leader, "/one", seen=seen)
    assert directory(leader) is None


def test_other_assignment_refuses_the_assignment(leader, seen):
    leader.set_assignment(ID, Assignment("/other"))
    with pytest.raises(ChangedMeanwhileError):
        assign(leader, "/one", seen=seen)
    then = leader.view.caught_up()
    leader.set_assignment(ID, Assignment("/more"))
    with pytest.raises(ChangedMeanwhileError):
        assign(leader, "/one", seen=then)
    assert directory(leader) == "/more"


def test_assignment_and_base_are_written_together_or_not(leader, seen):
    changed = StormBase("wc", TopologyStatus.ACTIVE, 1, owner="changed")
    assign(leader, "/one", seen=seen, base=changed)
    assert (directory(leader), leader.storm_base(ID).owner) == ("/one", "changed")
    with pytest.raises(ChangedMeanwhileError):
        assign(leader, "/two", seen=seen, base=changed)
    then = leader.view.caught_up()
    leader.set_assignment(ID, Assignment("/other"))
    again = StormBase("wc", TopologyStatus.ACTIVE, 1, owner="again")
    with pytest.raises(ChangedMeanwhileError):
        assign(leader, "/two", seen=then, base=again)
    assert (directory(leader), leader.storm_base(ID).owner) == ("/other", "changed")


def test_removed_topology_is_not_assigned(leader, seen):
    leader.remove_storm(ID)
    with pytest.raises(ChangedMeanwhileError):
        assign(leader, "/one", seen=seen)
    assert directory(leader) is None


def test_topology_made_again_is_not_assigned_as_the_former(leader, seen):
    assign(leader, "/one", seen=seen)
    then = leader.view.caught_up()
    leader.remove_storm(ID)
    leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 2))
    with pytest.raises(ChangedMeanwhileError):
        assign(leader, "/two", seen=then)
    assert not leader.view.caught_up().nodes[paths.ASSIGNMENTS].keys() - {paths.ASSIGNMENTS}


OTHERS = ("other-2-2", "third-3-3")


@pytest.mark.usefixtures("seen")
def test_changed_topologies_keep_no_others_from_being_written(leader, monkeypatch):
    for storm_id in OTHERS:
        leader.activate_storm(storm_id, StormBase(storm_id, TopologyStatus.ACTIVE, 1))
    ids = (OTHERS[0], ID, OTHERS[1], "never-4-4")
    then = leader.view.caught_up()
    leader.deactivate_storm(ID)
    session, counts = leader._writer.session, []
    commit = session.commit

    def counted(operations):
        counts.append(len(operations))
        return commit(operations)

    monkeypatch.setattr(session, "commit", counted)
    with pytest.raises(ChangedMeanwhileError, match=ID):
        assign(leader, "/one", seen=then, ids=ids)
    assert [directory(leader, each) for each in ids] == ["/one", None, "/one", None]
    # After the directory, as nothing was assigned before.
    assert counts == [2, 9, 7, 5]


@pytest.mark.usefixtures("seen")
def test_an_assignment_that_cannot_be_encoded_keeps_no_other(leader):
    leader.activate_storm(OTHERS[0], StormBase("other", TopologyStatus.ACTIVE, 1))
    records = {ID: Assignment(7), OTHERS[0]: Assignment("/one")}
    with pytest.raises(SerializationError, match="master_code_dir"):
        leader.set_assignments(
            [NewAssignment(storm_id, record) for storm_id, record in records.items()],
            seen=leader.view.caught_up(),
            on_written=lambda _: None,
        )
    assert [directory(leader, each) for each in records] == [None, "/one"]


def test_none_of_several_is_written_without_the_lock(leader, session, seen):
    session.delete_node(leader.fence.path)
    with pytest.raises(NotLeaderError):
        assign(leader, "/one", seen=seen, ids=(ID, *OTHERS))
    assert leader.assignments() == []
