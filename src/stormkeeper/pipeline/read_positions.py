"""Positions up to which a stream has read: the ``pacemaker`` source's offsets, and spill positions.

An offset is a JSON object, ``{"host:port": [instance, revision]}``: the end of a planned batch.
Spark's executors read the changes later, and a server that fails then fails no query. So a batch
repeats the changes of the batch before, from the entry ``"before host:port"``.

``"tick": ["reader", n]`` grows at every trigger, so that a batch also runs without changes: silence
must be noticed. A Java Pacemaker has the instance ``""`` and the tick as its revision, and is read
as a whole.

With the driver and Spark's executors on one machine, files in the spill folder, which belongs to
one run of one query, say how far each part was read: the next batch begins there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Part, Position

#: ``{server: [instance, revision]}``, the same for "before", and the tick: kept in checkpoints.
Offset = dict[str, list[str | int]]

TICK: Final = "tick"

_BEFORE: Final = "before "


@dataclass(frozen=True, slots=True)
class _Entry:
    """A server in an offset; revisions up to `sure` were read by earlier batches."""

    instance: str
    revision: int
    sure: int


@dataclass(frozen=True, slots=True)
class Span:
    """The share of a server in a batch: revisions above `after`, up to `until`.

    `reset` is whether the server started anew since the batch before, so that this is all it holds.
    """

    instance: str
    after: int
    until: int
    reset: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the span has nothing to read; False for a server without revisions."""
        return self.instance != WITHOUT_REVISIONS and self.until <= self.after


def initial_offset() -> Offset:
    """Return the offset before everything."""
    return {TICK: ["reader", 0]}


def next_offset(start: Offset, found: Mapping[str, Position | None]) -> Offset:
    """Return the end of the next batch, from each server's position, or None if it did not answer.

    Such a server keeps its place; servers that are not in `found` are dropped.
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


def batch_span(start: Offset, end: Offset, server: str) -> Span | None:
    """Return a server's span between two offsets; None if the server never answered."""
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


def record_position(folder: str, server: str, part: Part | None, position: Position) -> None:
    """Record the position up to which a part of a server was read, for the next batch."""
    file = _file(folder, server, part)
    written = file.with_suffix(".new")
    written.write_text(json.dumps([position.instance, position.revision]))
    written.replace(file)


def resume_span(folder: str, server: str, part: Part | None, span: Span) -> Span:
    """Return the span from the recorded position of a part of a server."""
    try:
        instance, revision = json.loads(_file(folder, server, part).read_text())
    except FileNotFoundError:
        return span
    if instance != span.instance:
        return span
    # Less than the offsets' position if reads have failed since.
    return replace(span, after=revision)


def _file(folder: str, server: str, part: Part | None) -> Path:
    return Path(folder) / f"{server}-{part.number if part else 0}.reached"
