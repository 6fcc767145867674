"""Finds and repairs damage in a query's checkpoint on a disk.

Spark writes ``offsets/N`` before batch N, with what the batch reads, and ``commits/N`` after it. A
power cut or a full disk may damage the newest file; Spark then refuses to start the query. Without
the file Spark repeats the batch, or plans it anew.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: First line of Spark's log files.
_VERSION: Final = re.compile(r"v\d+")

_AGAIN: Final = (
    "nothing; batch {0} is done again with the same rows, so a sink that does not know batches by"
    " their number gets them twice"
)
_ANEW: Final = (
    "what batch {0} was to read; the batch is planned anew, and may have other rows than before. If"
    " it reached the sink before, its rows are written again; a sink that skips batches by their"
    " number (a file sink, Delta) skips batch {0}, and rows may be missing there"
)
_NEW_ID: Final = (
    "the query's id: the query gets a new one. A sink that knows batches by that id, such as Delta,"
    " may get one batch twice"
)


@dataclass(frozen=True, slots=True)
class Defect:
    """Damage in a checkpoint.

    `lost` is what a repair loses; `remove` has the files that the repair removes; `new_id` gives
    the query a new id in ``metadata``.
    """

    text: str
    lost: str = ""
    remove: tuple[Path, ...] = ()
    new_id: bool = False

    @property
    def is_mendable(self) -> bool:
        return bool(self.remove) or self.new_id


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints at or below a folder, sorted."""
    found = {place.parent for place in folder.rglob("offsets") if place.is_dir()}
    found |= {place.parent for place in folder.rglob("metadata") if place.is_file()}
    return sorted(place for place in found if not found.intersection(place.parents))


def check(checkpoint: Path) -> list[Defect]:
    """Return the damage in a query's checkpoint, the folder with ``offsets`` and ``commits``."""
    offsets, commits = _log(checkpoint / "offsets"), _log(checkpoint / "commits")
    return [*_metadata(checkpoint / "metadata"), *_offsets(offsets, commits), *_commits(commits)]


def mend(checkpoint: Path, defects: Sequence[Defect]) -> None:
    """Repair what is mendable, while no query runs; files move into the folder ``mended``."""
    # Commits first: Spark takes a commit without its offsets for another query's.
    for file in sorted({file for defect in defects for file in defect.remove}):
        _put_aside(checkpoint, file)
    if any(defect.new_id for defect in defects):
        file = checkpoint / "metadata"
        _put_aside(checkpoint, file)
        new = file.with_name(".metadata.new")
        new.write_text(json.dumps({"id": str(uuid.uuid4())}))
        new.replace(file)


def _put_aside(checkpoint: Path, file: Path) -> None:
    """Move a file and Hadoop's checksum of it out of Spark's sight."""
    for each in (file, file.with_name(f".{file.name}.crc")):
        if each.exists():
            aside = checkpoint / "mended" / each.relative_to(checkpoint)
            aside.parent.mkdir(parents=True, exist_ok=True)
            each.replace(aside)


def _metadata(file: Path) -> Iterator[Defect]:
    if not file.exists():
        return
    try:
        is_whole = bool(json.loads(file.read_bytes())["id"])
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        yield Defect(f"{file} is {_how_broken(file)}", _NEW_ID, new_id=True)


def _offsets(offsets: dict[int, Path], commits: dict[int, Path]) -> Iterator[Defect]:
    newest, last_commit = max(offsets, default=-1), max(commits, default=-1)
    for number, file in sorted(offsets.items()):
        if _is_whole(file, offsets.get(number - 1)):
            continue
        text = f"{file} is {_how_broken(file)}"
        if number != newest:
            yield Defect(f"{text}, and is not the newest: restore it from a copy")
            continue
        beyond = tuple(commits[each] for each in sorted(commits) if each >= number)
        if number and number - 1 not in offsets:
            yield Defect(f"{text}, and {number - 1} before it is not there: restore one of the two")
            continue
        yield Defect(text, _ANEW.format(number), (*beyond, file))
        newest = number - 1
    if last_commit > max(offsets, default=-1):
        beyond = tuple(commits[each] for each in sorted(commits) if each > newest)
        text = f"{commits[last_commit]} has no offsets/{last_commit}"
        if offsets:
            yield Defect(text, _ANEW.format(newest + 1), beyond)
        else:
            yield Defect(f"{text}, and there are none at all: restore offsets from a copy")


def _commits(commits: dict[int, Path]) -> Iterator[Defect]:
    newest = max(commits, default=-1)
    for number, file in sorted(commits.items()):
        if _is_whole(file):
            continue
        text = f"{file} is {_how_broken(file)}"
        if number == newest:
            yield Defect(text, _AGAIN.format(number), (file,))
        else:
            yield Defect(f"{text}, and is not the newest: restore it from a copy")


def _log(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    return {int(file.name): file for file in folder.iterdir() if file.name.isdecimal()}


def _is_whole(file: Path, before: Path | None = None) -> bool:
    """Return whether a log file has a version, JSON, and no fewer lines than the file `before`."""
    version, *lines = file.read_text(errors="replace").rstrip("\n").split("\n")
    if not _VERSION.fullmatch(version) or not lines:
        return False
    if before is not None and before.read_bytes().rstrip(b"\n").count(b"\n") > len(lines):
        return False
    try:
        for number, line in enumerate(lines):
            # Spark does not enforce JSON in a source's offset.
            if not number or line.startswith(("{", "[")):
                json.loads(line)
    except ValueError:
        return False
    return _matches_checksum(file)


def _matches_checksum(file: Path) -> bool:
    """Return whether Hadoop's checksum file, if any, fits the file's length."""
    checksum = file.with_name(f".{file.name}.crc")
    if not checksum.exists() or not checksum.stat().st_size:
        return True
    return checksum.stat().st_size == 8 + 4 * -(-file.stat().st_size // 512)


def _how_broken(file: Path) -> str:
    size = file.stat().st_size
    return f"cut off, at {size} bytes" if size else "empty"
