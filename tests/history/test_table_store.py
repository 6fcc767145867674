import errno
import os
import threading
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stormkeeper.errors import TableError
from stormkeeper.history import manifest
from stormkeeper.history.parquet import TIME, Retention, TableSpec
from stormkeeper.history.table_reader import Tables
from support.tables import (
    BEGAN,
    EVENTS,
    SHORT,
    STATE,
    at,
    data_files,
    events,
    origin,
    state,
    store,
    values,
)


def test_a_commit_replaces_current_tables_and_adds_to_logs(tmp_path):
    tables = store(tmp_path / "t")
    assert tables.read("state") is None
    assert tables.publish(origin(0), {"state": state(1, 2), "events": events(1, 2)}) == 1
    assert tables.publish(origin(1), {"state": state(3), "events": events(3)}) == 2
    assert tables.read("state").to_pydict() == {"x": [3]}
    assert values(tmp_path / "t", "state") == [3]
    assert values(tmp_path / "t", "events") == [1, 2, 3]


def test_what_a_commit_does_not_name_stays(tmp_path):
    tables = store(tmp_path)
    tables.publish(origin(0), {"state": state(1), "events": events(1)})
    tables.publish(origin(1), {"events": events()})
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([1], [1])
    assert len(Tables(tmp_path).files("events")) == 1, "no rows need no file"


def test_log_rows_are_made_while_written(tmp_path):
    made = []

    def parts(*each):
        for rows in each:
            made.append(rows)
            yield rows

    tables = store(tmp_path)
    tables.publish(origin(0), {"events": parts(events(), events(5, 2), events(4))})
    tables.publish(origin(1), {"events": parts(events())})
    tables.publish(origin(2), {"events": parts()})
    assert len(made) == 4
    (file,) = manifest.load(tmp_path).tables["events"].files
    assert (file.rows, file.earliest, file.latest) == (3, at(2), at(5))
    assert values(tmp_path, "events") == [2, 4, 5]


def test_tables_are_made_part_by_part_and_published_at_once(tmp_path):
    made = []

    def parts(*each):
        for number, tables in enumerate(each):
            made.append(len(data_files(tmp_path)))
            noted = {b"part": str(number).encode()}
            if "state" in tables:
                tables["state"] = tables["state"].replace_schema_metadata(noted)
            yield tables.items()

    tables = store(tmp_path)
    one, two = ({"state": state(number), "events": events(number)} for number in (1, 2))
    tables.publish_in_parts(origin(0), parts(one, two))
    assert made == [0, 2], "the first is written before the second is made"
    assert [read().to_pydict() for read in tables.read_parts("state")] == [{"x": [1]}, {"x": [2]}]
    assert [read().schema.metadata[b"part"] for read in tables.read_parts("state")] == [b"0", b"1"]
    assert tables.read("state").to_pydict() == {"x": [1, 2]}
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([1, 2], [1, 2])
    tables.publish_in_parts(origin(1), parts({}, {"state": state(3), "events": events(3)}))
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([1, 3], [1, 2, 3])
    with pytest.raises(TableError, match="state has 2 parts, and only some of 3 were given"):
        tables.publish_in_parts(origin(2), parts({"state": state(4)}, {}, {}))
    tables.publish_in_parts(origin(2), parts({"state": state(5)}))
    assert values(tmp_path, "state") == [5]
    assert len(data_files(tmp_path)) == len(Tables(tmp_path).manifest.paths) + 3


def test_parts_are_written_while_the_next_is_made(tmp_path):
    is_made = threading.Event()

    def rows():
        assert is_made.wait(30)
        yield events(1)
        yield events(2)

    def part(fails):
        yield "events", rows()
        is_made.set()
        if fails:
            raise ZeroDivisionError
        yield "state", state(3)

    tables = store(tmp_path)
    with pytest.raises(ZeroDivisionError):
        tables.publish_in_parts(origin(0), [part(fails=True)])
    assert data_files(tmp_path) == set()
    is_made.clear()
    tables.publish_in_parts(origin(0), [part(fails=False)])
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([3], [1, 2])


def test_repeated_log_in_a_part_is_one_file(tmp_path):
    made, begun = [], []

    def rows(number):
        made.append(number)
        if number == 7 and begun[0] == "fails":
            raise ZeroDivisionError
        yield events(number)

    def part():
        for number in range(1, 21):
            assert number - len(made) <= 4, "the thread has as much to do as it is given"
            yield "events", rows(number)
        yield "state", state(3)

    tables = store(tmp_path)
    begun.append("fails")
    with pytest.raises(ZeroDivisionError):
        tables.publish_in_parts(origin(0), [part()])
    assert data_files(tmp_path) == set()
    begun[0] = "succeeds"
    made.clear()
    tables.publish_in_parts(origin(0), [part()])
    (file,) = manifest.load(tmp_path).tables["events"].files
    assert (file.rows, file.earliest, file.latest) == (20, at(1), at(20))
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([3], [*range(1, 21)])


def test_dictionary_with_duplicates_is_written_as_values(tmp_path):
    """Two topologies of one name are two ids, and one text."""
    rows = events(1, 2, 3, 4)
    numbers = pa.array([0, 1, 2, 3], pa.int32())
    texts = pa.DictionaryArray.from_arrays(numbers, pa.array(["wc", "x", "wc", "z"]))
    place = rows.column_names.index("subject")
    # What a table is sorted by is no dictionary.
    with store(tmp_path, SHORT) as tables:
        tables.publish(origin(0), {"short": rows.set_column(place, "subject", texts)})
        assert tables.read("short")["subject"].to_pylist() == ["wc", "x", "wc", "z"]


def test_if_a_part_cannot_be_made_nothing_is_published(tmp_path):
    def parts():
        yield events(2)
        raise ZeroDivisionError

    tables = store(tmp_path)
    tables.publish(origin(0), {"state": state(1), "events": events(1)})
    with pytest.raises(ZeroDivisionError):
        tables.publish(origin(1), {"state": state(2), "events": parts()})
    with pytest.raises(KeyError, match="at"):
        tables.publish(origin(1), {"state": state(2), "events": iter([state(1)])})
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([1], [1])
    assert len(data_files(tmp_path)) == 2
    tables.publish(origin(1), {"state": state(2), "events": [events(2)]})
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([2], [1, 2])


def test_the_manifest_says_what_the_tables_are(tmp_path):
    store(tmp_path, clock=lambda: BEGAN).publish(
        origin(7), {"state": state(1), "events": events(5, 2)}
    )
    found = msgspec.json.decode((tmp_path / "manifest.json").read_bytes())
    assert (found["format"], found["version"], found["interval_secs"]) == (1, 1, 15.0)
    assert found["origin"] == {"query": "q", "batch": 7}
    assert found["written_at"] == "2027-01-15T08:00:00Z"
    log = found["tables"]["events"]
    assert log["columns"] == {"at": "timestamp[us, tz=UTC]", "subject": "string", "x": "int64"}
    (file,) = log["files"]
    assert file["bytes"] == (tmp_path / file["path"]).stat().st_size
    assert file["rows"] == 2
    assert (file["earliest"], file["latest"]) == ("2027-01-15T08:00:02Z", "2027-01-15T08:00:05Z")


def test_a_micro_batch_that_is_repeated_changes_nothing(tmp_path):
    tables = store(tmp_path)
    assert not tables.has(origin(0))
    tables.publish(origin(0), {"state": state(1), "events": events(1)})
    before = (tmp_path / "manifest.json").read_bytes()
    for again in (tables, store(tmp_path)):
        assert again.has(origin(0))
        assert not again.has(origin(1))
        assert not again.has(origin(0, "another query"))
        assert again.publish(origin(0), {"state": state(2), "events": events(2)}) == 1
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_a_query_that_begins_anew_goes_on_in_the_same_tables(tmp_path):
    for number in range(3):
        store(tmp_path).publish(origin(number), {"events": events(number)})
    store(tmp_path).publish(origin(0, "another query"), {"events": events(3)})
    assert values(tmp_path, "events") == [0, 1, 2, 3]


def test_rows_are_sorted_as_the_table_is(tmp_path):
    tables = store(tmp_path)
    tables.publish(origin(0), {"events": events(5, 3, 4, 0)})
    (path,) = Tables(tmp_path).files("events")
    assert pq.read_table(path)["x"].to_pylist() == [0, 3, 4, 5]
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_names_alone_are_looked_up_in_a_dictionary(tmp_path):
    """Numbers that differ from row to row are larger with one."""
    with store(tmp_path) as tables:
        tables.publish(origin(0), {"events": events(1, 2, 3)})
    (file,) = Tables(tmp_path).files("events")
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    looked_up = {one.path_in_schema: one.has_dictionary_page for one in columns}
    assert looked_up == {"at": False, "subject": True, "x": False}


def test_what_is_new_in_a_log_is_read_alone(tmp_path):
    tables = store(tmp_path)
    for number in range(3):
        tables.publish(origin(number), {"events": events(10 * number, 10 * number + 5)})
    assert sorted(tables.read("events", at(15))["x"].to_pylist()) == [10, 15, 20, 25]
    assert len(tables.read("events", at(26))) == 0


def test_a_current_table_keeps_its_metadata(tmp_path):
    tables = store(tmp_path)
    tables.publish(origin(0), {"state": state(2, 1).replace_schema_metadata({"a": "b"})})
    assert tables.read("state").schema.metadata == {b"a": b"b"}
    tables.publish(origin(1), {"state": state()})
    assert not tables.read("state").schema.metadata


def test_old_files_stay_readable_when_columns_come_and_go(tmp_path):
    store(tmp_path).publish(origin(0), {"state": state(1), "events": events(1)})
    schema = pa.schema([("at", TIME), ("x", pa.int64()), ("node", pa.string())])
    newer = TableSpec("events", schema, "log", time="at")
    rows = events(2).drop_columns("subject").append_column("node", pa.array(["a"]))
    with store(tmp_path, newer, fan_in=2) as tables:
        tables.publish(origin(1), {"events": rows})
        found = Tables(tmp_path).arrow("events").sort_by("x")
        assert found.schema == schema
        assert found.drop_columns("at").to_pylist() == [
            {"x": 1, "node": None},
            {"x": 2, "node": "a"},
        ]
        assert Tables(tmp_path).manifest.tables["events"].version == 2
        assert values(tmp_path, "state") == [1], "a table that is no more stays as it was"
        assert tables.settle(60)
        tables.publish(origin(2), {})
        assert Tables(tmp_path).arrow("events").sort_by("x") == found
        assert len(Tables(tmp_path).files("events")) == 1


@pytest.mark.parametrize(
    "spec",
    [
        TableSpec("state", pa.schema([("x", pa.string())]), "current"),
        TableSpec("state", pa.schema([("x", pa.int64()), ("at", TIME)]), "log", time="at"),
    ],
)
def test_a_table_that_has_become_another_is_refused(tmp_path, spec):
    store(tmp_path).publish(origin(0), {"state": state(1)})
    with pytest.raises(TableError, match="move the folder of the tables away"):
        store(tmp_path, spec).publish(origin(1), {})
    assert values(tmp_path, "state") == [1]


def test_a_log_keeps_what_is_young_enough(tmp_path):
    now = [BEGAN]
    tables = store(tmp_path, SHORT, clock=lambda: now[0])
    for secs in (0, 1000, 3600):
        now[0] = BEGAN + secs
        tables.publish(origin(secs), {"short": events(secs)})
    assert values(tmp_path, "short") == [0, 1000, 3600]
    now[0] += 1
    tables.publish(origin(1), {})
    assert values(tmp_path, "short") == [1000, 3600]


def test_a_log_keeps_what_has_room(tmp_path):
    some = TableSpec("some", EVENTS.schema, "log", time="at", retention=Retention(mb=0.01))
    tables = store(tmp_path, some)
    for number in range(20):
        tables.publish(origin(number), {"some": events(number)})
    kept = values(tmp_path, "some")
    assert kept == list(range(20 - len(kept), 20))
    assert sum(Path(path).stat().st_size for path in Tables(tmp_path).files("some")) <= 0.01 * 2**20
    assert len(kept) > 3
    tables.publish(origin(20), {"some": events(*range(100, 5000))})
    assert len(values(tmp_path, "some")) == 4900, "the newest stays, however large"


def test_a_file_stays_for_a_while_after_it_has_left(tmp_path):
    now = [BEGAN]
    tables = store(tmp_path, clock=lambda: now[0], keep_secs=300)
    tables.publish(origin(0), {"state": state(1)})
    early = Tables(tmp_path)
    now[0] += 10_000
    tables.publish(origin(1), {"state": state(2)})
    now[0] += 300
    tables.publish(origin(2), {})
    assert early.arrow("state").to_pydict() == {"x": [1]}
    now[0] += 1
    tables.publish(origin(3), {})
    with pytest.raises(TableError, match=r"the table state in .* cannot be read"):
        early.arrow("state")
    assert data_files(tmp_path) == Tables(tmp_path).manifest.paths


def test_a_clock_that_was_set_back_keeps_no_file_for_ever(tmp_path):
    now = [BEGAN]
    tables = store(tmp_path, clock=lambda: now[0], keep_secs=60)
    tables.publish(origin(0), {"state": state(1)})
    tables.publish(origin(1), {"state": state(2)})
    now[0] -= 1e6
    tables.publish(origin(2), {})
    assert len(data_files(tmp_path)) == 2
    now[0] += 61
    tables.publish(origin(3), {})
    assert data_files(tmp_path) == Tables(tmp_path).manifest.paths


def test_what_somebody_else_put_there_stays(tmp_path):
    tables = store(tmp_path, keep_secs=-1)
    tables.publish(origin(0), {"state": state(1)})
    others = [tmp_path / "state" / "mine.parquet", tmp_path / "notes" / "000000000001-00000000.txt"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1000, 1000))
    tables.publish(origin(1), {"state": state(2)})
    assert all(path.exists() for path in others)


def test_a_second_writer_is_noticed(tmp_path):
    tables = store(tmp_path)
    tables.publish(origin(0), {"state": state(1)})
    store(tmp_path).publish(origin(0, "another query"), {"state": state(2)})
    with pytest.raises(TableError, match=r"another pipeline writes to .*pipeline.checkpoint.dir"):
        tables.publish(origin(1), {"state": state(3)})
    assert values(tmp_path, "state") == [2]


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path):
    with (
        manifest.sole_writer(tmp_path / "t"),
        pytest.raises(TableError, match="another pipeline writes to"),
        manifest.sole_writer(tmp_path / "t"),
    ):
        pass
    with manifest.sole_writer(tmp_path / "t"):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(TableError, match=r"a\.key cannot be "),
        manifest.sole_writer(tmp_path / "file" / "t", "a.key"),
    ):
        pass


@pytest.mark.parametrize("another", [False, True], ids=["gone", "another in its place"])
def test_a_folder_that_was_moved_is_not_begun_anew(tmp_path, another):
    folder, moved = tmp_path / "tables", tmp_path / "moved"
    folder.mkdir()
    tables = store(folder)
    tables.publish(origin(0), {"state": state(1)})
    folder.rename(moved)
    if another:
        folder.mkdir()
    with pytest.raises(TableError, match="remove or rename what is there now, move the folder"):
        tables.publish(origin(1), {"state": state(2)})
    assert manifest.load(folder) is None
    assert values(moved, "state") == [1]
    if another:
        folder.rmdir()
    moved.rename(folder)
    tables.publish(origin(1), {"state": state(2)})
    assert values(folder, "state") == [2]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make space there, or set pipeline.tables.dir"),
        (errno.EDQUOT, "make space there, or set pipeline.tables.dir"),
        (errno.EACCES, "set pipeline.tables.dir to a folder that this user may write to"),
    ],
)
@pytest.mark.parametrize(
    ("place", "call"), [(Path, "mkdir"), (Path, "open"), (os, "fsync"), (Path, "replace")]
)
def test_what_the_file_system_refuses_is_said(tmp_path, monkeypatch, place, call, number, remedy):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    tables = store(tmp_path)
    monkeypatch.setattr(place, call, refuse)
    with pytest.raises(TableError, match=os.strerror(number)) as raised:
        tables.publish(origin(0), {"state": state(1), "events": events(1)})
    assert remedy in str(raised.value)
    monkeypatch.undo()
    tables.publish(origin(0), {"state": state(2), "events": events(2)})
    assert (values(tmp_path, "state"), values(tmp_path, "events")) == ([2], [2])


def test_files_are_synced_before_the_manifest(tmp_path, monkeypatch):
    """Else a power failure may leave names without files, or files without their bytes."""
    done, fsync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def replaced(path, target):
        done.append("replaced")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    store(tmp_path).publish(origin(0), {"state": state(1), "events": events(1)})
    before, after = done[: done.index("replaced")], done[done.index("replaced") + 1 :]
    for path in Tables(tmp_path).manifest.paths:
        file = tmp_path / path
        assert before.index(str(tmp_path)) < before.index(str(file))
        assert before.index(str(file)) < before.index(str(file.parent))
    assert before[-1] == str(tmp_path / ".manifest.json")
    assert after == [str(tmp_path)]


def test_repeated_batch_is_synced_before_the_answer(tmp_path, monkeypatch):
    store(tmp_path).publish(origin(0), {"state": state(1)})
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert store(tmp_path).has(origin(0))
    assert len(synced) == 1


@pytest.mark.parametrize("text", [b"", b"{", b'{"format": 1}', b'{"format": 1, "tables": 7}'])
def test_a_manifest_that_was_damaged_is_said(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text)
    for use in (lambda: Tables(tmp_path), lambda: store(tmp_path).publish(origin(0), {})):
        with pytest.raises(TableError, match=r"manifest.json is damaged: .*; restore the folder"):
            use()


def test_a_manifest_of_a_newer_release_is_not_guessed_at(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": 2, "tables": "elsewhere"}')
    with pytest.raises(TableError, match="is of format 2, and this release knows 1"):
        store(tmp_path).has(origin(0))


def test_a_time_beyond_all_is_kept(tmp_path):
    tables = store(tmp_path, SHORT, clock=lambda: BEGAN)
    tables.publish(origin(0), {"short": events(1, secs=1e9)})
    assert Tables(tmp_path).arrow("short")["at"].to_pylist() == [at(1e9)]
    assert STATE.order == ()
