"""Statistics that are made part by part are those that are made all at once."""

import random
import weakref
from types import SimpleNamespace

import pyarrow as pa
import pytest

from stormkeeper.conf import defaults
from stormkeeper.heartbeats.change_pages import Part, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_store import TableStore
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import batch, queries, rows, table_updates, tables, worker_liveness
from stormkeeper.pipeline.source import Options, PacemakerStreamReader
from stormkeeper.pipeline.table_columns import WORKER_REPORTS
from support.dataframes import dataframe
from support.heartbeats import bolt, change_of, heartbeat, page_of, path, spout

BEGAN = 1_772_366_400.0
LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)
TOPOLOGIES = [f"t{number}-{number}-17" for number in range(9)]
PRESENT = (
    tables.WORKER_REPORTS,
    tables.WORKER_STATS,
    tables.EXECUTOR_COUNTERS,
    tables.ROLLUP_OPEN,
    tables.ROLLUP_PARTS,
)
#: One each, and so all of them together.
LOGS = (
    tables.EXECUTOR_STATS,
    tables.COMPONENT_STATS,
    tables.TOPOLOGY_STATS,
    tables.REJECTED,
    tables.ROLLUP_1M,
    tables.ROLLUP_10M,
    tables.ROLLUP_60M,
)


def batches(seed):
    """Yield when each was read, and its rows: pulses, tombstones, damaged and stray ones."""
    chance, revision = random.Random(seed), 0
    counts = dict.fromkeys([(id_, port) for id_ in TOPOLOGIES for port in range(3)], 0)
    for secs in (10, 25, 70, 100, 700, 3700, 3715, 4000):
        now, changes = BEGAN + secs, []
        for (id_, port), count in counts.items():
            revision += 1
            if secs == 100 and id_ == TOPOLOGIES[4]:
                changes.append(change_of(path(id_, "n", port), None, revision, 1.0))
            elif chance.random() < 0.1:
                changes.append(change_of(path(id_, "n", port), b"garbage", revision, 1.0))
            elif chance.random() < 0.7:
                counts[id_, port] = more = count + chance.randrange(100)
                executors = {
                    (1, 1): spout(more, acked=more),
                    (2, 2): bolt({("s", "default"): more}),
                }
                beat = heartbeat(id_, executors, time_secs=int(now), uptime_secs=secs)
                changes.append(change_of(path(id_, "n", port), beat, revision, 1.0))
        changes.append(change_of("/workerbeats/stray", b"x", revision + 1, 1.0))
        revision += 1
        server = chance.choice(["a:1", "b:1"])
        health = Coverage(now, None, Position("x", revision), 1e6, 1e6, len(changes))
        down = Coverage(now, "gone")
        read = [
            rows.page_rows(server, [page_of("x", changes, now)]),
            rows.server_row(server, health),
            rows.server_row({"a:1": "b:1", "b:1": "a:1"}[server], down),
            rows.server_row("c:1", health if secs == 10 else down),
        ]
        if secs == 10:  # and then neither its workers, which are done, nor the server come back
            done = [
                change_of(path(id_, "n", 9), heartbeat(id_, completed=True), number, 1.0)
                for number, id_ in enumerate(TOPOLOGIES)
            ]
            read.append(rows.page_rows("c:1", [page_of("x", done, now)]))
        yield now, pa.Table.from_batches(read)


def packed(raw, parts):
    """Return what stands for a DataFrame of Spark's: rows that are packed in its workers."""

    def applied(pack, _):
        return dataframe(pa.Table.from_batches(pack(iter(raw.to_batches()))))

    return batch.pack(SimpleNamespace(columns=raw.column_names, mapInArrow=applied), parts)


def in_turn(raw, parts):
    """Return what stands for rows of the source, which has read part after part."""
    found = []
    for part in (Part(number, parts) for number in range(parts)):
        is_in = [kind == rows.SERVER or part.has(path_.split("/")[2]) for kind, path_ in ends(raw)]
        found += batch.pack_read(iter(raw.filter(pa.array(is_in)).to_batches()), part, 1)
    return dataframe(pa.Table.from_batches(found))


def ends(raw):
    return zip(raw["kind"].to_pylist(), raw["path"].to_pylist(), strict=True)


def made(folder, seed, parts, monkeypatch, read=packed):
    """Return the tables after batches of which each was made in so many parts."""
    conf, at = defaults(), [BEGAN]
    monkeypatch.setattr(queries.time, "time", lambda: at[0])
    specs = list(queries.table_specs(conf, queries.STATISTICS))
    for number, (now, raw) in enumerate(batches(seed)):
        at[0], count = now, parts[number % len(parts)]
        with TableStore(folder, specs, interval_secs=15, clock=lambda: at[0]) as store:
            advance = table_updates.statistics_tables(LIMITS, 3.0)
            table_updates.TableUpdater(store, advance, parts=count)(read(raw, count), number)
            assert len(store.read_parts(tables.WORKER_REPORTS)) == count
    found = Tables(folder)
    return {name: ordered(found.arrow(name)) for name in (*PRESENT, *LOGS)}


def ordered(table):
    """Return rows by their text: a part of several is in no order."""
    return sorted(map(repr, table.to_pylist()))


def forgotten(folder):
    """Return who is remembered without a row, by the parts' notes."""
    with TableStore(
        folder, queries.table_specs(defaults(), queries.STATISTICS), interval_secs=1
    ) as store:
        parts = [read() for read in store.read_parts(tables.WORKER_REPORTS)]
    return sorted(map(repr, (row for part in parts for row in worker_liveness.forgotten(part))))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the tables that were made all at once, and who is remembered."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return made(folder, 1, [1], monkeypatch), forgotten(folder)


@pytest.mark.parametrize("read", [pytest.param(packed, marks=pytest.mark.slow), in_turn])
def test_tables_that_are_made_in_parts_are_the_same(tmp_path, monkeypatch, whole, read):
    found = made(tmp_path, 1, [1, 4, 4, 3, 1, 2, 9, 9], monkeypatch, read)
    expected, remembered = whole
    assert all(expected[name] for name in (*PRESENT, *LOGS))
    for name, rows_ in expected.items():
        assert found[name] == rows_, name
    assert forgotten(tmp_path) == remembered != []


def test_one_part_is_read_ahead_and_used_parts_are_freed(tmp_path):
    held = []

    def watched(read):
        for row in read():
            used = held[: 2 * (row[0] - 1)]
            assert len(used) == 2 * max(row[0] - 1, 0)
            assert [one for one in used if one() is not None] == []
            yield row

    def advance(_before, batch, _between):
        reports = WORKER_REPORTS.empty_table()
        held.extend(map(weakref.ref, (batch, reports)))
        yield tables.WORKER_REPORTS, reports

    specs = list(queries.table_specs(defaults(), queries.STATISTICS))
    _, raw = next(batches(1))
    frame = in_turn(raw, 4)
    frame.rdd.toLocalIterator = lambda *, read=frame.rdd.toLocalIterator, **_: watched(read)
    with TableStore(tmp_path, specs, interval_secs=15) as store:
        table_updates.TableUpdater(store, advance, parts=4)(frame, 0)
    assert len(held) == 8


def test_server_that_hung_in_one_part_is_not_asked_for_others(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(9):
            client.send_pulse(path(f"t-{number}-17"), b"x")
    options = {"servers": pacemaker.address, "parts": "3", "timeoutSecs": "30"}
    driver = PacemakerStreamReader(Options.parse(options))
    reader = PacemakerStreamReader(Options.parse({**options, "timeoutSecs": "0.3"}))

    def read(partition):
        found = pa.Table.from_batches(reader.read(partition)).to_pylist()
        return len(found), found[-1]["health"]["reachable"]

    begin = driver.initialOffset()
    end = driver.latestOffset(begin, None)
    first, *others = driver.partitions(begin, end)
    pacemaker.suspend()
    assert read(first) == (1, False)
    pacemaker.resume()
    assert list(map(read, others)) == [(1, False)] * 2
    # What they did not read is in the next batch.
    found = list(map(read, driver.partitions(end, driver.latestOffset(end, None))))
    assert [reachable for _, reachable in found] == [True] * 3
    assert sum(count for count, _ in found) == 9 + 3


def test_number_of_parts_follows_workers_unless_configured(start_pacemaker, tmp_path, monkeypatch):
    monkeypatch.setattr(queries, "WORKERS_OF_PART", 2)
    servers = [start_pacemaker(), start_pacemaker()]
    addresses = [server.address for server in servers]
    specs = list(queries.table_specs(defaults(), queries.STATISTICS))
    with TableStore(tmp_path, specs, interval_secs=15) as store:

        def parts(**given):
            conf = defaults().with_values({"pipeline.statistics.parts": given.get("given")})
            conf = queries.choose_parts(conf, addresses, store)
            return queries.number_of_parts(conf, queries.STATISTICS)

        assert parts() == 1
        for port, server in enumerate([*servers, *servers, servers[0]]):
            with PacemakerClient(server.address) as client:
                client.send_pulse(path("t", port=port), b"x")
        assert parts() == 3
        assert parts(given=2) == 2
        # A Pacemaker that has just started does not know yet how many it will hold.
        reports = [[(tables.WORKER_REPORTS, WORKER_REPORTS.empty_table())]] * 4
        store.publish_in_parts(Origin("q", 1), reports)
        assert parts() == 4


def test_a_cluster_that_has_outgrown_its_parts_is_told_so_once(tmp_path, monkeypatch, caplog):
    workers = 29  # of the first batch
    specs = list(queries.table_specs(defaults(), queries.STATISTICS))
    _, raw = next(batches(1))
    with TableStore(tmp_path, specs, interval_secs=15) as store:
        for number, too_many in enumerate([workers, workers - 1]):
            monkeypatch.setattr(table_updates, "_TOO_MANY", too_many)
            keep = table_updates.TableUpdater(store, table_updates.statistics_tables(LIMITS, 3.0))
            keep(packed(raw, 1), 2 * number)
            keep(packed(raw, 1), 2 * number + 1)
            assert len(caplog.records) == number
    assert "restart the pipeline" in caplog.messages[0]
