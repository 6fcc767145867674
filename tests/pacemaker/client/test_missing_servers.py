"""Who does not answer is told when that changes, and again after a minute."""

import logging

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.pacemaker.client.pool_reads import MissingServers
from support.sessions import Clock

A, B = Address("a", 1), Address("b", 2)
FAILED = {A: PacemakerUnavailableError("a is down"), B: PacemakerUnavailableError("b is down")}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told(caplog):
    """What was logged since it was asked for the last time."""
    caplog.set_level(logging.INFO, "stormkeeper.pacemaker.client.pool")

    def take():
        lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_that_all_answer_is_no_news(clock, told):
    MissingServers(2, clock).note({})
    assert told() == []


def test_each_change_is_told_once(clock, told):
    missing = MissingServers(3, clock)
    one = {A: FAILED[A]}
    for failed, line in (
        (one, "WARNING 1 of 3 Pacemakers failed in the last read: a is down"),
        (FAILED, "WARNING 2 of 3 Pacemakers failed in the last read: a is down; b is down"),
        (one, "WARNING 1 of 3 Pacemakers failed in the last read: a is down"),
        ({}, "INFO Every Pacemaker answers again"),
    ):
        missing.note(failed)
        missing.note(failed)
        assert told() == [line]


def test_who_stays_silent_is_told_again_after_a_minute(clock, told):
    missing = MissingServers(2, clock)
    missing.note(FAILED)
    clock.now += 59.9
    missing.note(FAILED)
    assert len(told()) == 1
    clock.now += 0.1
    missing.note(FAILED)
    assert len(told()) == 1
    missing.note(FAILED)
    assert told() == []
