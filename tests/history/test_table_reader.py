from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

from stormkeeper.errors import TableError
from stormkeeper.history.table_reader import Tables
from support.tables import EVENTS, at, events, origin, state, store, values


def filled(folder):
    with store(folder) as tables:
        for number in range(3):
            rows = events(10 * number, 10 * number + 5)
            tables.publish(origin(number), {"state": state(number), "events": rows})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("tables"))


def test_all_tables_are_of_one_commit(tmp_path):
    folder = filled(tmp_path)
    tables = Tables(folder)
    assert tables.names() == ["events", "state"]
    assert tables.schema("events") == EVENTS.schema
    with store(folder) as writer:
        writer.publish(origin(7), {"state": state(7), "events": events(7)})
    assert tables.arrow("state")["x"].to_pylist() == [2]
    assert len(tables.arrow("events")) == 6
    assert values(folder, "state") == [7]


@pytest.mark.parametrize(
    ("since", "until", "files", "found"),
    [
        (None, None, 3, [0, 5, 10, 15, 20, 25]),
        (10, None, 2, [10, 15, 20, 25]),
        (12, None, 2, [15, 20, 25]),
        (None, 10, 1, [0, 5]),
        (5, 21, 3, [5, 10, 15, 20]),
        (6, 9, 0, []),
        (100, None, 0, []),
    ],
)
def test_rows_of_a_time(folder, since, until, files, found):
    between = [None if secs is None else at(secs) for secs in (since, until)]
    tables = Tables(folder)
    assert len(tables.files("events", *between)) == files
    assert sorted(tables.arrow("events", *between)["x"].to_pylist()) == found
    pieces = list(tables.pieces("events", *between, columns=["x"]))
    assert len(pieces) == (files or 1)
    assert sorted(x for rows in pieces for x in rows["x"].to_pylist()) == found


def test_some_columns(folder):
    assert Tables(folder).arrow("events", columns=["x"]).column_names == ["x"]
    assert Tables(folder).arrow("events", at(6), at(9), columns=["x"]).column_names == ["x"]


def test_files_are_read_by_whatever_reads_parquet(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    files = Tables(folder.name).files("events")
    monkeypatch.chdir("/")
    assert sum(pq.read_metadata(path).num_rows for path in files) == 6


@pytest.mark.parametrize("name", ["a[b]", "a:b", "a b%20", "a*?"])
def test_a_folders_name_is_taken_as_it_is(tmp_path, name):
    store(tmp_path / name).publish(origin(0), {"state": state(1)})
    assert values(tmp_path / name, "state") == [1]


def test_a_log_that_nothing_was_written_to_is_empty(tmp_path):
    store(tmp_path).publish(origin(0), {"state": state(1)})
    assert Tables(tmp_path).arrow("events") == EVENTS.schema.empty_table()


def test_what_is_not_there_is_said(folder, tmp_path_factory):
    with pytest.raises(TableError, match=r"there are no tables in .*; has `storm pipeline` run"):
        Tables(tmp_path_factory.mktemp("empty"))
    tables = Tables(folder)
    with pytest.raises(TableError, match=r"no table 'event' in .*; these are there: events, state"):
        tables.arrow("event")
    with pytest.raises(TableError, match="the table state has no time"):
        tables.arrow("state", since=datetime.now(UTC))


def test_the_folder_above_the_tables_names_those_to_open(tmp_path):
    store(tmp_path / "liveness").publish(origin(0), {"state": state(1)})
    with pytest.raises(TableError, match=rf"open {tmp_path}/liveness$"):
        Tables(tmp_path)
    with pytest.raises(TableError, match="there are no tables in"):
        Tables(tmp_path / "elsewhere")


def test_a_time_without_a_zone_is_refused(tmp_path):
    store(tmp_path).publish(origin(0), {"events": events(1)})
    with pytest.raises(TableError, match="since and until need a time zone"):
        Tables(tmp_path).arrow("events", since=datetime(2026, 3, 1))
