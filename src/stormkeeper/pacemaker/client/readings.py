"""Which of several servers' copies of a pulse is the newest.

A worker writes to one Pacemaker and goes to another when that one fails, so an older copy of its
pulse may lie elsewhere, and so may a pulse that was deleted while its server was out of reach.

- Copies on our servers, and their tombstones, are ranked by when the server received them. A
  tombstone that is newer than every copy on our servers hides them all.
- A Java Pacemaker tells no age. Copies on such are ranked by ``time_secs`` of the heartbeat, the
  worker's own clock; what is no heartbeat is older than whatever is.
- What is newest by age and what is newest by ``time_secs`` are compared by ``time_secs``, which
  both have; our server's copy wins a tie. A tombstone hides nothing on a Java Pacemaker.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo


class Reading(NamedTuple):
    """The newest pulse of a path over all servers.

    Parameters
    ----------
    details
        The bytes that the worker sent; None where values were not asked for.
    age_secs
        Seconds since the server received it; None from a Java Pacemaker, which does not tell.
    server
        Which server holds it.
    size
        Length of the value, in bytes.
    revision
        The server's revision of it; None from a Java Pacemaker, which has none.
    """

    details: bytes | None
    age_secs: float | None
    server: Address
    size: int
    revision: int | None


@dataclass(frozen=True, slots=True)
class Readings:
    """What all servers hold at and below a path, and which servers have answered.

    Parameters
    ----------
    by_path
        The newest pulse of each path.
    servers
        What each server told of itself after it was read: its instance, and since when it can
        vouch for a worker's silence. None from a Java Pacemaker. The error of a server that did
        not answer or refused: what it holds is missing in `by_path`.
    """

    by_path: dict[str, Reading]
    servers: "dict[Address, ServerInfo | StormkeeperError | None]"


@dataclass(frozen=True, slots=True)
class Names:
    """The names directly below a path on one server.

    Parameters
    ----------
    listed
        Those at or below which it holds pulses.
    deleted
        Those at or below which it holds tombstones; None from a Java Pacemaker, which has none,
        and from whose pulses no tombstone takes anything away.
    """

    listed: frozenset[str]
    deleted: frozenset[str] | None


class Copy(NamedTuple):
    """What one server holds for a path.

    Parameters
    ----------
    server
        Which server.
    details
        The value of the pulse; None for a tombstone, and where values were not asked for.
    received
        When the server received it (or the deletion), in seconds of the reader's monotonic clock;
        None from a Java Pacemaker.
    size
        Length of the value, in bytes; None for a tombstone.
    revision
        The server's revision of it; None from a Java Pacemaker.
    """

    server: Address
    details: bytes | None
    received: float | None
    size: int | None
    revision: int | None

    def read_at(self, now: float) -> Reading | None:
        """Return the pulse as it is read at the time `now`; None for a tombstone."""
        if self.size is None:
            return None
        age = None if self.received is None else max(0.0, now - self.received)
        return Reading(self.details, age, self.server, self.size, self.revision)


def newest(copies: Iterable[Copy], time_secs: Callable[[bytes], int | None]) -> Copy | None:
    """Return the copy that counts; None where there is none or it was deleted.

    Parameters
    ----------
    copies
        All copies and tombstones of one path; of equals the first one wins.
    time_secs
        Reads the time that a worker put into its pulse; None for what has none. It is called only
        where ages do not decide.
    """
    ours: Copy | None = None
    theirs: list[Copy] = []
    for copy in copies:
        if copy.received is None:
            if copy.size is not None:
                theirs.append(copy)
        elif ours is None or _receipt(copy) > _receipt(ours):
            ours = copy
    if ours is not None and ours.size is None:
        ours = None
    rivals = theirs if ours is None else [ours, *theirs]
    if len(rivals) < 2:
        return rivals[0] if rivals else None
    return max(rivals, key=lambda copy: _payload_time(copy, time_secs))


def in_doubt(servers: Mapping[Address, Names]) -> set[str]:
    """Return the names of which the pulses must be read to know whether any of them counts.

    What a server lists is hidden, if by anything, by tombstones of other servers. So a name is in
    doubt if each server that lists it has another beside it with tombstones there.
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


def newest_of_each(
    servers: Iterable[Mapping[str, Copy]],
    time_secs: Callable[[bytes], int | None],
    clock: Callable[[], float],
) -> dict[str, Reading]:
    """Return the newest pulse of every path that has one.

    Parameters
    ----------
    servers
        What each server holds, by path, in the order that decides between equals.
    time_secs
        As for `newest`.
    clock
        The reader's monotonic clock.
    """
    first: dict[str, Copy] = {}
    # Only of paths of which several servers have copies: most have one, and there are many.
    rivals: dict[str, list[Copy]] = {}
    for held in servers:
        for path, copy in held.items():
            other = first.setdefault(path, copy)
            if other is not copy:
                rivals.setdefault(path, [other]).append(copy)
    now = clock()
    readings: dict[str, Reading] = {}
    for path, copy in first.items():
        best = newest(rivals[path], time_secs) if path in rivals else copy
        reading = None if best is None else best.read_at(now)
        if reading is not None:
            readings[path] = reading
    return readings


def _receipt(copy: Copy) -> tuple[float, bool]:
    # Received and deleted in the same instant: a pulse too many does less harm than one too few.
    return (float("-inf") if copy.received is None else copy.received, copy.size is not None)


def _payload_time(copy: Copy, time_secs: Callable[[bytes], int | None]) -> float:
    time = None if copy.details is None else time_secs(copy.details)
    return float("-inf") if time is None else float(time)
