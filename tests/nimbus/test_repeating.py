import threading

import pytest

from stormkeeper.errors import NotLeaderError, StateUnavailableError
from stormkeeper.nimbus.repeating import Repeating
from support.waiting import until

NEVER = 3600.0


class Doing:
    """Counts how often it is done; `then` says what comes of each time."""

    def __init__(self, *then):
        self.times = 0
        self._then = list(then)
        self.now = 0.0
        self.thread = Repeating("test repeating", self, lambda: self.now)

    def __call__(self):
        self.times += 1
        what = self._then.pop(0) if self._then else NEVER
        if isinstance(what, Exception):
            raise what
        return what() if callable(what) else what


@pytest.fixture
def doing():
    opened = []

    def start(*then):
        opened.append(Doing(*then))
        opened[-1].thread.start()
        return opened[-1]

    yield start
    for each in opened:
        assert each.thread.close(10.0)


def test_it_is_done_at_once_and_when_it_is_time(doing):
    one = doing(0.0, 0.0)
    until(lambda: one.times == 3)


def test_whoever_wakes_it_has_it_done(doing):
    one = doing()
    until(lambda: one.times == 1)
    one.thread.wake()
    until(lambda: one.times == 2)


def test_the_rest_after_a_wait_is_not_as_long_as_the_wait(doing):
    one = doing()
    until(lambda: one.times == 1)
    # So long does it wait by its clock.
    one.now += NEVER
    one.thread.wake()
    until(lambda: one.times == 2)


def test_what_comes_while_it_is_done_is_done_once_more(doing):
    let_go = threading.Event()

    def hold():
        assert let_go.wait(10.0)
        return NEVER

    one = doing(hold)
    until(lambda: one.times == 1)
    for _ in range(100):
        one.thread.wake()
    let_go.set()
    until(lambda: one.times == 2)
    one.thread.close(10.0)
    assert one.times == 2


def test_what_fails_is_tried_again_and_said(doing, caplog):
    one = doing(StateUnavailableError("ZooKeeper is away"), ValueError("a defect"))
    until(lambda: one.times == 3)
    said = [record for record in caplog.records if "is tried again" in record.message]
    assert "ZooKeeper is away" in said[0].message
    assert said[0].exc_info is None
    assert said[1].exc_info is not None


def test_whoever_leads_no_more_does_it_no_more(doing):
    one = doing(NotLeaderError("another one leads"))
    until(lambda: not one.thread._thread.is_alive())
    one.thread.wake()
    assert one.times == 1
