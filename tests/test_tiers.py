"""Who runs which test is what ``tests/support/tiers.py`` says."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from support.machine import line_of
from support.tiers import LATER, is_named

HERE = Path(__file__).parent
FILE = HERE / "room" / "test_it.py"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("test_a", ["tests/room/test_it.py::test_a"]),
        ("test_a", ["tests/other.py", "tests/room/../room/test_it.py::test_a"]),
        ("test_a", [f"{FILE}::test_a"]),
        ("test_a[x::y]", ["tests/room/test_it.py::test_a[x::y]"]),
        ("test_a[x]", ["tests/room/test_it.py::test_a"]),
        ("TestIt::test_a", ["tests/room/test_it.py::TestIt"]),
    ],
)
def test_it_is_named(name, arguments):
    assert is_named(FILE, f"tests/room/test_it.py::{name}", arguments, HERE.parent)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("test_a", []),
        ("test_a", ["tests", "tests/room", "tests/room/test_it.py"]),
        ("test_a", ["tests/room/test_it.py::test_b", "tests/room/test_that.py::test_a"]),
        ("test_ab", ["tests/room/test_it.py::test_a"]),
        ("test_a[y]", ["tests/room/test_it.py::test_a[x]"]),
    ],
)
def test_it_is_not_named(name, arguments):
    assert not is_named(FILE, f"tests/room/test_it.py::{name}", arguments, HERE.parent)


A_FILE = """
import pytest
def test_first(): pass
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.slow
def test_slower(): pass
@pytest.mark.slow
@pytest.mark.faults
def test_faults(): pass
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["first"]),
        (["-m", "slow"], ["slow", "slower"]),
        (["-m", "faults"], ["faults"]),
        (["-m", "faults or slow or not slow"], ["first", "slow", "slower", "faults"]),
        (["-k", "slow"], []),
        (["test_it.py::test_slow"], ["slow"]),
    ],
)
def test_what_nobody_asks_for_does_not_run(pytester, arguments, expected):
    marks = "".join(f"    {mark}: later\n" for mark in LATER)
    pytester.makeini(f"[pytest]\nmarkers =\n{marks}")
    pytester.makeconftest(
        "from support import tiers\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    tiers.select(config, items)\n"
    )
    pytester.makepyfile(test_it=A_FILE)
    passed, skipped, failed = pytester.inline_run(*arguments).listoutcomes()
    assert [test.nodeid.removeprefix("test_it.py::test_") for test in passed] == expected
    assert skipped == failed == []


@pytest.mark.parametrize(
    ("file", "marks", "expected"),
    [
        ("cluster/test_cluster.py", "slow", "clusters"),
        ("cluster/test_cluster.py", "", "spark"),
        ("pipeline/test_source.py", "slow", "spark"),
        ("local/test_storm_local.py", "slow", "clusters"),
        ("cli/test_main.py", "slow", None),
    ],
)
def test_spark_tests_wait_in_one_line_or_in_two(file, marks, expected):
    config = SimpleNamespace(rootpath=HERE.parent, option=SimpleNamespace(markexpr=marks))
    assert line_of(config, HERE / file) == expected
