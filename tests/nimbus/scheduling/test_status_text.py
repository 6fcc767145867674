"""What an operator reads of a topology that does not run as it should."""

import pytest

from stormkeeper.topology.plan import Claim
from support.clusters import EPOCH, carried_out, cluster, launch, supervisor, texts, topology


def told(*members, **facts):
    return texts(carried_out(cluster(*members, **facts)))["t"]


def workers(number, **facts):
    """Workers 1, 2, … of one query each, on machines s1, s2, …"""
    return tuple(launch(f"s{n}:6700", f"q{n}", claim=n, **facts) for n in range(1, number + 1))


def of_workers(number, **facts):
    queries = " ".join(f"q{n}" for n in range(1, number + 1))
    return topology("t", queries, workers=number, launches=workers(number), **facts)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "No Pacemaker can say yet whether the worker at s1:6700 lives: it is not moved"),
        (
            2,
            "No Pacemaker can say yet whether the workers at s1:6700 and s2:6700 live: they are not"
            " moved",
        ),
        (5, "No Pacemaker can say yet whether 5 workers live: they are not moved"),
    ],
)
def test_few_workers_are_named_and_many_are_counted(number, expected):
    assert told(of_workers(number), unproven=range(1, number + 1)) == expected


def test_each_reason_is_told():
    text = told(
        of_workers(4),
        supervisor("s2", running=frozenset({6700})),
        supervisor("s3"),
        dead=[1, 2, 3],
        unproven=[4],
    )
    assert text.split("; ") == [
        "No Pacemaker can say yet whether the worker at s4:6700 lives: it is not moved",
        "No pulse comes from the worker at s2.example:6700, which runs as its supervisor says: it"
        " is not moved",
        "Waits until its supervisor has started the worker at s3.example:6700 again",
        "Waits for the machine of the worker at s1:6700: the checkpoint is there and is not shared",
    ]


def released(**facts):
    return topology("t", "q", launches=(launch("a:6700", "q", is_released=True),), **facts)


def stopped(**facts):
    return supervisor("a", stopped={6700: Claim(EPOCH - 1, 1)}, **facts)


@pytest.mark.parametrize(
    ("memory_mb", "there", "expected"),
    [
        (0, supervisor("a"), "Waits until the worker at a.example:6700 is known to have stopped"),
        (
            0,
            stopped(refuses="the disk is full"),
            "Waits for a.example, which takes no new work: the disk is full",
        ),
        (
            2000.5,
            stopped(memory_mb=500),
            "Not enough memory: 1501 MB are missing on a.example, where its checkpoint is, as a"
            " worker needs 2000 MB, and beside a free slot there are at most 500 MB",
        ),
        (0, stopped(), "Fully Scheduled"),
    ],
)
def test_what_a_query_waits_for_that_can_be_on_one_machine_alone(memory_mb, there, expected):
    assert told(released(memory_mb=memory_mb), there, supervisor("b")) == expected


def test_its_machine_may_have_no_slot():
    old = topology("t", "q", launches=(launch("a:7000", "q"),))
    other = topology("u", launches=(launch("a:6700", "q", claim=2),))
    text = told(old, other, supervisor("a", slots=1), supervisor("b"), dead=[1])
    assert text == (
        "Not enough slots: 1 slot is missing on a.example, where its checkpoint is, and none is"
        " free"
    )
