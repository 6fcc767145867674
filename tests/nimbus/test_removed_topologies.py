"""Which topologies a Nimbus has removed."""

import logging

import pytest

from stormkeeper.nimbus import cleanup
from stormkeeper.nimbus.cleanup import REMEMBERED_SECS, RemovedTopologies


class Clock:
    secs = 1_700_000_000.0

    def __call__(self):
        return self.secs


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "nimbus" / "history.json"


def test_what_was_removed_is_known_after_a_restart_by_its_owner(file, clock):
    kept = RemovedTopologies(file, clock)
    assert kept.ids(None) == []
    for storm_id, owner in (("a-1-1", "ann"), ("b-2-1", "bob"), ("c-3-1", None), ("b-2-1", "bob")):
        kept.record(storm_id, owner)
    for one in (kept, RemovedTopologies(file, clock)):
        assert one.ids("ann") == ["a-1-1"]
        assert one.ids(None) == one.ids("") == ["a-1-1", "c-3-1", "b-2-1"]


def test_what_is_old_is_forgotten_and_so_is_what_is_too_much(file, clock, monkeypatch):
    kept = RemovedTopologies(file, clock)
    kept.record("old-1-1", "ann")
    clock.secs += REMEMBERED_SECS
    assert kept.ids("ann") == ["old-1-1"]
    clock.secs += 1
    assert kept.ids("ann") == []
    monkeypatch.setattr(cleanup, "MOST_REMOVED", 2)
    for number in range(3):
        kept.record(f"t-{number}-1", "ann")
    assert RemovedTopologies(file, clock).ids("ann") == ["t-1-1", "t-2-1"]


def test_damaged_or_unwritable_file_is_only_logged(file, clock, caplog):
    file.parent.mkdir()
    file.write_bytes(b"[{]")
    kept = RemovedTopologies(file, clock)
    assert "starts empty" in caplog.text
    file.unlink()
    file.mkdir()
    with caplog.at_level(logging.WARNING):
        kept.record("a-1-1", "ann")
    assert "cannot be written" in caplog.text
    assert kept.ids("ann") == ["a-1-1"]
