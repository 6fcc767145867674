import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stormkeeper.errors import TableError
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.tables import Origin, SnapshotTable, current_path


def rows(*values):
    return pa.table({"x": pa.array(values, pa.int64())})


def origin(batch, query="q"):
    return Origin(query, batch)


def snapshots(directory):
    return sorted(entry.name for entry in directory.iterdir())


def test_the_newest_snapshot_is_the_table(tmp_path):
    table = SnapshotTable(tmp_path / "liveness")
    assert table.read() is None
    assert current_path(tmp_path, "liveness") is None
    table.write(rows(1, 2), origin(0))
    place = table.write(rows(3), origin(1))
    assert place.name == "batch=000000000001"
    assert table.read().to_pydict() == {"x": [3]}
    assert pq.read_table(current_path(tmp_path, "liveness"), partitioning=None).to_pydict() == {
        "x": [3]
    }
    assert snapshots(tmp_path / "liveness") == ["batch=000000000000", "batch=000000000001"]


def test_a_table_without_rows_is_a_table(tmp_path):
    SnapshotTable(tmp_path / "t").write(rows(), origin(0))
    assert SnapshotTable(tmp_path / "t").read().num_rows == 0
    assert pq.read_metadata(current_path(tmp_path, "t")).num_rows == 0


def test_the_newest_snapshot_knows_its_micro_batch(tmp_path):
    table = SnapshotTable(tmp_path)
    assert not table.has(origin(0))
    table.write(rows(1), origin(0))
    assert table.has(origin(0))
    assert not table.has(origin(1))
    assert not table.has(origin(0, "another query"))
    table.write(rows(1), origin(1))
    assert not table.has(origin(0))


def test_a_query_that_begins_anew_goes_on_in_the_same_table(tmp_path):
    """Its checkpoint was deleted: Spark counts its batches from 0 again."""
    table = SnapshotTable(tmp_path)
    for number in range(3):
        table.write(rows(number), origin(number))
    table.write(rows(7), origin(0, "another query"))
    assert table.read().to_pydict() == {"x": [7]}


def test_what_a_killed_writer_left_is_no_snapshot_and_goes(tmp_path):
    table = SnapshotTable(tmp_path)
    table.write(rows(1), origin(0))
    aside = tmp_path / ".batch=000000000001"
    aside.mkdir()
    (aside / "part-0.parquet").write_bytes(b"half a fi")
    assert table.read().to_pydict() == {"x": [1]}
    table.write(rows(2), origin(1))
    assert table.read().to_pydict() == {"x": [2]}
    assert snapshots(tmp_path) == ["batch=000000000000", "batch=000000000001"]


def test_old_snapshots_go_when_there_are_enough_newer_ones(tmp_path):
    now = [1000.0]
    table = SnapshotTable(tmp_path, keep=3, keep_secs=60, clock=lambda: now[0])
    for number in range(8):
        now[0] += 10
        place = table.write(rows(number), origin(number))
        os.utime(place, (now[0], now[0]))
    # Batch 0 is followed by one 60 s old at the end: too young for it to go.
    assert snapshots(tmp_path) == [f"batch={number:012d}" for number in range(8)]
    now[0] += 1000
    place = table.write(rows(8), origin(8))
    os.utime(place, (now[0], now[0]))
    assert snapshots(tmp_path) == [f"batch={number:012d}" for number in (6, 7, 8)]


def test_a_snapshot_stays_for_a_while_after_it_is_superseded_however_old_it_is(tmp_path):
    table = SnapshotTable(tmp_path, keep=1, keep_secs=60)
    os.utime(table.write(rows(1), origin(0)), (1000, 1000))
    table.write(rows(2), origin(1))
    # Until a moment ago batch 0 was the table: somebody may be reading it.
    assert snapshots(tmp_path) == ["batch=000000000000", "batch=000000000001"]


def test_a_second_writer_is_noticed(tmp_path, monkeypatch):
    table = SnapshotTable(tmp_path)
    table.write(rows(1), origin(0))
    seen = tables._snapshots(tmp_path)
    table.write(rows(2), origin(1))
    monkeypatch.setattr(tables, "_snapshots", lambda _: seen)  # what a slower writer listed
    with pytest.raises(TableError, match="another pipeline writes to"):
        SnapshotTable(tmp_path).write(rows(3), origin(0, "another query"))
    monkeypatch.undo()
    assert table.read().to_pydict() == {"x": [2]}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_what_the_file_system_refuses_is_not_taken_for_a_second_writer(
    tmp_path, monkeypatch, number
):
    def refuse(aside, target):
        raise OSError(number, os.strerror(number), str(aside), None, str(target))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(TableError, match=os.strerror(number)) as raised:
        SnapshotTable(tmp_path).write(rows(1), origin(0))
    assert "another pipeline" not in str(raised.value)


@pytest.mark.spark
def test_a_second_pipeline_is_refused_until_the_first_has_ended(tmp_path):
    with (
        tables.sole_writer(tmp_path / "tables"),
        pytest.raises(TableError, match=r"another pipeline writes to .*pipeline.checkpoint.dir"),
        tables.sole_writer(tmp_path / "tables"),
    ):
        pass
    with tables.sole_writer(tmp_path / "tables"):
        pass


def test_spark_reads_the_present_rows(spark, tmp_path):
    with pytest.raises(TableError, match="no table 'liveness'"):
        tables.current(spark, tmp_path, "liveness")
    table = SnapshotTable(tmp_path / "liveness")
    table.write(rows(1), origin(0))
    table.write(rows(2, 3), origin(1))
    df = tables.current(spark, tmp_path, "liveness")
    assert [row.x for row in df.collect()] == [2, 3]
    history = spark.read.parquet(str(tmp_path / "liveness"))  # all snapshots, by batch
    assert sorted((row.batch, row.x) for row in history.collect()) == [(0, 1), (1, 2), (1, 3)]
