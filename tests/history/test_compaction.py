import random
import threading
from datetime import timedelta

import pytest

from stormkeeper.history import compaction, manifest
from stormkeeper.history.compaction import MAX_BYTES, MAX_ROWS, files_to_keep, plan
from stormkeeper.history.manifest import DataFile, Entry, Manifest, Origin
from stormkeeper.history.parquet import Retention
from stormkeeper.history.table_reader import Tables
from support.disks import room_for
from support.tables import EVENTS, SHORT, at, data_files, events, origin, store, values

NO_END = Retention()


def file(number, rows=10, size=1000, level=0, secs=15):
    return DataFile(str(number), rows, size, at(number * secs), at(number * secs), level)


def test_a_full_group_of_a_level_becomes_one():
    assert plan([file(n) for n in range(15)], NO_END) == []
    assert plan([file(n) for n in range(33)], NO_END) == [
        [file(n) for n in range(16)],
        [file(n) for n in range(16, 32)],
    ]
    mixed = [file(0, level=1), *(file(n) for n in range(1, 16))]
    assert plan(mixed, NO_END) == []


@pytest.mark.parametrize(
    ("size", "retention"),
    [
        ({"rows": MAX_ROWS // 3}, NO_END),
        ({"size": MAX_BYTES // 3}, NO_END),
        ({"size": 1 << 20}, Retention(mb=24)),
        ({"secs": 225}, Retention(hours=1)),
    ],
)
def test_a_group_is_full_when_the_next_file_would_be_too_much(size, retention):
    files = [file(n, **size) for n in range(5)]
    assert plan(files, retention) == [files[:3]]


def test_a_file_that_is_large_enough_is_left_alone():
    files = [file(0, rows=MAX_ROWS), file(1), file(2, rows=MAX_ROWS), file(3)]
    assert plan(files, NO_END) == []


@pytest.mark.parametrize("hours", [99_999_999, 2**31 - 1])
def test_what_is_kept_longer_than_there_are_dates_is_kept(hours):
    files = [file(number, 1, 1) for number in range(3)]
    assert files_to_keep(files, Retention(hours=hours), at(86_400)) == files


@pytest.mark.parametrize(
    ("rows", "size", "hours"), [(10, 2000, None), (10, 2000, 1), (2400, 40_000, 24)]
)
def test_the_files_of_a_day_are_few(rows, size, hours):
    """A commit every 15 s: the bound that `plan` states, at every moment, and a small manifest."""
    retention = Retention(hours=hours)
    days = 5760 if hours is None else 60 * 4 * hours
    per_file = max(rows * days / MAX_ROWS, size * days / MAX_BYTES)
    files, most = [], 0
    for number in range(5760):
        files = files_to_keep([*files, file(number, rows, size)], retention, at(15 * number))
        for group in plan(files, retention):
            place = files.index(group[0])
            merged = DataFile(
                f"m{group[0].path}",
                sum(one.rows for one in group),
                sum(one.bytes for one in group),
                group[0].earliest,
                group[-1].latest,
                group[0].level + 1,
            )
            files = [one for one in files if one not in group]
            files.insert(place, merged)
        levels = 1 + max(one.level for one in files)
        assert len(files) <= 15 * levels + 2 * (per_file + (0 if hours is None else 9))
        most = max(most, len(files))
    assert most <= 60
    entry = Entry("log", "at", 1, EVENTS.columns, files)
    whole = Manifest(
        1, 5760, Origin("q" * 36, 5760), at(0), 15.0, {f"t{n}": entry for n in range(10)}
    )
    assert len(manifest.msgspec.json.encode(whole)) < 100_000
    if hours is not None:
        span = at(15 * 5759) - min(one.earliest for one in files)
        assert span <= timedelta(hours=hours) * 1.125 + timedelta(seconds=15)


def test_merged_files_have_the_same_rows(tmp_path):
    with store(tmp_path, fan_in=4, keep_secs=-1) as tables:
        for number in range(21):
            tables.publish(origin(number), {"events": events(number)})
            assert tables.settle(60)
            assert values(tmp_path, "events") == list(range(number + 1))
        tables.publish(origin(21), {})
        levels = [one.level for one in Tables(tmp_path).manifest.tables["events"].files]
        assert levels == [2, 1, 0]
        assert Tables(tmp_path).arrow("events")["subject"].to_pylist()[:16] == sorted(
            str(n % 3) for n in range(16)
        )
        assert data_files(tmp_path) == Tables(tmp_path).manifest.paths


@pytest.fixture
def held(monkeypatch):
    """Holds merges until it is set."""
    go_on, read = threading.Event(), compaction.parquet.read

    def wait(*arguments, **settings):
        if threading.current_thread().name == "compaction":
            assert go_on.wait(60)
        return read(*arguments, **settings)

    monkeypatch.setattr(compaction.parquet, "read", wait)
    return go_on


def test_a_merge_of_what_has_gone_meanwhile_is_not_used(tmp_path, held):
    now = [at(0).timestamp()]
    with store(tmp_path, SHORT, fan_in=2, keep_secs=60, clock=lambda: now[0]) as tables:
        tables.publish(origin(0), {"short": events(0)})
        tables.publish(origin(1), {"short": events(300)})
        now[0] += 3601
        tables.publish(origin(2), {})
        held.set()
        assert tables.settle(60)
        assert len(data_files(tmp_path)) == 3
        tables.publish(origin(3), {})
        assert values(tmp_path, "short") == [300]
        for number in (4, 5):
            now[0] += 61
            tables.publish(origin(number), {})
        assert data_files(tmp_path) == Tables(tmp_path).manifest.paths


def test_commits_do_not_wait_for_a_merge(tmp_path, held):
    with store(tmp_path, fan_in=2) as tables:
        for number in range(8):
            tables.publish(origin(number), {"events": events(number)})
        assert not tables.settle(0)
        held.set()
        assert tables.settle(60)
        tables.publish(origin(8), {})
        assert values(tmp_path, "events") == list(range(8))
        assert len(Tables(tmp_path).files("events")) == 7


def test_a_merge_that_fails_leaves_all_as_it_is(tmp_path, caplog, monkeypatch):
    numbers = random.Random(0).sample(range(10**7), 1000)
    with store(tmp_path, fan_in=2) as tables:
        tables.publish(origin(0), {"events": events(*numbers[:500])})
        with room_for(9000):
            tables.publish(origin(1), {"events": events(*numbers[500:])})
            assert tables.settle(60)
        assert "files of the table events could not be merged" in caplog.text
        assert data_files(tmp_path) == Tables(tmp_path).manifest.paths
        tables.publish(origin(2), {})
        assert values(tmp_path, "events") == sorted(numbers)
        monkeypatch.setattr(compaction.time, "monotonic", lambda: float("inf"))
        tables.publish(origin(3), {})
        monkeypatch.undo()
        assert tables.settle(60)
        tables.publish(origin(4), {})
        assert values(tmp_path, "events") == sorted(numbers)
        assert len(Tables(tmp_path).files("events")) == 1
