"""Waits for the effect of what Nimbus has accepted, and says what it waits for.

A Nimbus that does not answer is waited for as well: another one may lead soon. What was accepted is
done all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import RpcError

#: Seconds between two looks.
PERIOD_SECS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look has shown.

    Parameters
    ----------
    is_done
        Whether the effect is there.
    text
        What is there then, or what is waited for.
    has_failed
        Whether nothing more is waited for, though the effect is not there.
    """

    is_done: bool
    text: str
    has_failed: bool = False


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
    """

    secs: float
    say: Callable[[str, float], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until(self, look: Callable[[], Seen]) -> Seen:
        """Look until the effect is there, or will not be; return what was seen last.

        Raises
        ------
        StormkeeperError
            What a look raises, but for a Nimbus that does not answer.
        """
        began = self.clock()
        while True:
            try:
                seen = look()
            except RpcError as error:
                seen = Seen(False, f"Nimbus does not answer: {error}")
            passed = self.clock() - began
            if seen.is_done or seen.has_failed or passed >= self.secs:
                return seen
            self.say(seen.text, passed)
            self.sleep(min(PERIOD_SECS, self.secs - passed))
