"""Keeps those who make many mistakes from filling the log."""

from collections.abc import Hashable
from typing import Final

#: Of how many matters spans are remembered before those that are over are dropped.
_REMEMBERED: Final = 1_024


class LineBudget:
    """Lets a number of lines about a matter pass in a span of time, and counts the others.

    Parameters
    ----------
    lines
        Lines about one matter that pass in each span.
    seconds
        Its length, from the first of these lines on.

    Examples
    --------
    >>> budget = LineBudget(2, 10.0)
    >>> [budget.spend("10.0.0.1", now) for now in (0, 1, 2, 3, 11)]
    [0, 0, None, None, 2]
    """

    __slots__ = ("_lines", "_seconds", "_spans")

    def __init__(self, lines: int, seconds: float) -> None:
        self._lines = lines
        self._seconds = seconds
        #: By matter: when its span began, and the lines asked for since.
        self._spans: dict[Hashable, tuple[float, int]] = {}

    def spend(self, matter: Hashable, now: float) -> int | None:
        """Ask to write a line about `matter` at the clock's `now` (s).

        Returns
        -------
        int or None
            None if the line must not be written; else how many were left out since the last one
            that was.
        """
        began, asked = self._spans.get(matter, (now, 0))
        if asked and now - began < self._seconds:
            self._spans[matter] = (began, asked + 1)
            return 0 if asked < self._lines else None
        if len(self._spans) >= _REMEMBERED:
            self._drop_what_is_over(now)
        self._spans[matter] = (now, 1)
        return max(0, asked - self._lines)

    def _drop_what_is_over(self, now: float) -> None:
        """Forget matters of which nothing was heard for a span; if there are none, all."""
        kept = {m: span for m, span in self._spans.items() if now - span[0] < self._seconds}
        self._spans = kept if len(kept) < _REMEMBERED else {}
