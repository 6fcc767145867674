"""The code of a package as one archive, from which Spark's executors on other machines import."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.writing import PLAIN, TIME
from stormkeeper.worker.unpacked import Unpacked

#: What it is called. No file of `SparkContext.addPyFile` may have the name of another one.
NAME: Final = "stormkeeper-topology-code.zip"

#: The attributes of a folder in a zip: its mode, and what DOS calls a folder.
_FOLDER: Final = (0o040755 << 16) | 0x10


def write(package: Unpacked, folder: Path) -> Path:
    """Write the code of a package to an archive of modules in a folder, and return where it is.

    The same package makes the same bytes. It has all that the package says that it has, and nothing
    that was put beside it since, such as Python's caches.

    Raises
    ------
    OSError
        The disk does not take it, or the package is not as it says.
    """
    prefix = manifest.CODE
    names = sorted(
        file.name.removeprefix(prefix)
        for file in package.manifest.files
        if file.name.startswith(prefix)
    )
    place = folder / NAME
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        # Python finds a package without an __init__.py only in a folder that is an entry.
        for above in sorted({str(up) for name in names for up in _folders(name)}):
            entry = zipfile.ZipInfo(f"{above}/", TIME)
            entry.external_attr = _FOLDER
            archive.writestr(entry, b"")
        for name in names:
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = PLAIN << 16
            archive.writestr(entry, (package.code / name).read_bytes())
    return place


def _folders(name: str) -> list[PurePosixPath]:
    return [*PurePosixPath(name).parents][:-1]
