"""Writers that are killed, at each of their steps and at any moment, with readers beside them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stormkeeper.history.table_reader import Tables
from support import killed_writer
from support.tables import data_files, origin, store, values
from support.waiting import DEADLINE_SECS


def run(program, *arguments, **settings):
    path = Path(killed_writer.__file__).with_name(program)
    return subprocess.Popen([sys.executable, path, *map(str, arguments)], **settings)


def test_writer_killed_at_any_step_leaves_whole_commits(tmp_path):
    assert run("killed_writer.py", tmp_path).wait(DEADLINE_SECS) == 0
    undisturbed = None
    versions = []
    for number in range(len(list(tmp_path.iterdir())) - 2, -1, -1):
        folder = tmp_path / str(number)
        found = Tables(folder)
        version = found.manifest.version
        versions.append(version)
        assert found.manifest.origin == origin(version)
        assert values(folder, "state") == [version]
        assert values(folder, "events") == list(range(1, version + 1))
        assert store(folder).has(origin(version))
        killed_writer.write(folder, version + 1, killed_writer.LAST + 1)
        end = {name: values(folder, name) for name in found.names()}
        undisturbed = undisturbed or end
        assert end == undisturbed
        killed_writer.settle(folder)
        assert data_files(folder) == Tables(folder).manifest.paths
        assert not list(folder.glob(".manifest*"))
    assert undisturbed["events"] == list(range(1, killed_writer.LAST + 2))
    # It was cut off at many steps, the last of which came too late.
    assert versions.count(killed_writer.BEFORE) > 15
    assert versions.count(killed_writer.LAST) > 3
    assert versions == sorted(versions, reverse=True)


@pytest.mark.slow
def test_readers_see_whole_commits_of_killed_writers(tmp_path):
    folder, stop = tmp_path / "tables", tmp_path / "stop"
    reader = run("tables_reader.py", folder, stop, stdout=subprocess.PIPE, text=True)
    try:
        assert run("endless_writer.py", folder, 20, 41).wait(DEADLINE_SECS) == 0
    finally:
        stop.touch()
    told = json.loads(reader.communicate(timeout=DEADLINE_SECS)[0])
    assert told["wrong"] == []
    assert told["looks"] > 20
    assert Tables(folder).manifest.version > 40
    with store(folder, keep_secs=-1, fan_in=1000) as tables:
        tables.publish(origin(0, "another query"), {})
    assert data_files(folder) == Tables(folder).manifest.paths
