"""Which launch of a query is meant: of two, the one with the greater claim counts.

A worker that was cut off may run on while its queries were launched elsewhere. So each launch has a
claim. A worker writes it where the query's checkpoint is, and starts no batch after it has seen a
greater one there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})")


class Claim(NamedTuple):
    """A launch; claims are ordered by their fields, the first one counting most.

    A leader gives the first two, and never the same ones twice. The last one counts the starts of
    the worker's process in its place, by its supervisor, from 0.
    """

    epoch: int
    counter: int
    launch: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}-{self.counter}-{self.launch}"

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Read what ``str`` wrote; `ValueError` for anything else."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no claim: EPOCH-COUNTER-LAUNCH, such as 12-3-0")
        return cls(*map(int, found.groups()))
