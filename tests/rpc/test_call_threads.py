"""The threads of the handlers: no more than may be, and no more that waits."""

import threading

import pytest

from stormkeeper.rpc import dispatcher
from stormkeeper.rpc.dispatcher import CallThreads
from support.waiting import DEADLINE_SECS, until


class Work:
    """Work that is done when it is let go."""

    def __init__(self, done, name):
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self._done, self._name = done, name

    def __call__(self):
        self.has_begun.set()
        assert self.may_end.wait(DEADLINE_SECS)
        self._done.append(self._name)


@pytest.fixture
def work():
    """Makes work; whatever was made ends with the test."""
    made, done = [], []

    def make(name=""):
        made.append(Work(done, name))
        return made[-1]

    make.done = done
    yield make
    for one in made:
        one.may_end.set()


def test_as_many_run_as_there_are_threads_and_the_rest_wait(work):
    workers = CallThreads(2, 10, "test")
    pieces = [work(number) for number in range(4)]
    for piece in pieces:
        assert workers.submit(piece, 1)
    assert all(piece.has_begun.wait(DEADLINE_SECS) for piece in pieces[:2])
    assert (workers.busy, workers.waiting) == (2, 2)
    assert not pieces[2].has_begun.is_set()
    pieces[1].may_end.set()
    assert pieces[2].has_begun.wait(DEADLINE_SECS)
    for piece in pieces:
        piece.may_end.set()
    until(lambda: not workers.busy and not workers.waiting)
    assert sorted(work.done) == [0, 1, 2, 3]


def test_call_beyond_the_limit_is_refused(work):
    workers = CallThreads(1, 2, "test")
    running = work()
    assert workers.submit(running, 1)
    assert running.has_begun.wait(DEADLINE_SECS)
    assert [workers.submit(work(), 1) for _ in range(3)] == [True, True, False]
    assert workers.waiting == 2


def test_too_many_bytes_are_refused(work, monkeypatch):
    monkeypatch.setattr(dispatcher, "MAX_WAITING_COST", 100)
    workers = CallThreads(1, 10, "test")
    running = work()
    assert workers.submit(running, 1_000)
    assert running.has_begun.wait(DEADLINE_SECS)
    # The first may have any size, as else it could never be carried out.
    assert [workers.submit(work(), cost) for cost in (90, 11, 10, 1)] == [True, False, True, False]


def test_expensive_call_waits_and_cheap_call_passes(work, monkeypatch):
    monkeypatch.setattr(dispatcher, "MAX_COST", 100)
    monkeypatch.setattr(dispatcher, "CHEAP", 1)
    workers = CallThreads(3, 10, "test")
    first, dear, cheap = work("first"), work("dear"), work("cheap")
    assert workers.submit(first, 90)
    assert first.has_begun.wait(DEADLINE_SECS)
    assert workers.submit(dear, 90)
    assert workers.submit(cheap, 5)
    assert cheap.has_begun.wait(DEADLINE_SECS)
    assert not dear.has_begun.is_set()
    first.may_end.set()
    assert dear.has_begun.wait(DEADLINE_SECS)


def test_long_calls_do_not_delay_short_ones(work):
    workers = CallThreads(10, 10, "test")
    held = [work("held") for _ in range(8)]
    for one in held:
        assert workers.submit(one, dispatcher.MAX_COST // 8)
        assert one.has_begun.wait(DEADLINE_SECS)
    short = work("short")
    assert workers.submit(short, 100)
    assert short.has_begun.wait(DEADLINE_SECS)


def test_threads_are_started_when_needed(work):
    def threads():
        return {thread for thread in threading.enumerate() if thread.name.startswith("few-")}

    workers = CallThreads(64, 10, "few")
    assert threads() == set()
    for _ in range(5):
        one = work()
        one.may_end.set()
        assert workers.submit(one, 1)
        until(lambda: not workers.busy and not workers.waiting)
    assert len(threads()) == 1
    workers.stop()
    until(lambda: not threads())


def test_an_error_costs_no_thread(work, caplog):
    workers = CallThreads(1, 10, "test")

    def fail():
        raise SystemExit

    assert workers.submit(fail, 1)
    after = work("after")
    after.may_end.set()
    assert workers.submit(after, 1)
    until(lambda: work.done == ["after"])
    assert "defect" in caplog.text
    until(lambda: workers.busy == 0)


def test_after_the_end_nothing_begins(work):
    workers = CallThreads(1, 10, "test")
    running, waiting = work("running"), work("waiting")
    workers.submit(running, 1)
    assert running.has_begun.wait(DEADLINE_SECS)
    workers.submit(waiting, 1)
    workers.stop()
    assert not workers.submit(work(), 1)
    running.may_end.set()
    until(lambda: not workers.busy)
    assert (work.done, waiting.has_begun.is_set()) == (["running"], False)
