"""What nobody needs any more is removed, and nothing else."""

import shutil
from contextlib import closing

import pytest

from stormkeeper.errors import SupervisorError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.disk import PYTHON, Directories, Needed
from stormkeeper.supervisor.disk_cleanup import CheckpointRemoval, DiskCleanup
from stormkeeper.supervisor.environments import Environments
from stormkeeper.thrift.records import Checkpoints
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.package.environment import Base
from support.leaders import lead
from support.stores import MemoryStore
from support.waiting import until

USED, UNUSED = "0" * 32, "1" * 32


class Code:
    """The code of topologies, none of which is whole at this moment."""

    def remove_unneeded(self, *_):
        return []

    def manifest(self, storm_id):
        raise SupervisorError(f"the code of {storm_id} is not here")


class NoCheckpoints:
    """None are to be removed."""

    def remove_unneeded(self, _):
        return []


@pytest.fixture
def directories(tmp_path):
    directories = Directories(tmp_path / "local", tmp_path / "logs")
    directories.make()
    for name in (USED, UNUSED):
        (directories.environments / name / "bin").mkdir(parents=True)
        (directories.environments / name / "bin" / "python").touch()
    return directories


@pytest.fixture
def tidying(directories):
    environments = Environments(directories.environments, Base.here())
    needed = Needed(frozenset({"wc-1-1"}), frozenset({"w1", "w2"}))
    tidying = DiskCleanup(Code(), environments, NoCheckpoints(), directories, lambda: needed)
    tidying.start()
    yield tidying
    tidying.close()


def left(directories):
    return sorted(path.name for path in directories.environments.iterdir())


def test_used_environment_stays_during_new_fetch(directories, tidying):
    own = directories.environments / USED / "bin" / "python"
    for worker_id, python in (("w1", own), ("w2", "/usr/bin/python3")):
        (directories.make_worker(worker_id, "wc-1-1", 6700) / PYTHON).symlink_to(python)
    tidying.wake()
    until(lambda: left(directories) == [USED])
    shutil.rmtree(directories.worker("w1"))
    tidying.wake()
    until(lambda: left(directories) == [])


def test_what_was_half_removed_keeps_nothing_here(directories, tidying):
    (directories.environments / f".removing-{USED}" / "lib").mkdir(parents=True)
    tidying.wake()
    until(lambda: left(directories) == [f".removing-{USED}"])


ID, OTHER = "wc-1-1700000000", "other-2-1700000000"


@pytest.fixture
def storm():
    with closing(MemoryStore()) as store:
        storm = StormClusterState(store.open(), Codec())
        yield storm
        storm.disconnect()


@pytest.fixture
def leader(storm):
    return lead(storm)


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "checkpoints" / ID / "counts"
    place.mkdir(parents=True)
    (place / "metadata").touch()
    (tmp_path / "checkpoints" / OTHER).mkdir()
    return place.parent


@pytest.fixture
def removal(storm, tmp_path):
    conf = {"topology.checkpoint.dir": None, "storm.local.dir": str(tmp_path)}
    return CheckpointRemoval(storm, "sup", conf)


def record(remove_on=("sup",), **fields):
    fields = {"nodes": {"counts": "sup"}, "ended_ms": 1, "shared": False, **fields}
    remove_on = None if remove_on is None else list(remove_on)
    return Checkpoints(ID, OTHER, "other", remove_on=remove_on, **fields)


def test_what_is_to_go_goes_and_that_is_said(removal, storm, leader, place):
    leader.set_checkpoints(record())
    assert removal.remove_unneeded(lambda: []) == [ID]
    assert [each.name for each in place.parent.iterdir()] == [OTHER]
    assert storm.all_checkpoints() == {}
    assert removal.remove_unneeded(lambda: []) == []


@pytest.mark.parametrize("remove_on", [None, ["another"]])
def test_what_is_not_this_supervisors_to_remove_stays(removal, storm, leader, place, remove_on):
    leader.set_checkpoints(record(remove_on))
    assert removal.remove_unneeded(lambda: []) == []
    assert place.exists()
    assert storm.checkpoints(ID).record.remove_on == remove_on


@pytest.mark.parametrize("needed", [ID, OTHER])
def test_what_a_worker_may_use_stays(removal, leader, place, needed):
    leader.set_checkpoints(record())
    assert removal.remove_unneeded(lambda: [needed]) == []
    assert place.exists()


def test_nothing_goes_without_the_clusters_state(removal, storm, leader, place):
    leader.set_checkpoints(record())
    storm.disconnect()
    assert removal.remove_unneeded(lambda: []) == []
    assert place.exists()


def test_a_removal_that_was_broken_off_is_finished(removal, leader, place):
    place.rename(place.with_name(f".removed-{ID}"))
    leader.set_checkpoints(record())
    assert removal.remove_unneeded(lambda: []) == [ID]
    assert [each.name for each in place.parent.iterdir()] == [OTHER]


def test_what_the_disk_does_not_let_go_is_tried_again(removal, leader, place, caplog):
    aside = place.with_name(f".removed-{ID}")
    aside.touch()  # no folder
    leader.set_checkpoints(record())
    assert removal.remove_unneeded(lambda: []) == []
    assert "cannot be removed" in caplog.text
    aside.unlink()
    assert removal.remove_unneeded(lambda: []) == [ID]


def test_a_topologys_own_place(removal, leader, place, tmp_path):
    own = tmp_path / "own" / ID
    own.mkdir(parents=True)
    leader.set_checkpoints(record(root=f"file://{tmp_path}/own"))
    assert removal.remove_unneeded(lambda: []) == [ID]
    assert not own.exists()
    assert place.exists()


def test_what_is_on_no_disk_stays_and_is_said(removal, storm, leader, caplog):
    leader.set_checkpoints(record(root="hdfs://host/a"))
    assert removal.remove_unneeded(lambda: []) == [ID]
    assert "not on a disk of this machine, and stay" in caplog.text
    assert storm.all_checkpoints() == {}
