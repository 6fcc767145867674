"""Where a supervisor has everything, and what it removes."""

import pytest

from stormkeeper import conf
from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor.disk import Directories, Needed


@pytest.fixture
def directories(tmp_path):
    directories = Directories(tmp_path / "local", tmp_path / "logs" / "workers-artifacts")
    directories.make()
    return directories


def remove_unneeded(directories, storm_ids, worker_ids):
    return directories.remove_unneeded(lambda: Needed(frozenset(storm_ids), frozenset(worker_ids)))


def test_the_layout_is_storms(directories, tmp_path):
    code = directories.code("counts-1-1")
    assert code == tmp_path / "local/supervisor/stormdist/counts-1-1"
    assert directories.local_state == tmp_path / "local/supervisor/localstate"
    assert directories.environments == tmp_path / "local/supervisor/environments"
    log = directories.log("counts-1-1", 6700)
    assert log == tmp_path / "logs/workers-artifacts/counts-1-1/6700/worker.log"
    assert directories.worker("w1") == tmp_path / "local/workers/w1"


@pytest.mark.parametrize(
    ("logs", "artifacts", "folder"),
    [
        (None, "workers-artifacts", "local/logs/workers-artifacts"),
        ("logs", "workers-artifacts", "logs/workers-artifacts"),
        ("logs", "{}/kept", "kept"),
    ],
)
def test_folders_of_a_configuration(tmp_path, logs, artifacts, folder):
    chosen = conf.defaults().with_values(
        {
            "storm.local.dir": str(tmp_path / "local"),
            "storm.log.dir": logs and str(tmp_path / logs),
            "storm.workers.artifacts.dir": artifacts.format(tmp_path),
        }
    )
    directories = Directories.from_conf(chosen)
    assert directories.artifacts("t", 1) == tmp_path / folder / "t" / "1"
    assert directories.worker("w") == tmp_path / "local/workers/w"


def test_a_launch_has_its_folders_for_this_user_alone(directories):
    path = directories.make_worker("w1", "counts-1-1", 6700)
    assert sorted(one.name for one in path.iterdir()) == ["artifacts", "heartbeats", "pids", "tmp"]
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "artifacts" / "worker.log").write_text("one")
    assert directories.log("counts-1-1", 6700).read_text() == "one"
    assert directories.make_worker("w1", "counts-1-1", 6700) == path, "it is there already"


def test_a_process_is_noted_for_people(directories):
    path = directories.make_worker("w1", "counts-1-1", 6700)
    for pid in (47, 11):
        directories.note_process("w1", "counts-1-1", 6700, pid)
    assert sorted(one.name for one in (path / "pids").iterdir()) == ["11", "47"]
    assert (path / "artifacts" / "worker.pid").read_text() == "11\n"


def test_removed_launch_keeps_the_log(directories):
    path = directories.make_worker("w1", "counts-1-1", 6700)
    (path / "tmp" / "spark").mkdir()
    (path / "artifacts" / "worker.log").write_text("one")
    assert remove_unneeded(directories, (), ()) == ["w1"]
    assert remove_unneeded(directories, (), ()) == []
    assert not path.exists()
    assert list(directories.temporary.iterdir()) == []
    assert directories.log("counts-1-1", 6700).read_text() == "one"


def test_what_no_topology_needs_is_removed(directories):
    for storm_id, worker_id in (("a-1-1", "w1"), ("b-2-1", "w2")):
        (directories.code(storm_id) / "resources").mkdir(parents=True)
        directories.make_worker(worker_id, storm_id, 6700)
    (directories.code("c-3-1")).write_text("half of something")
    assert remove_unneeded(directories, {"a-1-1"}, {"w2"}) == ["b-2-1", "c-3-1", "w1"]
    assert directories.code("a-1-1").is_dir()
    assert not directories.code("b-2-1").exists()
    assert directories.worker("w2").is_dir()
    assert not directories.worker("w1").exists()
    assert list(directories.temporary.iterdir()) == []
    assert remove_unneeded(directories, {"a-1-1"}, {"w2"}) == []


def test_what_is_being_fetched_stays_with_its_code(directories):
    for storm_id in ("a-1-1", "b-2-1"):
        for name in (storm_id, f".{storm_id}.part", f".{storm_id}.old"):
            directories.code(name).mkdir()
    assert remove_unneeded(directories, {"a-1-1"}, ()) == [".b-2-1.old", ".b-2-1.part", "b-2-1"]
    assert remove_unneeded(directories, {"a-1-1"}, ()) == []
    assert directories.code(".a-1-1.part").is_dir()


def test_used_or_linked_package_stays(directories):
    for name in ("used", "linked", "left"):
        (directories.packages / name / "code").mkdir(parents=True)
    path = directories.make_worker("w1", "a-1-1", 6700)
    (path / "package").symlink_to(directories.packages / "linked")
    directories.remove_unused_packages({"used"})
    assert sorted(path.name for path in directories.packages.iterdir()) == ["linked", "used"]
    remove_unneeded(directories, (), ())
    directories.remove_unused_packages(())
    assert [*directories.packages.iterdir()] == []


def test_a_link_is_removed_and_what_it_points_to_stays(directories, tmp_path):
    (tmp_path / "precious").mkdir()
    directories.code("b-2-1").symlink_to(tmp_path / "precious")
    assert remove_unneeded(directories, (), ()) == ["b-2-1"]
    assert (tmp_path / "precious").is_dir()
    assert not directories.code("b-2-1").is_symlink()


def test_a_start_removes_what_was_not_finished(directories):
    (directories.temporary / "download").mkdir()
    (directories.temporary / "download" / "half").write_text("x")
    directories.make()
    assert list(directories.temporary.iterdir()) == []


def test_what_cannot_be_removed_is_said(directories, caplog):
    directories.make_worker("w1", "a-1-1", 6700)
    directories.temporary.rmdir()
    remove_unneeded(directories, (), ())
    assert "w1 cannot be removed" in caplog.text


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\0b", "n" * 256])
def test_an_id_that_names_a_folder_elsewhere_is_refused(directories, name):
    for path in (directories.code, directories.worker, lambda name: directories.log(name, 1)):
        with pytest.raises(SupervisorError, match="cannot be the name of a folder"):
            path(name)


def test_a_place_that_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SupervisorError, match=r"set storm\.local\.dir and storm\.log\.dir"):
        Directories(tmp_path / "file", tmp_path).make()
    directories = Directories(tmp_path / "local", tmp_path / "file")
    directories.make()
    with pytest.raises(SupervisorError, match=r"set storm\.local\.dir and storm\.log\.dir"):
        directories.make_worker("w1", "a-1-1", 6700)
