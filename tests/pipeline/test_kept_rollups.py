"""From pulses to what `storm stats` reads: roll-ups, through batches that are repeated."""

import random
from datetime import UTC, datetime

import pytest

from stormkeeper.conf import defaults
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.history.component_stats import course
from stormkeeper.history.database import HistoryDatabase
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, rows, table_updates
from support.heartbeats import bolt, change_of, decoded_batch, heartbeat, page_of, path, spout

HOUR = 1_700_002_800.0
ID = "wc-1-17"


def batch(now, revision, workers):
    """Return what a Pacemaker has of workers, as the statistics query gets it."""
    changes = []
    for port, (uptime, emitted, executed) in workers.items():
        lines, words = spout(emitted, acked=emitted), bolt({("lines", "default"): executed})
        lines.component, words.component = "lines", "words"
        executors = {(1, 1): lines, (2, 2): words}
        beat = heartbeat(ID, executors, time_secs=int(now), uptime_secs=uptime)
        changes.append(change_of(path(ID, "n", port), beat, revision, 1.0))
    health = Coverage(now, None, Position("x", revision), 1e6, 1e6, len(changes))
    read = [rows.page_rows("a:1", [page_of("x", changes, now)]), rows.server_row("a:1", health)]
    return decoded_batch(read)


@pytest.mark.slow  # it waits for the disk
def test_each_roll_up_has_all_counts_after_repeated_batches(tmp_path):
    chance = random.Random(7)
    conf, clock = defaults(), [HOUR]
    advance = table_updates.statistics_tables(queries.limits(conf), 3.0)
    specs = list(queries.table_specs(conf, queries.STATISTICS))
    workers = {6700: (5, 0, 0), 6701: (6, 0, 0)}
    total, restarts, before = [0, 0], 0, 10
    for number, secs in enumerate([10, 40, 70, 200, 650, 4000, 4030, 4100, 7300]):
        for port, known in workers.items():
            is_new = secs in (200, 4030)
            uptime, *counts = (1, 0, 0) if is_new else (known[0] + secs - before, *known[1:])
            # At the end nobody counts any more, so that nothing is in a minute that is open.
            more = [chance.randrange(1, 100) if secs < 7300 else 0 for _ in counts]
            total = [sum(of) for of in zip(total, more, strict=True)]
            restarts += is_new
            workers[port] = (uptime, *map(sum, zip(counts, more, strict=True)))
        before = secs
        clock[0] = now = HOUR + secs
        read = batch(now, number + 1, workers)
        # Begun anew each time, as after kill -9: what was not published was never there.
        with TableStore(
            tmp_path / queries.STATISTICS, specs, interval_secs=15, clock=lambda: clock[0]
        ) as store:
            dict(advance(store.read, read, (now, now)))
            found = dict(advance(store.read, read, (now, now)))
            store.publish(Origin("q", number), found)
            store.publish(Origin("q", number), found)
            # The source gives each pulse again.
            store.publish(Origin("again", number), dict(advance(store.read, read, (now, now))))
    began, end = (datetime.fromtimestamp(HOUR + secs, UTC) for secs in (0, 7200))
    with HistoryDatabase(tmp_path) as past:
        for minutes, buckets in ((1, 7), (10, 3), (60, 2)):
            found = course(past, "wc", began, end, rollup=f"rollup_{minutes}m")
            assert len(found) == buckets
            assert [sum(row[name] for row in found) for name in ("acked", "executed")] == total
            words = course(past, ID, began, end, component="words", rollup=f"rollup_{minutes}m")
            assert sum(row["restarts"] for row in words) == restarts
            assert {row["execute_ms_avg"] for row in words} == {1.0}
            assert {row["complete_ms_avg"] for row in found} == {2.5}
