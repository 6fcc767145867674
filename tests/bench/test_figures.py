import pytest
from pacemaker.figures import Figures

OURS = ("stormkeeper", "send", 3_072, 50, 1)
REDIS = ("redis", "send", 3_072, 50, 1)


def row(key, number, **figures):
    names = ("server", "op", "bytes", "connections", "outstanding")
    blank = dict.fromkeys(("requests_per_s", "cpu_us", "p50_ms", "p99_ms", "rss_mib"))
    return dict(zip(names, key, strict=True)) | blank | figures | {"round": number}


def test_a_figure_is_the_median_of_its_rounds():
    rows = [row(OURS, number, cpu_us=value) for number, value in enumerate([5.0, 90.0, 6.0])]
    assert Figures(rows).median(OURS, "cpu_us") == 6.0


def test_rounds_without_the_figure_do_not_count():
    rows = [row(OURS, 1, cpu_us=5.0), row(OURS, 2), row(OURS, 3, cpu_us=7.0)]
    assert Figures(rows).median(OURS, "cpu_us") == 6.0
    assert Figures(rows).median(OURS, "p99_ms") is None
    assert Figures(rows).median(REDIS, "cpu_us") is None


def test_a_ratio_is_taken_within_each_round():
    """The machine was three times slower in the second round, for both."""
    rows = [row(OURS, 1, cpu_us=5.0), row(OURS, 2, cpu_us=18.0), row(OURS, 3, cpu_us=5.5)]
    rows += [row(REDIS, 1, cpu_us=10.0), row(REDIS, 2, cpu_us=30.0), row(REDIS, 3, cpu_us=10.0)]
    assert Figures(rows).ratio(OURS, REDIS, "cpu_us") == pytest.approx(0.55)


def test_a_ratio_needs_a_round_with_both():
    rows = [row(OURS, 1, cpu_us=5.0), row(REDIS, 2, cpu_us=10.0)]
    assert Figures(rows).ratio(OURS, REDIS, "cpu_us") is None


def test_results_have_one_rounded_row_per_server_and_cell():
    rows = [row(OURS, 1, requests_per_s=1234.56, cpu_us=1.23456), row(REDIS, 1)]
    assert Figures(rows).medians() == [
        {
            "server": "stormkeeper",
            "op": "send",
            "bytes": 3_072,
            "connections": 50,
            "outstanding": 1,
            "requests_per_s": 1235,
            "cpu_us": 1.235,
            "p50_ms": None,
            "p99_ms": None,
            "rss_mib": None,
        },
        {
            "server": "redis",
            "op": "send",
            "bytes": 3_072,
            "connections": 50,
            "outstanding": 1,
            "requests_per_s": None,
            "cpu_us": None,
            "p50_ms": None,
            "p99_ms": None,
            "rss_mib": None,
        },
    ]
