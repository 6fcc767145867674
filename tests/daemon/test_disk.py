"""Whether a folder takes files, and what is said if it does not."""

import subprocess
import sys

from stormkeeper.daemon.disk import find_fault
from support.command import AS_ANY_USER, needs_any_user
from support.disks import mounted, read_only, room_for


def test_a_folder_that_takes_files_has_no_fault(tmp_path):
    assert find_fault(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_was_full_needs_more_free_space(tmp_path):
    with mounted(tmp_path, "60m"):
        fault = find_fault(tmp_path)
        assert fault == f"{tmp_path} has 60 MiB free and needs 64 MiB: make room on its disk"
    with mounted(tmp_path, "100m"):
        assert find_fault(tmp_path) is None
        assert "needs 128 MiB" in (find_fault(tmp_path, had_fault=True) or "")
    with mounted(tmp_path, "130m"):
        assert find_fault(tmp_path, had_fault=True) is None


def test_a_missing_folder_is_a_fault_and_is_not_created(tmp_path):
    fault = find_fault(tmp_path / "gone")
    assert fault == (
        f"{tmp_path}/gone cannot be written to (No such file or directory): create the folder, or"
        " mount its disk"
    )
    assert not (tmp_path / "gone").exists()


def test_a_file_in_place_of_a_folder_is_a_fault(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert "remove the file that stands in place of a folder" in (find_fault(file) or "")


def test_a_limit_on_the_size_of_files_is_a_fault(tmp_path):
    with room_for(100):
        assert "ulimit -f" in (find_fault(tmp_path) or "")
    assert list(tmp_path.iterdir()) == []


def test_a_full_and_a_read_only_disk_are_faults(tmp_path):
    with mounted(tmp_path, "64k"):
        (tmp_path / "ballast").write_bytes(b"\0" * 65536)
        assert "(No space left on device): make room" in (find_fault(tmp_path) or "")
        assert find_fault(tmp_path, is_written=False) is not None
    with mounted(tmp_path, "100m"):
        with read_only(tmp_path):
            for is_written in (True, False):
                fault = find_fault(tmp_path, is_written=is_written)
                assert "mount its disk for writing" in (fault or "")
        assert find_fault(tmp_path) is None


@needs_any_user
def test_another_users_folder_is_a_fault(tmp_path):
    tmp_path.chmod(0o500)
    program = f"from stormkeeper.daemon.disk import *; print(find_fault(Path({str(tmp_path)!r})))"
    ran = subprocess.run(
        [*AS_ANY_USER, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "let the user of this process write there" in ran.stdout
