"""What is said to one server to find something out, without I/O.

A conversation is a generator: it yields requests to be made at once, is sent their answers in the
same order, and returns what it found. An `UnsupportedExtensionError` is thrown into it, so that it
can go on with what Storm's own Pacemaker understands; any other error ends it.
"""

from collections.abc import Callable, Generator
from typing import Final, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError, UnsupportedExtensionError
from stormkeeper.pacemaker.client.readings import Copy
from stormkeeper.pacemaker.wire import Changes, ChangesRequest, Message, MessageType

T = TypeVar("T")

Conversation = Generator[list[Message], list[Message], T]

#: Paths of which a Java Pacemaker is asked at once: two requests each, so a full connection.
_WALK_WIDTH: Final = 50

#: Levels that are followed below a path. Storm's have two; a Java Pacemaker takes the path for a
#: regular expression, and what it lists is not always there.
_WALK_DEPTH: Final = 16

#: Changes that are asked for to find the one of a path: it has hardly any pulses below it.
_FEW: Final = 16


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
    """Read what a server holds for exactly `path`, with the age if the server tells ages.

    The server looks for it among all its changes: to be used where several servers hold a pulse,
    and not for each of many paths.
    """
    try:
        page = yield from _page(path, _FEW, None)
        while True:
            for copy in _copies(page, server, clock()):
                if copy[0] == path:
                    return copy[1]
            if not page.more:
                return None
            page = yield from _page(path, _FEW, page)
    except UnsupportedExtensionError:
        answer = yield from single(Message(MessageType.GET_PULSE, path=path))
        details = answer.pulse.details if answer.pulse else None
        return None if details is None else Copy(server, details, None)


def _scan(path: str, server: Address, clock: Callable[[], float]) -> Conversation[dict[str, Copy]]:
    """Read all pages of changes.

    A path that changes while we read goes to the end, so nothing but the last page is the end. A
    server reads changes out far faster than workers make them.
    """
    page = yield from _page(path, 0, None)
    found = dict(_copies(page, server, clock()))
    while page.more:
        page = yield from _page(path, 0, page)
        if page.reset:
            found.clear()  # the server was started again; it answered from the beginning
        found.update(_copies(page, server, clock()))
    return found


def _page(path: str, limit: int, before: Changes | None) -> Conversation[Changes]:
    """Ask for the page of changes that follows the page `before`, or for the first one."""
    after, instance = (0, None) if before is None else (before.next, before.instance)
    request = ChangesRequest(path, after, limit, instance)
    answer = yield from single(Message(MessageType.CHANGES, changes_request=request))
    page = answer.changes
    if page is None:
        raise AssertionError("the exchange lets no answer without its changes through")
    if page.more and not page.reset and page.next <= after:
        raise RemoteProtocolError(
            f"there are more changes after revision {after}, and they go on at {page.next}"
        )
    return page


def _copies(page: Changes, server: Address, now: float) -> list[tuple[str, Copy]]:
    return [
        (change.path, Copy(server, change.details, now - change.age_ms / 1000))
        for change in page.changes
    ]


def walk(path: str) -> Conversation[dict[str, bytes]]:
    """Read every pulse at and below `path` in Storm's own verbs: list, and get one by one."""
    found: dict[str, bytes] = {}
    seen = {path}
    level = [path]
    for _ in range(_WALK_DEPTH):
        deeper: list[str] = []
        for start in range(0, len(level), _WALK_WIDTH):
            paths = level[start : start + _WALK_WIDTH]
            answers = yield [
                Message(kind, path=asked)
                for asked in paths
                for kind in (MessageType.GET_PULSE, MessageType.GET_ALL_NODES_FOR_PATH)
            ]
            for place, asked in enumerate(paths):
                pulse, nodes = answers[2 * place].pulse, answers[2 * place + 1].nodes
                if pulse is not None and pulse.details is not None:
                    found[asked] = pulse.details
                for name in nodes or []:
                    child = f"{asked.rstrip('/')}/{name}"
                    if name and child not in seen:
                        seen.add(child)
                        deeper.append(child)
        if not deeper:
            break
        level = deeper
    return found
