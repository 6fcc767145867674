"""Waiting for an effect, on a clock of the test's own."""

import pytest

from stormkeeper.client.topology_commands import PERIOD_SECS, Wait, WaitStatus
from stormkeeper.errors import NotAliveError, RpcUnavailableError


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, secs):
        self.now += secs


@pytest.fixture
def told():
    return []


@pytest.fixture
def wait(told):
    clock = Clock()

    def of(secs):
        return Wait(secs, lambda text, passed: told.append((text, passed)), clock, clock.sleep)

    return of


def looks(*answers):
    left = list(answers)

    def look():
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def test_it_looks_until_the_effect_is_there(wait, told):
    seen = wait(60).until(
        looks(WaitStatus(False, "a"), WaitStatus(False, "b"), WaitStatus(True, "c"))
    )
    assert seen == WaitStatus(True, "c")
    assert told == [("a", 0.0), ("b", PERIOD_SECS)]


def test_what_has_failed_is_waited_for_no_more(wait, told):
    failed = WaitStatus(False, "b", has_failed=True)
    assert wait(60).until(looks(WaitStatus(False, "a"), failed, WaitStatus(True, "c"))) == failed
    assert told == [("a", 0.0)]


def test_its_time_ends(wait, told):
    assert wait(1.2).until(looks(WaitStatus(False, "a"))) == WaitStatus(False, "a")
    assert [passed for _, passed in told] == pytest.approx([0.0, 0.5, 1.0])


def test_without_time_it_looks_once(wait, told):
    assert wait(0).until(looks(WaitStatus(False, "a"))) == WaitStatus(False, "a")
    assert told == []


def test_a_nimbus_that_is_silent_for_a_while_is_waited_for(wait, told):
    gone = RpcUnavailableError("n:6627: connection refused")
    assert wait(60).until(looks(gone, WaitStatus(True, "c"))).is_done
    assert told == [("Nimbus does not answer: n:6627: connection refused", 0.0)]


def test_what_else_a_look_raises_ends_it(wait):
    with pytest.raises(NotAliveError):
        wait(60).until(looks(NotAliveError("wc is not alive")))
