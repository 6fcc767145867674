from pacemaker.bars import Bar
from pacemaker.figures import Figures

from pacemaker import cells, report


def row(server, op, connections=50, outstanding=1, **figures):
    blank = dict.fromkeys(("requests_per_s", "cpu_us", "p50_ms", "p99_ms", "rss_mib"))
    key = {"server": server, "op": op, "bytes": 3_072}
    places = {"connections": connections, "outstanding": outstanding, "round": 1}
    return key | places | blank | figures


def test_a_column_is_as_wide_as_what_is_in_it():
    text = report.table(["cell", "a"], [["x", 1], ["longer", 123]])
    assert text == ("| cell   |   a |\n| ------ | --: |\n| x      |   1 |\n| longer | 123 |")


def test_a_server_without_the_figure_has_a_dash():
    rows = [row("stormkeeper", "send", requests_per_s=187_400, cpu_us=5.123)]
    text = report.closed_table(Figures(rows), ["stormkeeper", "redis"])
    assert "187k · 5.12" in text.splitlines()[2]
    assert text.splitlines()[2].endswith("- |")


def test_cores_are_told_as_a_share_of_one():
    rows = [row("echo", "send-24000/s", cells.WORKERS, cpu_us=20.0, p99_ms=1.5)]
    assert "48.0 · 1.50" in report.paced_table(Figures(rows), ["echo"])


def test_memory_is_told_as_a_share_of_the_payload():
    payload = 72_000 * 3_072 / 2**20
    rows = [
        row("redis", "memory-empty", 50, 16, rss_mib=10.0),
        row("redis", "memory-fresh", 50, 16, rss_mib=10.0 + 1.5 * payload),
    ]
    text = report.memory_table(Figures(rows), ["redis"])
    assert "1.50" in text
    assert text.splitlines()[-1].endswith("- |")


def test_bars_say_what_came_of_them():
    bars = [Bar("a", 1.0, at_most=1.0), Bar("b", 2.0, at_least=3.0), Bar("c", None, at_most=1.0)]
    lines = report.bars_table(bars).splitlines()[2:]
    assert [line.split("|")[4].strip() for line in lines] == ["holds", "FAILS", "not measured"]


def test_the_page_has_only_what_was_measured():
    text = report.summary(Figures([]), ["echo"], [], "about")
    assert "about" in text
    assert "children" not in text
