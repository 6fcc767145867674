"""A disk without room: a real one, and files that may not grow."""

import errno
import os
import subprocess
from contextlib import suppress

import pytest

from stormkeeper.errors import TableError
from stormkeeper.history.table_reader import Tables
from support.disks import room_for
from support.tables import data_files, events, origin, state, store, values


@pytest.mark.parametrize("size", [0, 100, 600, 1500])
def test_a_commit_that_has_no_room_leaves_nothing(tmp_path, size):
    with store(tmp_path) as tables:
        tables.publish(origin(0), {"state": state(1), "events": events(1)})
        files = data_files(tmp_path)
        with (
            room_for(size),
            pytest.raises(TableError, match=r"cannot be written: .*File too large"),
        ):
            tables.publish(origin(1), {"state": state(2), "events": events(*range(1000))})
        assert data_files(tmp_path) == files
        assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([1], [1])
        tables.publish(origin(1), {"state": state(3), "events": events(3)})
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([3], [1, 3])


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a megabyte."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk, and not everywhere")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(path):
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(os.urandom(65536)):
            pass


def test_a_disk_is_full_for_a_while(small_disk):
    folder, kept = small_disk / "tables", []
    with store(folder, keep_secs=-1, fan_in=4) as tables:
        tables.publish(origin(0), {"state": state(0), "events": events(0)})
        filler = small_disk / "filler"
        fill(filler)
        rows = events(*range(20_000))
        with pytest.raises(TableError, match=f"{os.strerror(errno.ENOSPC)}.*make space there"):
            tables.publish(origin(1), {"state": state(1), "events": rows})
        assert (values(folder, "state"), values(folder, "events")) == ([0], [0])
        assert data_files(folder) == Tables(folder).manifest.paths
        filler.unlink()
        for number in range(1, 10):
            tables.publish(origin(number), {"state": state(number), "events": events(number)})
            kept.append(number)
    assert (values(folder, "state"), values(folder, "events")) == ([9], [0, *kept])
