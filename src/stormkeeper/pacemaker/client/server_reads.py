"""What is asked of one server to find something out, in several steps where it takes that; no I/O.

A question is a generator: it yields a round of requests to be made at once, is sent their answers
in the same order, and returns what it found. An `UnsupportedExtensionError` is thrown into it, so
that it can go on with what a Java Pacemaker understands; any other error ends it.

A Java Pacemaker has no request for all pulses below a path. It is asked for the pulse of each path,
and for the names below each path without a pulse. Storm stores nothing below a pulse, and each such
request makes a Java Pacemaker look at every key that it holds.

It takes a path for a regular expression. Asked for the children of ``/wc-1-17`` it also lists what
follows that text in ``/wc-1-1700000000``. Such a name has neither a pulse nor names below it. What
lies below a name that is no regular expression cannot be listed: the request would end the server.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError, SerializationError, UnsupportedExtensionError
from stormkeeper.pacemaker.wire import (
    RESERVED_PATH,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.pacemaker.wire.messages import listing_ends_java

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

T = TypeVar("T")

#: Requests that are made at once: as many as may be under way on a connection.
_WIDTH: Final = 100

#: Levels that are followed below a path of a Java Pacemaker. Storm has two below ``/workerbeats``,
#: and ours take no path of more segments. The bound is for servers that list a path below itself.
_DEPTH: Final = 16


class Round(NamedTuple):
    """Requests that are made at once.

    Parameters
    ----------
    requests
        They, at least one.
    meanwhile
        What is to be done while they are under way; done before the answers are sent.
    """

    requests: Sequence[Message]
    meanwhile: Callable[[], object] | None = None


Question = Generator[Round, list[Message], T]


class Heartbeat(NamedTuple):
    """A pulse as a server holds it. A read of all makes one for each path, and nothing else.

    Parameters
    ----------
    server
        Which server holds it, as ``host:port``.
    age_secs
        Seconds since the server received it, at the moment when the read began; None from a Java
        Pacemaker, which does not tell.
    size
        Length of the value, in bytes; `wire.TOMBSTONE`, as long as servers are compared, for a
        pulse that was deleted.
    revision
        The server's, one more with each pulse; None from a Java Pacemaker.
    value
        What the worker said; None where values were not asked for.
    """

    server: str
    age_secs: float | None
    size: int
    revision: int | None
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class ListedNames:
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


def one_request(message: Message) -> Question[Message]:
    """Make one request and return its answer."""
    (answer,) = yield Round([message])
    return answer


class ServerContents(NamedTuple):
    """What one server holds at and below a path, and what it tells of itself.

    Parameters
    ----------
    copies
        By path, with tombstones where the server has any.
    info
        None from a Java Pacemaker.
    """

    copies: dict[str, Heartbeat]
    info: "ServerInfo | None"


def contents_below(
    path: str, server: Address, elapsed: Callable[[], float], *, values: bool = True
) -> Question[ServerContents]:
    """Read every pulse at and below `path`, and who the server is.

    Parameters
    ----------
    path
        Where to begin.
    server
        The server that is asked.
    elapsed
        Gives the seconds since the read began. So ages that several servers tell can be compared.
    values
        Whether to read the values, too. A Java Pacemaker gives no sizes without them: its values
        are read in any case.
    """
    try:
        return (yield from _scan(path, server, elapsed, values=values))
    except UnsupportedExtensionError:
        pulses = yield from java_pulses(path)
        copies = {found: _java_copy(server, details) for found, details in pulses.items()}
        return ServerContents(copies, None)


def server_info_of(server: Address, pulse: Pulse | None) -> "ServerInfo | None":
    """Read what a server tells of itself in its pulse at `RESERVED_PATH`."""
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
    """Read what a server holds for exactly `path`, pulse or tombstone, with its age.

    One request, at the cost of GET_PULSE. A Java Pacemaker, which tells no ages, is asked with
    that.
    """
    try:
        answer = yield from one_request(Message(MessageType.HELD, path=path))
    except UnsupportedExtensionError:
        answer = yield from one_request(Message(MessageType.GET_PULSE, path=path))
        details = answer.pulse.details if answer.pulse else None
        return None if details is None else _java_copy(server, details)
    found: dict[str, Heartbeat] = {}
    _take_up(_changes_of(answer), found, server, elapsed(), values=True)
    return found.get(path)


def pulses_of(paths: Sequence[str]) -> Question[dict[str, bytes | None]]:
    """Read what a server holds for each of some paths, None for none, in Storm's own verb."""
    found: dict[str, bytes | None] = {}
    for first in range(0, len(paths), _WIDTH):
        some = paths[first : first + _WIDTH]
        answers = yield Round([Message(MessageType.GET_PULSE, path=path) for path in some])
        for path, answer in zip(some, answers, strict=True):
            found[path] = answer.pulse.details if answer.pulse else None
    return found


def names_below(paths: Sequence[str]) -> Question[dict[str, ListedNames]]:
    """Read, of each path, the names directly below it, and those that deletions were below."""
    deleted = yield from _nodes(MessageType.DELETED, paths)
    listed = yield from _nodes(MessageType.GET_ALL_NODES_FOR_PATH, paths)
    return {path: ListedNames(listed[path] or frozenset(), deleted[path]) for path in paths}


def _nodes(kind: MessageType, paths: Sequence[str]) -> Question[dict[str, frozenset[str] | None]]:
    """Ask for names; None where the server cannot tell."""
    nodes: dict[str, frozenset[str] | None] = dict.fromkeys(paths)
    try:
        for first in range(0, len(paths), _WIDTH):
            some = paths[first : first + _WIDTH]
            answers = yield Round([Message(kind, path=path) for path in some])
            nodes |= {
                path: frozenset(answer.nodes or ())
                for path, answer in zip(some, answers, strict=True)
            }
    except UnsupportedExtensionError:
        if kind is not MessageType.DELETED:
            raise
    return nodes


def copies_below_each(
    paths: Iterable[str], server: Address, elapsed: Callable[[], float]
) -> Question[dict[str, Heartbeat]]:
    """Read every pulse at and below one path after another; see `contents_below`."""
    found: dict[str, Heartbeat] = {}
    for path in paths:
        found |= (yield from contents_below(path, server, elapsed)).copies
    return found


def _scan(
    path: str, server: Address, elapsed: Callable[[], float], *, values: bool
) -> Question[ServerContents]:
    """Read all pages of changes, and then who the server is.

    A path that changes while we read goes to the end, so nothing but the last page is the end. A
    server reads changes out far faster than workers make them.

    Who the server is must not be older than the last page: of a server that was started again
    between the two, it then vouches for too little, and not for what it does not know. A
    connection answers in order, so the first page and this are asked for at once: most reads have
    no other. Where there are more, the server makes the next page while we take up this one.
    """
    found: dict[str, Heartbeat] = {}
    who = Message(MessageType.GET_PULSE, path=RESERVED_PATH)
    after, instance, more = 0, None, True
    take_up: Callable[[], None] = partial(found.update, ())  # no page yet
    while more:
        request = ChangesRequest(path, after, 0, instance, values)
        asked = Message(MessageType.CHANGES, changes_request=request)
        answer, *rest = yield Round([asked] if after else [asked, who], take_up)
        page = _changes_of(answer)
        if page.more and not page.reset and page.next <= after:
            raise RemoteProtocolError(
                f"there are more changes after revision {after}, and they go on at {page.next}"
            )
        if page.reset:
            found.clear()  # the server was started again; it answered from the beginning
        take_up = partial(_take_up, page, found, server, elapsed(), values=values)
        after, instance, more = page.next, page.instance, page.more
    if rest:
        take_up()
    else:
        rest = yield Round([who], take_up)
    return ServerContents(found, server_info_of(server, rest[0].pulse))


def _changes_of(answer: Message) -> Changes:
    if answer.changes is None:
        raise AssertionError("the protocol lets no answer without its changes through")
    return answer.changes


def _take_up(
    page: Changes, found: dict[str, Heartbeat], server: Address, elapsed: float, *, values: bool
) -> None:
    """Add the copies of a page to those that were found. There may be 100,000 in all."""
    paths, revisions, ages_ms, sizes, details = page.columns
    ages = [age_ms / 1000 - elapsed for age_ms in ages_ms]
    # An older server sends values though none were asked for.
    given = repeat(None) if details is None or not values else details
    rows = zip(repeat(str(server)), ages, sizes, revisions, given, strict=False)
    # What Heartbeat(*row) does, without a call of Python code for each row.
    found.update(zip(paths, map(tuple.__new__, repeat(Heartbeat), rows), strict=False))


def _java_copy(server: Address, value: bytes) -> Heartbeat:
    return Heartbeat(str(server), None, len(value), None, value)


def java_pulses(path: str) -> Question[dict[str, bytes]]:
    """Read every pulse at and below `path` of a Java Pacemaker."""
    found: dict[str, bytes] = {}
    reader = JavaReader(path)
    while requests := reader.requests():
        pulses = reader.answered((yield Round(requests)))
        found.update({pulse.id: pulse.details for pulse in pulses if pulse.details is not None})
    return found


class JavaReader:
    """Reads the pulses at and below a path of a Java Pacemaker, level by level.

    Parameters
    ----------
    path
        Where it begins; its own pulse is read too, and what lies below it in any case.
    """

    def __init__(self, path: str) -> None:
        self._root = path
        self._seen = {path}
        #: Paths whose pulses are to be asked for, with their depth below the root.
        self._paths: deque[tuple[str, int]] = deque([(path, 0)])
        #: Those without one, whose children are to be asked for.
        self._parents: deque[tuple[str, int]] = deque()
        self._asked: list[tuple[str, int]] = []
        self._asks_for_pulses = True

    def requests(self) -> list[Message]:
        """Return what is to be asked now, all at once; nothing at the end."""
        self._asks_for_pulses = bool(self._paths)
        waiting = self._paths or self._parents
        self._asked = [waiting.popleft() for _ in range(min(_WIDTH, len(waiting)))]
        kind = (
            MessageType.GET_PULSE if self._asks_for_pulses else MessageType.GET_ALL_NODES_FOR_PATH
        )
        return [Message(kind, path=path) for path, _ in self._asked]

    def answered(self, answers: Sequence[Message]) -> list[Pulse]:
        """Take the answers to the requests, in their order; return the pulses among them."""
        found: list[Pulse] = []
        for (path, depth), answer in zip(self._asked, answers, strict=True):
            if not self._asks_for_pulses:
                self._take_names(path, depth, answer.nodes or [])
                continue
            pulse = answer.pulse
            if pulse is not None and pulse.details is not None:
                found.append(Pulse(path, pulse.details))
                if path != self._root:
                    continue
            if path != self._root and listing_ends_java(path):
                continue
            if depth < _DEPTH:
                self._parents.append((path, depth))
        return found

    def _take_names(self, parent: str, depth: int, names: Sequence[str]) -> None:
        for name in names:
            child = f"{parent.rstrip('/')}/{name}"
            if name and child not in self._seen:
                self._seen.add(child)
                self._paths.append((child, depth + 1))
