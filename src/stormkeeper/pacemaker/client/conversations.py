"""What is said to one server to find something out, without I/O.

A conversation is a generator: it yields requests to be made at once, is sent their answers in the
same order, and returns what it found. An `UnsupportedExtensionError` is thrown into it, so that it
can go on with what Storm's own Pacemaker understands; any other error ends it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError, SerializationError, UnsupportedExtensionError
from stormkeeper.pacemaker.client.readings import Copy, Names
from stormkeeper.pacemaker.client.walking import Walk
from stormkeeper.pacemaker.wire import (
    RESERVED_PATH,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

T = TypeVar("T")

#: Questions that are asked at once: as many as may be under way on a connection.
_WIDTH: Final = 100

Conversation = Generator[list[Message], list[Message], T]


def single(message: Message) -> Conversation[Message]:
    """Make one request and return its answer."""
    (answer,) = yield [message]
    return answer


class Contents(NamedTuple):
    """What one server holds at and below a path, and what it tells of itself.

    Parameters
    ----------
    copies
        By path, with tombstones where the server has any.
    info
        None from a Java Pacemaker.
    """

    copies: dict[str, Copy]
    info: "ServerInfo | None"


def contents_below(
    path: str, server: Address, clock: Callable[[], float], *, values: bool
) -> Conversation[Contents]:
    """Read what `copies_below` does, and then who the server is.

    In this order: a server that was started again between the two then vouches for too little,
    and not for what it does not know.
    """
    copies = yield from copies_below(path, server, clock, values=values)
    answer = yield from single(Message(MessageType.GET_PULSE, path=RESERVED_PATH))
    return Contents(copies, server_info_of(server, answer.pulse))


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


def copies_below(
    path: str, server: Address, clock: Callable[[], float], *, values: bool = True
) -> Conversation[dict[str, Copy]]:
    """Read every pulse at and below `path`, by its path, with tombstones where the server has any.

    Parameters
    ----------
    path
        Where to begin.
    server
        Who is asked.
    clock
        The reader's monotonic seconds.
    values
        Whether to read the values, too. A Java Pacemaker, and an older one of ours, gives no sizes
        without them: its values are read in any case.
    """
    try:
        return (yield from _scan(path, server, clock, values=values))
    except UnsupportedExtensionError:
        pulses = yield from walk(path)
        return {found: _java_copy(server, details) for found, details in pulses.items()}


def copy_of(path: str, server: Address, clock: Callable[[], float]) -> Conversation[Copy | None]:
    """Read what a server holds for exactly `path`, pulse or tombstone, with its age.

    One request, at the cost of GET_PULSE. A Java Pacemaker, which tells no ages, is asked with
    that.
    """
    try:
        answer = yield from single(Message(MessageType.HELD, path=path))
    except UnsupportedExtensionError:
        answer = yield from single(Message(MessageType.GET_PULSE, path=path))
        details = answer.pulse.details if answer.pulse else None
        return None if details is None else _java_copy(server, details)
    return dict(_copies(_changes_of(answer), server, clock())).get(path)


def names_below(paths: Sequence[str]) -> Conversation[dict[str, Names]]:
    """Read, of each path, the names directly below it, and those that deletions were below."""
    deleted = yield from _nodes(MessageType.DELETED, paths)
    listed = yield from _nodes(MessageType.GET_ALL_NODES_FOR_PATH, paths)
    return {path: Names(listed[path] or frozenset(), deleted[path]) for path in paths}


def _nodes(
    kind: MessageType, paths: Sequence[str]
) -> Conversation[dict[str, frozenset[str] | None]]:
    """Ask for names; None where the server cannot tell."""
    nodes: dict[str, frozenset[str] | None] = dict.fromkeys(paths)
    try:
        for first in range(0, len(paths), _WIDTH):
            some = paths[first : first + _WIDTH]
            answers = yield [Message(kind, path=path) for path in some]
            nodes |= {
                path: frozenset(answer.nodes or ())
                for path, answer in zip(some, answers, strict=True)
            }
    except UnsupportedExtensionError:
        if kind is not MessageType.DELETED:
            raise
    return nodes


def copies_below_each(
    paths: Iterable[str], server: Address, clock: Callable[[], float]
) -> Conversation[dict[str, Copy]]:
    """Do what `copies_below` does for one path after another."""
    found: dict[str, Copy] = {}
    for path in paths:
        found |= yield from copies_below(path, server, clock)
    return found


def _scan(
    path: str, server: Address, clock: Callable[[], float], *, values: bool
) -> Conversation[dict[str, Copy]]:
    """Read all pages of changes.

    A path that changes while we read goes to the end, so nothing but the last page is the end. A
    server reads changes out far faster than workers make them.
    """
    found: dict[str, Copy] = {}
    after, instance, more = 0, None, True
    while more:
        request = ChangesRequest(path, after, 0, instance, values)
        answer = yield from single(Message(MessageType.CHANGES, changes_request=request))
        page = _changes_of(answer)
        if page.more and not page.reset and page.next <= after:
            raise RemoteProtocolError(
                f"there are more changes after revision {after}, and they go on at {page.next}"
            )
        if page.reset:
            found.clear()  # the server was started again; it answered from the beginning
        found.update(_copies(page, server, clock()))
        after, instance, more = page.next, page.instance, page.more
    return found


def _changes_of(answer: Message) -> Changes:
    if answer.changes is None:
        raise AssertionError("the protocol lets no answer without its changes through")
    return answer.changes


def _copies(page: Changes, server: Address, now: float) -> list[tuple[str, Copy]]:
    return [
        (path, Copy(server, details, now - age_ms / 1000, size, revision))
        for path, details, revision, age_ms, size in page.changes
    ]


def _java_copy(server: Address, details: bytes) -> Copy:
    return Copy(server, details, None, len(details), None)


def walk(path: str) -> Conversation[dict[str, bytes]]:
    """Read every pulse at and below `path` in Storm's own verbs; see `walking`."""
    found: dict[str, bytes] = {}
    steps = Walk(path)
    while questions := steps.questions():
        pulses = steps.answered((yield questions))
        found.update({pulse.id: pulse.details for pulse in pulses if pulse.details is not None})
    return found
