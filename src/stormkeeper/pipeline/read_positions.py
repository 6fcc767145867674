"""How far a stream has read: offsets of the ``pacemaker`` source, as checkpoints keep them.

An offset is a JSON object with one entry per server, ``{"host:port": [instance, revision]}``: the
batch that ends here was to read this instance of the server up to `revision`. Whether it did is not
known here: batches are planned in the driver and read by executors, and a server that fails in
between fails no query. So the next batch begins where the one before this one ended, and reads this
one's changes again, unless they are overwritten; it costs at most a row per path. That place is
kept in an entry of its own, ``"before host:port": [instance, revision]``.

Beside the servers stands ``"tick": ["reader", n]``, which grows at every trigger, so that a trigger
at which nobody sent anything runs a batch as well: silence must be noticed. A server's name has a
colon and no space, so no server is ever called "tick" or "before …".

A server that knows no revisions (a Java Pacemaker) has the instance ``""`` and, for a revision,
the tick: it is read as a whole every time.

Everything here is a function of its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stormkeeper.heartbeats.following import WITHOUT_REVISIONS, Part, Position

#: ``{server: [instance, revision]}``, the same before, and the tick: what a checkpoint keeps.
Offset = dict[str, list[str | int]]

TICK: Final = "tick"

_BEFORE: Final = "before "


@dataclass(frozen=True, slots=True)
class _Entry:
    """A server in an offset; what is up to `sure` was read by the batch before, or before that."""

    instance: str
    revision: int
    sure: int


@dataclass(frozen=True, slots=True)
class Span:
    """What one batch reads of one server: revisions above `after`, up to `until`.

    Parameters
    ----------
    instance
        The server's instance as planned; `WITHOUT_REVISIONS` for one that is read as a whole.
    after, until
        Revisions; `until` was the newest one when the batch was planned, `after` when the last but
        one was.
    reset
        Whether the server started anew since the batch before: what was known of its paths may be
        gone, and this span is all that it holds.
    """

    instance: str
    after: int
    until: int
    reset: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read in this span; never so where there are no revisions."""
        return self.instance != WITHOUT_REVISIONS and self.until <= self.after


def initial() -> Offset:
    """Return the offset of a reader that has read nothing."""
    return {TICK: ["reader", 0]}


def advance(start: Offset, found: Mapping[str, Position | None]) -> Offset:
    """Return the offset up to which the next batch reads.

    Parameters
    ----------
    start
        Where the batch before ended.
    found
        By server: where it stands now, or None where it did not answer. Such a server keeps its
        place, so that nothing is skipped when it answers again; servers that are not named are no
        longer read, and their places are dropped.
    """
    tick = int(start[TICK][1]) + 1
    end: Offset = {TICK: ["reader", tick]}
    for server, position in found.items():
        if position is not None:
            known = position.instance != WITHOUT_REVISIONS
            before = _entry(start, server)
            same = before is not None and before.instance == position.instance
            end[server] = [position.instance, position.revision if known else tick]
            sure = before.revision if before is not None and same else 0
            end[_BEFORE + server] = [position.instance, sure]
        else:
            end |= {k: start[k] for k in (server, _BEFORE + server) if k in start}
    return end


def span(start: Offset, end: Offset, server: str) -> Span | None:
    """Return what a batch between two offsets reads from a server; None for a server unheard of."""
    until = _entry(end, server)
    if until is None:
        return None
    before = _entry(start, server)
    if before is None or before.instance != until.instance:
        return Span(until.instance, 0, until.revision, reset=before is not None)
    return Span(until.instance, before.sure, until.revision)


def _entry(offset: Offset, server: str) -> _Entry | None:
    if server not in offset:
        return None
    instance, revision = offset[server]
    _, sure = offset.get(_BEFORE + server, offset[server])
    return _Entry(str(instance), int(revision), int(sure))


def note(folder: str, server: str, part: Part | None, position: Position) -> None:
    """Have the next batch begin after a position, up to which a part of a server was read."""
    file = _file(folder, server, part)
    written = file.with_suffix(".new")
    written.write_text(json.dumps([position.instance, position.revision]))
    written.replace(file)


def begun(folder: str, server: str, part: Part | None, span: Span) -> Span:
    """Return a span of a server from where a part of it was read to."""
    try:
        instance, revision = json.loads(_file(folder, server, part).read_text())
    except FileNotFoundError:
        return span
    if instance != span.instance:
        return span
    # That is less than offsets say where reads have failed since.
    return replace(span, after=revision)


def _file(folder: str, server: str, part: Part | None) -> Path:
    return Path(folder) / f"{server}-{part.number if part else 0}.reached"
