from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import TableError
from stormkeeper.history import component_stats, database
from stormkeeper.history.database import HistoryDatabase
from stormkeeper.history.parquet import TIME, TableSpec
from stormkeeper.pipeline import queries, tables
from support.tables import BEGAN, at, origin, store

TEXT, COUNT, NUMBER = pa.string(), pa.int64(), pa.float64()

COUNTS = dict.fromkeys(("emitted", "transferred", "executed", "acked", "failed"), COUNT)
AVERAGES = dict.fromkeys(("complete_ms_avg", "execute_ms_avg", "process_ms_avg"), NUMBER)
WHOSE = {"storm_id": TEXT, "topology": TEXT, "component": TEXT, "kind": TEXT}
ROLLUP = {
    "bucket": TIME,
    **WHOSE,
    **COUNTS,
    **AVERAGES,
    "capacity": NUMBER,
    "restarts": COUNT,
    "skipped": COUNT,
    "interval_secs": NUMBER,
}
READING = {"read_at": TIME, **WHOSE, "window": TEXT, **COUNTS, **AVERAGES}
EVENT = {
    "at": TIME,
    "storm_id": TEXT,
    "topology": TEXT,
    "node": TEXT,
    "port": pa.int32(),
    "event": TEXT,
}
ALERT = {
    "id": TEXT,
    "severity": TEXT,
    "since": TIME,
    "until": TIME,
    "seen_at": TIME,
    "value": NUMBER,
}

ID = "wc-1-1700000000"


def log(name, columns, time, sort=()):
    return TableSpec(name, pa.schema(columns), "log", time=time, sort=sort)


ROLLUPS = [log(f"rollup_{n}m", ROLLUP, "bucket", ("topology", "bucket")) for n in (1, 10, 60)]
READINGS = log("component_stats", READING, "read_at")
TOTAL = {name: READING[name] for name in ("read_at", "storm_id", "topology")}
TOTALS = log("topology_stats", TOTAL, "read_at")
EVENTS = log("worker_events", EVENT, "at")
ALERTS = TableSpec("alerts", pa.schema(ALERT), "current")
HISTORY = log("alert_history", {"at": TIME, "change": TEXT, **ALERT}, "at")


def table(columns, *rows):
    return pa.Table.from_pylist(
        [{**dict.fromkeys(columns), **row} for row in rows], schema=pa.schema(columns)
    )


@pytest.fixture
def written(tmp_path):
    """Writes tables as the pipeline's queries do, each in its own folder."""
    number = iter(range(100))

    def write(folder, *specs, **rows):
        with store(tmp_path / folder, *specs) as tables:
            tables.publish(origin(next(number)), rows)
        return tmp_path

    return write


def bucket(secs, component="split", kind="bolt", topology="wc", storm_id=ID, **columns):
    whose = {"storm_id": storm_id, "topology": topology, "component": component, "kind": kind}
    return {"bucket": at(secs), **whose, **columns}


def test_a_topology_bucket_by_bucket(written):
    """acked, failed and complete latency are of spouts; the rest adds up, averages are weighed.

    But for what is of workers, which all have several components.
    """
    spout = bucket(0, "words", "spout", emitted=10, acked=4, failed=1, complete_ms_avg=7.0)
    one = bucket(0, executed=3, acked=3, execute_ms_avg=2.0, process_ms_avg=1.0, capacity=0.5)
    one |= {"restarts": 2, "skipped": 7, "interval_secs": 15.5}
    other = bucket(0, "count", executed=1, emitted=5, execute_ms_avg=6.0, capacity=0.25, restarts=2)
    other |= {"skipped": 4, "interval_secs": 15.0}
    rows = table(ROLLUP, spout, one, other, bucket(60, emitted=1), bucket(0, topology="other"))
    with HistoryDatabase(written("statistics", *ROLLUPS, rollup_1m=rows)) as past:
        found = component_stats.course(past, "wc", at(0), at(120))
    assert found[0] == {
        "bucket": at(0),
        "emitted": 15,
        "transferred": None,
        "executed": 4,
        "acked": 4,
        "failed": 1,
        "complete_ms_avg": 7.0,
        "execute_ms_avg": 3.0,
        "process_ms_avg": 1.0,
        "capacity": 0.5,
        "restarts": 2,
        "skipped": 7,
        "interval_secs": 15.5,
    }
    assert [(row["bucket"], row["emitted"], row["acked"]) for row in found[1:]] == [
        (at(60), 1, None)
    ]


def test_a_component_of_a_time(written):
    rows = [
        bucket(60 * n, executed=n, acked=n, process_ms_avg=float(n), restarts=n) for n in range(5)
    ]
    rows += [bucket(60, "words", "spout", acked=100)]
    with HistoryDatabase(written("statistics", *ROLLUPS, rollup_1m=table(ROLLUP, *rows))) as past:
        found = component_stats.course(past, "wc", at(60), at(180), component="split")
        assert component_stats.course(past, "wc", at(60), at(180), component="join") == []
    assert [row["restarts"] for row in found] == [1, 2]
    assert [(row["acked"], row["process_ms_avg"]) for row in found] == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("given", ["wc", "wc-1-1700000000", "wc-2-1700000001"])
def test_a_topology_by_its_name_and_by_its_id(written, given):
    rows = [bucket(0, emitted=1), bucket(0, storm_id="wc-2-1700000001", emitted=10)]
    named = {"wc": 11, ID: 1, "wc-2-1700000001": 10}
    with HistoryDatabase(written("statistics", *ROLLUPS, rollup_10m=table(ROLLUP, *rows))) as past:
        (found,) = component_stats.course(past, given, at(0), at(1), rollup="rollup_10m")
    assert found["emitted"] == named[given]


def test_a_topology_whose_name_looks_like_an_id(written):
    rows = table(ROLLUP, bucket(0, topology="a-1-2", storm_id="a-1-2-3-4", emitted=1))
    with HistoryDatabase(written("statistics", *ROLLUPS, rollup_1m=rows)) as past:
        assert len(component_stats.course(past, "a-1-2", at(0), at(1))) == 1
        assert len(component_stats.course(past, "a-1-2-3-4", at(0), at(1))) == 1


@pytest.mark.parametrize(
    ("length", "rollup"),
    [
        (timedelta(minutes=5), "rollup_1m"),
        (timedelta(hours=3), "rollup_1m"),
        (timedelta(hours=4), "rollup_10m"),
        (timedelta(days=7), "rollup_60m"),
        (timedelta(days=9000), "rollup_60m"),
    ],
)
def test_a_longer_time_has_larger_buckets(length, rollup):
    assert component_stats.rollup_for(length) == rollup


def reading(secs, component, window, **columns):
    return {
        "read_at": at(secs),
        "topology": "wc",
        "component": component,
        "window": window,
        **columns,
    }


def test_the_newest_reading(written):
    windows = (":all-time", "600", "86400", "10800")
    old = [reading(0, "split", window, executed=1) for window in windows]
    new = [reading(15, "split", window, executed=2) for window in windows]
    folder = written("statistics", READINGS, component_stats=table(READING, *old, *new))
    with HistoryDatabase(folder) as past:
        found = component_stats.newest(past, "wc")
        assert [row["window"] for row in found] == ["600", "10800", "86400", ":all-time"]
        assert {row["executed"] for row in found} == {2}
        assert len(component_stats.newest(past, "wc", window="600")) == 1
        assert component_stats.newest(past, "wc", component="'; DROP TABLE x") == []
        assert component_stats.newest(past, "other") == []


def test_component_of_a_silent_worker_is_listed_once(written):
    """A batch has the sums of all components of a topology of which any worker was read."""
    first = [reading(0, "split", "600", executed=1), reading(0, "words", "600")]
    second = [reading(0, "split", "600", executed=1), reading(15, "words", "600")]
    folder = written("statistics", READINGS, component_stats=table(READING, *first))
    written("statistics", READINGS, component_stats=table(READING, *second))
    with HistoryDatabase(folder) as past:
        found = component_stats.newest(past, "wc")
        assert [(row["component"], row["read_at"]) for row in found] == [
            ("split", at(0)),
            ("words", at(15)),
        ]
        assert len(component_stats.newest(past, "wc", "split")) == 1


def test_the_topology_that_was_submitted_last(written):
    """Workers of the one before it may still beat."""
    rows = [
        reading(secs, "split", "600", storm_id=f"wc-{n}-{n}", executed=n)
        for n, secs in ((9, 30), (10, 15))
    ]
    rows += [reading(3600, "split", "600", storm_id="other-1-1", topology="other")]
    with HistoryDatabase(
        written("statistics", READINGS, component_stats=table(READING, *rows))
    ) as past:
        assert [row["executed"] for row in component_stats.newest(past, "wc")] == [10]
        assert [row["executed"] for row in component_stats.newest(past, "wc-9-9")] == [9]


def test_of_topologies_that_were_submitted_together_one_is_shown(written):
    rows = [reading(0, name, "600", storm_id=f"wc-{n}-9") for n, name in ((1, "a"), (2, "b"))]
    with HistoryDatabase(
        written("statistics", READINGS, component_stats=table(READING, *rows))
    ) as past:
        assert {row["storm_id"] for row in component_stats.newest(past, "wc")} == {"wc-2-9"}


def test_sums_are_cut_to_64_bits(written):
    """As those of the tables are; what nobody counted is unknown."""
    largest = 2**63 - 1
    rows = [bucket(0, name, executed=largest) for name in ("split", "count")]
    rows += [bucket(60, name, executed=-largest) for name in ("split", "count")]
    with HistoryDatabase(written("statistics", *ROLLUPS, rollup_1m=table(ROLLUP, *rows))) as past:
        found = component_stats.course(past, "wc", at(0), at(120))
    assert [row["executed"] for row in found] == [largest, -largest]
    assert [row["emitted"] for row in found] == [None, None]


def test_uncounted_topology_is_not_searched(written):
    def counted(secs, topology):
        row = reading(secs, "split", "600", topology=topology, storm_id=f"{topology}-1-1")
        total = {name: row[name] for name in ("read_at", "storm_id", "topology")}
        given = {"component_stats": table(READING, row), "topology_stats": table(TOTAL, total)}
        return written("statistics", READINGS, TOTALS, **given)

    folder = counted(0, "old")
    old = list(folder.rglob("component_stats/*.parquet"))
    counted(20 * 3600, "new")
    with HistoryDatabase(folder) as past:
        assert [row["topology"] for row in component_stats.newest(past, "old")] == ["old"]
        for path in old:
            path.write_bytes(b"not one")
        assert component_stats.newest(past, "never") == []
    with HistoryDatabase(folder) as past, pytest.raises(TableError, match="cannot be read"):
        component_stats.newest(past, "old")


def test_only_the_newest_files_are_read_for_the_newest_reading(written):
    folder = written("statistics", READINGS, component_stats=table(READING, reading(0, "a", "600")))
    for path in folder.rglob("*.parquet"):
        path.write_bytes(b"not one")
    written("statistics", READINGS, component_stats=table(READING, reading(15, "b", "600")))
    with HistoryDatabase(folder) as past:
        assert [row["component"] for row in component_stats.newest(past, "wc")] == ["b"]
        assert component_stats.topologies(past) == (["wc"], [])


def test_files_are_sorted_by_what_is_asked_for():
    """So a reader passes over the rest: one topology of four hundred."""
    sorts = {spec.name: spec.sort for spec in queries.table_specs(defaults(), tables.STATISTICS)}
    names = ["component_stats", "topology_stats", tables.ROLLUP_1M, tables.ROLLUP_60M]
    assert {sorts[name][0] for name in names} == {"topology"}


def event(secs, what, node="n-1", topology="wc", storm_id=ID):
    whose = {"topology": topology, "storm_id": storm_id, "node": node, "port": 6700}
    return {"at": at(secs), "event": what, **whose}


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        ("n-1", ["started", "late"]),
        ("wc", ["started", "late", "dead"]),
        (ID, ["started", "late"]),
        ("x", []),
    ],
)
def test_what_happened_to_workers(written, subject, found):
    rows = [
        event(5, "dead", "n-2", storm_id="wc-2-1700000001"),
        event(3, "late"),
        event(1, "started"),
    ]
    with HistoryDatabase(written("liveness", EVENTS, worker_events=table(EVENT, *rows))) as past:
        assert [row["event"] for row in database.events(past, subject)] == found
        assert [row["event"] for row in database.events(past, subject, at(2))] == found[1:]
        assert [row["event"] for row in database.events(past, subject, until=at(3))] == found[:1]
        assert [row["event"] for row in database.events(past, subject, limit=1)] == found[-1:]


def alert(name, severity, since, until=None, **columns):
    ended = None if until is None else at(until)
    return {"id": name, "severity": severity, "since": at(since), "until": ended, **columns}


def test_alerts_the_severest_first(tmp_path):
    rows = [
        alert("old", "warning", 0),
        alert("ended", "critical", 1, until=15),
        alert("new", "warning", 5),
        alert("worst", "critical", 1),
    ]
    with store(tmp_path / "alerts", ALERTS, HISTORY) as tables:
        tables.publish(origin(1), {"alerts": table(ALERT, *rows)})
    with HistoryDatabase(tmp_path) as past:
        assert [row["id"] for row in database.alerts(past)] == ["worst", "new", "old"]
        ended = database.alerts(past, ended=True)
        assert [row["id"] for row in ended] == ["worst", "new", "old", "ended"]
        assert [row["id"] for row in database.alerts(past, severity="critical")] == ["worst"]


def test_what_alerts_did_since(written):
    rows = [
        {"at": at(secs), "change": change, **alert("x", "warning", 0)}
        for secs, change in ((70, "ended"), (10, "began"))
    ]
    history = table({"at": TIME, "change": TEXT, **ALERT}, *rows)
    with HistoryDatabase(written("alerts", HISTORY, alert_history=history)) as past:
        assert [row["change"] for row in database.changes(past, at(0))] == ["began", "ended"]
        assert [row["change"] for row in database.changes(past, at(10))] == ["ended"]
        assert database.changes(past, at(70)) == []


def test_files_of_earlier_releases_are_read(written):
    early = {name: kind for name, kind in EVENT.items() if name != "event"}
    row = {name: value for name, value in event(1, None).items() if name in early}
    folder = written("liveness", log("worker_events", early, "at"), worker_events=table(early, row))
    written("liveness", EVENTS)
    with HistoryDatabase(folder) as past:
        (found,) = database.events(past, "wc")
        assert (found["event"], found["node"]) == (None, "n-1")
        written("liveness", EVENTS, worker_events=table(EVENT, event(2, "late")))
    with HistoryDatabase(folder) as past:
        assert [row["event"] for row in database.events(past, "wc")] == [None, "late"]


@pytest.mark.parametrize("name", ["it's", "a[b]*?", "a b%20", "topology=other"])
def test_a_folders_name_is_taken_as_it_is(tmp_path, name):
    folder = tmp_path / name
    with store(folder / "liveness", EVENTS) as tables:
        tables.publish(origin(0), {"worker_events": table(EVENT, event(1, "late"))})
    with HistoryDatabase(folder) as past:
        assert len(database.events(past, "wc")) == 1


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "GMT+5"])
def test_times_are_in_utc(written, monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    with HistoryDatabase(
        written("liveness", EVENTS, worker_events=table(EVENT, event(1, "late")))
    ) as past:
        (found,) = database.events(past, "wc")
    assert found["at"] == datetime.fromtimestamp(BEGAN + 1, UTC)
    assert found["at"].tzinfo is UTC


def test_what_is_not_there_is_said(written, tmp_path):
    with pytest.raises(TableError, match=r"there are no tables in .*; has `storm pipeline` run"):
        HistoryDatabase(tmp_path)
    folder = written("liveness", EVENTS, worker_events=table(EVENT, event(1, "late")))
    with HistoryDatabase(folder) as past:
        assert past.interval_secs("worker_events") == 15
        with pytest.raises(
            TableError, match=r"no table 'alerts' in .*; these are there: worker_ev"
        ):
            database.alerts(past)
        for path in folder.rglob("*.parquet"):
            path.write_bytes(b"not one")
        with pytest.raises(TableError, match=r"the tables in .* cannot be read: .*Parquet"):
            database.events(past, "wc")
