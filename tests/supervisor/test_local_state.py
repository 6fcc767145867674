"""What outlives a supervisor."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.disk import LocalState, is_locked, saved_slots
from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.slot_model import (
    Restart,
    SlotAssignment,
    SlotOutcome,
    SlotRecord,
    WorkerRecord,
)

WORK = SlotAssignment("counts-1-1", {"out": "1-1-a"}, 2**30, Restart.NEVER)
SLOTS = {
    6700: SlotRecord(WORK, WorkerRecord("w1", WORK, ProcessId(47, 11)), 3),
    6701: SlotRecord(replace(WORK, claims={}), None, 0, SlotOutcome.COMPLETED),
    6702: SlotRecord(),
}


@pytest.fixture
def state(tmp_path):
    with LocalState(tmp_path / "localstate") as state:
        yield state


@pytest.fixture
def file(tmp_path, state):  # noqa: ARG001  (which makes the folder)
    return tmp_path / "localstate" / "slots.json"


def test_the_next_supervisor_reads_what_was_saved(state, tmp_path):
    assert state.load() == {}
    state.save(SLOTS)
    assert state.load() == SLOTS
    state.close()
    with LocalState(tmp_path / "localstate") as another:
        assert another.load() == SLOTS


def test_it_is_for_this_user_alone_and_nothing_else_is_left(state, file):
    for _ in range(3):
        state.save(SLOTS)
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in file.parent.iterdir()) == ["lock", "slots.json"]


def test_after_a_restart_of_the_machine_no_worker_runs(state, monkeypatch):
    state.save(SLOTS)
    monkeypatch.setattr(process_table, "boot_id", lambda: "another")
    loaded = state.load()
    assert loaded == {port: replace(slot, worker=None) for port, slot in SLOTS.items()}
    assert loaded[6700].crashes == 3


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Input data was truncated"),
        (b"\x00" * 300, "malformed"),
        (b"\xac\xed\x00\x05sr", "."),
        (b"[1]", "Expected `object`"),
        (b'{"slots": {}}', "missing required field `version`"),
        (b'{"version": 2, "boot": "x", "slots": {}, "more": 1}', "its version is 2, not 1"),
        (b'{"version": 1, "boot": "x"}', "missing required field `slots`"),
        (b'{"version": 1, "boot": "x", "slots": {"6700": {"crashes": "3"}}}', "Expected `int`"),
        (b'{"version": 1, "boot": "x", "slots": {"6700": {"outcome": "lost"}}}', "Invalid enum"),
    ],
)
def test_what_is_no_state_is_put_aside_with_a_warning(state, file, content, why, caplog):
    file.write_bytes(content)
    assert state.load() == {}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(file) in record.getMessage()
    assert re.search(why, record.getMessage())
    assert file.with_name("slots.json.unreadable").read_bytes() == content
    assert state.load() == {}
    state.save(SLOTS)
    assert state.load() == SLOTS
    assert len(caplog.records) == 1


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_torn_file_is_never_read_as_something_else(state, file, data):
    state.save(SLOTS)
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert state.load() == {}


def test_a_write_that_fails_leaves_what_was_saved(state, file, monkeypatch):
    state.save(SLOTS)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SupervisorError, match=r"No space left on device.*make space"):
        state.save({})
    monkeypatch.undo()
    assert state.load() == SLOTS
    assert sorted(path.name for path in file.parent.iterdir()) == ["lock", "slots.json"]


def test_one_supervisor_at_a_time(state, tmp_path):
    with pytest.raises(SupervisorError, match=r"another supervisor has .*own storm\.local\.dir"):
        LocalState(tmp_path / "localstate")
    state.close()
    LocalState(tmp_path / "localstate").close()


def test_what_a_supervisor_has_started_does_not_keep_the_folder(state, tmp_path):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as worker:
        state.close()
        LocalState(tmp_path / "localstate").close()
        worker.kill()


def test_a_supervisor_that_is_killed_leaves_the_folder(tmp_path):
    program = (
        "import os, sys; from pathlib import Path\n"
        "from stormkeeper.supervisor.disk import LocalState\n"
        "state = LocalState(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == -9
    LocalState(tmp_path).close()


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SupervisorError, match=r"set storm\.local\.dir"):
        LocalState(tmp_path / "file")


class TestId:
    FORM = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}-127\.0\.0\.1"

    def test_it_is_a_uuid_and_the_address_and_stays(self, state, tmp_path):
        first = state.supervisor_id("127.0.0.1")
        assert re.fullmatch(self.FORM, first)
        assert state.supervisor_id("10.0.0.7") == first
        with LocalState(tmp_path / "another") as another:
            assert another.supervisor_id("127.0.0.1") != first

    @pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"sup-1", b"../../etc\n", b"{}"])
    def test_what_is_none_is_put_aside(self, state, file, content, caplog):
        path = file.with_name("supervisor-id")
        path.write_bytes(content)
        new = state.supervisor_id("127.0.0.1")
        assert re.fullmatch(self.FORM, new)
        assert "is no supervisor's id" in caplog.text
        assert file.with_name("supervisor-id.unreadable").read_bytes() == content
        assert state.supervisor_id("127.0.0.1") == new


class TestStarts:
    def test_each_number_is_greater_than_those_before_whoever_asks(self, state, tmp_path):
        first = state.next_start()
        assert [state.next_start(), state.next_start()] == [first + 1, first + 2]
        state.close()
        with LocalState(tmp_path / "localstate") as another:
            assert another.next_start() == first + 3

    def test_number_of_an_older_supervisor_counts(self, state, file):
        file.with_name("starts").write_text("1700000000 0c7e1a33\n")
        assert state.next_start() == 1700000001

    @pytest.mark.parametrize("content", [b"", b"x", b"-4", b"1 2"])
    def test_where_it_was_lost_it_is_one_that_no_count_comes_to(self, state, file, content):
        first = state.next_start()
        file.with_name("starts").write_bytes(content)
        assert state.next_start() >= first


class TestFromOutside:
    def test_what_was_saved_is_read_and_nothing_is_changed(self, state, file):
        assert saved_slots(file.parent) == {}
        state.save(SLOTS)
        assert saved_slots(file.parent) == SLOTS
        file.write_bytes(b"{")
        assert saved_slots(file.parent) == {}
        assert file.read_bytes() == b"{"

    def test_workers_of_before_the_machines_restart_are_none(self, state, file, monkeypatch):
        state.save(SLOTS)
        monkeypatch.setattr(process_table, "boot_id", lambda: "another")
        assert saved_slots(file.parent) == {}

    def test_whether_a_supervisor_runs(self, state, tmp_path):
        assert is_locked(tmp_path / "localstate")
        state.close()
        assert not is_locked(tmp_path / "localstate")
        assert not is_locked(tmp_path / "nowhere")


def test_the_form_of_the_file(state, file):
    """Fields with defaults may be added; other changes need another version."""
    state.save({6700: SLOTS[6700]})
    work = {
        "storm_id": "counts-1-1",
        "claims": {"out": "1-1-a"},
        "memory_bytes": 2**30,
        "restart": "never",
        "crashes": None,
    }
    worker = {"worker_id": "w1", "assignment": work, "process": {"pid": 47, "started": 11}}
    slot = {"wanted": work, "worker": worker, "crashes": 3, "outcome": None, "crashing_since": 0}
    assert json.loads(file.read_bytes()) == {
        "version": 1,
        "boot": process_table.boot_id(),
        "slots": {"6700": slot},
    }
