import json
import logging
import socket

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import StormkeeperError, TableError
from stormkeeper.history.manifest import Origin
from stormkeeper.history.parquet import TableSpec
from stormkeeper.history.table_store import TableStore
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import process, queries, tables
from stormkeeper.pipeline.status import StatusTracker
from stormkeeper.pipeline.table_columns import SERVERS
from support.heartbeats import heartbeat, path
from support.tables import present
from support.waiting import until

QUERY = "2c0f"


def noted(place, *done, query=QUERY):
    """Lay down what Spark has in a checkpoint once these micro-batches are done."""
    (place / "commits").mkdir(parents=True)
    (place / "offsets").mkdir()
    (place / "metadata").write_text(json.dumps({"id": query}))
    for number in done:
        (place / "offsets" / str(number)).write_text("v1\n{}\n{}")
        (place / "commits" / str(number)).write_text("v1\n{}")
        (place / "commits" / f".{number}.crc").write_text("")
    return place


def published(directory, number, query=QUERY):
    spec = TableSpec(tables.SERVERS, SERVERS, "current")
    with TableStore(directory, [spec], interval_secs=5) as store:
        store.publish(Origin(query, number), {tables.SERVERS: SERVERS.empty_table()})
    return directory


@pytest.mark.parametrize("newest", [9, 10, 11])
def test_what_belongs_together_is_left_alone(tmp_path, newest):
    for batch in range(newest - 1, newest + 1):
        published(tmp_path, batch)
    place = noted(tables.default_checkpoint(tmp_path), 8, 9)
    tables.prepare_checkpoint(place, tmp_path)
    assert (place / "metadata").exists()


@pytest.mark.parametrize("batches", [0, 1])
def test_checkpoint_without_a_done_batch_fits_any_tables(tmp_path, batches):
    """As the one of a pipeline that ended in its first batch."""
    for _ in range(batches):
        published(tmp_path, 5, "another query")
    place = noted(tmp_path / "elsewhere")
    tables.prepare_checkpoint(place, tmp_path)
    assert (place / "metadata").exists()
    tables.prepare_checkpoint(tmp_path / "new", tmp_path)


def test_remains_after_the_folder_was_moved_are_no_checkpoint(tmp_path):
    place = tables.default_checkpoint(tmp_path)
    (place / "offsets").mkdir(parents=True)
    tables.prepare_checkpoint(place, tmp_path)
    assert place.exists()
    (place / "offsets" / "3").write_text("v1\n{}")
    tables.prepare_checkpoint(place, tmp_path)
    assert not place.exists()


def parted(directory, how):
    if how == "restored":
        published(directory, 8)
    elif how == "another's":
        published(directory, 9, "another query")


@pytest.mark.parametrize("how", ["emptied", "restored", "another's"])
def test_tables_without_their_checkpoint_begin_anew(tmp_path, caplog, how):
    caplog.set_level(logging.WARNING, "stormkeeper.pipeline.tables")
    parted(tmp_path, how)
    place = noted(tables.default_checkpoint(tmp_path), 9)
    (tmp_path / ".checkpoint.old" / "commits").mkdir(parents=True)  # by a start that was killed
    tables.prepare_checkpoint(place, tmp_path)
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".checkpoint")]
    (line,) = caplog.messages
    assert "the Pacemakers are read from their beginning" in line
    tables.prepare_checkpoint(place, tmp_path)
    assert caplog.messages == [line]


@pytest.mark.parametrize("how", ["emptied", "restored", "another's"])
def test_a_checkpoint_that_is_configured_is_refused_and_stays(tmp_path, how):
    directory = tmp_path / "tables"
    parted(directory, how)
    place = noted(tmp_path / "place", 9)
    with pytest.raises(
        TableError, match=r"pipeline\.checkpoint\.dir, .* set pipeline\.tables\.dir"
    ):
        tables.prepare_checkpoint(place, directory)
    assert (place / "commits" / "9").exists()


@pytest.mark.parametrize("log", ["offsets", "commits"])
@pytest.mark.parametrize("left", [b"", bytes(20)])
def test_what_a_power_failure_left_begins_anew(tmp_path, caplog, log, left):
    caplog.set_level(logging.WARNING, "stormkeeper.pipeline.tables")
    place = noted(tables.default_checkpoint(published(tmp_path, 10)), 9, 10)
    (place / log / "10").write_bytes(left)
    tables.prepare_checkpoint(place, tmp_path)
    assert not place.exists()
    (line,) = caplog.messages
    assert f"{log}/10 was not written whole" in line
    configured = noted(tmp_path / "place", 10)
    (configured / log / "10").write_bytes(left)
    with pytest.raises(TableError, match=f"{log}/10 was not written whole, .*: delete the checkp"):
        tables.prepare_checkpoint(configured, tmp_path)


def test_what_cannot_be_read_is_said(tmp_path):
    place = noted(tables.default_checkpoint(published(tmp_path, 9)), 9)
    (tmp_path / "manifest.json").write_bytes(b"garbage")
    with pytest.raises(TableError, match="is damaged"):
        tables.prepare_checkpoint(place, tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(TableError, match="cannot be used"):
        tables.prepare_checkpoint(place, tmp_path)


def places(**given):
    return defaults().with_values({f"pipeline.{key}.dir": str(at) for key, at in given.items()})


def test_two_pipelines_share_neither_tables_nor_checkpoint(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    with process._places(places(tables=a, checkpoint=c)):
        for conf in places(tables=a), places(tables=b, checkpoint=c):
            with (
                pytest.raises(
                    TableError,
                    match=r"give each its own pipeline\.tables\.dir .* pipeline\.checkpoint\.dir",
                ),
                process._places(conf),
            ):
                pass
        with process._places(places(tables=b)):
            pass
    with process._places(places(tables=a, checkpoint=a)):
        pass


def test_a_refused_pipeline_makes_no_folder(tmp_path):
    place = tmp_path / "place"
    noted(place / "statistics", 9)
    before = set(tmp_path.rglob("*"))
    with (
        pytest.raises(TableError, match="does not belong to"),
        process._places(places(tables=tmp_path / "tables", checkpoint=place)),
    ):
        pass
    assert set(tmp_path.rglob("*")) == before


def test_a_pipeline_whose_port_is_taken_makes_no_folder(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        conf = places(tables=tmp_path / "tables")
        conf = conf.with_values({"pipeline.metrics.port": taken.getsockname()[1]})
        with pytest.raises(StormkeeperError, match="to another port, or to 0"):
            process._prepared(conf, [], StatusTracker()).__enter__()
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("another", [False, True], ids=["gone", "another in its place"])
def test_folder_moved_while_spark_starts_is_not_recreated(tmp_path, another):
    conf = places(tables=tmp_path / "tables")
    with process._places(conf) as places_held:
        (tmp_path / "tables").rename(tmp_path / "moved")
        if another:
            (tmp_path / "tables").mkdir()
        with pytest.raises(TableError, match="was moved or removed"):
            list(queries.start(None, conf, [], places_held))  # before it asks anything of Spark
        assert list(tmp_path.glob("tables/*")) == []


@pytest.mark.slow
@pytest.mark.spark
def test_who_is_silent_is_in_tables_whose_checkpoint_is_lost(spark, pacemaker, tmp_path):
    """What Spark really has in a checkpoint, and names its queries by."""
    conf = places(tables=tmp_path).with_values(
        {"pipeline.trigger.secs": 2, "pipeline.statistics.secs": 2}
    )

    def run():
        with process._places(conf) as held:
            running = []
            try:
                for query in queries.start(spark, conf, [pacemaker.address], held):
                    # Two that make their sources at once fail.
                    assert all(not of.status["message"].startswith("Init") for of in running)
                    running.append(query)
                until(lambda: all(query.lastProgress is not None for query in running))
                return [query.id for query in running]
            finally:
                process._stop_between_batches(running)

    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("silent"), heartbeat("silent"))
    first = run()
    assert run() == first
    (tmp_path / "liveness" / "manifest.json").unlink()
    liveness, statistics = run()
    assert liveness != first[0]
    assert statistics == first[1]  # whose tables are as they were
    for query, name in (
        ("liveness", tables.WORKER_LIVENESS),
        ("statistics", tables.WORKER_REPORTS),
    ):
        assert [row["storm_id"] for row in present(tmp_path / query, name)] == ["silent"]
    noted = tmp_path / "statistics" / ".checkpoint" / "offsets"
    newest = max((path for path in noted.iterdir() if path.name.isdecimal()), key=batch_of)
    newest.write_bytes(b"")  # as a power failure may leave it; Spark refuses to go on with that
    again, anew = run()
    assert again == liveness
    assert anew != statistics
    (row,) = present(tmp_path / "statistics", tables.WORKER_REPORTS)
    assert row["storm_id"] == "silent"


def batch_of(noted):
    return int(noted.name)
