"""How far each part of each server was read in this run, which is further than offsets say.

A batch's offsets are made before it is read: so the next one reads again what came meanwhile, and
what the one before had, whose read may have failed; if two have failed, what the first one missed
is not read. Where the driver is on the machine of those who
read, a file for each part says how far it was read: the next batch begins there. It is in the
folder in which they put rows aside, of one query and one run: what is in there was read in batches
that were published, but for the newest, and when that fails, the run ends.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stormkeeper.heartbeats.following import Part, Position
from stormkeeper.pipeline.offsets import Span


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
