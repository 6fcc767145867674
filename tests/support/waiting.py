"""Waiting for what other threads and processes do, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], deadline_secs: float = 30.0) -> T:
    """Return the first true value of `condition`, or fail with its last one at the deadline."""
    deadline = time.monotonic() + deadline_secs
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {deadline_secs} s"
        time.sleep(0.01)
    return value
