"""A run's folder goes with the run, and one that a killed run has left with the next."""

import subprocess
import sys

import pytest

from stormkeeper.daemon.children import RUN_MARK, marked
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import reservations
from stormkeeper.local.reservations import OWNER, PREFIX, RunFolder, remove_abandoned
from support.waiting import until

OWNER_OF_ONE = """
import sys
from stormkeeper.local.reservations import RunFolder
folder = RunFolder(sys.argv[1])
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(reservations.tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def other_run(temporary):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER_OF_ONE, "of-a-test"],
        env={"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.path = process.stdout.readline().strip()
    with process:
        yield process
        process.kill()


def test_a_folder_goes_at_the_end_with_all_that_is_in_it(temporary):
    with RunFolder("mark") as one:
        (one.path / "data").mkdir()
        (one.path / "data" / "file").write_text("")
        (one.path / "worker.log").write_text("")
    assert list(temporary.iterdir()) == []


def test_without_a_place_for_it_the_error_says_what_to_do(temporary, monkeypatch):
    monkeypatch.setattr(reservations.tempfile, "tempdir", str(temporary / "none"))
    with pytest.raises(LocalClusterError, match=r"No such file or directory.*: set TMPDIR to"):
        RunFolder("mark")
    monkeypatch.setattr(reservations.tempfile, "tempdir", None)
    monkeypatch.setattr(reservations.tempfile, "_candidate_tempdir_list", lambda: [])
    with pytest.raises(LocalClusterError, match=r"No usable temporary directory.*: set TMPDIR to"):
        remove_abandoned()


def test_where_there_is_no_space_nothing_is_left(temporary):
    """A limit on the size of files, which does not hold for folders, stands for a full disk."""
    program = """
import resource, signal, tempfile
from stormkeeper.errors import LocalClusterError
from stormkeeper.local.reservations import RunFolder
tempfile.gettempdir()  # which tries to write there, once
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    RunFolder("mark")
except LocalClusterError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "File too large" in done.stdout
    assert list(temporary.iterdir()) == []


def test_a_link_in_a_folder_goes_without_what_it_leads_to(temporary):
    (temporary / "kept").mkdir()
    (temporary / "kept" / "file").write_text("")
    with RunFolder("mark") as one:
        (one.path / "link").symlink_to(temporary / "kept")
    assert [path.name for path in (temporary / "kept").iterdir()] == ["file"]


def test_the_folder_of_a_living_run_stays(other_run, temporary):
    assert remove_abandoned() == 0
    assert [str(path) for path in temporary.iterdir()] == [other_run.path]
    assert (temporary / other_run.path / OWNER).exists()


def test_the_folder_of_a_killed_run_goes_and_so_do_its_processes(other_run, temporary):
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={RUN_MARK: "of-a-test"}
    )
    until(lambda: marked("of-a-test"))
    other_run.kill()
    other_run.wait()
    assert remove_abandoned() == 1
    assert list(temporary.iterdir()) == []
    assert left.wait(60) == -9


def test_a_folder_that_names_no_owner_stays(temporary):
    (temporary / f"{PREFIX}x").mkdir()
    assert remove_abandoned() == 0
    assert (temporary / f"{PREFIX}x").is_dir()


def test_a_link_in_the_place_of_the_owner_s_file_is_not_followed(temporary):
    (temporary / f"{PREFIX}x").mkdir()
    (temporary / "precious").write_text("")
    (temporary / f"{PREFIX}x" / OWNER).symlink_to(temporary / "precious")
    assert remove_abandoned() == 0
    assert (temporary / f"{PREFIX}x").is_dir()
