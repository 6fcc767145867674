"""The manifest of a package: its files, how it is run, and the limits of its size. Pure.

The limits protect readers' disks.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from stormkeeper import names
from stormkeeper.errors import SerializationError, TopologyError
from stormkeeper.topology.description import check_version
from stormkeeper.topology.package.environment import pins_fault
from stormkeeper.topology.topology import unheard

#: A folder of vendored packages has some thousands; each costs a reader about a kilobyte of memory
#: and a supervisor a call to the disk.
MAX_FILES: Final = 10_000

#: The largest wheels of Spark's users have 1 GB. Below 2 GiB, Python writes a zip without
#: extensions of the format, so readers can refuse these.
MAX_BYTES: Final = 2_000_000_000

#: So that a small upload does not fill all supervisors' disks. Code and text shrink to a fifth,
#: tables to a fiftieth.
MAX_RATIO: Final = 100

#: Below, the ratio does not matter.
FREE_BYTES: Final = 16 * 1024**2

#: Names and checksums of `MAX_FILES` files, and the rest.
MAX_MANIFEST_BYTES: Final = 8 * 1024**2

#: Rises if older readers would misread the new form.
VERSION: Final = 1

MANIFEST: Final = "manifest.json"
DESCRIPTION: Final = "description.json"
CODE: Final = "code/"
PY_FILES: Final = "py-files/"
JARS: Final = "jars/"
WHEELS: Final = "wheels/"

JVM_PACKAGE: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)

_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class PackedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: name in the zip, size unpacked, and SHA-256."""

    name: str
    size: _Size
    sha256: _Digest


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The versions on the machine that made a package; PySpark may be missing."""

    python: str
    stormkeeper: str
    pyspark: str | None


class PackageManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a package, and how it is run.

    `entry_point` is the script below ``code/``; in a folder there it is a module of that package,
    as with ``python -m``. Files are in the order of use, in `files` sorted and without the
    manifest; `jvm_packages` are Maven's ``GROUP:NAME:VERSION``, `requirements` are pinned.
    """

    version: int
    name: str
    entry_point: str
    arguments: tuple[str, ...]
    py_files: tuple[str, ...]
    jars: tuple[str, ...]
    wheels: tuple[str, ...]
    jvm_packages: tuple[str, ...]
    requirements: tuple[str, ...]
    made_with: Versions
    files: tuple[PackedFile, ...]


def encode(manifest: PackageManifest) -> bytes:
    """Return a manifest as indented JSON; raises `TopologyError` if invalid or too long."""
    problem = fault(manifest)
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    if problem is None and len(data) > MAX_MANIFEST_BYTES:
        problem = (
            f"its manifest has {len(data):,} bytes, and may have {MAX_MANIFEST_BYTES:,}: "
            "bring long arguments in a file"
        )
    if problem is not None:
        raise TopologyError(f"{manifest.name!r} cannot be packed: {problem}")
    return data


def decode(data: bytes) -> PackageManifest:
    """Read a manifest; raises `SerializationError`."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise SerializationError(
            f"a package's manifest may have {MAX_MANIFEST_BYTES:,} bytes, not {len(data):,}"
        )
    try:
        check_version(data, VERSION, "the package")
        manifest = msgspec.json.decode(data, type=PackageManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SerializationError(f"this is no manifest of a package: {error}") from error
    problem = fault(manifest)
    if problem is not None:
        raise SerializationError(f"the package's manifest is wrong: {problem}")
    return manifest


def fault(manifest: PackageManifest) -> str | None:
    try:
        unheard(manifest.name)  # which says what is wrong with the name
    except TopologyError as error:
        return str(error)
    return _files_fault(manifest) or _lists_fault(manifest) or pins_fault(manifest.requirements)


def _files_fault(manifest: PackageManifest) -> str | None:
    files = [file.name for file in manifest.files]
    problem = limit_fault(len(files), sum(file.size for file in manifest.files))
    problem = problem or names.files_fault(files)
    if problem is not None:
        return problem
    if files != sorted(files):
        return "its files are not sorted"
    for name in files:
        if name != DESCRIPTION and not name.startswith((CODE, PY_FILES, JARS, WHEELS)):
            return f"{name!r} is in no folder of a package"
    for name in (DESCRIPTION, manifest.entry_point):
        if name not in files:
            return f"there is no file {name!r}"
    if not (manifest.entry_point.startswith(CODE) and manifest.entry_point.endswith(".py")):
        return f"{manifest.entry_point!r} is no script in {CODE}"
    return None


def _lists_fault(manifest: PackageManifest) -> str | None:
    files = [file.name for file in manifest.files]
    for folder, listed in (
        (PY_FILES, manifest.py_files),
        (JARS, manifest.jars),
        (WHEELS, manifest.wheels),
    ):
        if sorted(listed) != [name for name in files if name.startswith(folder)]:
            return f"the list of files in {folder} is not what is there"
    for package in manifest.jvm_packages:
        if not JVM_PACKAGE.fullmatch(package):
            return f"{package!r} is no package of a Maven repository: GROUP:NAME:VERSION"
    return None


def limit_fault(files: int, unpacked: int, packed: int | None = None) -> str | None:
    """Return which limit is exceeded, or None; `packed` is the size of the zip, once known."""
    if files > MAX_FILES:
        return f"it has {files:,} files, and may have {MAX_FILES:,}"
    if unpacked > MAX_BYTES:
        return f"its files have {unpacked:,} bytes, and may have {MAX_BYTES:,}"
    if packed is not None and unpacked > max(FREE_BYTES, MAX_RATIO * packed):
        return (
            f"its files have {unpacked:,} bytes, and may have {MAX_RATIO} times the "
            f"{packed:,} bytes of the zip"
        )
    return None
