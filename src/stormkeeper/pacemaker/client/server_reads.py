"""Reads of a Pacemaker in rounds of requests, without I/O.

A `Question` is a generator: it yields rounds of requests, gets the answers in order, and returns
the result. `UnsupportedExtensionError` is thrown into the generator, which then continues with
Storm's requests; any other error ends it.

A Java Pacemaker has no bulk request: the pulse of each path is read, and the names below each path
without a pulse, as Storm stores nothing below a pulse. A Java Pacemaker takes a path for a regular
expression, so the children of ``/wc-1-17`` include the rest of ``/wc-1-1700000000``, a name without
pulses; a path that is no valid expression is not listed, as the request would end the server.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError, SerializationError, UnsupportedExtensionError
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
    listing_ends_java,
)

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

T = TypeVar("T")

#: Requests that may be under way on a connection.
_WIDTH: Final = 100

#: In case a Java Pacemaker lists a path below itself. Storm has two levels below ``/workerbeats``.
_DEPTH: Final = 16


class Round(NamedTuple):
    """Requests sent at once; `meanwhile` runs before their answers are used."""

    requests: Sequence[Message]
    meanwhile: Callable[[], object] | None = None


Question = Generator[Round, list[Message], T]


class Heartbeat(NamedTuple):
    """A pulse as a server holds it.

    `age_secs` counts from the receipt to the start of the read. `size` is in bytes, `TOMBSTONE` for
    a deleted pulse. A Java Pacemaker sends neither age nor revision. `value` is None if not read.
    """

    server: str
    age_secs: float | None
    size: int
    revision: int | None
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class ListedNames:
    """Names directly below a path; `deleted` is None from a Java Pacemaker."""

    listed: frozenset[str]
    deleted: frozenset[str] | None


def one_request(message: Message) -> Question[Message]:
    (answer,) = yield Round([message])
    return answer


class ServerContents(NamedTuple):
    """Pulses and tombstones by path; `info` is None from a Java Pacemaker."""

    copies: dict[str, Heartbeat]
    info: "ServerInfo | None"


class ServerChanges(NamedTuple, Generic[T]):
    """Unpacked pages of changes, oldest first; with `is_anew` everything the server has.

    The next reading begins after `revision` of `instance`.
    """

    pages: list[T]
    instance: str
    revision: int
    is_anew: bool
    info: "ServerInfo | None"


def contents_below(
    path: str, server: Address, elapsed: Callable[[], float], *, values: bool = True
) -> Question[ServerContents]:
    """Read all pulses at and below `path`, and the server's description.

    `elapsed` returns the seconds since the start of the read, which makes ages of several servers
    comparable. A Java Pacemaker always sends values.
    """
    copies: dict[str, Heartbeat] = {}

    def take(page: Changes[str]) -> Callable[[], None]:
        if page.reset:
            copies.clear()  # the server was restarted and began again
        return partial(_add_page, page, copies, server, elapsed())

    try:
        _, info = yield from _scan(path, None, server, take, values=values)
        return ServerContents(copies, info)
    except UnsupportedExtensionError:
        pulses: dict[str, bytes] = {}
        yield from java_pulses(path, pulses)
        copies = {found: _java_copy(server, details) for found, details in pulses.items()}
        return ServerContents(copies, None)


def changes_since(
    path: str,
    position: tuple[str, int] | None,
    server: Address,
    unpack: Callable[[Changes[str], float], T],
    *,
    values: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Question[ServerChanges[T] | None]:
    """Read the changes at and below `path` since a position; None from a Java Pacemaker.

    A position is an instance and a revision. `unpack` gets each page with the time of its receipt
    by `clock`; it may run while the next page is under way.
    """
    pages: list[T] = []
    is_anew = position is None

    def take(page: Changes[str]) -> Callable[[], None]:
        nonlocal is_anew
        if page.reset:
            is_anew = True
            pages.clear()
        received_at = clock()
        return lambda: pages.append(unpack(page, received_at))

    try:
        last, info = yield from _scan(path, position, server, take, values=values)
    except UnsupportedExtensionError:
        return None
    return ServerChanges(pages, last.instance, last.next, is_anew, info)


def description_of(server: Address) -> "Question[ServerInfo | None]":
    """Read a server's description; None from a Java Pacemaker."""
    answer = yield from one_request(Message(MessageType.GET_PULSE, path=RESERVED_PATH))
    return server_info_of(server, answer.pulse)


def server_info_of(server: Address, pulse: Pulse | None) -> "ServerInfo | None":
    if pulse is None or pulse.details is None:
        return None
    from stormkeeper.thrift.pacemaker import ServerInfo  # noqa: PLC0415  # listing needs no Thrift
    from stormkeeper.thrift.serialization import deserialize  # noqa: PLC0415

    try:
        return deserialize(ServerInfo, pulse.details)
    except SerializationError as error:
        raise RemoteProtocolError(
            f"{server} broke the protocol: what it tells of itself is not readable: {error}"
        ) from error


def copy_of(path: str, server: Address, elapsed: Callable[[], float]) -> Question[Heartbeat | None]:
    """Read the pulse or tombstone of exactly `path`."""
    try:
        answer = yield from one_request(Message(MessageType.HELD, path=path))
    except UnsupportedExtensionError:
        answer = yield from one_request(Message(MessageType.GET_PULSE, path=path))
        details = answer.pulse.details if answer.pulse else None
        return None if details is None else _java_copy(server, details)
    found: dict[str, Heartbeat] = {}
    _add_page(_changes_of(answer), found, server, elapsed())
    return found.get(path)


def pulses_of(paths: Sequence[str]) -> Question[dict[str, bytes | None]]:
    """Read pulses with Storm's requests."""
    found: dict[str, bytes | None] = {}
    for first in range(0, len(paths), _WIDTH):
        some = paths[first : first + _WIDTH]
        answers = yield Round([Message(MessageType.GET_PULSE, path=path) for path in some])
        for path, answer in zip(some, answers, strict=True):
            found[path] = answer.pulse.details if answer.pulse else None
    return found


def names_below(path: str) -> Question[ListedNames]:
    deleted: frozenset[str] | None = None
    with suppress(UnsupportedExtensionError):
        answer = yield from one_request(Message(MessageType.DELETED, path=path))
        deleted = frozenset(answer.nodes or ())
    answer = yield from one_request(Message(MessageType.GET_ALL_NODES_FOR_PATH, path=path))
    return ListedNames(frozenset(answer.nodes or ()), deleted)


def _scan(
    path: str,
    position: tuple[str, int] | None,
    server: Address,
    take: Callable[[Changes[str]], Callable[[], object]],
    *,
    values: bool,
) -> "Question[tuple[Changes[str], ServerInfo | None]]":
    """Read all pages of changes, then the server's description; return the last page and that.

    A path that changes meanwhile moves to the end; a server reads changes faster than workers
    write. The description must not be older than the last page: a server restarted in between must
    not vouch for lost pulses. `take` gets each page at its receipt, and returns how to unpack it
    once the next request is under way.
    """
    who = Message(MessageType.GET_PULSE, path=RESERVED_PATH)
    instance, after = position or (None, 0)
    last: Changes[str] | None = None
    unpack: Callable[[], object] = partial(bool)  # no page yet
    while last is None or last.more:
        request = ChangesRequest(path, after, 0, instance, values)
        asked = Message(MessageType.CHANGES, changes_request=request)
        answer, *rest = yield Round([asked, who] if last is None else [asked], unpack)
        last = _changes_of(answer)
        if last.more and not last.reset and last.next <= after:
            raise RemoteProtocolError(
                f"there are more changes after revision {after}, and they go on at {last.next}"
            )
        unpack = take(last)
        after, instance = last.next, last.instance
    if rest:
        unpack()
    else:
        rest = yield Round([who], unpack)
    return last, server_info_of(server, rest[0].pulse)


def _changes_of(answer: Message) -> Changes[str]:
    assert answer.changes is not None  # ensured by the protocol
    return answer.changes


def _add_page(
    page: Changes[str], found: dict[str, Heartbeat], server: Address, elapsed: float
) -> None:
    paths, revisions, ages_ms, sizes, details = page.columns
    ages = [age_ms / 1000 - elapsed for age_ms in ages_ms]
    given = repeat(None) if details is None else details
    rows = zip(repeat(str(server)), ages, sizes, revisions, given, strict=False)
    # Heartbeat(*row), without Python code per row.
    found.update(zip(paths, map(tuple.__new__, repeat(Heartbeat), rows), strict=False))


def _java_copy(server: Address, value: bytes) -> Heartbeat:
    return Heartbeat(str(server), None, len(value), None, value)


def java_pulses(path: str, found: dict[str, bytes]) -> Question[None]:
    """Add the pulses at and below a path of a Java Pacemaker to `found`, level by level."""
    seen = {path}
    paths = deque([(path, 0)])
    #: Paths without a pulse, to be listed.
    parents: deque[tuple[str, int]] = deque()
    while paths or parents:
        kind = MessageType.GET_PULSE if paths else MessageType.GET_ALL_NODES_FOR_PATH
        waiting = paths or parents
        asked = [waiting.popleft() for _ in range(min(_WIDTH, len(waiting)))]
        answers = yield Round([Message(kind, path=each) for each, _ in asked])
        for (each, depth), answer in zip(asked, answers, strict=True):
            if kind is MessageType.GET_ALL_NODES_FOR_PATH:
                below = {f"{each.rstrip('/')}/{name}": None for name in answer.nodes or () if name}
                paths.extend((child, depth + 1) for child in below if child not in seen)
                seen.update(below)
                continue
            if answer.pulse is not None and answer.pulse.details is not None:
                found[each] = answer.pulse.details
                if each != path:
                    continue
            if depth < _DEPTH and (each == path or not listing_ends_java(each)):
                parents.append((each, depth))
