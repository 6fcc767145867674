"""Nimbuses elect one leader, whatever befalls them: many seeds, each a schedule of its own.

``SIMULATION_SEEDS`` says how many; ``make simulate`` runs 10,000.
"""

import os
from collections import Counter

import pytest

from simulation.elections import DISK, FORCE, HARM, Elections
from stormkeeper.nimbus.election import (
    ConnectionChanged,
    Election,
    Look,
    Recheck,
    StoreFailed,
    Take,
    TimePassed,
)

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "30"))


def ran(seed, **options):
    world = Elections(seed, **options)
    world.run()
    return world


@pytest.mark.parametrize("force", [False, True], ids=["harm", "force"])
@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_one_leads_in_the_end_and_never_two(seed, force, caplog):
    world = ran(seed, force=force)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert world.seen["told out of turn"] == 0
    assert world.history.overlaps() == []
    assert world.history.past_the_lock() == []
    assert world.history.broken_promises() == []
    assert world.doubles == []
    # Whom a server or somebody by hand deposes before his time is over does not know at once.
    assert force or world.rivals == []
    assert world.has_one_leader()
    assert world.lacking() == set()


def test_the_schedules_have_what_they_are_to_withstand():
    seen = Counter()
    for seed in range(20):
        seen += ran(seed, force=True).seen
    for what in (
        *HARM,
        *DISK,
        *FORCE,
        *("done", "NotLeaderError", "StateUnavailableError", "OutcomeUnknownError"),
        *("sessions lost", "arrived late", "refused to a zombie"),
        *("Look", "Take", "GiveUp", "Check", "Fetch", "Elect", "Depose"),
    ):
        assert seen[what], (what, seen)
    assert seen["reigns"] >= 100, seen


def test_a_seed_is_a_schedule():
    assert ran(3, force=True).seen == ran(3, force=True).seen
    assert ran(3, force=True).seen != ran(4, force=True).seen


class TakesAgain(Election):
    """Takes another lock where it does not know what became of the last."""

    was_lost = False

    def _store_answered(self, answer, now):
        self.was_lost = isinstance(self._store_request, Take) and answer == StoreFailed()
        super()._store_answered(answer, now)

    def _next_store_request(self, now):
        instruction = super()._next_store_request(now)
        if self.was_lost and instruction == Look():
            self.was_lost = False
            return Take()
        return instruction


class HearsNothing(Election):
    """Leads on without a connection, as if there were no lease."""

    def handle(self, event, now):
        if event == ConnectionChanged(False):
            return []
        return super().handle(event, now)

    def leads(self, now):  # noqa: ARG002
        return self._lock is not None and self._lock == self._accepted


class NeverLooksAgain(Election):
    """Takes what was lost for what is gone for good."""

    def handle(self, event, now):
        instructions = super().handle(event, now)
        if event == StoreFailed():
            self._store_pause.until = float("inf")
        return instructions


class KeepsTheLead(Election):
    """Does not look at its disk again once it leads."""

    def handle(self, event, now):
        return super().handle(TimePassed() if event == Recheck() else event, now)


def test_who_queues_behind_himself_is_caught():
    assert any(ran(seed, force=False, make_election=TakesAgain).doubles for seed in range(20))


def test_who_leads_without_a_lease_is_caught():
    assert any(ran(seed, force=False, make_election=HearsNothing).rivals for seed in range(20))


def test_a_leader_that_cannot_write_is_caught():
    worlds = (ran(seed, force=False, make_election=KeepsTheLead) for seed in range(20))
    assert not all(world.has_one_leader() for world in worlds)


@pytest.mark.slow
def test_a_cluster_that_stays_without_a_leader_is_caught():
    worlds = (ran(seed, force=False, make_election=NeverLooksAgain) for seed in range(20))
    assert not all(world.has_one_leader() for world in worlds)
