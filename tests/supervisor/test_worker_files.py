"""What a worker is started with."""

import json
import stat
import sys
from pathlib import Path

import pytest
import yaml

from stormkeeper import conf
from stormkeeper.errors import ConfigError, SupervisorError
from stormkeeper.supervisor.disk import Directories
from stormkeeper.supervisor.slot_model import Restart, SlotAssignment
from stormkeeper.supervisor.worker_processes import WorkerFiles
from stormkeeper.worker.heartbeat import write_exit_code
from support.packages import of_folder, packed

WC = "wc-1-1700000000"
WORK = SlotAssignment(WC, {"out": "7-3-0"})
SECRET = "a password of somebody's"


class Code:
    """The code of one topology."""

    def __init__(self, folder):
        self.root = folder / "package"
        _, self._manifest = packed(of_folder(folder / "code"))
        # How nice it is, is not for a topology to say.
        self.saved = {"topology.name": "wc", "db.password": SECRET, "supervisor.worker.nice": 0}

    def unpacked(self, storm_id):
        assert storm_id == WC
        return self.root

    def manifest(self, _):
        return self._manifest

    def conf(self, storm_id):
        if storm_id != WC:
            raise SupervisorError("it is not here")
        return self.saved


@pytest.fixture
def code(tmp_path):
    (tmp_path / "code").mkdir()
    return Code(tmp_path)


@pytest.fixture
def files(tmp_path, code, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directories = Directories(Path("local"), Path("logs"))
    directories.make()
    own = {
        "storm.local.dir": "local",
        "supervisor.worker.nice": 7,
        "storm.zookeeper.auth.payload": "u:" + SECRET,
    }
    numbers = iter(range(5, 100))
    return WorkerFiles(
        conf.defaults().with_values(own), "sup-a", directories, code, lambda: next(numbers)
    )


def test_what_a_worker_says_of_its_end_is_read(files):
    files.command("w1", 6700, WORK, Path("/env/bin/python"))
    assert files.written_exit_code("w1") is files.written_exit_code("other") is None
    write_exit_code(files.alive("w1"), 0)
    assert files.written_exit_code("w1") == 0
    write_exit_code(files.alive("other"), 0)  # the folder is gone: no error
    write_exit_code(None, 0)


def test_the_command_line_is_the_workers(files, code, tmp_path):
    command = files.command("w1", 6700, WORK, Path("/env/bin/python"))
    place = tmp_path / "local" / "workers" / "w1"
    assert command.folder == place
    assert command.log == tmp_path / "logs" / WC / "6700" / "worker.log"
    assert command.nice == 7
    assert " ".join(command.argv) == (
        f"/env/bin/python -m stormkeeper.worker code/topology.py --root {code.root}"
        f" --overrides {place}/topology.json --alive {place}/heartbeats/alive"
        f" --storm-id {WC} --node sup-a --port 6700 --claim out=7-3-5"
        f" --config {place}/worker.yaml"
    )
    assert files.alive("w1") == place / "heartbeats" / "alive"
    assert (place / "package").readlink() == code.root
    assert (place / "python").readlink() == Path("/env/bin/python")
    again = files.command("w2", 6700, WORK, Path("/env/bin/python"))
    assert "out=7-3-6" in again.argv


def test_configuration_files_are_private(files, code, tmp_path):
    command = files.command("w1", 6700, WORK, Path(sys.executable))
    assert SECRET not in " ".join([*command.argv, *command.environment.values()])
    topology, own = command.folder / "topology.json", command.folder / "worker.yaml"
    assert json.loads(topology.read_bytes()) == code.saved
    read = yaml.safe_load(own.read_text())
    assert read["storm.zookeeper.auth.payload"].endswith(SECRET)
    assert read["storm.local.dir"] == str(tmp_path / "local"), "wherever the worker runs"
    for file in (topology, own):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(command.folder.stat().st_mode) == 0o700


def test_the_environment_is_the_topologys_but_for_its_python(files, code):
    code.saved["topology.environment"] = {
        "PYSPARK_PYTHON": "mine",
        "TMPDIR": "/fast",
        "LEVEL": 3,
        "DEEP": True,
    }
    command = files.command("w1", 6700, WORK, Path("/env/bin/python"))
    assert command.environment == {
        "PYSPARK_PYTHON": "/env/bin/python",
        "TMPDIR": "/fast",
        "SPARK_LOCAL_DIRS": str(command.folder / "tmp"),
        "LEVEL": "3",
        "DEEP": "true",
    }


def test_a_configuration_that_is_wrong_keeps_it_from_its_start(files, code):
    code.saved["topology.environment"] = ["LANG"]
    with pytest.raises(ConfigError, match=f"of {WC}: topology.environment: expected a mapping"):
        files.command("w1", 6700, WORK, Path("/env/bin/python"))


def test_what_it_says_of_restarts_is_known_when_its_code_is_here(files, code):
    assert files.restart(WC) is Restart.ON_FAILURE
    code.saved["topology.restart"] = "never"
    assert files.restart(WC) is Restart.NEVER
    assert files.restart("job-2-1") is None
    code.saved["topology.restart"] = "sometimes"
    assert files.restart(WC) is None
