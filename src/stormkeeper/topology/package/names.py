"""The names that the files of a package may have; pure.

A name is a relative path with slashes. It must mean one file, inside the package's folder, on every
file system on which a submitter or a supervisor may have it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

#: Longest name, and longest part between slashes, in bytes. Linux takes paths of 4,096 bytes and
#: parts of 255. A supervisor's own folder comes before the name.
MAX_BYTES: Final = 1024
MAX_PART_BYTES: Final = 255

#: Most parts: no code is so deep, and whoever walks through the folders needs not go further.
MAX_PARTS: Final = 64

# Of a control character a terminal makes what it likes; Windows takes a backslash for a slash.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


def fault(name: str) -> str | None:
    """Return what is wrong with a name, None where nothing is.

    Examples
    --------
    >>> fault("code/../../etc/passwd")
    "the name 'code/../../etc/passwd' has the part '..'"
    """
    return next(_faults(name), None)


def _faults(name: str) -> Iterator[str]:
    try:
        data = name.encode()
    except UnicodeEncodeError:
        yield f"the name {name!r} is no UTF-8"
        return
    if len(data) > MAX_BYTES:
        yield f"the name {name[:80]!r}… has {len(data):,} bytes, and may have {MAX_BYTES:,}"
    if name.startswith("/"):
        yield f"the name {name!r} is absolute"
    if character := _FORBIDDEN.search(name):
        yield f"the name {name!r} has the character {character[0]!r}"
    parts = name.split("/")
    if len(parts) > MAX_PARTS:
        yield f"the name {name!r} has {len(parts)} parts, and may have {MAX_PARTS}"
    for part in parts:
        if part in {"", ".", ".."}:
            yield f"the name {name!r} has the part {part!r}"
        if len(part.encode()) > MAX_PART_BYTES:
            yield f"the name {name!r} has a part of more than {MAX_PART_BYTES} bytes"


def clash(names: Iterable[str]) -> str | None:
    """Return how two files would be in each other's place, None where none would.

    Some file systems take ``A`` and ``a`` for one name, and so do some for the two ways in which
    Unicode writes ``é``.
    """
    files: dict[str, str] = {}
    for name in names:
        folded = _folded(name)
        if folded in files:
            return f"{files[folded]!r} and {name!r} would be the same file"
        files[folded] = name
    for folded, name in files.items():
        folder = folded.rpartition("/")[0]
        while folder:
            if folder in files:
                return f"{files[folder]!r} would be both a file and the folder of {name!r}"
            folder = folder.rpartition("/")[0]
    return None


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
