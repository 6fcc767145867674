"""What an error says to somebody who asked for what is not there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

#: Why there may be nothing at all.
NO_HEARTBEATS: Final = (
    "does `storm pipeline` run, and do workers send their heartbeats to its Pacemakers?"
)

#: How many names an error has at most.
_NAMED: Final = 8


def meant(given: str, there: Sequence[str]) -> str:
    """Say which of the names that are there may be meant, or which there are.

    A part of a name, as a host is of a supervisor's id, means that name.

    Examples
    --------
    >>> meant("WC2", ["clicks", "wc"]), meant("10.0.0.6", ["c1-10.0.0.5", "c1-10.0.0.6"])
    ('did you mean wc?', 'did you mean c1-10.0.0.6?')
    """
    near = [name for name in there if given in name] or _alike(given, there)
    if near:
        return f"did you mean {' or '.join(near[:_NAMED])}?"
    more = f", and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    return f"these are there: {', '.join(there[:_NAMED])}{more}"


def _alike(given: str, there: Sequence[str]) -> list[str]:
    cases = {name.casefold(): name for name in there}
    return [cases[name] for name in difflib.get_close_matches(given.casefold(), cases)]
