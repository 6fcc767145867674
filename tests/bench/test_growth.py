"""What grows with time in a long run of the pipeline's bench."""

import pytest
from pipeline.shapes import SHAPES

from pipeline import running


def figures(liveness, statistics, memory, seconds=600.0):
    return {
        "seconds": seconds,
        "liveness": {"lag p99 by thirds, s": liveness},
        "statistics": {"lag p99 by thirds, s": statistics},
        "PSS, MiB": {"pipeline": {"by thirds": memory}},
    }


def grown(**given):
    calm = {
        "liveness": [3.0, 9.0, 4.0],
        "statistics": [20.0, 5.0, 29.0],
        "memory": [900, 990, 1000],
    }
    return [*running.grown(SHAPES["small"], figures(**{**calm, **given}))]


def test_what_is_bounded_has_not_grown():
    assert grown() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"liveness": [3.0, 3.0, 10.1]}, "lags of liveness are not bounded by 10 s"),
        ({"statistics": [31.0, 3.0, 3.0]}, "lags of statistics are not bounded by 30 s"),
        ({"memory": [900, 1000, 1081]}, "the pipeline's memory grows with time: 900 MiB"),
    ],
)
def test_what_has_grown_is_said(given, said):
    (line,) = grown(**given)
    assert line.startswith(said)
    assert grown(**given, seconds=120.0) == [], "too short to tell"


def test_no_lag_at_all_is_none_that_is_bounded():
    found = figures([], [3.0], [1, 1, 1])
    del found["liveness"]["lag p99 by thirds, s"]
    (line,) = running.grown(SHAPES["small"], found)
    assert "lags of liveness" in line
