"""Uploads of blobs as Storm's clients make them: begun, sent in chunks, finished or cancelled.

Nobody sees a blob before it is finished. Of several uploads of one key at once the first that is
finished is the blob; the others learn at their end that they came too late. An upload that is left
idle (``nimbus.blobstore.expiration.secs``) ends, and its bytes are removed; so are those of an
upload that was under way when the process ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stormkeeper.blobs import keys
from stormkeeper.blobs.drafts import MOST_BYTES, write_upload
from stormkeeper.blobs.publishing import Publisher, Upload
from stormkeeper.blobs.sessions import Sessions
from stormkeeper.blobs.store import BlobStore
from stormkeeper.errors import BlobExistsError, BlobNotFoundError, InvalidBlobKeyError
from stormkeeper.state.storm.blobs import BlobRecord


class Uploads:
    """The uploads that are under way. Safe for many threads.

    Parameters
    ----------
    store
        Where the bytes go.
    publisher
        Makes them a blob.
    idle_secs
        After how long without a chunk an upload ends.
    most_bytes
        Of a blob; None: any number.
    clock
        Seconds of a monotonic clock.
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
        self._store = store
        self._publisher = publisher
        self._most_bytes = most_bytes
        self._sessions: Sessions[Upload] = Sessions(
            "upload", idle_secs, lambda upload: upload.draft.discard(), clock=clock
        )

    def begin_create(self, key: str, settable: bytes = b"") -> str:
        """Begin a blob that is not there yet; returns the upload's session.

        Raises
        ------
        InvalidBlobKeyError
            No blob can have that key, or a topology's code alone.
        BlobExistsError
            There is one, here or on another Nimbus, or there was one that nobody deleted.
        BlobStorageError, StateError
            The disk or the cluster's state does not do it.
        """
        if keys.topology_of(keys.check(key)) is not None:
            raise InvalidBlobKeyError(
                f"{key!r} is what a topology's code is called, which goes when no topology has it:"
                " give the blob another key"
            )
        base = self._publisher.base(key)
        if self._publisher.known(key) is not None:
            raise BlobExistsError(f"there is a blob {key} already: update it, or delete it first")
        return self._sessions.begin(
            lambda: Upload(key, self._store.draft(), base, is_new=True, settable=settable)
        )

    def begin_update(self, key: str) -> str:
        """Begin the next version of a blob; returns the upload's session.

        Raises
        ------
        InvalidBlobKeyError, BlobStorageError, StateError
            As `begin_create`.
        BlobNotFoundError
            There is no blob to follow.
        """
        keys.check(key)
        base = self._publisher.base(key)
        known = self._publisher.known(key)
        if known is None:
            raise BlobNotFoundError(f"there is no blob {key} to update: create it")
        return self._sessions.begin(
            lambda: Upload(key, self._store.draft(), base, is_new=False, settable=known.settable)
        )

    def chunk(self, session: str, data: bytes) -> None:
        """Take the next bytes.

        Raises
        ------
        TransferEndedError
            No such upload is under way.
        BlobStorageError
            The disk did not take them, or the blob is too large; the upload has ended, and left
            nothing.
        """
        with self._sessions.using(session) as upload:
            write_upload(upload.draft, data, self._most_bytes)

    def finish(self, session: str) -> BlobRecord:
        """Make it a blob, and return what it is; the upload has ended, however this ends.

        Raises
        ------
        TransferEndedError
            No such upload is under way.
        BlobExistsError
            Another upload of the blob was finished since this one began.
        BlobStorageError, StateError
            The disk or the cluster's state did not do it. After `OutcomeUnknownError`, or where it
            was stored here and could not be announced, it may turn up later: look before trying
            again.
        """
        with self._sessions.using(session, last=True) as upload:
            upload.draft.finish()
            return self._publisher.publish(upload)

    def cancel(self, session: str) -> None:
        """End an upload, and remove its bytes; one that has ended is `TransferEndedError`."""
        self._sessions.end(session)

    def expire(self) -> int:
        """End those that are idle; returns how many."""
        return self._sessions.expire()

    def close(self) -> None:
        """End all of them."""
        self._sessions.close()
