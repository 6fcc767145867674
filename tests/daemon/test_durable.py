import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stormkeeper.daemon import durable
from stormkeeper.daemon.durable import find_fault
from support.command import AS_ANY_USER, needs_any_user
from support.disks import mounted, read_only, room_for


def test_file_is_replaced_with_its_mode(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    durable.write_file(file, b"new", mode=0o600)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o600)
    assert [*tmp_path.iterdir()] == [file]


def test_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(TypeError), durable.replace_file(file) as new:
        new.write("not bytes")
    assert (file.read_text(), [*tmp_path.iterdir()]) == ("old", [file])


def test_content_is_synced_before_the_rename(tmp_path, monkeypatch):
    synced = []

    def record(descriptor):
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        synced.append((name, (tmp_path / "file").exists()))

    monkeypatch.setattr(os, "fsync", record)
    durable.write_file(tmp_path / "file", b"x")
    (new, was_there), folder = synced
    assert new.endswith(".new")
    assert not was_there
    assert folder == (str(tmp_path), True)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_folder_sync_ignores_only_what_is_unsupported(tmp_path, monkeypatch, number):
    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if number == errno.EINVAL:
        durable.sync_folder(tmp_path)
    else:
        with pytest.raises(OSError, match="error"):
            durable.sync_folder(tmp_path)


def test_lock_is_held_until_the_file_is_closed(tmp_path):
    with (tmp_path / "lock").open("ab") as first, (tmp_path / "lock").open("ab") as second:
        assert durable.try_lock(first, if_unsupported=False)
        assert not durable.try_lock(second.fileno(), if_unsupported=True)
        first.close()
        assert durable.try_lock(second, if_unsupported=False)


@pytest.mark.parametrize("answer", [True, False])
def test_file_system_without_locks(tmp_path, monkeypatch, answer):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(durable.fcntl, "flock", refuse)
    with (tmp_path / "lock").open("ab") as file:
        assert durable.try_lock(file, if_unsupported=answer) is answer


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
    program = (
        f"from stormkeeper.daemon.durable import *; print(find_fault(Path({str(tmp_path)!r})))"
    )
    ran = subprocess.run(
        [*AS_ANY_USER, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "let the user of this process write there" in ran.stdout
