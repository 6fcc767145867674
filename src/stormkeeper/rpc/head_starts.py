"""Attempts of which any may hang, each begun a moment after the one before it.

What RFC 8305 does with the addresses of a host: the first has a head start, so that nobody else is
asked where it is well, and costs no more than that where it is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Race(Generic[T]):
    """What came of attempts."""

    #: What the first gave that succeeded; None: none did in time.
    winner: T | None
    #: How each failed; None where it did not, or not yet.
    failures: list[BaseException | None]


def first_of(
    attempts: Sequence[Callable[[], T]],
    *,
    head_start: float,
    deadline: float,
    give_back: Callable[[T], None],
) -> Race[T]:
    """Make attempts until one succeeds, each in a thread of its own.

    The next one begins when the one before it has failed, or has had its head start.

    Parameters
    ----------
    attempts
        What may fail, and ends by itself in the end.
    head_start
        Seconds.
    deadline
        The monotonic clock at which none is waited for any longer.
    give_back
        Called with what an attempt gives when another has succeeded before it, or the time is up.
    """
    outcomes: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()
    over, is_over = threading.Lock(), False

    def run(number: int) -> None:
        try:
            found = attempts[number]()
        except BaseException as error:  # the caller's to judge
            outcomes.put((number, None, error))
            return
        with over:
            if not is_over:
                outcomes.put((number, found, None))
                return
        give_back(found)

    failures: list[BaseException | None] = [None] * len(attempts)
    begun = failed = 0
    winner: T | None = None
    while failed < len(attempts) and (left := deadline - time.monotonic()) > 0:
        if begun < len(attempts):
            threading.Thread(target=run, args=(begun,), daemon=True).start()
            begun += 1
        try:
            number, winner, error = outcomes.get(
                timeout=min(left, head_start) if begun < len(attempts) else left
            )
        except Empty:
            continue
        if error is None:
            break
        failures[number] = error
        failed += 1
    with over:
        is_over = True
    while not outcomes.empty():
        _, found, _ = outcomes.get()
        if found is not None:
            give_back(found)
    return Race(winner, failures)
