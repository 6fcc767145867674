"""Pages of changes on a Pacemaker, for the pipeline and the commands.

A reader remembers a `Position` on each server and asks for later changes. The answer is current
state, not a log: each path once, with its newest pulse or a tombstone. A reading continues to the
server's present state, else a pulse overwritten meanwhile would be missing. So a change may be read
twice, but no path is missed.

A page that `is_anew` replaces everything read from the server before: after a restart, or when
tombstones do not reach back far enough. A Java Pacemaker is read as a whole.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from stormkeeper.errors import PacemakerUnavailableError, RemoteProtocolError
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire.messages import (
    TOMBSTONE,
    ChangesRequest,
    Columns,
    Message,
    MessageType,
)
from stormkeeper.paths import WORKERBEATS

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

#: The instance of a Java Pacemaker.
WITHOUT_REVISIONS: Final = ""

#: Topologies requested ahead: answers are often short.
_AHEAD: Final = 8


@dataclass(frozen=True, slots=True)
class Position:
    """A revision of an instance of a server."""

    instance: str
    revision: int


class PathChange(NamedTuple):
    """The newest pulse of a path on a server, or a tombstone if `size` (in bytes) is None.

    `details` is None if not requested; `revision` and `age_secs` of a Java Pacemaker.
    """

    path: str
    size: int | None
    details: bytes | None = None
    revision: int | None = None
    age_secs: float | None = None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes of an answer by revision, received at `read_at` by the reader's clock.

    The next page begins at `position`. `is_anew`: the page starts over, unasked.
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
    """Read the changes at and below a path since a position, None for the server's beginning.

    The instance `WITHOUT_REVISIONS` reads everything, with Storm's own messages. `page_size` 0: the
    server decides. Without `values`, only ages and sizes come. Raises `PacemakerError` or
    `ProtocolError`; `UnsupportedExtensionError` for a Java Pacemaker, unless `position` says so.
    """
    if position is not None and position.instance == WITHOUT_REVISIONS:
        yield from _everything(client, path, values, clock)
        return
    request = _request(path, position, page_size, values)
    yield from _pages_from(client, request, (client.ask(request), clock()), clock)


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
    assert request.changes_request is not None
    path, after, page_size, instance, values = request.changes_request
    (message, read_at), end, seen = first, 0, set[str]()
    while True:
        answer = message.changes
        assert answer is not None  # ensured by the protocol
        is_other = instance is not None and answer.instance != instance
        if answer.more and not (answer.reset or is_other) and answer.next <= after:
            raise RemoteProtocolError(
                f"{client.address} broke the protocol: more changes follow revision"
                f" {after}, and continue at {answer.next}"
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
        # Workers may change pulses faster than this reads.
        if not answer.more or (after >= end and seen.issuperset(paths)):
            return
        seen.update(paths)
        request = _request(path, Position(instance, after), page_size, values)
        message, read_at = client.ask(request), clock()


@dataclass(frozen=True, slots=True)
class Part:
    """A fixed part, of `count`, of the names directly below a path, such as topologies."""

    number: int
    count: int

    def has(self, name: str) -> bool:
        return part_of(name, self.count) == self.number


def part_of(name: str, count: int) -> int:
    return zlib.crc32(name.encode()) % count


def pages_of_part(
    client: PacemakerClient,
    path: str,
    position: Position,
    part: Part,
    *,
    page_size: int = 0,
    values: bool = True,
) -> Iterator[ChangePage]:
    """Read the changes since a position in a part of the names below a path, as `pages`.

    Only a name that is new since the first part was begun may be in no part; its revision is later.
    The first part includes the pulse of exactly `path`. Not for Java Pacemakers.
    """
    names = filter(part.has, sorted(_names(client, path)))
    below = [f"{path.rstrip('/')}/{name}" for name in names]
    requests = [_request(each, position, page_size, values) for each in below]
    firsts = client.ask_ahead(requests, _AHEAD)
    for request, first in zip(requests, firsts, strict=True):
        yield from _pages_from(client, request, first, time.time)
    if part.number == 0:
        yield from _exactly(client, path, position, values)


def _names(client: PacemakerClient, path: str) -> set[str]:
    names = client.children(path)  # before a deletion, which the second answer has
    return {*names, *(client.ask(Message(MessageType.DELETED, path=path)).nodes or ())}


def _exactly(
    client: PacemakerClient, path: str, position: Position, values: bool
) -> Iterator[ChangePage]:
    answer = client.ask(Message(MessageType.HELD, path=path)).changes
    assert answer is not None  # ensured by the protocol
    is_other = answer.instance != position.instance
    found = [
        change
        for change in _changes(answer.columns, values=values)
        if is_other or (change.revision or 0) > position.revision
    ]
    if found:
        now = Position(answer.instance, answer.revision)
        yield ChangePage(found, time.time(), now, is_anew=is_other)


def _changes(columns: Columns[str], *, values: bool) -> list[PathChange]:
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
    """A reading of a server: changes, or everything if `is_anew`.

    The next reading begins at `position`. `revisions` counts all pulses and deletions since the
    requested position, also overwritten ones. `info` was read last.
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
) -> ServerReading:
    """Read the changes since a position, and the server's details; see `pages`.

    The pages have times of the monotonic clock. Raises `PacemakerUnavailableError` also after a
    restart meanwhile.
    """
    found: list[ChangePage] = []
    is_anew = position is None
    for page in pages(client, path, position, values=values, clock=time.monotonic):
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
