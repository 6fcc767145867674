"""An assignment that was decided from records is written only if they have not changed."""

import pytest

from stormkeeper import paths
from stormkeeper.errors import ChangedMeanwhileError
from stormkeeper.thrift.records import Assignment, StormBase, TopologyStatus

ID = "wc-1-1"


@pytest.fixture
def seen(leader):
    leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 1))
    return leader.view.caught_up()


def directory(leader):
    found = leader.assignment_info(ID)
    return None if found is None else found.master_code_dir


def test_unchanged_topology_is_assigned_and_assigned_again(leader, seen):
    leader.set_assignment(ID, Assignment("/one"), seen=seen)
    leader.set_assignment(ID, Assignment("/two"), seen=leader.view.caught_up())
    assert directory(leader) == "/two"


def test_changed_base_refuses_the_assignment(leader, seen):
    leader.deactivate_storm(ID)
    with pytest.raises(ChangedMeanwhileError, match=f"{ID} was not assigned"):
        leader.set_assignment(ID, Assignment("/one"), seen=seen)
    assert directory(leader) is None


def test_other_assignment_refuses_the_assignment(leader, seen):
    leader.set_assignment(ID, Assignment("/other"))
    with pytest.raises(ChangedMeanwhileError):
        leader.set_assignment(ID, Assignment("/one"), seen=seen)
    then = leader.view.caught_up()
    leader.set_assignment(ID, Assignment("/more"))
    with pytest.raises(ChangedMeanwhileError):
        leader.set_assignment(ID, Assignment("/one"), seen=then)
    assert directory(leader) == "/more"


def test_assignment_and_base_are_written_together_or_not(leader, seen):
    changed = StormBase("wc", TopologyStatus.ACTIVE, 1, owner="changed")
    leader.set_assignment(ID, Assignment("/one"), seen=seen, base=changed)
    assert (directory(leader), leader.storm_base(ID).owner) == ("/one", "changed")
    with pytest.raises(ChangedMeanwhileError):
        leader.set_assignment(ID, Assignment("/two"), seen=seen, base=changed)
    then = leader.view.caught_up()
    leader.set_assignment(ID, Assignment("/other"))
    again = StormBase("wc", TopologyStatus.ACTIVE, 1, owner="again")
    with pytest.raises(ChangedMeanwhileError):
        leader.set_assignment(ID, Assignment("/two"), seen=then, base=again)
    assert (directory(leader), leader.storm_base(ID).owner) == ("/other", "changed")


def test_removed_topology_is_not_assigned(leader, seen):
    leader.remove_storm(ID)
    with pytest.raises(ChangedMeanwhileError):
        leader.set_assignment(ID, Assignment("/one"), seen=seen)
    assert directory(leader) is None


def test_topology_made_again_is_not_assigned_as_the_former(leader, seen):
    leader.set_assignment(ID, Assignment("/one"), seen=seen)
    then = leader.view.caught_up()
    leader.remove_storm(ID)
    leader.activate_storm(ID, StormBase("wc", TopologyStatus.ACTIVE, 2))
    with pytest.raises(ChangedMeanwhileError):
        leader.set_assignment(ID, Assignment("/two"), seen=then)
    assert not leader.view.caught_up().nodes[paths.ASSIGNMENTS].keys() - {paths.ASSIGNMENTS}
