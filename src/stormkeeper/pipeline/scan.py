"""Reading one Pacemaker's pulses for one batch: the change scan, or all of a Java Pacemaker's.

A change scan gives the newest pulse of each path, not every pulse that ever came. It goes on to
what the server holds at the moment of reading, beyond the revision that was the newest when the
batch was planned: a worker whose pulse is overwritten between the two would otherwise be missing
from the batch, and if its beat keeps step with the triggers, from every batch. So a change may be
read in two batches, but no path that changes is ever missing from one. A path whose pulse was
deleted is a tombstone, a change without details.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire import Message, MessageType
from stormkeeper.pipeline.offsets import WITHOUT_REVISIONS, Span

#: Pulses of a Java Pacemaker that are asked for, and handed on, at once.
_JAVA_PAGE = 500

#: How deep below the path that is read a pulse of a Java Pacemaker is looked for: Storm stores
#: them two levels below ``/workerbeats``. The bound is for servers that list a path below itself.
_JAVA_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Reading:
    """A path as one server answered it.

    Parameters
    ----------
    details
        The pulse; None for a tombstone.
    revision, age_secs
        None from a server that tells none.
    """

    path: str
    details: bytes | None
    revision: int | None = None
    age_secs: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Readings that came in one answer.

    Parameters
    ----------
    read_at
        When the answer was here: seconds since the epoch, on this machine's clock.
    reset
        Whether the server answered from nothing though it was asked for what is new: its
        tombstones do not reach back far enough. The readings then are all that it holds.
    """

    instance: str
    readings: list[Reading]
    read_at: float
    reset: bool = False


def pages(client: PacemakerClient, path: str, span: Span, page_size: int = 0) -> Iterator[Page]:
    """Read what a span holds at and below a path.

    Parameters
    ----------
    client
        The server's.
    span
        From where to read. If the server is another instance by now, it is read from its beginning.
    page_size
        Changes asked for in one request; 0 leaves it to the server.

    Raises
    ------
    PacemakerError, ProtocolError
        When the server does not answer, refuses, or breaks the protocol.
    """
    if span.instance == WITHOUT_REVISIONS:
        return _all_pulses(client, path)
    return _changes(client, path, span, page_size)


def _changes(client: PacemakerClient, path: str, span: Span, page_size: int) -> Iterator[Page]:
    instance, after = span.instance, span.after
    more, reset = True, False
    while more:  # ends, as a server is read faster than workers can fill it
        answer = client.changes(path, after, page_size, instance)
        # Only the page that begins anew says so; the ones that follow it are as usual.
        reset = reset or (answer.reset and after > 0) or answer.instance != instance
        readings = [
            Reading(change.path, change.details, change.revision, change.age_ms / 1000)
            for change in answer.changes
        ]
        yield Page(answer.instance, readings, time.time(), reset)
        instance, after, more = answer.instance, answer.next, answer.more


def _all_pulses(client: PacemakerClient, path: str) -> Iterator[Page]:
    found: list[Reading] = []
    top = path.rstrip("/")
    details = client.get_pulse(top) if top else None
    readings = _below(client, top, _JAVA_DEPTH) if details is None else [Reading(top, details)]
    for reading in readings:
        found.append(reading)
        if len(found) == _JAVA_PAGE:
            yield Page(WITHOUT_REVISIONS, found, time.time())
            found = []
    yield Page(WITHOUT_REVISIONS, found, time.time())


def _below(client: PacemakerClient, path: str, depth: int) -> Iterator[Reading]:
    # Asked for the children of /wc-1-17, a Java Pacemaker also lists what follows that text in
    # /wc-1-1700: such a name leads nowhere, and neither holds a pulse nor has children.
    children = [f"{path}/{name}" for name in client.children(path or "/") if name]
    for start in range(0, len(children), _JAVA_PAGE):
        asked = children[start : start + _JAVA_PAGE]
        for child, details in zip(asked, _pulses(client, asked), strict=True):
            if details is not None:
                yield Reading(child, details)
            elif depth > 1:
                yield from _below(client, child, depth - 1)


def _pulses(client: PacemakerClient, paths: list[str]) -> list[bytes | None]:
    """Ask for many pulses without waiting for each answer."""
    futures = [client.submit(Message(MessageType.GET_PULSE, path=path)) for path in paths]
    answers = [future.result().pulse for future in futures]  # each ends by the client's deadline
    return [answer.details if answer is not None else None for answer in answers]
