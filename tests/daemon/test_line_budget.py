"""Lines that pass, and those that are counted."""

from stormkeeper.daemon.line_budget import LineBudget


def test_so_many_pass_and_the_next_says_how_many_did_not():
    budget = LineBudget(2, 10.0)
    assert [budget.spend("a", now) for now in (0.0, 1.0, 2.0, 9.9)] == [0, 0, None, None]
    assert [budget.spend("a", now) for now in (10.0, 11.0, 12.0)] == [2, 0, None]
    assert budget.spend("a", 1_000.0) == 1


def test_matters_do_not_share_a_budget():
    budget = LineBudget(1, 10.0)
    assert [budget.spend(matter, 0.0) for matter in "aabb"] == [0, None, 0, None]


def test_memory_is_bounded():
    budget = LineBudget(1, 10.0)
    for n in range(100_000):
        budget.spend(n, n / 1_000)
    assert len(budget._spans) <= 1_024
