"""Which of several servers' copies of a pulse is the newest.

A worker writes to one Pacemaker and goes to another when that one fails, so an older copy of its
pulse may lie elsewhere, and so may a pulse that was deleted while its server was out of reach.

- Copies on our servers, and their tombstones, are ranked by when the server received them. A
  tombstone that is newer than every copy on our servers hides them all.
- A Java Pacemaker tells no age. Copies on such are ranked by ``time_secs`` of the heartbeat, the
  worker's own clock; what is no heartbeat is older than whatever is.
- What is newest by age and what is newest by ``time_secs`` are compared by ``time_secs``, which
  both have; our server's copy wins a tie. A tombstone hides nothing on a Java Pacemaker.

A listing shows the names at or below which the bulk read finds something, without reading it:

- Only tombstones of other servers can hide what a server lists. A name is certain if a server
  lists it and no other server has tombstones there; else it is in doubt.
- A name in doubt counts if a name below it is certain. That takes two more small requests for each
  name in doubt, all at once.
- The pulses of names that are still in doubt are read.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import SerializationError, StormkeeperError
from stormkeeper.pacemaker.client.fanout import Outcomes
from stormkeeper.pacemaker.client.questions import (
    Heartbeat,
    Names,
    Question,
    copies_below_each,
    names_below,
)
from stormkeeper.pacemaker.client.single import PacemakerClient
from stormkeeper.pacemaker.wire import TOMBSTONE

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

T = TypeVar("T")

_AGE = attrgetter("age_secs")
_SIZE = attrgetter("size")


def stopwatch() -> Callable[[], float]:
    """Return what gives the seconds since now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Readings:
    """What all servers hold at and below a path, and which servers have answered.

    Parameters
    ----------
    by_path
        The newest pulse of each path that has one.
    servers
        What each server told of itself after it was read: its instance, and since when it can
        vouch for a worker's silence. None from a Java Pacemaker. The error of a server that did
        not answer or refused: what it holds is missing in `by_path`.
    """

    by_path: dict[str, Heartbeat]
    servers: "dict[Address, ServerInfo | StormkeeperError | None]"


def newest(copies: Iterable[Heartbeat]) -> Heartbeat | None:
    """Return the copy that counts; None where there is none or it was deleted.

    Parameters
    ----------
    copies
        All copies and tombstones of one path; of equals the first one wins.
    """
    ours: Heartbeat | None = None
    ours_rank = (float("-inf"), False)
    theirs: list[Heartbeat] = []
    for copy in copies:
        if copy.age_secs is None:
            theirs.append(copy)
            continue
        # Received and deleted in the same instant: a pulse too many does less harm than one too
        # few.
        rank = (-copy.age_secs, copy.size != TOMBSTONE)
        if rank > ours_rank:
            ours, ours_rank = copy, rank
    if ours is not None and ours.size == TOMBSTONE:
        ours = None
    rivals = theirs if ours is None else [ours, *theirs]
    if len(rivals) < 2:
        return rivals[0] if rivals else None
    return max(rivals, key=_payload_time)


def in_doubt(servers: Mapping[Address, Names]) -> set[str]:
    """Return the names whose pulses must be read to know whether any of them counts.

    Only tombstones of other servers can hide what a server lists. So a name is in doubt if, for
    each server that lists it, another server has tombstones there.
    """
    graves: dict[str, set[Address]] = {}
    for server, names in servers.items():
        for name in names.deleted or ():
            graves.setdefault(name, set()).add(server)
    certain = {
        name
        for server, names in servers.items()
        for name in names.listed
        if names.deleted is None or not graves.get(name, set()) - {server}
    }
    return {name for names in servers.values() for name in names.listed} - certain


def newest_of_each(servers: Iterable[Mapping[str, Heartbeat]]) -> dict[str, Heartbeat]:
    """Return the newest pulse of every path that has one.

    Parameters
    ----------
    servers
        What each server holds, by path, in the order that decides between equals.
    """
    merged: dict[str, Heartbeat] = {}
    # Only paths with several copies are in it: most have one, and there are many paths.
    rivals: dict[str, list[Heartbeat]] = {}
    for held in servers:
        for path in merged.keys() & held.keys():
            rivals.setdefault(path, [merged[path]]).append(held[path])
        merged = {**held, **merged} if merged else dict(held)
    for path, copies in rivals.items():
        best = newest(copies)
        if best is None:
            del merged[path]
        else:
            merged[path] = best
    # There may be 100,000, and few are either of these: first whether there are any.
    if TOMBSTONE in map(_SIZE, merged.values()):
        merged = {path: one for path, one in merged.items() if one.size != TOMBSTONE}
    if min(filter(None, map(_AGE, merged.values())), default=0.0) < 0:
        # They came after the read had begun.
        for path in [path for path, one in merged.items() if (one.age_secs or 0) < 0]:
            merged[path] = merged[path]._replace(age_secs=0.0)
    return merged


def without_values(found: Mapping[str, Heartbeat]) -> dict[str, Heartbeat]:
    """Leave out the values, of which a Java Pacemaker gives the sizes only with them."""
    return {path: one._replace(value=None) for path, one in found.items()}


def _payload_time(copy: Heartbeat) -> float:
    """Return the time that a worker put into its heartbeat; what is no heartbeat is the oldest."""
    from stormkeeper.thrift.records import ClusterWorkerHeartbeat  # noqa: PLC0415 - seldom needed
    from stormkeeper.thrift.serialization import deserialize  # noqa: PLC0415

    if copy.value is None:
        return float("-inf")
    try:
        return float(deserialize(ClusterWorkerHeartbeat, copy.value).time_secs)
    except SerializationError:
        return float("-inf")


class Ask(Protocol):
    """Puts a question to each of some servers, all at once."""

    def __call__(
        self,
        question_for: Callable[[PacemakerClient], Question[T]],
        clients: Sequence[PacemakerClient],
    ) -> Outcomes[T]:
        """Return what came of it."""


def names_that_count(
    path: str,
    names: Mapping[Address, Names],
    clients: Mapping[Address, PacemakerClient],
    ask: Ask,
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
    ask
        How to ask them. What a server listed that does not answer now counts.
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

    def ask_ours(question_for: Callable[[PacemakerClient], Question[T]]) -> dict[Address, T]:
        outcomes = ask(question_for, ours)
        for server in outcomes.failed:
            alive.update(names[server].listed)
        return outcomes.answered

    below = ask_ours(lambda _: names_below(list(paths)))
    for there, name in paths.items():
        at = {server: answer[there] for server, answer in below.items()}
        if {child for some in at.values() for child in some.listed} - in_doubt(at):
            alive.add(name)
    unclear = [there for there, name in paths.items() if name not in alive]
    if unclear:
        elapsed = stopwatch()
        copies = ask_ours(lambda client: copies_below_each(unclear, client.address, elapsed))
        found = newest_of_each(
            copies[client.address] for client in ours if client.address in copies
        )
        alive.update(there[len(top) :].partition("/")[0] for there in found)
    return alive
