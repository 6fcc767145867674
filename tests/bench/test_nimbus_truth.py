"""What a run of the bench of a large Nimbus checks after each event, and one small run."""

import sys

import pytest
from nimbus.truth import Placed

from nimbus import cluster, phases, truth

QUERIES = frozenset({"a", "b"})
LIVING = {"n1", "n2"}
PLACED = {
    "t1": {(5, 1): (("n1", 6700), ("a",)), (5, 2): (("n2", 6700), ("b",))},
    "t2": {(5, 3): (("n1", 6701), ("a", "b"))},
}


def faults(launches, before=None, living=LIVING):
    return truth.faults(Placed(launches), Placed(before or {}), ["t1", "t2"], QUERIES, living)


def test_a_whole_placement_has_no_fault():
    assert faults(PLACED, before=PLACED) == []


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ({"t1": PLACED["t1"]}, "t2: 2 queries are missing"),
        (PLACED | {"t2": {(5, 3): (("n1", 6701), ("a",))}}, "t2: 1 queries are missing"),
        (
            PLACED | {"t2": PLACED["t2"] | {(5, 4): (("n2", 6702), ("b",))}},
            "t2: 0 queries are missing",
        ),
        (PLACED | {"t2": {(5, 3): (("n1", 6700), ("a", "b"))}}, "the slot ('n1', 6700) has 2"),
        (PLACED | {"t2": {(5, 3): (("n3", 6700), ("a", "b"))}}, "is on n3, which is dead"),
    ],
)
def test_a_wrong_placement_is_a_fault(launches, expected):
    assert any(expected in fault for fault in faults(launches))


@pytest.mark.parametrize("after", [(5, 3), (6, 1)])
def test_what_was_alive_may_not_move(after):
    moved = PLACED | {"t2": {after: (("n2", 6701), ("a", "b"))}}
    assert any("was moved" in fault for fault in faults(moved, before=PLACED))


def test_what_was_on_a_dead_supervisor_may_move():
    moved = PLACED | {"t1": {(5, 2): (("n2", 6700), ("b",)), (6, 1): (("n2", 6701), ("a",))}}
    moved["t2"] = {(6, 2): (("n2", 6702), ("a", "b"))}
    assert faults(moved, before=PLACED, living={"n2"}) == []


def test_only_the_first_faults_are_named():
    found = truth.faults(Placed(), Placed(), list("tuvwxyz"), QUERIES, LIVING, most=5)
    assert len(found) == 6
    assert found[-1] == "... and 2 more"


@pytest.mark.slow
def test_ten_supervisors_lose_two_and_their_leader(tmp_path):
    said = []
    figures = phases.run(
        cluster.Shape(10, 1.0, phases.QUICK.task_secs, phases.QUICK.session_secs),
        tmp_path,
        sys.executable,
        phases.QUICK,
        said.append,
    )
    # A leader may be missed a little before its session's timeout.
    found = {name: value for name, value in figures.items() if "beyond" not in name}
    assert all(value >= 0 for value in found.values()), "\n".join(said)
    assert figures["Storm's way: reads a round"] == 3 + 14 + 12 - 2 + 14 + 240
