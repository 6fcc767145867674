"""Publishes uploads as blobs of the cluster: counts the version, stores it here, announces it.

After a crash between count and store, the number stays unused. After a crash between store and
announcement, the next synchronisation announces the blob.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from stormkeeper.blobs.drafts import Draft
from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.sync_plan import newest
from stormkeeper.errors import (
    BadVersionError,
    BlobExistsError,
    BlobNotFoundError,
    NodeExistsError,
    NoNodeError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blob_records import BlobRecord, BlobWrites, VersionedNumber
from stormkeeper.state.storm.cluster import StormClusterState


@dataclass(frozen=True)
class Upload:
    """Bytes that will be a blob's next version."""

    key: str
    draft: Draft
    #: The blob's version counter when the upload began, if any.
    base: VersionedNumber | None
    #: Whether the blob must not exist yet.
    is_new: bool
    #: A ``SettableBlobMeta`` in Thrift's binary protocol, or empty.
    settable: bytes = b""


class Publisher:
    """Publishes blobs that are stored on one Nimbus. Thread-safe."""

    def __init__(self, storm: StormClusterState, store: BlobStore, nimbus_id: NimbusId) -> None:
        self._storm = storm
        self._store = store
        self._nimbus_id = nimbus_id

    def base(self, key: str) -> VersionedNumber | None:
        return self._storm.blob_key_sequence(key)

    def known(self, key: str) -> BlobRecord | None:
        """Return the newest version of a blob, here or on any Nimbus."""
        local = self._store.get(key)
        return newest(local, self._storm.blobs([key]).get(key), is_needed=False)

    def publish(self, upload: Upload) -> BlobRecord:
        """Publish a finished draft as the newest version of its blob.

        Raises `BlobExistsError` if another upload was first, `BlobNotFoundError` if the blob was
        deleted meanwhile. After another error the blob may be stored and not announced yet; after
        `OutcomeUnknownError` a version may be counted that no Nimbus has.
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
        """Publish the last version with another ``settable``; raises `BlobNotFoundError`."""
        base, known, before = self.base(key), self.known(key), self._store.get(key)
        if known is None:
            raise BlobNotFoundError(f"there is no blob {key}")
        if before is None or before != known:
            raise BlobNotFoundError(f"the blob {key} is not here yet: try again in a moment")
        number, born = self._count(key, base)
        record = replace(before, version=number, born=born, settable=settable)
        return self._put(key, record, None, before)

    def _count(self, key: str, base: VersionedNumber | None) -> tuple[int, int]:
        """Return the number of a blob's next version, and `BlobRecord.born`."""
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
        if not self._store.put(key, record, draft, expected=before):
            raise _too_late(key)
        try:
            self._storm.announce_blob(key, self._nimbus_id, record)
        except NoNodeError as error:
            self._store.delete(key, expected=record)
            raise BlobNotFoundError(
                f"{key} was deleted during the upload; the uploaded bytes are deleted too"
            ) from error
        return record


def forget(writer: BlobWrites, key: str) -> None:
    """Delete a blob in ZooKeeper; every Nimbus then deletes its copy.

    The version counter goes first, since a blob that is not counted cannot be announced.
    """
    writer.remove_blob_key_sequence(key)
    writer.remove_blobstore_key(key)


def _too_late(key: str) -> BlobExistsError:
    return BlobExistsError(
        f"another upload of {key} finished since this one began, so this one is discarded: look at"
        " the blob, and upload again if needed"
    )
