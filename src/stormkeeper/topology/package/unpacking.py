"""Lays out a package as a folder: whole, or not at all.

It is written into a folder beside, which is renamed when all of it is on the disk and is what the
manifest says. So whoever finds the folder finds a whole package, also after a loss of power.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from stormkeeper.daemon.durable import sync_file, sync_folder
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.manifest import Manifest
from stormkeeper.topology.package.reading import Package

#: How the names of unfinished folders begin.
_UNFINISHED: Final = ".unpacking-"

#: For its owner alone, as the code may be nobody else's business. A program has a folder's mode.
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


def unpack(file: BinaryIO, folder: Path) -> Manifest:
    """Lay out a package as `folder`, and return its manifest.

    Whoever else has made that folder meanwhile was first: that one stays.

    Parameters
    ----------
    file
        The zip, which can be sought in.
    folder
        What is to be made. It is in a folder that exists.

    Raises
    ------
    SerializationError
        It is no package; nothing is left of it.
    OSError
        The disk does not take it; nothing is left of it.
    """
    package = Package(file)
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        for packed in package.manifest.files:
            mode = _FOLDER_MODE if package.is_executable(packed) else _FILE_MODE
            _write(unfinished / packed.name, package.chunks(packed), mode)
        _write(unfinished / manifest.MANIFEST, [manifest.encode(package.manifest)], _FILE_MODE)
        for made, _, _ in os.walk(unfinished):
            sync_folder(Path(made))
        try:
            unfinished.rename(folder)
        except OSError:
            if not (folder / manifest.MANIFEST).exists():
                raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return package.manifest


def find_difference(listed: Manifest, folder: Path) -> Path | None:
    """Return the first file below a folder that is not as a manifest says; None if all are.

    Files that the manifest does not list do not count: Python writes its own there.

    Raises
    ------
    OSError
        A file that is there cannot be read.
    """
    whole = manifest.encode(listed)
    expected = [(manifest.MANIFEST, len(whole), hashlib.sha256(whole).hexdigest())]
    expected += [(file.name, file.size, file.sha256) for file in listed.files]
    for name, size, sha256 in expected:
        path = folder / name
        try:
            with path.open("rb") as opened:
                if os.fstat(opened.fileno()).st_size != size:
                    return path
                if hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
                    return path
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return path
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder.

    Nobody may be laying out a package there.
    """
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _write(file: Path, chunks: Iterable[bytes], mode: int) -> None:
    _make(file.parent)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        for chunk in chunks:
            out.write(chunk)
        sync_file(out)


def _make(folder: Path) -> None:
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(_FOLDER_MODE)
