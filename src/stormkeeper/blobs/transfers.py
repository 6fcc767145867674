"""Uploads and downloads of blobs in chunks, as Storm's clients and other Nimbuses make them.

A transfer is a session of several calls, which ends after ``nimbus.blobstore.expiration.secs``
idle. A blob is visible only after its upload; of several uploads of one key, the first to finish
wins.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

from stormkeeper.blobs import keys
from stormkeeper.blobs.drafts import MOST_BYTES, Draft, disk_errors, write_upload
from stormkeeper.blobs.peers import Download
from stormkeeper.blobs.publisher import Publisher, Upload
from stormkeeper.blobs.store import BlobStore
from stormkeeper.errors import (
    BlobExistsError,
    BlobNotFoundError,
    CodeError,
    InvalidBlobKeyError,
    TransferEndedError,
)
from stormkeeper.state.storm.blob_records import BlobRecord

T = TypeVar("T")

#: Each session keeps a file open, and any client can begin one.
MOST: Final = 256

#: Storm's name for a file that will be submitted.
_INBOX_NAME: Final = re.compile(r"stormjar-[0-9a-f-]{36}\.jar")


class _Session(Generic[T]):
    def __init__(self, value: T, now: float) -> None:
        self.value = value
        #: When the last call ended.
        self.used = now
        #: Held during a call.
        self.lock = threading.Lock()
        self.ended = False


class TransferSessions(Generic[T]):
    """Sessions by id, each with a value. Thread-safe; calls of one session are serial.

    `end` is called with the value of each ended session.
    """

    def __init__(
        self,
        name: str,
        idle_secs: float,
        end: Callable[[T], None],
        *,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._idle_secs = idle_secs
        self._end = end
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session[T]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, make: Callable[[], T]) -> str:
        """Begin a session; return an unguessable id. Raises `CodeError` above `most` sessions."""
        self.expire()
        with self._lock:
            if len(self._sessions) >= self._most:
                raise CodeError(
                    f"{self._most} {self._name}s are under way, and no more are allowed: try again"
                    f" when some have ended; an idle one ends after {self._idle_secs:g} s"
                )
            session_id = str(uuid.uuid4())
            self._sessions[session_id] = _Session(make(), self._clock())
            return session_id

    @contextmanager
    def using(self, session_id: str, *, last: bool = False) -> Iterator[T]:
        """Give a session's value to one call; the session ends after the `last` call, or an error.

        Raises `TransferEndedError` if the session has ended.
        """
        with self._lock:
            session = self._sessions.get(session_id)
        if session is None:
            raise self._unknown(session_id)
        with session.lock:
            if session.ended:
                raise self._unknown(session_id)
            try:
                yield session.value
            except BaseException:
                self._finish(session_id, session)
                raise
            session.used = self._clock()
            if last:
                self._finish(session_id, session)

    def end(self, session_id: str) -> None:
        with self.using(session_id, last=True):
            pass

    def expire(self) -> int:
        with self._lock:
            found = list(self._sessions.items())
        ended = 0
        for session_id, session in found:
            # A session with a call in progress is not idle.
            if session.lock.acquire(blocking=False):
                try:
                    idle = self._clock() - session.used > self._idle_secs
                    if idle and not session.ended:
                        self._finish(session_id, session)
                        ended += 1
                finally:
                    session.lock.release()
        return ended

    def close(self) -> None:
        """End all sessions, each after the call in progress."""
        with self._lock:
            found = list(self._sessions.items())
        for session_id, session in found:
            with session.lock:
                if not session.ended:
                    self._finish(session_id, session)

    def _finish(self, session_id: str, session: _Session[T]) -> None:
        session.ended = True
        with self._lock:
            self._sessions.pop(session_id, None)
        self._end(session.value)

    def _unknown(self, session_id: str) -> TransferEndedError:
        return TransferEndedError(
            f"no {self._name} {session_id!r} is under way: it was finished or cancelled, has"
            f" failed, or was idle for more than {self._idle_secs:g} s; begin again"
        )


class Uploads(TransferSessions[Upload]):
    """The uploads of blobs to one Nimbus. Thread-safe.

    `most_bytes` limits one blob; None allows any size.
    """

    def __init__(
        self,
        store: BlobStore,
        publisher: Publisher,
        *,
        idle_secs: float,
        most_bytes: int | None = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("upload", idle_secs, lambda upload: upload.draft.discard(), clock=clock)
        self._store = store
        self._publisher = publisher
        self._most_bytes = most_bytes

    def begin_create(self, key: str, settable: bytes = b"") -> str:
        """Begin the upload of a new blob; raises `InvalidBlobKeyError` for a topology's code."""
        if keys.topology_of(keys.check(key)) is not None:
            raise InvalidBlobKeyError(
                f"{key!r} is a name for the code of a topology, which is deleted with its topology:"
                " give the blob another key"
            )
        base = self._publisher.base(key)
        if self._publisher.known(key) is not None:
            raise BlobExistsError(f"there is a blob {key} already: update it, or delete it first")
        return self.add(
            lambda: Upload(key, self._store.draft(), base, is_new=True, settable=settable)
        )

    def begin_update(self, key: str) -> str:
        keys.check(key)
        base = self._publisher.base(key)
        known = self._publisher.known(key)
        if known is None:
            raise BlobNotFoundError(f"there is no blob {key} to update: create it")
        return self.add(
            lambda: Upload(key, self._store.draft(), base, is_new=False, settable=known.settable)
        )

    def chunk(self, session: str, data: bytes) -> None:
        """Append the next bytes; a full disk or a blob that is too large ends the upload."""
        with self.using(session) as upload:
            write_upload(upload.draft, data, self._most_bytes)

    def finish(self, session: str) -> BlobRecord:
        """End an upload and publish its blob; raises as `Publisher.publish`."""
        with self.using(session, last=True) as upload:
            upload.draft.finish()
            return self._publisher.publish(upload)


class Downloads(TransferSessions[BinaryIO]):
    """The downloads of blobs from one Nimbus, in chunks of `chunk_bytes`. Thread-safe."""

    def __init__(
        self,
        store: BlobStore,
        *,
        chunk_bytes: int,
        idle_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("download", idle_secs, lambda file: file.close(), clock=clock)
        self._store = store
        self._chunk_bytes = chunk_bytes

    def begin(self, key: str, offset: int = 0) -> Download:
        """Begin to read a blob at a byte; an offset beyond the end means the end."""
        record, file = self._store.open(key)
        try:
            begun = min(max(offset, 0), record.size)
            file.seek(begun)
            session = self.add(lambda: file)
        except BaseException:
            file.close()
            raise
        return Download(record.crc32c, session, record.size, begun)

    def chunk(self, session: str) -> bytes:
        """Return the next bytes; none at the end, which ends the download, as an error does."""
        with self.using(session) as file, disk_errors(self._store.folder, "read a blob"):
            data = file.read(self._chunk_bytes)
        if not data:
            self.end(session)
        return data


class Inbox(TransferSessions[Draft]):
    """Files that Storm's clients upload before they submit a topology. Thread-safe.

    An idle upload ends (``nimbus.file.copy.expiration.secs``), and an unused file is deleted
    (``nimbus.inbox.jar.expiration.secs``).
    """

    def __init__(
        self,
        folder: Path,
        *,
        idle_secs: float,
        kept_secs: float,
        most_bytes: int | None = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("upload", idle_secs, Draft.discard, clock=clock)
        self.folder = folder
        self._kept_secs = kept_secs
        self._most_bytes = most_bytes
        self._now = now
        self.restore()
        with disk_errors(folder, "keep uploaded files"):
            for path in folder.glob("*.new"):
                path.unlink(missing_ok=True)

    def restore(self) -> None:
        with disk_errors(self.folder, "keep uploaded files"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def begin(self) -> str:
        """Begin an upload, and return the location that the file will have."""
        self.restore()
        path = self.folder / f"{uuid.uuid4()}.new"
        session = self.add(lambda: Draft(path))
        return str(self.folder / f"stormjar-{session}.jar")

    def chunk(self, location: str, data: bytes) -> None:
        with self.using(_session_of(location)) as draft:
            write_upload(draft, data, self._most_bytes)

    def finish(self, location: str) -> None:
        with self.using(_session_of(location), last=True) as draft:
            draft.finish()
            with disk_errors(self.folder, "keep an uploaded file"):
                draft.path.replace(self._path(location))

    def take(self, location: str) -> Path:
        """Return an uploaded file, which the caller deletes; raises `TransferEndedError`."""
        path = self._path(location)
        if str(path) != location or not path.is_file():
            raise TransferEndedError(
                f"no file was uploaded as {location!r}: it was never finished, or was taken, or"
                " was kept for too long; upload it again"
            )
        return path

    def expire(self) -> int:
        """End idle uploads, and delete files that were not submitted in time."""
        ended = super().expire()
        with disk_errors(self.folder, "remove uploaded files"):
            for path in self.folder.glob("stormjar-*.jar"):
                try:
                    written = path.stat().st_mtime
                except FileNotFoundError:
                    continue
                if self._now() - written > self._kept_secs:
                    path.unlink(missing_ok=True)
        return ended

    def _path(self, location: str) -> Path:
        name = Path(location).name
        return self.folder / (name if _INBOX_NAME.fullmatch(name) else "none")


def _session_of(location: str) -> str:
    name = Path(location).name
    return (
        name.removeprefix("stormjar-").removesuffix(".jar") if _INBOX_NAME.fullmatch(name) else ""
    )
