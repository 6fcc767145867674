"""What is kept of checkpoints, and who says that they are gone."""

import pytest

from stormkeeper.thrift.records import Checkpoints

ID = "wc-1-1700000000"


@pytest.fixture(autouse=True)
def kept(leader):
    leader.set_checkpoints(Checkpoints(ID, ID, "wc", None, False, {"q": "a"}, 1, ["a", "b"]))


def test_the_last_one_to_remove_them_removes_the_record(storm, leader):
    [found] = storm.all_checkpoints().values()
    assert found.leader_epoch == leader.fence.epoch
    storm.checkpoints_removed(ID, "c")
    storm.checkpoints_removed(ID, "a")
    assert storm.checkpoints(ID).record.remove_on == ["b"]
    storm.checkpoints_removed(ID, "b")
    storm.checkpoints_removed(ID, "b")
    assert storm.checkpoints(ID) is None
    assert storm.all_checkpoints() == {}


def test_what_was_said_meanwhile_counts(storm, leader):
    found = leader.checkpoints(ID)
    storm.checkpoints_removed(ID, "a")
    assert not leader.change_checkpoints(found.record, found.version)
    assert not leader.forget_checkpoints(ID, found.version)
    now = leader.checkpoints(ID)
    assert leader.forget_checkpoints(ID, now.version)
    assert not leader.forget_checkpoints(ID, now.version)
    assert not leader.change_checkpoints(found.record, found.version)


def test_two_say_at_once_that_they_have_removed_them(storm, open_storm, monkeypatch):
    other, read = open_storm(), storm.checkpoints

    def read_before_the_other_says_so(id_):
        found = read(id_)
        monkeypatch.undo()
        other.checkpoints_removed(ID, "b")
        return found

    monkeypatch.setattr(storm, "checkpoints", read_before_the_other_says_so)
    storm.checkpoints_removed(ID, "a")
    assert storm.all_checkpoints() == {}
