import pytest
from nimbus.bars import GROWING, LIMITS, Figures, all_bars

from nimbus import bars

#: Figures with which every bar holds, of 1,000 supervisors.
GOOD = {
    "at rest: a round, median, ms": 40,
    "at rest: longest round, s": 0.3,
    "at rest: CPU, % of a core": 5,
    "death of one: longest round, s": 0.3,
    "death of one: beyond the timeout, s": 0.5,
    "death of many: beyond the timeout, s": 5,
    "failover: first round, s": 1,
    "failover: beyond the session's timeout, s": 1,
    "placing all: to the last assignment, s": 3,
    "memory, most, MiB": 300,
}


def rows(**changes):
    large = {name: 3 * value for name, value in GOOD.items()}
    return [
        {"supervisors": 1_000, "of": bars.OURS, **GOOD},
        {"supervisors": 3_000, "of": bars.OURS, **large, **changes},
    ]


def failing(found):
    return [bar.name for bar in all_bars(Figures(found)) if bar.holds is False]


def test_all_bars_hold_on_good_figures():
    held = all_bars(Figures(rows()))
    assert [bar.holds for bar in held] == [True] * (len(LIMITS) + len(GROWING))


@pytest.mark.parametrize("name", LIMITS)
def test_a_figure_above_its_limit_fails(name):
    assert name in failing(rows(**{name: LIMITS[name] * 1.01}))


@pytest.mark.parametrize("name", GROWING)
def test_growth_above_a_linear_one_fails(name):
    assert failing(rows(**{name: GOOD[name] * 3.1}))[-1] == f"growth, of a linear one: {name}"


def test_a_small_cluster_has_no_bars_but_growth():
    small = [{**row, "supervisors": row["supervisors"] // 10} for row in rows()]
    held = all_bars(Figures(small))
    assert [bar.name for bar in held if bar.holds is not None] == [
        f"growth, of a linear one: {name}" for name in GROWING
    ]


def test_another_checkout_stands_beside_ours_and_has_no_bars():
    slow = dict.fromkeys(GOOD, 1000000.0)
    figures = Figures([{"supervisors": 3_000, "of": "other", **slow}, *rows()])
    assert not any(bar.holds is False for bar in all_bars(figures))
    head = bars.figures_table(figures).splitlines()[0]
    assert [cell.strip() for cell in head.split("|")][2:-1] == ["1,000", "3,000", "3,000, other"]
