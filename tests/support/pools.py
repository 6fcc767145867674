"""Pools over real daemons: where they are, and how long something took."""

import time
from random import Random

from stormkeeper.conf import Address

#: Seconds that a try of these pools takes: more than a well server may be kept from answering.
TRY = 2.0


def address(server):
    """Return where a daemon, a scripted peer or an address is."""
    return Address.parse(str(getattr(server, "address", server)), 6699)


class InOrder(Random):
    """Draws a writer's servers in their order, so that the first is the home."""

    def sample(self, population, k):
        return list(population)[:k]


def timed(work, *arguments):
    """Do some work; return its result and the seconds that it took."""
    started = time.monotonic()
    return work(*arguments), time.monotonic() - started
