"""Following what changes on a Pacemaker: the one follower, for the pipeline and the commands.

A reader remembers its `Position` on each server and asks for what came after it. The answer is
current state, not a log: each path once, with its newest pulse, or its tombstone where that was
deleted. The reading goes on to what the server holds at that moment: a worker whose pulse is
overwritten while pages are read would otherwise be missing from them, and if its beat keeps step
with the reader, from every reading. So a change may be read twice, but no path that changes is ever
missing.

A page that `is_anew` begins from nothing: what was read of this server before no longer counts. It
comes where the server was started again, and where its tombstones do not reach back far enough.

A Java Pacemaker has no revisions. It is read as a whole, with `WITHOUT_REVISIONS` for an instance.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from stormkeeper.errors import (
    PacemakerUnavailableError,
    RemoteProtocolError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire import TOMBSTONE, ChangesRequest, Columns, Message, MessageType
from stormkeeper.paths import WORKERBEATS

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

#: The instance of a server that tells none.
WITHOUT_REVISIONS: Final = ""

#: How many topologies of a part are asked for ahead of the one that is read: each is an answer of
#: its own, mostly of few pulses.
_AHEAD: Final = 8


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the history of one instance of a server."""

    instance: str
    revision: int


class PathChange(NamedTuple):
    """The newest pulse of a path on one server, or, without a `size`, its tombstone.

    `size` is in bytes. `details` is the pulse, None where values were not asked for. `revision` and
    `age_secs` are None from a server that tells none.
    """

    path: str
    size: int | None
    details: bytes | None = None
    revision: int | None = None
    age_secs: float | None = None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes that came in one answer, in the order of their revisions.

    Parameters
    ----------
    read_at
        When the answer was here, in seconds of the reader's clock.
    position
        Where to go on.
    is_anew
        Whether the changes begin from nothing, though the reader asked for what is new.
    """

    changes: list[PathChange]
    read_at: float
    position: Position
    is_anew: bool = False


def pages(
    client: PacemakerClient,
    path: str,
    position: Position | None = None,
    *,
    page_size: int = 0,
    values: bool = True,
    clock: Callable[[], float] = time.time,
) -> Iterator[ChangePage]:
    """Read what changed at and below a path since a position.

    What the server had at the first answer is in one of the pages, each path once or, as it
    changes, again. They end where the server has no more, or only what changes again and again.

    Parameters
    ----------
    client
        The server's.
    position
        Where to begin; None for a server's beginning. With the instance `WITHOUT_REVISIONS` the
        server is read as a whole, in Storm's own verbs.
    page_size
        Changes asked for in one request; 0 leaves it to the server.
    values
        Whether pulses are read, or only their ages and sizes.
    clock
        Gives `ChangePage.read_at`, in seconds.

    Raises
    ------
    PacemakerError, ProtocolError
        When the server does not answer, refuses, or breaks the protocol.
    UnsupportedExtensionError
        When it is a Java Pacemaker, and `position` does not say so.
    """
    if position is not None and position.instance == WITHOUT_REVISIONS:
        yield from _everything(client, path, values, clock)
        return
    request = _request(path, position, page_size, values)
    for first in client.ask_ahead([request], clock=clock):
        yield from _pages_from(client, request, first, clock)


def _request(path: str, position: Position | None, page_size: int, values: bool) -> Message:
    instance, after = (position.instance, position.revision) if position else (None, 0)
    wanted = ChangesRequest(path, after, page_size, instance, values)
    return Message(MessageType.CHANGES, changes_request=wanted)


def _pages_from(
    client: PacemakerClient,
    request: Message,
    first: tuple[Message, float],
    clock: Callable[[], float],
) -> Iterator[ChangePage]:
    """Do as `pages` once the first answer is here, and since when."""
    assert request.changes_request is not None
    path, after, page_size, instance, values = request.changes_request
    (message, read_at), end, seen = first, 0, set[str]()
    while True:
        answer = message.changes
        assert answer is not None  # the protocol lets no other answer through
        is_other = instance is not None and answer.instance != instance
        if answer.more and not (answer.reset or is_other) and answer.next <= after:
            raise RemoteProtocolError(
                f"{client.address} broke the protocol: there are more changes after revision"
                f" {after}, and they go on at {answer.next}"
            )
        yield ChangePage(
            _changes(answer.columns, values=values),
            read_at,
            Position(answer.instance, answer.next),
            is_anew=(answer.reset and after > 0) or is_other,
        )
        if instance != answer.instance or not end:
            end = answer.revision
            seen.clear()
        instance, after, paths = answer.instance, answer.next, answer.columns[0]
        # Workers may fill a server faster than it is read: then there is always more of the same.
        if not answer.more or (after >= end and seen.issuperset(paths)):
            return
        seen.update(paths)
        request = _request(path, Position(instance, after), page_size, values)
        message, read_at = client.ask(request), clock()


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` parts of what is below a path: the names directly below it are divided.

    Below ``/workerbeats`` these are topologies. Each is whole in one part, always in the same one.
    """

    number: int
    count: int

    def has(self, name: str) -> bool:
        """Whether a name is in this part."""
        return part_of(name, self.count) == self.number


def part_of(name: str, count: int) -> int:
    """Return the number of the `Part` of `count` that has a name."""
    return zlib.crc32(name.encode()) % count


def pages_of_part(
    client: PacemakerClient,
    path: str,
    position: Position,
    part: Part,
    *,
    page_size: int = 0,
    values: bool = True,
    clock: Callable[[], float] = time.time,
) -> Iterator[ChangePage]:
    """Read what changed since a position in one part of what is below a path.

    What a server had when the first part was begun is in one of the parts, each path once or, as
    it changes, again. What comes below a new name meanwhile may be in none: its revision is later.
    The first part has the pulse of exactly `path`, too.

    Raises what `pages` does. The other arguments are as there; of a Java Pacemaker there are no
    parts.
    """
    names = filter(part.has, sorted(_names(client, path)))
    below = [f"{path.rstrip('/')}/{name}" for name in names]
    requests = [_request(each, position, page_size, values) for each in below]
    firsts = client.ask_ahead(requests, _AHEAD, clock)
    for request, first in zip(requests, firsts, strict=True):
        yield from _pages_from(client, request, first, clock)
    if part.number == 0:
        yield from _exactly(client, path, position, values, clock)


def _names(client: PacemakerClient, path: str) -> set[str]:
    """Return the names directly below a path, of pulses and of tombstones.

    One that is missing, as it changed between the two questions, has a later revision.
    """
    names = set(client.children(path))
    with contextlib.suppress(UnsupportedExtensionError):  # of an older server
        names.update(client.ask(Message(MessageType.DELETED, path=path)).nodes or ())
    return names


def _exactly(
    client: PacemakerClient, path: str, position: Position, values: bool, clock: Callable[[], float]
) -> Iterator[ChangePage]:
    """Read what a server of ours holds for exactly one path, if that is newer than a position."""
    with contextlib.suppress(UnsupportedExtensionError):
        answer = client.ask(Message(MessageType.HELD, path=path)).changes
        assert answer is not None  # the protocol lets no other answer through
        is_other = answer.instance != position.instance
        found = [
            change
            for change in _changes(answer.columns, values=values)
            if is_other or (change.revision or 0) > position.revision
        ]
        if found:
            now = Position(answer.instance, answer.revision)
            yield ChangePage(found, clock(), now, is_anew=is_other)


def _changes(columns: Columns[str], *, values: bool) -> list[PathChange]:
    """Return the rows of a page; an older server sends values though none were asked for."""
    paths, revisions, ages_ms, sizes, details = columns
    return [
        PathChange(path, None if size == TOMBSTONE else size, value, revision, age_ms / 1000)
        for path, revision, age_ms, size, value in zip(
            paths,
            revisions,
            ages_ms,
            sizes,
            details if values and details is not None else repeat(None),
            strict=False,
        )
    ]


def _everything(
    client: PacemakerClient, path: str, values: bool, clock: Callable[[], float]
) -> Iterator[ChangePage]:
    for pulses in client.walk(path):
        found = [
            PathChange(pulse.id, len(pulse.details), pulse.details if values else None)
            for pulse in pulses
            if pulse.details is not None
        ]
        yield ChangePage(found, clock(), Position(WITHOUT_REVISIONS, 0))


@dataclass(frozen=True, slots=True)
class ServerReading:
    """What one look at a server of ours brought.

    Parameters
    ----------
    pages
        What changed since the position that was asked for, or all that the server holds.
    position
        Where the next look begins, once this one was taken in.
    is_anew
        Whether it is all that the server holds: at the first look, and when it began anew.
    revisions
        How many pulses and deletions the server counted since then. Those that `pages` does not
        show were overwritten in between.
    info
        What the server says of itself, after the pages were read.
    """

    pages: list[ChangePage]
    position: Position
    is_anew: bool
    revisions: int
    info: ServerInfo


def look(
    client: PacemakerClient,
    path: str = WORKERBEATS,
    position: Position | None = None,
    *,
    values: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> ServerReading:
    """Read all that changed at and below a path since a position, and what the server is.

    The arguments are those of `pages`; None for a server's beginning, as at the first look.

    Raises
    ------
    PacemakerUnavailableError
        When the server does not answer, or was started again during the look.
    UnsupportedExtensionError
        When it is a Java Pacemaker.
    PacemakerError, ProtocolError
        When it refuses, or breaks the protocol.
    """
    found: list[ChangePage] = []
    is_anew = position is None
    for page in pages(client, path, position, values=values, clock=clock):
        if page.is_anew:
            is_anew = True
            found.clear()
        found.append(page)
    now = found[-1].position
    info = client.server_info()
    if info is None or info.instance != now.instance:
        raise PacemakerUnavailableError(f"{client.address} is starting")
    same = position is not None and position.instance == now.instance
    counted_from = position.revision if position is not None and same else 0
    return ServerReading(found, now, is_anew, now.revision - counted_from, info)
