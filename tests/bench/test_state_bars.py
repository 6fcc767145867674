import socket
import threading

import pytest
from pacemaker.bars import Bar
from state.bars import RATES, WATCHES, Figures, all_bars
from state.delaying import SlowProxy

from state import filling, report_lines
from stormkeeper.thrift.records import Assignment, StormBase
from stormkeeper.thrift.serialization import deserialize

FAR = {
    ("far-heartbeats-24", "ours"): {"round_trips": 2, "requests": 25},
    ("far-heartbeats-24-pacemaker", "ours-pacemaker"): {"round_trips": 1, "requests": 2},
    ("far-read-300", "ours"): {"round_trips": 1, "requests": 300},
    ("far-children-data-300", "ours"): {"round_trips": 2, "requests": 301},
    ("far-transaction-100", "ours"): {"round_trips": 1, "requests": 1},
}


def rows(round_number=1, **changes):
    """Return rows of one round in which everything holds, but for the changes, by cell."""
    found = []
    for cell in ("assignments-and-bases", *RATES):
        for of, secs in (("kazoo", 0.1), ("ours", 0.12)):
            row = {"cell": cell, "of": of, "secs": secs, "per_s": 5_000, "threads": None}
            if cell.startswith(WATCHES):
                row["threads"] = 0
            found.append(row | (changes.get(cell, {}) if of == "ours" else {}))
    for (cell, of), counts in FAR.items():
        row = {"cell": cell, "of": of, "secs": 0.1, "per_s": 0} | counts
        found.append(row | changes.get(cell, {}))
    return [{"round": round_number} | row for row in found]


def failing(*rounds):
    figures = Figures([row for found in rounds for row in found])
    return [bar.name for bar in all_bars(figures) if not bar.holds]


def test_all_hold_on_good_figures():
    assert failing(rows()) == []


@pytest.mark.parametrize(
    ("cell", "change", "expected"),
    [
        ("assignments-and-bases", {"secs": 0.201}, "typed"),
        *((cell, {"secs": 0.126}, f"{cell}: rate") for cell in RATES),
        (f"{WATCHES}-armed", {"threads": 1}, "threads"),
        ("far-heartbeats-24-pacemaker", {"round_trips": 2}, "24 heartbeats from a Pacemaker"),
        ("far-heartbeats-24", {"round_trips": 3}, "24 heartbeats from ZooKeeper"),
        ("far-read-300", {"round_trips": 2}, "300 nodes"),
        ("far-children-data-300", {"round_trips": 3}, "the 300 assignments"),
        ("far-transaction-100", {"round_trips": 2}, "a transaction"),
    ],
)
def test_a_figure_over_its_limit_fails_its_bar(cell, change, expected):
    (failed,) = failing(rows(**{cell: change}))
    assert expected in failed


def test_ratios_are_medians_of_rounds_and_counts_their_largest():
    slow = {"assignments-and-bases": {"secs": 0.9}}
    assert failing(rows(1), rows(2, **slow), rows(3)) == []
    assert failing(rows(1), rows(2, **slow), rows(3, **slow)) != []
    assert failing(rows(1), rows(2, **{"far-read-300": {"round_trips": 2}}), rows(3)) != []


def test_what_was_not_measured_neither_holds_nor_fails():
    nothing = Figures([])
    assert all(bar.holds is None for bar in all_bars(nothing))
    assert report_lines.far_table(nothing) == ""


def test_the_page_has_every_cell_and_every_bar():
    figures = Figures(rows())
    page = report_lines.summary(figures, [Bar("a promise", 2.0, at_most=1.0)], "here")
    for cell in ("assignments-and-bases", *RATES, "heartbeats-24-pacemaker", "a promise", "FAILS"):
        assert cell in page
    (ours,) = [
        line for line in page.splitlines() if "assignments-and-bases" in line and "ours" in line
    ]
    assert ours.split("|")[-2].strip() == "1.20"


@pytest.mark.slow
def test_the_cluster_is_as_large_as_it_is_said_to_be():
    nodes = dict(filling.nodes())
    kept = dict.fromkeys((Assignment, StormBase), 0)
    for path, data in nodes.items():
        for cls, top in ((Assignment, "/assignments/"), (StormBase, "/storms/")):
            if path.startswith(top):
                deserialize(cls, data)
                kept[cls] += 1
    assert set(kept.values()) == {filling.TOPOLOGIES}
    beats = [path for path in nodes if path.startswith("/workerbeats/") and path.count("/") == 3]
    assert len(beats) == filling.TOPOLOGIES * filling.WORKERS
    first = deserialize(Assignment, nodes[f"/assignments/{filling.storm_id(0)}"])
    assert len(first.executor_node_port) == filling.WORKERS * filling.EXECUTORS_PER_WORKER
    assert len(first.worker_resources) == filling.WORKERS


def test_the_slow_network_counts_whole_requests_and_passes_all():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with (
            SlowProxy("127.0.0.1", server.getsockname()[1], 0.01) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port), 10) as client,
        ):
            frame = b"\0\0\0\5hello"
            for piece in (frame[:2], frame[2:6], frame[6:] + frame + frame[:7], frame[7:]):
                client.sendall(piece)
            told = b""
            while len(told) < 3 * len(frame):
                told += client.recv(100)
            assert told == 3 * frame
            assert proxy.requests == 3


def _echo(server):
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)
