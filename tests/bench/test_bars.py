import itertools

import pytest
from pacemaker.figures import Figures

from pacemaker import bars, cells


def figures(**changes):
    """Return figures of one round in which everything holds, but for the changes."""
    numbers = {
        "stormkeeper": {"requests_per_s": 200_000, "cpu_us": 5.0, "p99_ms": 0.5, "rss_mib": 30.0},
        "redis": {"requests_per_s": 150_000, "cpu_us": 6.0, "p99_ms": 0.5, "rss_mib": 10.0},
        "echo": {"requests_per_s": 210_000, "cpu_us": 4.5, "p99_ms": 0.4, "rss_mib": 1.0},
    }
    rows = []
    for server, found in numbers.items():
        for cell in cells.all_cells(cells.QUICK):
            for op in operations(cell):
                key = (server, op, cell.bytes, cell.connections, cell.outstanding)
                if "during" in op:
                    key = (server, op, cell.bytes, cells.WRITERS, 1)
                names = ("server", "op", "bytes", "connections", "outstanding")
                row = dict(zip(names, key, strict=True)) | found | {"p50_ms": 900.0, "round": 1}
                if op == "read-72000-ages-quiet":
                    row["p50_ms"] = 149.0
                if op in ("memory-fresh", "memory-overwritten"):
                    row["rss_mib"] += 1.1 * cells.MEMORY_KEYS * 3_072 / 2**20
                rows.append(row | changes.get(server, {}).get(op, {}))
    return Figures(rows)


def operations(cell):
    return {
        "memory": ["memory-empty", "memory-fresh", "memory-overwritten"],
        "read": [
            *("read-72000-changes", "send-24000/s-during-changes"),
            *("read-72000-ages", "send-24000/s-during-ages", "read-72000-ages-quiet"),
        ],
    }.get(cell.kind, [cell.op])


def failing(**changes):
    return [bar.name for bar in bars.all_bars(figures(**changes)) if not bar.holds]


def test_all_hold_on_good_figures():
    assert failing() == []


def test_every_send_and_get_cell_has_its_bars():
    names = [bar.name for bar in bars.all_bars(figures())]
    for op, size, (connections, outstanding) in itertools.product(
        ("SEND", "GET"), cells.SIZES, cells.CONCURRENCIES
    ):
        cell = f"{op} {size:,} B, {connections:,} x {outstanding}"
        assert f"{cell}: CPU, of Redis's" in names
        assert (f"{cell}: CPU, of the echo's" in names) == (outstanding == 1)


@pytest.mark.parametrize(
    ("server", "op", "change", "expected"),
    [
        ("redis", "send", {"cpu_us": 4.9}, "CPU, of Redis's"),
        ("echo", "send", {"cpu_us": 3.8}, "CPU, of the echo's"),
        ("stormkeeper", "get", {"requests_per_s": 149_000}, "requests/s, 3 x Storm's"),
        ("stormkeeper", "children-150000", {"p99_ms": 1.2}, "children among 150,000 keys: p99, ms"),
        ("stormkeeper", "children-150000", {"cpu_us": 8.0}, "the same: CPU, of that among 1,000"),
        ("stormkeeper", "send-24000/s", {"cpu_us": 23.0}, "24,000 pulses/s of 6,648: cores"),
        ("stormkeeper", "send-24000/s", {"p99_ms": 5.1}, "24,000 pulses/s of 6,648: p99, ms"),
        (
            "stormkeeper",
            "memory-fresh",
            {"rss_mib": 280.0},
            "memory of 72,000 x 3 KiB, fresh, of the payload",
        ),
        ("stormkeeper", "memory-overwritten", {"rss_mib": 300.0}, "overwritten, of the payload"),
        ("stormkeeper", "read-72000-ages", {"p50_ms": 2_100.0}, "72,000 ages read while they beat"),
        ("stormkeeper", "read-72000-ages-quiet", {"p50_ms": 151.0}, "ages read of a quiet server"),
        ("stormkeeper", "send-24000/s-during-changes", {"p99_ms": 21.0}, "writers during changes"),
    ],
)
def test_a_figure_over_its_limit_fails_its_bar(server, op, change, expected):
    failed = failing(**{server: {op: change}})
    assert failed
    assert all(expected in name for name in failed)


def test_what_was_not_measured_neither_holds_nor_fails():
    nothing = Figures([])
    assert all(bar.holds is None for bar in bars.all_bars(nothing))


def test_storms_own_figure_counts_where_it_was_measured():
    """Three times Storm's, or 0.8 of the echo's where that is less."""
    storm = {
        "server": "storm",
        "op": "send",
        "bytes": 3_072,
        "connections": 50,
        "outstanding": 1,
        "requests_per_s": 40_000,
        "round": 1,
    }
    rows = [{**storm, "server": "stormkeeper", "requests_per_s": 110_000, "cpu_us": 1.0}]
    assert speed_bar([*rows, storm]).at_least == 120_000
    assert speed_bar(rows).at_least == 3 * 53_000
    echo = {**storm, "server": "echo", "requests_per_s": 100_000, "cpu_us": 1.0}
    least = speed_bar([*rows, storm, echo])
    assert (least.at_least, least.value) == (0.8, pytest.approx(1.1))
    quick = {**echo, "requests_per_s": 200_000}
    assert speed_bar([*rows, storm, quick]).at_least == 120_000


def speed_bar(rows):
    (bar,) = [bar for bar in bars.all_bars(Figures(rows)) if "requests/s" in bar.name]
    return bar
