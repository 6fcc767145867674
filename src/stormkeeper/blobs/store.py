"""The blobs on a Nimbus's disk: each has a key, bytes, and a record of its contents.

``keys/<key>.json`` names a blob's bytes in ``data/<sha256>``. Both are written under another name
(``….new``), synced, and renamed, so after any crash a blob is there in its newest version or not at
all. Readers continue with the version that they opened. ``<sha256>.part`` is a partial fetch, which
a later process continues.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from stormkeeper.blobs import keys
from stormkeeper.blobs.drafts import BLOCK, Content, Draft, disk_errors
from stormkeeper.daemon.durable import sync_folder, try_lock
from stormkeeper.errors import BlobNotFoundError, BlobStorageError, CodeError, SerializationError
from stormkeeper.state.storm.blob_records import BlobRecord

log = logging.getLogger(__name__)

#: A file being written; a partial fetch; a blob's record.
_NEW: Final = ".new"
_PART: Final = ".part"
_JSON: Final = ".json"

#: The share of the time in which `BlobStore.scrub` reads.
SCRUB_SHARE: Final = 0.02

#: Not the file's fault: too many open files, or no memory.
_OF_THE_PROCESS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_ANY: Final[Any] = object()


class BlobStore:
    """The blobs in a folder that one process owns. Thread-safe.

    Deletes unfinished uploads and damaged blobs at the start, with lines in the log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Called on the thread that finds blobs lost.
        self.on_loss: Callable[[], None] = lambda: None
        self.losses = 0
        #: Rises after each change of a record.
        self.revision = 0
        self._data = folder / "data"
        self._keys = folder / "keys"
        self._lock = threading.RLock()
        self._records: dict[str, BlobRecord] = {}
        with disk_errors(folder, "keep blobs"):
            self._owned = self._make()
        try:
            self._own(self._owned)
            with disk_errors(folder, "read the blobs"):
                self._sweep()
        except BaseException:
            self._owned.close()
            raise

    def __enter__(self) -> BlobStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for another process."""
        self._owned.close()

    def get(self, key: str) -> BlobRecord | None:
        with self._lock:
            return self._records.get(key)

    def all(self) -> dict[str, BlobRecord]:
        with self._lock:
            return dict(self._records)

    def open(self, key: str) -> tuple[BlobRecord, BinaryIO]:
        """Return a blob's record and its bytes as a file, which the caller closes.

        If the file is gone, the blob is dropped as by `verify`.
        """
        try:
            with self._lock, disk_errors(self.folder, f"read {key}"):
                record = self._records.get(key)
                if record is None:
                    raise BlobNotFoundError(f"there is no blob {key} here")
                return record, self._path(record.sha256).open("rb", buffering=0)
        except BlobStorageError:
            self.verify()
            raise

    def verify(self) -> list[str]:
        """Drop the blobs whose files are gone or have another size; return their keys.

        Missing folders and records are written again.
        """
        with self._lock:
            self._restore()
            sizes = {record.sha256: record.size for record in self._records.values()}
            lost = self._drop(
                {sha256 for sha256, size in sizes.items() if not self._has(sha256, size)}
            )
            with suppress(OSError):
                # One list costs a tenth of a look at each file.
                names = {path.name for path in self._keys.iterdir()}
                for key, record in self._records.items():
                    if f"{key}{_JSON}" not in names:
                        with suppress(OSError, BlobStorageError):
                            self._write(key, record)
        self._report(lost, "its bytes are gone or cut off")
        return lost

    def scrub(self, wait: Callable[[float], bool] = lambda _: False) -> list[str]:
        """Read all blobs and drop those with a wrong checksum; return their keys.

        `wait` sleeps for seconds between two blocks, and returns True to end early.
        """
        damaged: list[str] = []
        for record in {record.sha256: record for record in self.all().values()}.values():
            digest = hashlib.sha256()
            try:
                with self._path(record.sha256).open("rb", buffering=0) as file:
                    # Read from the disk, not from the kernel's cache.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    while True:
                        began = time.monotonic()
                        block = file.read(BLOCK)
                        digest.update(block)
                        if not block:
                            break
                        if wait((time.monotonic() - began) * (1 / SCRUB_SHARE - 1)):
                            return damaged
            except FileNotFoundError:
                continue  # deleted meanwhile, or `verify` finds it
            except OSError as error:
                log.warning("%s cannot be read: %s", self._path(record.sha256), error)
            if digest.hexdigest() != record.sha256:
                damaged += self.drop_damaged(record)
        return damaged

    def drop_damaged(self, record: BlobRecord) -> list[str]:
        """Drop the blobs with a record's bytes if these are wrong or unreadable; return the keys.

        Unreadable bytes stay on the disk, as a later read may succeed.
        """
        why, path = "its bytes have changed", self._path(record.sha256)
        with self._lock:
            try:
                if self._is_whole(Content(record.sha256, record.size)):
                    return []
                path.unlink(missing_ok=True)
            except OSError as error:
                if error.errno in _OF_THE_PROCESS:
                    return []
                why = f"its bytes cannot be read ({error.strerror or error})"
            lost = self._drop({record.sha256})
        self._report(lost, why)
        return lost

    def folders(self) -> list[Path]:
        """Return the folders; create missing folders."""
        with self._lock:
            self._restore()
        return [self._data, self._keys]

    def draft(self) -> Draft:
        if not self._data.is_dir():
            with self._lock:
                self._restore()
        return Draft(self._data / f"{uuid.uuid4()}{_NEW}")

    def part(self, sha256: str) -> Path:
        return self._data / f"{sha256}{_PART}"

    def put(
        self,
        key: str,
        record: BlobRecord,
        draft: Draft | None,
        *,
        expected: BlobRecord | None = _ANY,
    ) -> bool:
        """Store a blob on the disk; return False if its record is not `expected` (None: no blob).

        `draft` has the blob's bytes, finished, and is consumed. None: the bytes are here already,
        such as those of another version. Raises `ValueError` for other bytes. After
        `BlobStorageError` the old blob stays, unless the last sync failed; then the new blob may
        not survive a power failure.
        """
        keys.check(key)
        content = Content(record.sha256, record.size)
        data = self._path(record.sha256)
        with self._lock:
            before = self._records.get(key)
            if expected is not _ANY and before != expected:
                if draft is not None:
                    draft.discard()
                return False
            if draft.content() != content if draft is not None else not self._is_here(content):
                raise ValueError(f"these are not the bytes of {key} with the SHA-256 {content}")
            try:
                with disk_errors(self.folder, f"store {key}"):
                    if draft is not None:
                        draft.path.replace(data)
                        sync_folder(self._data)
                    self._write(key, record)
            except BlobStorageError:
                if draft is not None:
                    draft.discard()
                self._forget(record.sha256)
                raise
            self._records[key] = record
            self.revision += 1
            with disk_errors(self.folder, f"store {key}"):
                sync_folder(self._keys)
                if before is not None:
                    self._forget(before.sha256)
            return True

    def delete(self, key: str, *, expected: BlobRecord | None = _ANY) -> bool:
        """Delete a blob and free its space; return False if its record is not `expected`.

        After `BlobStorageError` the blob may be there again after a restart.
        """
        with self._lock:
            record = self._records.get(key)
            if record is None or (expected is not _ANY and record != expected):
                return False
            del self._records[key]
            self.revision += 1
            with disk_errors(self.folder, f"delete {key}"):
                self._file(key).unlink(missing_ok=True)
                sync_folder(self._keys)
                self._forget(record.sha256)
            return True

    def has(self, sha256: str) -> bool:
        """Return whether a blob has the bytes with that checksum."""
        with self._lock:
            return any(record.sha256 == sha256 for record in self._records.values())

    def drop_parts(self, wanted: Collection[str]) -> None:
        """Delete partial fetches but the `wanted` SHA-256."""
        with disk_errors(self.folder, "delete partial fetches"):
            for path in self._data.glob(f"*{_PART}"):
                if path.name.removesuffix(_PART) not in wanted:
                    path.unlink(missing_ok=True)

    def _drop(self, checksums: Collection[str]) -> list[str]:
        lost = sorted(key for key, each in self._records.items() if each.sha256 in checksums)
        for key in lost:
            del self._records[key]
        self.revision += bool(lost)
        self.losses += len(lost)
        return lost

    def _report(self, lost: Collection[str], why: str) -> None:
        for key in lost:
            log.error("lost the blob %s in %s: %s; it is fetched again", key, self.folder, why)
        if lost:
            self.on_loss()

    def _has(self, sha256: str, size: int) -> bool:
        try:
            return self._path(sha256).stat().st_size == size
        except OSError:
            return False

    def _is_here(self, content: Content) -> bool:
        """Return whether these bytes are here; reads them unless a blob has them."""
        if self.has(content.sha256):
            return self._has(*content)
        try:
            return self._is_whole(content)
        except OSError:
            return False

    def _make(self) -> BinaryIO:
        # Private: a topology's configuration may hold secrets.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._data.mkdir(exist_ok=True)
        self._keys.mkdir(exist_ok=True)
        return (self.folder / "lock").open("ab")

    def _restore(self) -> None:
        if self._owned.closed:
            return
        with suppress(OSError):
            owned = self._make()
            if os.path.sameopenfile(owned.fileno(), self._owned.fileno()):
                owned.close()
                return
            try:
                self._own(owned)
            except BlobStorageError:
                owned.close()
                raise
            self._owned.close()
            self._owned = owned

    def _path(self, sha256: str) -> Path:
        return self._data / sha256

    def _file(self, key: str) -> Path:
        return self._keys / f"{key}{_JSON}"

    def _write(self, key: str, record: BlobRecord) -> None:
        new = self._keys / f"{uuid.uuid4()}{_NEW}"
        try:
            draft = Draft(new)
            draft.write(record.encode())
            draft.finish()
            new.replace(self._file(key))
        finally:
            new.unlink(missing_ok=True)

    def _forget(self, sha256: str) -> None:
        if not self.has(sha256):
            self._path(sha256).unlink(missing_ok=True)

    def _own(self, file: BinaryIO) -> None:
        if not try_lock(file, if_unsupported=False):
            raise BlobStorageError(
                f"another process keeps its blobs in {self.folder}: configure another folder"
                " (storm.local.dir or blobstore.dir), or stop that process"
            )

    def _sweep(self) -> None:
        """Load the whole blobs, keep partial fetches, and delete everything else."""
        for folder in (self._data, self._keys):
            for path in folder.glob(f"*{_NEW}"):
                path.unlink()
        known: dict[str, bool] = {}
        for path in sorted(self._keys.glob(f"*{_JSON}")):
            key = path.name.removesuffix(_JSON)
            try:
                keys.check(key)
                record = BlobRecord.decode(path.read_bytes())
                content = Content(record.sha256, record.size)
                if content.sha256 not in known:
                    known[content.sha256] = self._is_whole(content)
                if not known[content.sha256]:
                    raise BlobNotFoundError("its bytes are missing or wrong")
            except (CodeError, SerializationError) as error:
                log.warning("removed the damaged blob %s: %s", key, error)
                path.unlink()
            else:
                self._records[key] = record
        held = {record.sha256 for record in self._records.values()}
        for path in self._data.iterdir():
            if path.suffix != _PART and path.name not in held:
                path.unlink()

    def _is_whole(self, content: Content) -> bool:
        path = self._path(content.sha256)
        if not path.is_file() or path.stat().st_size != content.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == content.sha256
