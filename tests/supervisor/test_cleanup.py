"""What nobody needs any more is removed, and nothing else."""

import pytest

from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor.cleanup import Cleanup, Needed
from stormkeeper.supervisor.directories import PYTHON, Directories
from stormkeeper.supervisor.environments import Environments
from stormkeeper.topology.package.environment import Base
from support.waiting import until

USED, UNUSED = "0" * 32, "1" * 32


class Code:
    """The code of topologies, none of which is whole at this moment."""

    def remove_unneeded(self, *_):
        return []

    def manifest(self, storm_id):
        raise SupervisorError(f"the code of {storm_id} is not here")


class Checkpoints:
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
    tidying = Cleanup(Code(), environments, Checkpoints(), directories, lambda: needed)
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
    directories.remove_worker("w1")
    tidying.wake()
    until(lambda: left(directories) == [])


def test_what_was_half_removed_keeps_nothing_here(directories, tidying):
    (directories.environments / f".removing-{USED}" / "lib").mkdir(parents=True)
    tidying.wake()
    until(lambda: left(directories) == [f".removing-{USED}"])
