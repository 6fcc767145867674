import os

import pytest

from stormkeeper.conf import defaults
from stormkeeper.worker.heartbeat import AliveFile
from support.waiting import until


class World:
    """A clock, and a beating thread that comes round when the test says so."""

    def __init__(self):
        self.now = 100.0
        self.beaten_at = None


@pytest.fixture
def world():
    return World()


@pytest.fixture
def alive(world, tmp_path):
    return AliveFile(
        tmp_path / "alive",
        lambda: world.beaten_at,
        period_secs=1.0,
        stuck_secs=33.0,
        clock=lambda: world.now,
    )


def test_before_the_first_beat_there_is_no_sign(alive, tmp_path):
    assert not alive.touch()
    assert list(tmp_path.iterdir()) == []


def test_each_look_is_a_change_of_the_files_time(alive, world, tmp_path):
    world.beaten_at = world.now
    file = tmp_path / "alive"
    assert alive.touch()
    assert file.stat().st_mode & 0o777 == 0o600
    os.utime(file, (1.0, 1.0))
    world.now += 33.0
    assert alive.touch()
    assert file.stat().st_mtime > 1.0


def test_a_beat_that_hangs_is_none(alive, world, tmp_path, caplog):
    world.beaten_at = world.now
    assert alive.touch()
    os.utime(tmp_path / "alive", (1.0, 1.0))
    world.now += 33.5
    assert [alive.touch(), alive.touch()] == [False, False]
    assert (tmp_path / "alive").stat().st_mtime == 1.0
    assert caplog.text.count("the heartbeat thread has been stuck for 34 s") == 1
    world.beaten_at = world.now
    assert alive.touch()


def test_where_it_cannot_be_given_the_worker_goes_on(alive, world, tmp_path, caplog):
    world.beaten_at = world.now
    tmp_path.joinpath("alive").mkdir()
    tmp_path.joinpath("alive").rmdir()
    tmp_path.rmdir()
    alive.touch()
    alive.touch()
    assert caplog.text.count("cannot be touched") == 1
    tmp_path.mkdir()
    assert alive.touch()
    assert (tmp_path / "alive").exists()


def test_the_thread_goes_on_until_it_is_closed(tmp_path):
    file = tmp_path / "alive"
    beats = [None]
    alive = AliveFile(file, lambda: beats[0], period_secs=0.01, stuck_secs=1e9)
    alive.start()
    beats[0] = 0.0
    until(file.exists)
    os.utime(file, (1.0, 1.0))
    until(lambda: file.stat().st_mtime > 1.0)
    alive.close()
    os.utime(file, (1.0, 1.0))
    assert file.stat().st_mtime == 1.0


def test_nothing_is_touched_that_nobody_names():
    assert AliveFile.from_conf(None, defaults(), lambda: 0.0) is None
