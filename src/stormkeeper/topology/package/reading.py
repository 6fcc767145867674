"""Reads a package, and believes nothing of it; it writes nothing and runs nothing.

Only what `writing` makes is taken: a plain zip without extensions, comments, links, encryption or
anything before it or behind it, with exactly the files that its manifest lists.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final

from stormkeeper import names
from stormkeeper.errors import SerializationError
from stormkeeper.topology import description
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import limits, manifest
from stormkeeper.topology.package.manifest import Manifest, PackedFile
from stormkeeper.topology.package.writing import EXECUTABLE, PLAIN

_CHUNK = 1024 * 1024

#: What every Java archive has.
_JAR: Final = "META-INF/MANIFEST.MF"

#: The record at the end of a zip (APPNOTE.TXT 4.3.16): its mark, four counts of disks and files,
#: size and place of the table of contents, length of the comment.
_END: Final = struct.Struct("<4s4H2LH")
_END_MARK: Final = b"PK\x05\x06"

#: How each file's entry in the table of contents begins (4.3.12), and the longest table: an entry
#: has 46 bytes and the name.
_ENTRY_MARK: Final = b"PK\x01\x02"
_TABLE_BYTES: Final = (limits.MAX_FILES + 1) * (46 + names.MAX_FILE_BYTES)

#: What stands before the record in a zip of the large kind (4.3.15), whose sizes would count then.
_LOCATOR_MARK: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20

#: The one flag that a file may have: its name is UTF-8.
_UTF8: Final = 0x800


class Package:
    """A package whose manifest and description hold together; its other files may be anything.

    Parameters
    ----------
    file
        The zip, which can be sought in and stays open as long as this is used.

    Raises
    ------
    SerializationError
        It is no package that this release reads; the message says why.
    """

    def __init__(self, file: BinaryIO) -> None:
        size = _check_end(file)
        with _foreign():
            self._zip = zipfile.ZipFile(file)
        self._infos = {info.filename: info for info in self._zip.infolist()}
        _check_table(self._zip.infolist(), size)
        if manifest.MANIFEST not in self._infos:
            raise SerializationError(f"the package has no {manifest.MANIFEST}")
        self.manifest: Manifest = manifest.decode(
            self._bytes(manifest.MANIFEST, limits.MAX_MANIFEST_BYTES)
        )
        self._check_list()
        for listed in self.manifest.files:
            if listed.name == manifest.DESCRIPTION:
                self._check_all_of(listed)
        self.description: Description = description.decode(
            self._bytes(manifest.DESCRIPTION, description.MAX_BYTES)
        )

    def chunks(self, file: PackedFile) -> Iterator[bytes]:
        """Yield what is in a file.

        Raises
        ------
        SerializationError
            It is not what the manifest says. That shows at the end: use nothing of it before.
        """
        digest, size = hashlib.sha256(), 0
        with _foreign(), self._zip.open(self._infos[file.name]) as packed:
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
        """Return whether a file may be run as a program."""
        return self._infos[file.name].external_attr >> 16 == EXECUTABLE

    def verify(self) -> None:
        """Read all files.

        Raises
        ------
        SerializationError
            One is not what the manifest says.
        """
        for file in self.manifest.files:
            self._check_all_of(file)

    def _check_all_of(self, file: PackedFile) -> None:
        for _ in self.chunks(file):
            pass

    def _bytes(self, name: str, at_most: int) -> bytes:
        """Return a file, and one byte more than `at_most` where it is longer."""
        with _foreign(), self._zip.open(self._infos[name]) as packed:
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


def read(file: BinaryIO) -> Package:
    """Return a package all of whose files are what its manifest says.

    Parameters
    ----------
    file
        The zip. It can be sought in and stays open as long as the result is used.

    Raises
    ------
    SerializationError
        It is no package that this release reads; the message says why.
    """
    package = Package(file)
    package.verify()
    return package


def _check_end(file: BinaryIO) -> int:
    """Check what bounds the work of reading the table of contents; return the size of the zip."""
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
    problem = limits.fault(file.read(table_bytes).count(_ENTRY_MARK) - 1, 0)
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
    problem = limits.fault(len(infos) - 1, unpacked, packed)
    problem = problem or names.files_fault(in_it)
    problem = problem or next(filter(None, map(_fault, infos)), None)
    if problem is not None:
        raise SerializationError(f"this is no package: {problem}")


def _fault(info: zipfile.ZipInfo) -> str | None:
    """Return what is wrong with an entry, None where nothing is."""
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
def _foreign() -> Iterator[None]:
    """Turn what `zipfile` raises on bytes that are no zip into an error of ours."""
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
