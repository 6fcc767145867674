"""No two leaders' writes overlap, whatever befalls them: many seeds, each a schedule of its own.

``SIMULATION_SEEDS`` says how many; ``make simulate`` runs 10,000. One that failed runs alone by its
id, with ``SIMULATION_SEEDS`` as it was.
"""

import os
from collections import Counter

import pytest

from simulation.schedule import World
from stormkeeper.errors import NotLeaderError
from stormkeeper.state import fenced_writer, leader_lock
from stormkeeper.state.fenced_writer import FencedWriter

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200"))
#: How many of them the first tier has; all, if their number is given.
FIRST_TIER = SEEDS if "SIMULATION_SEEDS" in os.environ else 60


def ran(seed, **options):
    world = World(seed, **options)
    world.run()
    return world


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, id=f"seed-{seed}", marks=[pytest.mark.slow] * (seed >= FIRST_TIER))
        for seed in range(SEEDS)
    ],
)
def test_no_leader_writes_after_its_successor(seed):
    world = ran(seed)
    assert world.history.overlaps() == []
    assert world.history.past_the_lock() == []
    assert world.history.broken_promises() == []
    assert world.has_leader


def test_the_schedules_have_what_they_are_to_withstand():
    seen = Counter()
    for seed in range(20):
        seen += ran(seed).seen
    for what in (
        *("done", "NotLeaderError", "StateUnavailableError", "OutcomeUnknownError"),
        *("arrived late, and applied", "arrived late, and refused", "sessions lost"),
        *("stop", "stop briefly", "cut", "cut briefly", "lose", "delay", "lock"),
    ):
        assert seen[what], (what, seen)
    assert seen["refused to a zombie"] >= 50, seen
    assert seen["refused before its turn"] >= 50, seen
    assert seen["reigns"] >= 60, seen


def test_a_seed_is_a_schedule():
    def told(world):
        return [
            (attempt.fence.epoch, attempt.what, attempt.outcome, attempt.changes)
            for attempt in world.history.attempts
        ]

    assert told(ran(3)) == told(ran(3))
    assert told(ran(3)) != told(ran(4))


class Unchecked(FencedWriter):
    """Believes that it leads."""

    def commit(self, operations):
        return self.session.commit(operations)


class LooksFirst(Unchecked):
    """Looks for its lock, and then writes."""

    def commit(self, operations):
        if self.session.get_version(self.fence.path) != 0:
            raise NotLeaderError("the lock is gone")
        return super().commit(operations)


@pytest.mark.parametrize("handle", [Unchecked, LooksFirst])
def test_a_handle_without_the_check_is_caught(handle):
    assert any(ran(seed, make_handle=handle).history.overlaps() for seed in range(200))


def test_whoever_leads_before_its_turn_is_caught(monkeypatch):
    """Where a fence is given to the holder of any lock, the second writes, and then the first."""

    def is_there(state, fence):
        if state.get_stat(fence.path).owner != state.session_id:
            raise NotLeaderError("another session made it")

    for module in (fenced_writer, leader_lock):
        monkeypatch.setattr(module, "verify_fence", is_there)
    worlds = [ran(seed) for seed in range(10)]
    assert any(world.history.overlaps() for world in worlds)
    assert all(world.history.past_the_lock() for world in worlds)


def test_a_promise_that_is_broken_is_caught():
    assert ran(0, make_handle=Unchecked).history.broken_promises()
    assert ran(0, make_handle=Unchecked).history.past_the_lock()
