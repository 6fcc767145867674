"""Waiting for what other threads and processes do, with a deadline."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Long enough for a machine that has much else to do; who waits in vain waits in a failing test.
DEADLINE_SECS: Final = 60.0


def until(condition: Callable[[], T], deadline_secs: float = DEADLINE_SECS) -> T:
    """Return the first true value of `condition`, or fail with its last one at the deadline."""
    deadline = time.monotonic() + deadline_secs
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {deadline_secs} s"
        time.sleep(0.01)
    return value
