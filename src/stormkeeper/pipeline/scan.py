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
from stormkeeper.pipeline.offsets import WITHOUT_REVISIONS, Span


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
    for pulses in client.walk(path):
        readings = [Reading(pulse.id, pulse.details) for pulse in pulses]
        yield Page(WITHOUT_REVISIONS, readings, time.time())
