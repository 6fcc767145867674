"""Who waits for the same read shares it, and sees all that was written before he asked."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper.errors import StateUnavailableError
from stormkeeper.nimbus.service.cluster_calls import SharedRead
from support.waiting import DEADLINE_SECS, until


class Read:
    """Reads what is written, as slowly as a test lets it."""

    def __init__(self):
        self.written = 0
        self.began = []
        self.may_end = threading.Event()
        self.fails = False

    def __call__(self):
        found = self.written
        self.began.append(found)
        assert self.may_end.wait(DEADLINE_SECS)
        if self.fails:
            raise StateUnavailableError("not now")
        return found


@pytest.fixture
def read():
    return Read()


@pytest.fixture
def threads(read):
    with ThreadPoolExecutor(8) as pool:
        yield pool
        read.may_end.set()


class Turn:
    """A lock that counts the callers."""

    def __init__(self):
        self.lock = threading.Lock()
        self.release = self.lock.release
        self.callers = []

    def acquire(self, timeout):
        self.callers.append(threading.get_ident())
        return self.lock.acquire(timeout=timeout)


@pytest.fixture
def turn():
    return Turn()


def test_callers_share_the_next_read(read, threads, turn):
    shared = SharedRead(read)
    shared._lock = turn
    first = threads.submit(shared)
    until(lambda: read.began)
    read.written = 1
    others = [threads.submit(shared) for _ in range(5)]
    until(lambda: len(turn.callers) == 6)
    read.may_end.set()
    assert first.result(DEADLINE_SECS) == 0
    assert {each.result(DEADLINE_SECS) for each in others} == {1}
    assert read.began == [0, 1], "five callers and one read"


def test_who_asks_when_nobody_reads_reads_at_once(read):
    read.may_end.set()
    shared = SharedRead(read)
    for read.written in range(3):
        assert shared() == read.written


def test_error_reaches_all_callers_of_a_read(read, threads, turn):
    shared = SharedRead(read)
    shared._lock = turn
    first = threads.submit(shared)
    until(lambda: read.began)
    others = [threads.submit(shared) for _ in range(3)]
    until(lambda: len(turn.callers) == 4)
    read.fails = True
    read.may_end.set()
    for each in (first, *others):
        with pytest.raises(StateUnavailableError, match="not now"):
            each.result(DEADLINE_SECS)
    assert len(read.began) == 2
    read.fails = False
    assert shared() == 0


def test_who_has_waited_for_too_long_reads_for_himself(read, threads):
    shared = SharedRead(read, patience_secs=0.01)
    stuck = threads.submit(shared)
    until(lambda: read.began)
    read.written = 1
    other = threads.submit(shared)
    until(lambda: read.began == [0, 1])
    read.may_end.set()
    assert other.result(DEADLINE_SECS) == 1
    assert stuck.result(DEADLINE_SECS) == 0
