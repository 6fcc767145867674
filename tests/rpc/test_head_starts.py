"""Attempts that begin a moment after each other, of which the first to succeed counts."""

import threading
import time

import pytest

from stormkeeper.rpc.leader_client import first_of
from support.waiting import DEADLINE_SECS, until


class Attempt:
    """Waits until it may end, and gives its name or raises an error."""

    def __init__(self, name, error=None, *, at_once=True):
        self.name, self.error = name, error
        self.begun, self.may_end = threading.Event(), threading.Event()
        if at_once:
            self.may_end.set()

    def __call__(self):
        self.begun.set()
        assert self.may_end.wait(DEADLINE_SECS)
        if self.error is not None:
            raise self.error
        return self.name


def race(*attempts, head_start=DEADLINE_SECS, secs=DEADLINE_SECS, given_back=None):
    given_back = [] if given_back is None else given_back
    return first_of(
        attempts,
        head_start=head_start,
        deadline=time.monotonic() + secs,
        give_back=given_back.append,
    )


def test_fast_attempt_starts_no_other():
    first, second = Attempt("a"), Attempt("b")
    assert race(first, second) == ("a", [None, None])
    assert not second.begun.is_set()


def test_failed_attempt_is_followed_at_once():
    error = ValueError()
    assert race(Attempt("a", error), Attempt("b")) == ("b", [error, None])


def test_a_hanging_attempt_is_followed_and_its_result_given_back():
    first, second, given_back = Attempt("a", at_once=False), Attempt("b"), []
    found = race(first, second, head_start=0.01, given_back=given_back)
    assert found == ("b", [None, None])
    first.may_end.set()
    until(lambda: given_back == ["a"])


def test_slow_attempt_wins_if_others_fail():
    first, second = Attempt("a", at_once=False), Attempt("b", ValueError())
    threading.Thread(
        target=lambda: second.begun.wait(DEADLINE_SECS) and first.may_end.set()
    ).start()
    assert race(first, second, head_start=0.01)[0] == "a"


@pytest.mark.parametrize("head_start", [0.01, DEADLINE_SECS])
def test_failures_of_all_attempts_are_returned(head_start):
    errors = [ValueError(), KeyError(), KeyboardInterrupt()]
    attempts = [Attempt(str(error), error) for error in errors]
    assert race(*attempts, head_start=head_start) == (None, errors)


def test_it_ends_at_its_deadline():
    hangs, given_back = Attempt("a", at_once=False), []
    assert race(hangs, secs=0.05, given_back=given_back) == (None, [None])
    hangs.may_end.set()
    until(lambda: given_back == ["a"])
    late = Attempt("a")
    assert race(late, secs=0.0) == (None, [None])
    assert not late.begun.is_set()
