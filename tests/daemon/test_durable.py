import errno
import os
from pathlib import Path

import pytest

from stormkeeper.daemon import durable


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
