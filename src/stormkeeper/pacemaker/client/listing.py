"""Which of the names that several servers list have a pulse that counts at or below them.

The same as those at or below which the bulk read finds something, without reading it:

- What a server lists is hidden, if by anything, by tombstones of other servers. A name that a
  server lists, beside which no other one has tombstones, is in no doubt.
- A name in doubt is alive if, below it, one is in no doubt: two small requests more for each name
  in doubt, all at once.
- What is left in doubt then is read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.conversations import (
    Conversation,
    copies_below_each,
    names_below,
)
from stormkeeper.pacemaker.client.fanout import Outcomes
from stormkeeper.pacemaker.client.readings import Names, in_doubt, newest_of_each

T = TypeVar("T")


class Talk(Protocol):
    """Holds a conversation with each of some servers, all at once."""

    def __call__(
        self,
        converse: Callable[[PacemakerClient], Conversation[T]],
        clients: Sequence[PacemakerClient],
    ) -> Outcomes[T]:
        """Return what came of it."""


def names_that_count(
    path: str,
    names: Mapping[Address, Names],
    clients: Mapping[Address, PacemakerClient],
    talk: Talk,
    time_secs: Callable[[bytes], int | None],
) -> set[str]:
    """Return the names directly below `path` with a pulse that counts.

    Parameters
    ----------
    path
        Whose names.
    names
        What each server listed.
    clients
        The client of each server, in the order that decides between equals.
    talk
        How to ask them. What a server listed that does not answer now counts.
    time_secs
        As for `newest`.
    """
    doubtful = in_doubt(names)
    alive = {name for some in names.values() for name in some.listed} - doubtful
    if not doubtful:
        return alive
    # A Java Pacemaker lists none of them: what it lists is in no doubt.
    ours = [
        client
        for server, client in clients.items()
        if server in names and names[server].deleted is not None
    ]
    top = path.rstrip("/") + "/"
    paths = {top + name: name for name in sorted(doubtful)}

    def ask(converse: Callable[[PacemakerClient], Conversation[T]]) -> dict[Address, T]:
        outcomes = talk(converse, ours)
        for server in outcomes.failed:
            alive.update(names[server].listed)
        return outcomes.answered

    below = ask(lambda _: names_below(list(paths)))
    for there, name in paths.items():
        at = {server: answer[there] for server, answer in below.items()}
        if {child for some in at.values() for child in some.listed} - in_doubt(at):
            alive.add(name)
    unclear = [there for there, name in paths.items() if name not in alive]
    if unclear:
        copies = ask(lambda client: copies_below_each(unclear, client.address, time.monotonic))
        found = newest_of_each(
            [copies[client.address] for client in ours if client.address in copies],
            time_secs,
            time.monotonic,
        )
        alive.update(there[len(top) :].partition("/")[0] for there in found)
    return alive
