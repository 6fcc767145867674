import contextlib
import errno
import itertools
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stormkeeper.errors import TableError
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.tables import Origin, SnapshotTables, current_path, newest_batch


def rows(*values):
    return pa.table({"x": pa.array(values, pa.int64())})


NAMES = ("liveness", "component_statistics", "servers")


def both(*values):
    return {name: rows(*values) for name in NAMES}


def origin(batch, query="q"):
    return Origin(query, batch)


def batches(directory):
    return sorted(entry.name for entry in directory.iterdir())


def present(directory):
    """Return the values of every table, as `both` takes them."""
    read = SnapshotTables(directory).read
    (values,) = {tuple(read(name)["x"].to_pylist()) for name in NAMES}
    return list(values)


def test_the_newest_batch_is_the_tables(tmp_path):
    snapshots = SnapshotTables(tmp_path / "tables")
    assert snapshots.read("liveness") is None
    assert current_path(tmp_path / "tables", "liveness") is None
    assert newest_batch(tmp_path / "tables") is None
    snapshots.publish({"liveness": rows(1, 2), "component_statistics": rows(7)}, origin(0))
    place = snapshots.publish({"liveness": rows(3), "component_statistics": rows(8)}, origin(1))
    assert place == newest_batch(tmp_path / "tables")
    assert snapshots.read("liveness").to_pydict() == {"x": [3]}
    assert snapshots.read("component_statistics").to_pydict() == {"x": [8]}
    newest = current_path(tmp_path / "tables", "liveness")
    assert newest == place / "liveness.parquet"
    assert pq.read_table(newest, partitioning=None).to_pydict() == {"x": [3]}
    assert current_path(tmp_path / "tables", "of another version") is None
    assert batches(tmp_path / "tables") == ["batch=000000000000", "batch=000000000001"]


def test_a_table_says_how_often_it_is_made(tmp_path):
    place = SnapshotTables(tmp_path, interval_secs=7.5).publish(both(), origin(0))
    said = {pq.read_schema(file).metadata[b"interval_secs"] for file in place.iterdir()}
    assert said == {b"7.5"}


def test_a_table_without_rows_is_a_table(tmp_path):
    SnapshotTables(tmp_path).publish(both(), origin(0))
    assert present(tmp_path) == []
    assert pq.read_metadata(current_path(tmp_path, "liveness")).num_rows == 0


def test_the_newest_batch_knows_its_micro_batch(tmp_path):
    snapshots = SnapshotTables(tmp_path)
    assert not snapshots.has(origin(0))
    snapshots.publish(both(1), origin(0))
    assert snapshots.has(origin(0))
    assert not snapshots.has(origin(1))
    assert not snapshots.has(origin(0, "another query"))
    snapshots.publish(both(1), origin(1))
    assert not snapshots.has(origin(0))


def test_a_query_that_begins_anew_goes_on_in_the_same_tables(tmp_path):
    """Its checkpoint was deleted: Spark counts its batches from 0 again."""
    snapshots = SnapshotTables(tmp_path)
    for number in range(3):
        snapshots.publish(both(number), origin(number))
    snapshots.publish(both(7), origin(0, "another query"))
    assert present(tmp_path) == [7]


class Killed(BaseException):
    """Stands for the end of the process, which no handler of the code under test sees."""


@contextlib.contextmanager
def killed_at(directory, call):
    """End the writer at its `call`-th call of the file system below the directory."""
    calls, active = itertools.count(), [True]

    def hook(event, arguments):
        of_tables = active[0] and any(str(directory) in str(part) for part in arguments[:2])
        if event in ("open", "os.mkdir", "os.rename", "os.rmdir") and of_tables:
            # What is opened to be read is no step of the writer's.
            if event == "open" and "w" not in str(arguments[1]):
                return
            if next(calls) == call:
                active[0] = False
                raise Killed

    sys.addaudithook(hook)
    try:
        yield
    finally:
        active[0] = False


def test_a_writer_killed_at_any_call_leaves_all_tables_of_a_batch_or_none(tmp_path):
    outcomes = []
    for call in itertools.count():
        directory = tmp_path / str(call)
        snapshots = SnapshotTables(directory, keep=1, keep_secs=-1)
        snapshots.publish(both(1), origin(0))
        try:
            with killed_at(directory, call):
                snapshots.publish(both(2), origin(1))
        except Killed:
            for name in sorted(directory.glob("batch=*")):
                assert {path.name for path in name.iterdir()} == {f"{n}.parquet" for n in both()}
            (value,) = present(directory)
            outcomes.append(value)
            again = SnapshotTables(directory)
            assert again.has(origin(1)) == (value == 2)
            if not again.has(origin(1)):
                again.publish(both(3), origin(1))  # read anew, it has other rows
                assert present(directory) == [3]
            again.publish(both(4), origin(2))
            assert not [name for name in batches(directory) if not name.startswith("batch=")]
        else:
            break
    # It was cut off at each of the steps before the publication, and after it.
    assert outcomes.count(1) >= 4
    assert outcomes.count(2) >= 2
    assert outcomes == sorted(outcomes)


def test_what_a_killed_writer_left_is_no_batch_and_goes(tmp_path):
    snapshots = SnapshotTables(tmp_path)
    snapshots.publish(both(1), origin(0))
    for number in (0, 1, 7):
        aside = tmp_path / f".batch={number:012d}"
        aside.mkdir()
        (aside / "liveness.parquet").write_bytes(b"half a fi")
    assert present(tmp_path) == [1]
    snapshots.publish(both(2), origin(1))
    assert present(tmp_path) == [2]
    assert batches(tmp_path) == ["batch=000000000000", "batch=000000000001"]


def test_old_batches_go_when_there_are_enough_newer_ones(tmp_path):
    now = [1000.0]
    snapshots = SnapshotTables(tmp_path, keep=3, keep_secs=60, clock=lambda: now[0])
    for number in range(8):
        now[0] += 10
        place = snapshots.publish(both(number), origin(number))
        os.utime(place, (now[0], now[0]))
    # Batch 0 is followed by one 60 s old at the end: too young for it to go.
    assert batches(tmp_path) == [f"batch={number:012d}" for number in range(8)]
    now[0] += 1000
    place = snapshots.publish(both(8), origin(8))
    os.utime(place, (now[0], now[0]))
    assert batches(tmp_path) == [f"batch={number:012d}" for number in (6, 7, 8)]


def test_a_batch_stays_for_a_while_after_it_is_superseded_however_old_it_is(tmp_path):
    snapshots = SnapshotTables(tmp_path, keep=1, keep_secs=60)
    os.utime(snapshots.publish(both(1), origin(0)), (1000, 1000))
    snapshots.publish(both(2), origin(1))
    # Until a moment ago batch 0 was the present: somebody may be reading it.
    assert batches(tmp_path) == ["batch=000000000000", "batch=000000000001"]


def test_a_second_writer_is_noticed(tmp_path, monkeypatch):
    snapshots = SnapshotTables(tmp_path)
    snapshots.publish(both(1), origin(0))
    seen = tables._batches(tmp_path)
    snapshots.publish(both(2), origin(1))
    monkeypatch.setattr(tables, "_batches", lambda _: seen)  # what a slower writer listed
    with pytest.raises(TableError, match=r"another pipeline writes to .*pipeline.checkpoint.dir"):
        SnapshotTables(tmp_path).publish(both(3), origin(0, "another query"))
    monkeypatch.undo()
    assert present(tmp_path) == [2]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make space there, or set pipeline.tables.dir"),
        (errno.EDQUOT, "make space there, or set pipeline.tables.dir"),
        (errno.EACCES, "set pipeline.tables.dir to a folder that this user may write to"),
    ],
)
@pytest.mark.parametrize(
    ("place", "call"),
    [(Path, "mkdir"), (Path, "open"), (pq, "write_table"), (os, "fsync"), (Path, "rename")],
)
def test_what_the_file_system_refuses_is_not_taken_for_a_second_writer(
    tmp_path, monkeypatch, place, call, number, remedy
):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(place, call, refuse)
    with pytest.raises(TableError, match=os.strerror(number)) as raised:
        SnapshotTables(tmp_path).publish(both(1), origin(0))
    assert remedy in str(raised.value)
    assert "another pipeline" not in str(raised.value)
    monkeypatch.undo()
    SnapshotTables(tmp_path).publish(both(2), origin(0))
    assert present(tmp_path) == [2]


@pytest.mark.parametrize("another", [False, True], ids=["gone", "another in its place"])
def test_a_folder_that_was_moved_is_not_begun_anew(tmp_path, another):
    directory, moved = tmp_path / "tables", tmp_path / "moved"
    directory.mkdir()
    snapshots = SnapshotTables(directory)
    snapshots.publish(both(1), origin(0))
    directory.rename(moved)
    if another:
        directory.mkdir()
    with pytest.raises(
        TableError, match="remove or rename what is there now, move the folder back"
    ):
        snapshots.publish(both(2), origin(1))
    assert newest_batch(directory) is None
    assert present(moved) == [1]
    if another:
        directory.rmdir()
    moved.rename(directory)
    snapshots.publish(both(2), origin(1))
    assert present(directory) == [2]


def test_a_clock_that_was_set_back_keeps_no_batch_for_ever(tmp_path):
    now = [1e9]
    snapshots = SnapshotTables(tmp_path, keep=1, keep_secs=60, clock=lambda: now[0])
    for number in range(3):
        os.utime(snapshots.publish(both(number), origin(number)), (2e9, 2e9))
    # They may be read at this moment, as nobody knows how old they are; a minute later they go.
    snapshots.publish(both(3), origin(3))
    assert len(batches(tmp_path)) == 4
    now[0] += 61
    place = snapshots.publish(both(4), origin(4))
    assert batches(tmp_path) == ["batch=000000000003", place.name]


@pytest.mark.parametrize("name", ["batch=41.keep", "batch=", "batch=old", "batch=7_0"])
def test_what_somebody_else_put_there_is_no_batch(tmp_path, name):
    snapshots = SnapshotTables(tmp_path)
    (tmp_path / name).mkdir()
    assert newest_batch(tmp_path) is None
    assert snapshots.publish(both(1), origin(0)).name == "batch=000000000000"
    assert present(tmp_path) == [1]
    assert (tmp_path / name).is_dir()


def test_a_second_pipeline_is_refused_until_the_first_has_ended(tmp_path):
    with (
        tables.sole_writer(tmp_path / "tables"),
        pytest.raises(TableError, match=r"another pipeline writes to .*pipeline.checkpoint.dir"),
        tables.sole_writer(tmp_path / "tables"),
    ):
        pass
    with tables.sole_writer(tmp_path / "tables"):
        pass


@pytest.mark.spark
def test_spark_reads_the_present_rows(spark, tmp_path):
    with pytest.raises(TableError, match="no table 'liveness'"):
        tables.current(spark, tmp_path, "liveness")
    snapshots = SnapshotTables(tmp_path)
    snapshots.publish(both(1), origin(0))
    snapshots.publish(both(2, 3), origin(1))
    df = tables.current(spark, tmp_path, "liveness")
    assert [row.x for row in df.collect()] == [2, 3]
    # All batches of a table, by number
    history = spark.read.option("pathGlobFilter", "liveness.parquet").parquet(str(tmp_path))
    assert sorted((row.batch, row.x) for row in history.collect()) == [(0, 1), (1, 2), (1, 3)]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["a[b]", "a{b,c}", "a*b?", "a b%20", "a\\b"])
def test_spark_takes_a_folders_name_as_it_is(spark, tmp_path, name):
    SnapshotTables(tmp_path / name).publish(both(1), origin(0))
    assert [row.x for row in tables.current(spark, tmp_path / name, "liveness").collect()] == [1]
