"""Makes a package: a zip that has the same bytes whenever it is made of the same.

Names are sorted, times are fixed, and a file is executable or not, and nothing else. So a topology
that has not changed has the same checksum, and need not be sent again. (Another release of zlib may
compress in another way. The manifest, with the checksum of each file, is the same all the same.)
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, Final

import stormkeeper
from stormkeeper import names
from stormkeeper.errors import TopologyError
from stormkeeper.topology import description
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import limits, manifest
from stormkeeper.topology.package.collecting import Code
from stormkeeper.topology.package.manifest import Manifest, PackedFile, Versions

#: The earliest time that a zip can tell.
TIME: Final = (1980, 1, 1, 0, 0, 0)

#: The two modes that a file can have.
PLAIN: Final = stat.S_IFREG | 0o644
EXECUTABLE: Final = stat.S_IFREG | 0o755

_CHUNK = 1024 * 1024
#: As whose a zip's modes are meant.
_UNIX = 3


@dataclass(frozen=True)
class Contents:
    """What is packed.

    Parameters
    ----------
    code
        As of `collecting.collect`.
    description
        Of the topology, or of the plain script.
    name
        What the topology is called in the cluster; by default as it calls itself, or after the
        code.
    arguments
        What the script finds in ``sys.argv``.
    requirements
        Pinned, as `requirements.Requirement.text` has them.
    py_files, jars, wheels
        Files that come along, in the order in which they are used.
    jvm_packages
        What Spark is to fetch: ``GROUP:NAME:VERSION``.
    """

    code: Code
    description: Description
    name: str | None = None
    arguments: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    py_files: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    wheels: tuple[Path, ...] = ()
    jvm_packages: tuple[str, ...] = ()

    @property
    def topology_name(self) -> str:
        """What the topology is called."""
        own = self.description.name if self.description.kind == "topology" else self.code.name
        return self.name or own

    @property
    def entry_point(self) -> str:
        """The name that the script has in the package."""
        return manifest.CODE + self.code.script.relative_to(self.code.root).as_posix()

    def files(self) -> dict[str, Path]:
        """Return the files by the names that they have in the package.

        Raises
        ------
        TopologyError
            Two would have the same name.
        """
        found: dict[str, Path] = {}
        for file in self.code.files:
            found[manifest.CODE + file.relative_to(self.code.root).as_posix()] = file
        for folder, brought in (
            (manifest.PY_FILES, self.py_files),
            (manifest.JARS, self.jars),
            (manifest.WHEELS, self.wheels),
        ):
            for file in brought:
                other = found.setdefault(folder + file.name, file)
                if other is not file:
                    raise TopologyError(
                        f"{other} and {file} have the same name, and come into one folder: give "
                        "one of them another name"
                    )
        return found


def versions() -> Versions:
    """Return what this process runs on."""
    try:
        pyspark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        pyspark = None
    return Versions(platform.python_version(), stormkeeper.__version__, pyspark)


def write(file: BinaryIO, contents: Contents, made_with: Versions) -> Manifest:
    """Write a package.

    Parameters
    ----------
    file
        An empty file that can be sought in.
    contents
        What is packed.
    made_with
        The versions on this machine.

    Raises
    ------
    TopologyError
        A file cannot be read, or nobody would read the package: it is too large, or has a name or
        a list that none may have.
    """
    files = contents.files()
    what = f"{contents.topology_name!r} cannot be packed"
    _check(files, what)
    packed: list[PackedFile] = []
    try:
        with zipfile.ZipFile(file, "w") as archive:
            for name in sorted([*files, manifest.DESCRIPTION]):
                if name == manifest.DESCRIPTION:
                    data = description.encode(contents.description)
                    packed.append(_add(archive, name, PLAIN, io.BytesIO(data)))
                else:
                    with files[name].open("rb") as source:
                        packed.append(_add(archive, name, _mode(source), source))
            made = Manifest(
                version=manifest.VERSION,
                name=contents.topology_name,
                entry_point=contents.entry_point,
                arguments=contents.arguments,
                py_files=tuple(manifest.PY_FILES + path.name for path in contents.py_files),
                jars=tuple(manifest.JARS + path.name for path in contents.jars),
                wheels=tuple(manifest.WHEELS + path.name for path in contents.wheels),
                jvm_packages=contents.jvm_packages,
                requirements=contents.requirements,
                made_with=made_with,
                files=tuple(packed),
            )
            _add(archive, manifest.MANIFEST, PLAIN, io.BytesIO(manifest.encode(made)))
    except OSError as error:
        raise TopologyError(f"{what}: {error}") from error
    unpacked = sum(one.size for one in packed)
    problem = limits.fault(len(packed), unpacked, packed=file.seek(0, os.SEEK_END))
    if problem is not None:
        raise TopologyError(f"{what}: {problem}")
    return made


def _check(files: Mapping[str, Path], what: str) -> None:
    """Find out what nobody would read before anything is compressed.

    Raises
    ------
    TopologyError
        There is such a thing, or a file is not there.
    """
    try:
        total = sum(path.stat().st_size for path in files.values())
    except OSError as error:
        raise TopologyError(f"{what}: {error}") from error
    problem = limits.fault(len(files) + 1, total)
    problem = problem or names.files_fault(files)
    if problem is not None:
        raise TopologyError(f"{what}: {problem}")


def _mode(file: BinaryIO) -> int:
    return EXECUTABLE if os.fstat(file.fileno()).st_mode & stat.S_IXUSR else PLAIN


def _add(archive: zipfile.ZipFile, name: str, mode: int, source: BinaryIO) -> PackedFile:
    info = zipfile.ZipInfo(name, TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = mode << 16
    digest, size = hashlib.sha256(), 0
    with archive.open(info, "w") as packed:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > limits.MAX_BYTES:
                raise TopologyError(f"{source.name} grows while it is packed")
            digest.update(chunk)
            packed.write(chunk)
    return PackedFile(name, size, digest.hexdigest())
