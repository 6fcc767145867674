"""What executors counted as rows of Arrow, from heartbeats as workers send them."""

import random

import pyarrow as pa
import pytest

from stormkeeper.pipeline import executor_stats as readings
from stormkeeper.pipeline.executor_stats import WINDOWS, cut_pulses, executor_stats
from stormkeeper.pipeline.table_columns import EXECUTOR_STATS
from support.heartbeats import bolt, change_of, heartbeat, path, spout
from support.reported_topologies import decoded, heartbeats_of, reported

READ_AT = 1_700_000_000.0
RANDOM = heartbeats_of([reported(random.Random(number), f"t-{number}-17") for number in range(100)])


def rows_of(*executors, where="wc-1-17", garbage=False):
    """The rows of one worker with executors (tasks, stats); or of another one, whose are none."""
    details = b"garbage" if garbage else heartbeat(where, dict(executors), uptime_secs=60)
    changes = [change_of(path(where, "n", 6701), details, 7, 1.5)]
    return executor_stats(decoded(changes, READ_AT)).to_pylist()


def said(table):
    """The rows in any order, as text: NaN is not equal to itself."""
    return sorted(map(repr, table.to_pylist()))


def test_row_has_worker_heartbeat_and_counts():
    stats = bolt({("lines", "default"): 10}, 3, execute_ms=2.0)
    stats.component = "words"
    found = [row for row in rows_of(((2, 3), stats)) if row["window"] == "600"]
    worker = {"storm_id": "wc-1-17", "topology": "wc", "node": "n", "port": 6701}
    sent = {"server": "a:1", "instance": "x", "revision": 7, "uptime_secs": 60}
    whose = {"task_start": 2, "task_end": 3, "component": "words", "kind": "bolt"}
    nothing = dict.fromkeys(("emitted", "transferred", "executed", "acked", "failed"))
    nothing |= dict.fromkeys(("source", "complete_ms_avg", "execute_ms_avg", "process_ms_avg"))
    for row in found:
        assert (row["read_at"] - row["received_at"]).total_seconds() == 1.5
        assert row["time_secs"] is not None
    same = [
        {k: v for k, v in row.items() if k not in ("read_at", "received_at", "time_secs")}
        for row in found
    ]
    everywhere = worker | sent | whose | nothing | {"window": "600", "partial": False}
    out = everywhere | {"stream": "default", "emitted": 3, "transferred": 3}
    taken = {"source": "lines", "stream": "default", "executed": 10, "acked": 10}
    taken |= {"execute_ms_avg": 2.0, "process_ms_avg": 2.0}
    assert sorted(same, key=lambda row: row["source"] or "") == [out, everywhere | taken]


def test_executor_without_counts_has_an_empty_row_per_window():
    stats = spout(5)
    del stats.emitted["600"], stats.emitted["86400"], stats.transferred["600"]
    del stats.transferred["86400"]
    for counts in (stats.specific.spout.acked, stats.specific.spout.failed):
        del counts["600"], counts["86400"]
    del stats.specific.spout.complete_ms_avg["600"], stats.specific.spout.complete_ms_avg["86400"]
    found = rows_of(((1, 1), stats), ((2, 2), spout(1)))
    streams = {(row["task_start"], row["window"]): row["stream"] for row in found}
    assert streams == {
        (task, window): None if task == 1 and window in ("600", "86400") else "default"
        for task in (1, 2)
        for window in WINDOWS
    }
    assert not any(row["partial"] for row in found)


def test_a_component_without_a_name_is_called_by_its_tasks():
    found = rows_of(((1, 3), bolt({("?", "default"): 5})), ((4, 4), spout(5)), ((-1, -1), spout(1)))
    assert {(row["task_start"], row["component"], row["kind"]) for row in found} == {
        (1, "tasks 1-3", "bolt"),
        (4, "tasks 4-4", "spout"),
        (-1, "__system", "spout"),
    }


def test_what_cannot_be_decoded_has_no_rows_and_nothing_has_none():
    assert rows_of(garbage=True) == []
    assert rows_of() == []
    empty = executor_stats(RANDOM.slice(0, 0))
    assert (empty.num_rows, empty.schema) == (0, EXECUTOR_STATS)


@pytest.mark.parametrize("size", [1, 20_000])
def test_pieces_have_the_same_rows(monkeypatch, size):
    monkeypatch.setattr(readings, "_PIECE_BYTES", size)
    # In chunks that begin in the middle of what they are taken of.
    pulses = pa.concat_tables([RANDOM.slice(0, 3), RANDOM.slice(5, 40), RANDOM.slice(45)])
    found = list(cut_pulses(pulses))
    assert len(found) > 10
    assert sum(piece.num_rows for piece in found) == pulses.num_rows
    revisions = pa.concat_tables(found)["revision"]
    assert revisions.to_pylist() == pulses["revision"].to_pylist()
    by_piece = pa.concat_tables([executor_stats(piece) for piece in found])
    assert said(by_piece) == said(executor_stats(pulses))
