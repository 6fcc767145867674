"""The blobs on a disk: each has a key, bytes, and the record of what they are.

``data/<sha256>`` has bytes, ``keys/<key>.json`` says which of them are a blob's. Both are written
under another name, brought to the disk, and renamed. So a blob is there as a whole, in its newest
version, or not at all, whatever a crash leaves; and whoever reads one goes on with what it was when
it was opened. Bytes that several blobs have are kept once, and those that none has are deleted.

Other names are ``….new``, of what is being written, and ``<sha256>.part``, of what is being
fetched, which a later process goes on with.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Final

from stormkeeper.code import keys
from stormkeeper.code.drafts import Content, Draft, storing, sync_folder
from stormkeeper.errors import BlobNotFoundError, BlobStorageError, CodeError, SerializationError
from stormkeeper.state.storm.blobs import BlobRecord

log = logging.getLogger(__name__)

#: What is being written; what is being fetched; what says which bytes are a blob's.
_NEW: Final = ".new"
_PART: Final = ".part"
_JSON: Final = ".json"

#: In place of a record: whichever there is.
_ANY: Final[Any] = object()


class BlobStore:
    """The blobs in a folder, of one process at a time. Safe for many threads.

    Opening it removes what was being uploaded when an earlier process ended, and every blob whose
    bytes are not those of its record: it is logged, and not there.

    Parameters
    ----------
    folder
        Where; made if absent.

    Raises
    ------
    BlobStorageError
        The folder cannot be used, or another process uses it.
    """

    def __init__(self, folder: Path) -> None:
        #: Where they are.
        self.folder = folder
        self._data = folder / "data"
        self._keys = folder / "keys"
        self._lock = threading.RLock()
        self._records: dict[str, BlobRecord] = {}
        with storing(folder, "keep blobs"):
            # A topology's configuration is for nobody else's eyes.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._data.mkdir(exist_ok=True)
            self._keys.mkdir(exist_ok=True)
            self._owned = (folder / "lock").open("ab")
        try:
            self._own()
            with storing(folder, "read the blobs"):
                self._sweep()
        except BaseException:
            self._owned.close()
            raise

    def __enter__(self) -> BlobStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder."""
        self._owned.close()

    def get(self, key: str) -> BlobRecord | None:
        """Return the record of a blob, None where there is none of that key."""
        with self._lock:
            return self._records.get(key)

    def all(self) -> dict[str, BlobRecord]:
        """Return the records of all blobs by their keys."""
        with self._lock:
            return dict(self._records)

    def open(self, key: str) -> tuple[BlobRecord, BinaryIO]:
        """Return a blob's record, and its bytes as a file to read, which the caller closes.

        Raises
        ------
        BlobNotFoundError
            There is none.
        BlobStorageError
            It cannot be read.
        """
        with self._lock, storing(self.folder, f"read {key}"):
            record = self._records.get(key)
            if record is None:
                raise BlobNotFoundError(f"there is no blob {key} here")
            return record, self._path(record.sha256).open("rb", buffering=0)

    def draft(self) -> Draft:
        """Begin a blob, whose CRC is counted."""
        return Draft(self._data / f"{uuid.uuid4()}{_NEW}", counted=True)

    def part(self, sha256: str) -> Path:
        """Return where the bytes with that checksum are gathered."""
        return self._data / f"{sha256}{_PART}"

    def put(
        self,
        key: str,
        record: BlobRecord,
        draft: Draft | None,
        *,
        expected: BlobRecord | None = _ANY,
    ) -> bool:
        """Have a blob be what a record says; then all of it is on the disk.

        Parameters
        ----------
        key, record
            The blob.
        draft
            Its bytes, finished. They are the store's afterwards, or gone. None: bytes that another
            version or another blob has.
        expected
            The record that is to be replaced, None for no blob; any, if left out.

        Returns
        -------
        bool
            Whether it was put there: not if there is another record than `expected`.

        Raises
        ------
        ValueError
            The bytes are none that the record is of.
        BlobStorageError
            The disk did not take it. The blob is what it was, unless the disk failed at the last
            step: then it is what it should be, and may not survive a power failure.
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
            if draft.content() != content if draft is not None else not data.exists():
                raise ValueError(f"these are not the bytes of {key} with the SHA-256 {content}")
            try:
                with storing(self.folder, f"store {key}"):
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
            with storing(self.folder, f"store {key}"):
                sync_folder(self._keys)
                if before is not None:
                    self._forget(before.sha256)
            return True

    def delete(self, key: str, *, expected: BlobRecord | None = _ANY) -> bool:
        """Delete a blob, and give its space back; returns whether it did.

        Where `expected` is given, a blob with another record stays.

        Raises
        ------
        BlobStorageError
            The disk did not forget it: it may be there again after a restart.
        """
        with self._lock:
            record = self._records.get(key)
            if record is None or (expected is not _ANY and record != expected):
                return False
            del self._records[key]
            with storing(self.folder, f"delete {key}"):
                self._file(key).unlink(missing_ok=True)
                sync_folder(self._keys)
                self._forget(record.sha256)
            return True

    def has(self, sha256: str) -> bool:
        """Return whether some blob has the bytes with that checksum."""
        with self._lock:
            return any(record.sha256 == sha256 for record in self._records.values())

    def drop_parts(self, wanted: Collection[str]) -> None:
        """Give the space back of what was being fetched, and is none of the `wanted` checksums."""
        with storing(self.folder, "delete what nobody wants"):
            for path in self._data.glob(f"*{_PART}"):
                if path.name.removesuffix(_PART) not in wanted:
                    path.unlink(missing_ok=True)

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
        """Delete bytes that no blob has any more."""
        if not self.has(sha256):
            self._path(sha256).unlink(missing_ok=True)

    def _own(self) -> None:
        try:
            fcntl.flock(self._owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BlobStorageError(
                f"another process keeps its blobs in {self.folder}: give this one a folder of its"
                " own (storm.local.dir or blobstore.dir), or stop the other"
            ) from error

    def _sweep(self) -> None:
        """Keep the blobs that are whole, and what was being fetched; delete all else."""
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
                    raise BlobNotFoundError("its bytes are gone, or others than they were")
            except (CodeError, SerializationError) as error:
                log.warning("the blob %s is damaged, and removed: %s", key, error)
                path.unlink()
            else:
                self._records[key] = record
        for path in self._data.iterdir():
            if path.suffix != _PART and not self.has(path.name):
                path.unlink()

    def _is_whole(self, content: Content) -> bool:
        path = self._path(content.sha256)
        if not path.is_file() or path.stat().st_size != content.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == content.sha256
