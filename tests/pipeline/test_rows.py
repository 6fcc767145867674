import datetime as dt

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from support.heartbeats import change_of, page_of

AT = dt.datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)


def test_the_arrow_schema_is_the_one_that_spark_expects():
    assert to_arrow_schema(from_arrow_schema(rows.SCHEMA), timezone="UTC") == rows.SCHEMA


def test_a_reading_has_its_age_and_the_time_of_its_receipt():
    page = page_of(
        "x", [change_of("/p", b"d", 7, 1.5), change_of("/q", None, 8, 0.25)], AT.timestamp()
    )
    pulse, tombstone = rows.page_rows("a:1", [page]).to_pylist()
    assert pulse == {
        "kind": "pulse",
        "server": "a:1",
        "instance": "x",
        "path": "/p",
        "revision": 7,
        "age_secs": 1.5,
        "received_at": AT - dt.timedelta(seconds=1.5),
        "read_at": AT,
        "details": b"d",
        "health": None,
    }
    assert (tombstone["kind"], tombstone["details"]) == ("tombstone", None)


def test_what_a_java_pacemaker_does_not_tell_is_null():
    page = page_of(WITHOUT_REVISIONS, [change_of("/p", b"d")], AT.timestamp())
    (row,) = rows.page_rows("a:1", [page]).to_pylist()
    unknown = ("instance", "revision", "age_secs", "received_at")
    assert [row[name] for name in unknown] == [None] * 4


def test_times_beyond_readers_limits_are_the_nearest():
    ages = [(2**63 - 1) / 1000, -(2**63) / 1000, 0.0]
    readings = [change_of("/p", b"d", 1, age) for age in ages]
    table = pa.Table.from_batches([rows.page_rows("a:1", [page_of("x", readings, AT.timestamp())])])
    before, after, present = table["received_at"].to_pylist()
    assert (before.year, after.year, present) == (1970, 2262, AT)
    assert len(table.to_pandas()) == 3


def test_times_become_a_column_and_are_times_again():
    times = [0.0, 0.25, None, 1_772_366_400.123456]
    column = pa.chunked_array([rows.timestamps(times)])
    assert column.type == rows.TIMESTAMP
    assert rows.to_seconds(column).to_pylist() == times
    assert rows.to_seconds(column.cast(pa.timestamp("us", tz="Asia/Kolkata"))).to_pylist() == times


def test_an_empty_value_is_a_pulse():
    (row,) = rows.page_rows("a:1", [page_of("x", [change_of("/p", b"", 1, 0.0)], 0.0)]).to_pylist()
    assert (row["kind"], row["details"]) == ("pulse", b"")


def test_a_server_has_a_row():
    health = Coverage(AT.timestamp(), None, Position("x", 9), 100.0, 50.0, 3)
    (row,) = rows.server_row("a:1", health, reset=True).to_pylist()
    assert (row["kind"], row["server"], row["instance"], row["revision"]) == (
        "server",
        "a:1",
        "x",
        9,
    )
    assert row["read_at"] == AT
    assert row["health"] == {
        "reachable": True,
        "error": None,
        "uptime_secs": 100.0,
        "horizon_secs": 50.0,
        "keys": 3,
        "reset": True,
    }


def test_a_server_that_does_not_answer_has_a_row_too():
    (row,) = rows.server_row("a:1", Coverage(AT.timestamp(), "gone")).to_pylist()
    assert row["instance"] is None
    assert row["health"]["reachable"] is False
    assert row["health"]["error"] == "gone"


def test_rows_that_are_wanted_together_are_not_copied():
    batches = [pa.record_batch({"x": values}) for values in ([1, 2], [3, 4], [5, 6])]
    table = pa.Table.from_batches(batches)
    found = rows.where(table, pa.array([True, True, None, True, False, False]))
    assert found["x"].to_pylist() == [1, 2, 4]
    assert found["x"].chunk(0).buffers()[1].address == batches[0]["x"].buffers()[1].address
    mask = pa.chunked_array([[False], [False, True, True, False], [False]])
    assert rows.where(table, mask)["x"].to_pylist() == [3, 4]
    assert rows.where(table, pa.array([False] * 6)).schema == table.schema


def test_workers_are_found_in_another_table():
    def table(*ports):
        return rows.worker_table(WorkerId("t", "n", port) for port in ports)

    assert rows.positions(table(1, 2), table(1, 2)).to_pylist() == [0, 1]
    assert rows.positions(table(3, 1), table(1, 2)).to_pylist() == [None, 0]
    assert rows.worker_keys(table(1)).to_pylist() == ["t/n-1"]
    assert rows.positions(table(), table(1)).to_pylist() == []
