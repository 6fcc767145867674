"""Downloads of blobs as Storm's clients and other Nimbuses make them: begun, and read in chunks.

A download goes on with the version that it began with, whatever becomes of the blob meanwhile. It
ends with its last byte, or when it is left idle (``nimbus.blobstore.expiration.secs``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO

from stormkeeper.blobs.drafts import storing
from stormkeeper.blobs.fetching import Download
from stormkeeper.blobs.sessions import Sessions
from stormkeeper.blobs.store import BlobStore


class Downloads:
    """The downloads that are under way. Safe for many threads.

    Parameters
    ----------
    store
        Where the bytes are.
    chunk_bytes
        The most that one call returns (``storm.blobstore.inputstream.buffer.size.bytes``).
    idle_secs
        After how long without a call a download ends.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        chunk_bytes: int,
        idle_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._sessions: Sessions[BinaryIO] = Sessions(
            "download", idle_secs, lambda file: file.close(), clock=clock
        )

    def begin(self, key: str, offset: int = 0) -> Download:
        """Begin to read a blob at one of its bytes; one behind its end is the end.

        Raises
        ------
        BlobNotFoundError
            There is no such blob here.
        BlobStorageError
            It cannot be read.
        CodeError
            As many downloads are under way as there may be.
        """
        record, file = self._store.open(key)
        try:
            begun = min(max(offset, 0), record.size)
            file.seek(begun)
            session = self._sessions.begin(lambda: file)
        except BaseException:
            file.close()
            raise
        return Download(record.crc32c, session, record.size, begun)

    def chunk(self, session: str) -> bytes:
        """Return the next bytes; none at the end, with which the download has ended.

        Raises
        ------
        TransferEndedError
            No such download is under way.
        BlobStorageError
            The disk did not give them; the download has ended.
        """
        with self._sessions.using(session) as file, storing(self._store.folder, "read a blob"):
            data = file.read(self._chunk_bytes)
        if not data:
            self._sessions.end(session)
        return data

    def expire(self) -> int:
        """End those that are idle; returns how many."""
        return self._sessions.expire()

    def close(self) -> None:
        """End all of them."""
        self._sessions.close()
