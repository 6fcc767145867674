"""What is said to one server to find something out, without I/O.

A conversation is a generator: it yields requests to be made at once, is sent their answers in the
same order, and returns what it found. An `UnsupportedExtensionError` is thrown into it, so that it
can go on with what Storm's own Pacemaker understands; any other error ends it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError, UnsupportedExtensionError
from stormkeeper.pacemaker.client.readings import Copy, Names
from stormkeeper.pacemaker.client.walking import Walk
from stormkeeper.pacemaker.wire import (
    Changes,
    ChangesRequest,
    Message,
    MessageType,
)

T = TypeVar("T")

#: Questions that are asked at once: as many as may be under way on a connection.
_WIDTH: Final = 100

Conversation = Generator[list[Message], list[Message], T]


def single(message: Message) -> Conversation[Message]:
    """Make one request and return its answer."""
    (answer,) = yield [message]
    return answer


def copies_below(
    path: str, server: Address, clock: Callable[[], float]
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
    """
    try:
        return (yield from _scan(path, server, clock))
    except UnsupportedExtensionError:
        pulses = yield from walk(path)
        return {found: Copy(server, details, None) for found, details in pulses.items()}


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
        return None if details is None else Copy(server, details, None)
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


def _scan(path: str, server: Address, clock: Callable[[], float]) -> Conversation[dict[str, Copy]]:
    """Read all pages of changes.

    A path that changes while we read goes to the end, so nothing but the last page is the end. A
    server reads changes out far faster than workers make them.
    """
    page = yield from _page(path, None)
    found = dict(_copies(page, server, clock()))
    while page.more:
        page = yield from _page(path, page)
        if page.reset:
            found.clear()  # the server was started again; it answered from the beginning
        found.update(_copies(page, server, clock()))
    return found


def _page(path: str, before: Changes | None) -> Conversation[Changes]:
    """Ask for the page of changes that follows the page `before`, or for the first one."""
    after, instance = (0, None) if before is None else (before.next, before.instance)
    request = ChangesRequest(path, after, 0, instance)
    page = _changes_of((yield from single(Message(MessageType.CHANGES, changes_request=request))))
    if page.more and not page.reset and page.next <= after:
        raise RemoteProtocolError(
            f"there are more changes after revision {after}, and they go on at {page.next}"
        )
    return page


def _changes_of(answer: Message) -> Changes:
    if answer.changes is None:
        raise AssertionError("the exchange lets no answer without its changes through")
    return answer.changes


def _copies(page: Changes, server: Address, now: float) -> list[tuple[str, Copy]]:
    return [
        (change.path, Copy(server, change.details, now - change.age_ms / 1000))
        for change in page.changes
    ]


def walk(path: str) -> Conversation[dict[str, bytes]]:
    """Read every pulse at and below `path` in Storm's own verbs; see `walking`."""
    found: dict[str, bytes] = {}
    steps = Walk(path)
    while questions := steps.questions():
        pulses = steps.answered((yield questions))
        found.update({pulse.id: pulse.details for pulse in pulses if pulse.details is not None})
    return found
