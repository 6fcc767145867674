r"""Which files of a folder stay behind when it is packed.

Always: every file and folder whose name begins with a dot (``.git``, ``.venv``, ``.env`` with its
secrets), ``__pycache__``, virtual environments under any name (they have a ``pyvenv.cfg``), and
what Spark leaves in the folder in which it runs (``spark-warehouse``, ``metastore_db``).

Besides, what a file ``.stormignore`` at the top of the folder names, with one pattern in each line:

- ``*.csv`` is any file or folder of such a name, at any depth;
- ``data/old`` or ``/notes.txt``, with a slash, is meant from the top of the folder;
- ``build/``, with a slash at the end, is folders only;
- ``*``, ``?`` and ``[abc]`` are as in a shell, but that ``*`` and ``?`` match slashes too;
- a line that begins with ``#`` is a comment. There is no ``!`` that takes a pattern back.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from stormkeeper.errors import TopologyError

FILE: Final = ".stormignore"

_NEVER: Final = frozenset({"__pycache__", "metastore_db", "spark-warehouse"})

#: Whether a file or folder stays behind, by its path from the top and whether it is a folder.
Ignored = Callable[[str, bool], bool]


def read(folder: Path) -> Ignored:
    """Return what stays behind of a folder.

    Raises
    ------
    TopologyError
        Its ``.stormignore`` cannot be read, or has a line that is no pattern.
    """
    file = folder / FILE
    try:
        lines = file.read_text().splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} cannot be read: {error}") from error
    patterns = []
    for number, line in enumerate(lines, 1):
        pattern = line.strip()
        if pattern.startswith("!"):
            raise TopologyError(
                f"{file}, line {number}: a pattern cannot be taken back with !: write the patterns "
                "so that they do not match what is to be sent"
            )
        if pattern and not pattern.startswith("#"):
            patterns.append(pattern)

    def ignored(path: str, is_folder: bool) -> bool:
        name = path.rpartition("/")[2]
        if name.startswith(".") or name in _NEVER:
            return True
        return any(_matches(pattern, path, name, is_folder) for pattern in patterns)

    return ignored


def _matches(pattern: str, path: str, name: str, is_folder: bool) -> bool:
    if pattern.endswith("/"):
        if not is_folder:
            return False
        pattern = pattern.rstrip("/")
    if "/" in pattern:
        return fnmatch.fnmatchcase(path, pattern.removeprefix("/"))
    return fnmatch.fnmatchcase(name, pattern)


def walk(root: Path, ignored: Ignored, start: Path | None = None) -> Iterator[Path]:
    """Yield the files of a folder that do not stay behind, sorted by name in each folder.

    Parameters
    ----------
    root
        The folder that the patterns are meant from.
    ignored
        What stays behind.
    start
        The folder in it to begin in, `root` itself by default.

    Raises
    ------
    TopologyError
        A folder cannot be read, or has what cannot be sent: a link to a folder or to outside of
        `root`, a socket.
    """
    folder = start or root
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise TopologyError(f"{folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = Path(entry.path)
        if ignored(path.relative_to(root).as_posix(), entry.is_dir()):
            continue
        if entry.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists():
                yield from walk(root, ignored, path)
        elif not entry.is_file():
            what = "a link to a folder" if entry.is_dir() else "neither a file nor a folder"
            raise _cannot_be_sent(path, what)
        elif entry.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise _cannot_be_sent(path, f"a link to {path.resolve()}, outside of {root}")
        else:
            yield path


def _cannot_be_sent(path: Path, what: str) -> TopologyError:
    return TopologyError(
        f"{path} is {what}, which cannot be sent: remove it, or name it in {FILE} at the top"
    )
