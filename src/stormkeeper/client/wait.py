"""Waits for the effect of what Nimbus has accepted, and says what it waits for.

A Nimbus that does not answer is waited for as well: another one may lead soon. What was accepted is
done all the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import RpcError

#: Seconds between two looks.
PERIOD_SECS: Final = 0.5


#: A length of time in a text: it changes by itself.
_DURATION: Final = re.compile(r"\b\d+ (?:s|min|h|d)\b")


def says_more(text: str, before: str) -> bool:
    """Return whether a text says more than the one before it, but for times that have passed.

    Examples
    --------
    >>> says_more("it starts, for 3 s", "it starts, for 2 s"), says_more("it runs", "it starts")
    (False, True)
    """
    return _DURATION.sub("", text) != _DURATION.sub("", before)


@dataclass(frozen=True, slots=True)
class ComponentError:
    """An error of a component, in one line, and when it was, in seconds since 1970."""

    component: str
    time_secs: int
    line: str


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """What a look has shown.

    Parameters
    ----------
    is_done
        Whether the effect is there.
    text
        What is there then, or what is waited for.
    has_failed
        Whether nothing more is waited for, though the effect is not there.
    error
        The newest error meanwhile; None: there is none.
    """

    is_done: bool
    text: str
    has_failed: bool = False
    error: ComponentError | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """How an effect is waited for.

    Parameters
    ----------
    secs
        How long at most; 0: not at all.
    say
        Called with what is waited for, and with the seconds that have passed, at each look.
    clock, sleep
        Return seconds, and wait for so many.
    tell
        Called with each new error.
    """

    secs: float
    say: Callable[[str, float], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[ComponentError], None] = lambda _: None

    def until(self, look: Callable[[], WaitStatus]) -> WaitStatus:
        """Look until the effect is there, or will not be; return what was seen last.

        Raises
        ------
        StormkeeperError
            What a look raises, but for a Nimbus that does not answer.
        """
        began, told = self.clock(), None
        while True:
            try:
                seen = look()
            except RpcError as error:
                seen = WaitStatus(False, f"Nimbus does not answer: {error}")
            passed = self.clock() - began
            if seen.error is not None and seen.error != told and not seen.has_failed:
                told = seen.error
                self.tell(told)
            if seen.is_done or seen.has_failed or passed >= self.secs:
                return seen
            self.say(seen.text, passed)
            self.sleep(min(PERIOD_SECS, self.secs - passed))
