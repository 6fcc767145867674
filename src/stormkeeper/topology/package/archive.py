"""The zip of a package: written, read without trust in the bytes, and unpacked into a folder.

The same input gives the same bytes, so an unchanged topology need not be sent again: names are
sorted, times fixed, and of the modes only the executable bit is kept.

Readers accept only what `write` makes: a plain zip without extensions, comments, links, encryption
or bytes before or behind it, with exactly the files in its manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import platform
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import stormkeeper
from stormkeeper import names
from stormkeeper.daemon.durable import sync_file, sync_folder
from stormkeeper.errors import SerializationError, TopologyError
from stormkeeper.extras import installed_version
from stormkeeper.topology import description
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.code import PackagedCode
from stormkeeper.topology.package.manifest import PackageManifest, PackedFile, Versions

TIME: Final = (1980, 1, 1, 0, 0, 0)

PLAIN: Final = stat.S_IFREG | 0o644
EXECUTABLE: Final = stat.S_IFREG | 0o755

_CHUNK: Final = 1024 * 1024

_UNIX: Final = 3

_JAR: Final = "META-INF/MANIFEST.MF"

#: The record at the end of a zip (APPNOTE.TXT 4.3.16): mark, four counts of disks and files, size
#: and position of the table of contents, length of the comment.
_END: Final = struct.Struct("<4s4H2LH")
_END_MARK: Final = b"PK\x05\x06"

#: The beginning of an entry in the table of contents (4.3.12), and the longest table.
_ENTRY_MARK: Final = b"PK\x01\x02"
_TABLE_BYTES: Final = (manifest.MAX_FILES + 1) * (46 + names.MAX_FILE_BYTES)

#: The locator before a zip64's end record (4.3.15), whose own sizes would count.
_LOCATOR_MARK: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20

#: The only flag of an entry: a name in UTF-8.
_UTF8: Final = 0x800

_UNFINISHED: Final = ".unpacking-"

#: Code may be private. Programs have the folder's mode.
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


@dataclass(frozen=True)
class PackageContents:
    """What goes into a package; `name` defaults to the topology's, or to the code's."""

    code: PackagedCode
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
        own = self.description.name if self.description.kind == "topology" else self.code.name
        return self.name or own

    @property
    def entry_point(self) -> str:
        return manifest.CODE + self.code.script.relative_to(self.code.root).as_posix()

    def files(self) -> dict[str, Path]:
        """Return the files by name in the package; raises `TopologyError` for equal names."""
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
                        f"{other} and {file} have the same name and go into one folder: rename one"
                    )
        return found


def versions() -> Versions:
    pyspark = installed_version("pyspark")
    return Versions(platform.python_version(), stormkeeper.__version__, pyspark)


def write(file: BinaryIO, contents: PackageContents, made_with: Versions) -> PackageManifest:
    """Write a package to an empty, seekable file.

    Raises `TopologyError` for an unreadable file, or for what readers would refuse.
    """
    files = contents.files()
    what = f"{contents.topology_name!r} cannot be packed"
    _check_files(files, what)
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
            made = PackageManifest(
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
    problem = manifest.limit_fault(len(packed), unpacked, packed=file.seek(0, os.SEEK_END))
    if problem is not None:
        raise TopologyError(f"{what}: {problem}")
    return made


def _check_files(files: Mapping[str, Path], what: str) -> None:
    """Raise `TopologyError` for sizes and names that readers would refuse, before compressing."""
    try:
        total = sum(path.stat().st_size for path in files.values())
    except OSError as error:
        raise TopologyError(f"{what}: {error}") from error
    problem = manifest.limit_fault(len(files) + 1, total)
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
            if size > manifest.MAX_BYTES:
                raise TopologyError(f"{source.name} grows while it is packed")
            digest.update(chunk)
            packed.write(chunk)
    return PackedFile(name, size, digest.hexdigest())


class Package:
    """A package with a valid manifest and description; the other files are not verified yet.

    The file must stay open. Raises `SerializationError`.
    """

    def __init__(self, file: BinaryIO) -> None:
        size = _check_end(file)
        with _zip_errors():
            self._zip = zipfile.ZipFile(file)
        self._infos = {info.filename: info for info in self._zip.infolist()}
        _check_table(self._zip.infolist(), size)
        if manifest.MANIFEST not in self._infos:
            raise SerializationError(f"the package has no {manifest.MANIFEST}")
        self.manifest: PackageManifest = manifest.decode(
            self._bytes(manifest.MANIFEST, manifest.MAX_MANIFEST_BYTES)
        )
        self._check_list()
        for listed in self.manifest.files:
            if listed.name == manifest.DESCRIPTION:
                self._verify(listed)
        self.description: Description = description.decode(
            self._bytes(manifest.DESCRIPTION, description.MAX_BYTES)
        )

    def chunks(self, file: PackedFile) -> Iterator[bytes]:
        """Yield the bytes of a file; use none before the end.

        Raises `SerializationError` at the end if the bytes do not match the manifest.
        """
        digest, size = hashlib.sha256(), 0
        with _zip_errors(), self._zip.open(self._infos[file.name]) as packed:
            while chunk := packed.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
        if size != file.size or digest.hexdigest() != file.sha256:
            raise SerializationError(
                f"the file {file.name!r} in the package is not the one that was packed: send it "
                "again"
            )

    def is_executable(self, file: PackedFile) -> bool:
        return self._infos[file.name].external_attr >> 16 == EXECUTABLE

    def verify(self) -> None:
        """Read all files; raises `SerializationError` if one does not match the manifest."""
        for file in self.manifest.files:
            self._verify(file)

    def _verify(self, file: PackedFile) -> None:
        for _ in self.chunks(file):
            pass

    def _bytes(self, name: str, at_most: int) -> bytes:
        with _zip_errors(), self._zip.open(self._infos[name]) as packed:
            return packed.read(at_most + 1)

    def _check_list(self) -> None:
        listed = {file.name: file.size for file in self.manifest.files}
        there = {name: info.file_size for name, info in self._infos.items()}
        del there[manifest.MANIFEST]
        if listed != there:
            name = min(name for name, _ in listed.items() ^ there.items())
            raise SerializationError(
                f"the manifest and the files of the package differ, first at {name!r}"
            )


def read_package(file: BinaryIO) -> Package:
    """Open a package, and verify all files; raises `SerializationError`."""
    package = Package(file)
    package.verify()
    return package


def _check_end(file: BinaryIO) -> int:
    """Check the end record, which bounds the work for the table; return the size of the zip."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size - _LOCATOR_BYTES))
    data = file.read(_LOCATOR_BYTES + _END.size)
    locator, data = data[: -_END.size], data[-_END.size :]
    if len(data) < _END.size or not data.startswith(_END_MARK):
        raise SerializationError("this is no package: it does not end as a zip without a comment")
    _, disk, first, here, count, table_bytes, table_at, comment = _END.unpack(data)
    whole = table_at + table_bytes + _END.size == size and here == count
    if disk or first or comment or not whole or locator.startswith(_LOCATOR_MARK):
        raise SerializationError("this is no package: its zip is in parts, or has something beside")
    if table_bytes > _TABLE_BYTES:
        raise SerializationError(
            f"the package's table of contents has {table_bytes:,} bytes, and may have "
            f"{_TABLE_BYTES:,}"
        )
    file.seek(table_at)
    problem = manifest.limit_fault(file.read(table_bytes).count(_ENTRY_MARK) - 1, 0)
    if problem is not None:
        raise SerializationError(f"this is no package: {problem}")
    return size


def _check_table(infos: list[zipfile.ZipInfo], packed: int) -> None:
    unpacked = sum(info.file_size for info in infos)
    in_it = [info.filename for info in infos]
    if _JAR in in_it:
        raise SerializationError(
            "it is a Java archive, and Java topologies do not run here: Stormkeeper runs PySpark"
            " topologies, which `storm submit FILE.py` of Stormkeeper packs"
        )
    problem = manifest.limit_fault(len(infos) - 1, unpacked, packed)
    problem = problem or names.files_fault(in_it)
    problem = problem or next(filter(None, map(_entry_fault, infos)), None)
    if problem is not None:
        raise SerializationError(f"this is no package: {problem}")


def _entry_fault(info: zipfile.ZipInfo) -> str | None:
    mode = info.external_attr >> 16
    if mode not in (PLAIN, EXECUTABLE) or info.external_attr & 0xFFFF:
        return f"{info.filename!r} is no plain file, but {stat.filemode(mode)}"
    if (
        info.flag_bits & ~_UTF8
        or info.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
        or info.extra
        or info.comment
        or info.orig_filename != info.filename
    ):
        return f"{info.filename!r} is encrypted, or packed in a way that no package is"
    return None


@contextlib.contextmanager
def _zip_errors() -> Iterator[None]:
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        KeyError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:
        raise SerializationError(f"the package is broken: {error}") from error


def unpack(file: BinaryIO, folder: Path) -> PackageManifest:
    """Unpack a package as `folder`, whole or not at all; return the manifest.

    A folder of another process stays. Raises `SerializationError` or `OSError`.
    """
    package = Package(file)
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        for packed in package.manifest.files:
            mode = _FOLDER_MODE if package.is_executable(packed) else _FILE_MODE
            _write_file(unfinished / packed.name, package.chunks(packed), mode)
        encoded = manifest.encode(package.manifest)
        _write_file(unfinished / manifest.MANIFEST, [encoded], _FILE_MODE)
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


def find_difference(listed: PackageManifest, folder: Path) -> Path | None:
    """Return the first file of an unpacked package that does not match the manifest, or None.

    Ignores other files, as Python writes its own there. Raises `OSError`.
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
    """Delete what killed processes have left in a folder; no process may be unpacking there."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _write_file(file: Path, chunks: Iterable[bytes], mode: int) -> None:
    _make_folder(file.parent)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        for chunk in chunks:
            out.write(chunk)
        sync_file(out)


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE)
