"""Makes what was uploaded a blob of the cluster: counted, stored here, and announced.

In this order. A crash after the number was counted loses the upload, and a number that nobody ever
has. One after it was stored here is made good by the next synchronisation, which announces what
is here and newer than all that others have had.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from stormkeeper.blobs.drafts import Draft
from stormkeeper.blobs.planning import newest
from stormkeeper.blobs.store import BlobStore
from stormkeeper.errors import (
    BadVersionError,
    BlobExistsError,
    BlobNotFoundError,
    NodeExistsError,
    NoNodeError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blobs import BlobRecord, VersionedNumber
from stormkeeper.state.storm.cluster import StormClusterState


@dataclass(frozen=True)
class Upload:
    """Bytes that are to be a blob."""

    key: str
    draft: Draft
    #: The number that was counted when the upload began; None where there was none.
    base: VersionedNumber | None
    #: Whether the blob must not have been there before.
    is_new: bool
    #: A ``SettableBlobMeta`` in Thrift's binary protocol, or nothing.
    settable: bytes = b""


class Publisher:
    """Makes uploads blobs of one Nimbus. Safe for many threads.

    Parameters
    ----------
    storm
        The cluster's state, in the Nimbus's session.
    store
        Its blobs.
    nimbus_id
        Which Nimbus.
    """

    def __init__(self, storm: StormClusterState, store: BlobStore, nimbus_id: NimbusId) -> None:
        self._storm = storm
        self._store = store
        self._nimbus_id = nimbus_id

    def base(self, key: str) -> VersionedNumber | None:
        """Return the number that is counted of a blob, None where none is."""
        return self._storm.blob_key_sequence(key)

    def known(self, key: str) -> BlobRecord | None:
        """Return the newest version of a blob that is here, or that any Nimbus has had."""
        local = self._store.get(key)
        return newest(local, self._storm.blobs([key]).get(key), is_needed=False)

    def publish(self, upload: Upload) -> BlobRecord:
        """Have an upload, whose draft is finished, be the newest version of its blob.

        Raises
        ------
        BlobExistsError
            Another upload was published since this one began.
        BlobNotFoundError
            The blob was deleted while this was published.
        BlobStorageError
            The disk did not take it.
        StateError
            The number was not counted; `OutcomeUnknownError`: it may be, and nobody has that
            version. Or the blob is stored here, and not announced yet.
        """
        key, draft = upload.key, upload.draft
        if upload.is_new and self.known(key) is not None:
            raise _too_late(key)
        number, born = self._count(key, upload.base)
        before = self._store.get(key)
        record = BlobRecord(
            number, *draft.content(), draft.crc32c, born=born, settable=upload.settable
        )
        return self._put(key, record, draft, before)

    def publish_settable(self, key: str, settable: bytes) -> BlobRecord:
        """Have a blob's newest version be the bytes of the last one, with another ``settable``.

        Raises
        ------
        BlobNotFoundError
            There is no such blob, or its newest version is not here.
        BlobExistsError, BlobStorageError, StateError
            As `publish`.
        """
        base, known, before = self.base(key), self.known(key), self._store.get(key)
        if known is None:
            raise BlobNotFoundError(f"there is no blob {key}")
        if before is None or before != known:
            raise BlobNotFoundError(f"the blob {key} is not here yet: try again in a moment")
        number, born = self._count(key, base)
        record = replace(before, version=number, born=born, settable=settable)
        return self._put(key, record, None, before)

    def _count(self, key: str, base: VersionedNumber | None) -> tuple[int, int]:
        """Count the next version of a blob; returns its number, and which blob of the key it is."""
        number = base.number + 1 if base else 1
        try:
            self._storm.set_blob_key_sequence(key, number, base.version if base else None)
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            raise _too_late(key) from error
        counted = self._storm.blobs([key]).get(key)
        if counted is None or counted.number != number:
            raise _too_late(key)
        return number, counted.born

    def _put(
        self, key: str, record: BlobRecord, draft: Draft | None, before: BlobRecord | None
    ) -> BlobRecord:
        """Store a version that was counted, and announce it."""
        if not self._store.put(key, record, draft, expected=before):
            raise _too_late(key)
        try:
            self._storm.announce_blob(key, self._nimbus_id, record)
        except NoNodeError as error:
            self._store.delete(key, expected=record)
            raise BlobNotFoundError(
                f"{key} was deleted while it was uploaded, and so is what was uploaded"
            ) from error
        return record


def _too_late(key: str) -> BlobExistsError:
    return BlobExistsError(
        f"another upload of {key} was finished since this one began, and is the blob now; this one"
        " was given up: look at the blob, and upload again if need be"
    )
