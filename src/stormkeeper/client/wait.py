"""Waits for the effect of a command that Nimbus has accepted.

A Nimbus that does not answer does not end the wait: the command was accepted, and another Nimbus
may lead soon.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import RpcError

#: Seconds between two checks.
PERIOD_SECS: Final = 0.5

_DURATION: Final = re.compile(r"\b\d+ (?:s|min|h|d)\b")


def says_more(text: str, before: str) -> bool:
    """Return whether two texts differ in more than durations.

    Examples
    --------
    >>> says_more("it starts, for 3 s", "it starts, for 2 s"), says_more("it runs", "it starts")
    (False, True)
    """
    return _DURATION.sub("", text) != _DURATION.sub("", before)


@dataclass(frozen=True, slots=True)
class ComponentError:
    """The newest error of a component in a line, and the time in seconds since 1970."""

    component: str
    time_secs: int
    line: str


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """The result of a check: done, failed, or not yet.

    `text` says what has been reached, or what is missing; `error` is the newest error meanwhile.
    """

    is_done: bool
    text: str
    has_failed: bool = False
    error: ComponentError | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits up to `secs` seconds; 0 means a single check.

    `say` gets the text of each check and the seconds passed; `tell` gets each new error.
    """

    secs: float
    say: Callable[[str, float], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[ComponentError], None] = lambda _: None

    def until(self, check: Callable[[], WaitStatus]) -> WaitStatus:
        """Check until the effect is there, or has failed; return the last status.

        Raises what `check` raises, except `RpcError`.
        """
        began, reported = self.clock(), None
        while True:
            try:
                status = check()
            except RpcError as error:
                status = WaitStatus(False, f"Nimbus does not answer: {error}")
            passed = self.clock() - began
            if status.error is not None and status.error != reported and not status.has_failed:
                reported = status.error
                self.tell(reported)
            if status.is_done or status.has_failed or passed >= self.secs:
                return status
            self.say(status.text, passed)
            self.sleep(min(PERIOD_SECS, self.secs - passed))
