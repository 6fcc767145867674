"""Blobs as Storm's clients, and other Nimbuses, make, read and delete them.

Any Nimbus serves them. Its own user is nobody: as long as nobody is asked who he is, access control
is kept and told, and is not enforced, as by Storm's default.
"""

# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from stormkeeper import paths
from stormkeeper.blobs import keys
from stormkeeper.blobs.transfers import TransferSessions
from stormkeeper.errors import (
    BlobInUseError,
    BlobNotFoundError,
    CallerError,
    CallRefusedError,
    SerializationError,
)
from stormkeeper.nimbus.service.given import Given
from stormkeeper.nimbus.service.served import Served, told
from stormkeeper.state.storm.blob_records import BlobRecord
from stormkeeper.thrift.nimbus import (
    AccessControl,
    AccessControlType,
    AuthorizationException,
    BeginDownloadResult,
    IllegalStateException,
    KeyNotFoundException,
    ListBlobsResult,
    ReadableBlobMeta,
    SettableBlobMeta,
)
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.writer import encode

#: Keys that one answer has at most.
_LISTED: Final = 100

#: Who nobody restricted may do what: read, write and administer.
_EVERYTHING: Final = 7

#: Bytes of an access list: it is kept in ZooKeeper, with every version on every Nimbus.
_LONGEST_META: Final = 65_536


class Blobs(Served):
    """The methods of blobs."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._lists: TransferSessions[Iterator[str]] = TransferSessions(
            "list of blobs", given.conf["nimbus.blobstore.expiration.secs"], lambda _keys: None
        )

    def beginCreateBlob(self, key: str, meta: SettableBlobMeta, /) -> str:
        """Begin a blob, and return the session of its upload."""
        with told(key):
            return self._given.code.uploads.begin_create(key, _written(meta))

    def beginUpdateBlob(self, key: str, /) -> str:
        """Begin the next version of a blob, and return the session of its upload."""
        if keys.is_key(key) and keys.topology_of(key) is not None:
            self._record(key)
            raise AuthorizationException(
                f"{key} is a part of a topology's code, which only submissions and rebalances"
                " write: submit it again, or change its conf by `storm rebalance NAME -c`"
            )
        with told(key):
            return self._given.code.uploads.begin_update(key)

    def uploadBlobChunk(self, session: str, chunk: bytes, /) -> None:
        """Take the next bytes of a blob."""
        with told():
            self._given.code.uploads.chunk(session, chunk)

    def finishBlobUpload(self, session: str, /) -> None:
        """Have what was uploaded be the blob."""
        with told():
            self._given.code.uploads.finish(session)

    def cancelBlobUpload(self, session: str, /) -> None:
        """End an upload, and forget it."""
        with told():
            self._given.code.uploads.cancel(session)

    def getBlobMeta(self, key: str, /) -> ReadableBlobMeta:
        """Return who may do what with a blob, and its version: the CRC of its bytes."""
        record = self._record(key)
        return ReadableBlobMeta(settable_of(record), record.crc32c)

    def setBlobMeta(self, key: str, meta: SettableBlobMeta, /) -> None:
        """Say anew who may do what with a blob."""
        self._record(key)
        with told():
            self._given.code.publisher.publish_settable(key, _written(meta))

    def beginBlobDownload(self, key: str, offset: int | None = None, /) -> BeginDownloadResult:
        """Begin to read a blob, from its beginning or from one of its bytes on."""
        try:
            begun = self._given.code.downloads.begin(key, offset or 0)
        except BlobNotFoundError as error:
            self._record(key)
            self._given.code.sync.wake()
            raise CallRefusedError(
                f"the blob {key} is not on this Nimbus yet: ask another one, or again in a moment"
            ) from error
        return BeginDownloadResult(begun.version, begun.session, begun.size, begun.offset)

    def downloadBlobChunk(self, session: str, /) -> bytes:
        """Return the next bytes of a blob; none at its end."""
        with told():
            return self._given.code.downloads.chunk(session)

    def downloadChunk(self, session: str, /) -> bytes:
        """Refuse: no method begins such a download, in Storm either."""
        raise CallerError(f"no download {session} is under way: use beginBlobDownload")

    def deleteBlob(self, key: str, /) -> None:
        """Delete a blob that no topology uses."""
        self._record(key)
        # The server that is asked may lag behind.
        self._given.storm.state.sync_path(paths.STORMS)
        for storm_id in self._given.storm.active_storms():
            if key in keys.of_topology(storm_id):
                raise IllegalStateException(
                    f"Attempting to delete blob {key} from under active topology {storm_id}"
                )
            with told():
                # Where its code is not here, nobody here knows what it uses.
                used = self._submitted(storm_id).conf.get("topology.blobstore.map")
            if key in (used or ()):
                raise IllegalStateException(
                    f"Attempting to delete active blob {key} used by topology {storm_id}"
                )
        try:
            with told(key):
                self._given.code.delete(key)
        except BlobInUseError as error:  # submitted just now
            raise IllegalStateException(str(error)) from error

    def listBlobs(self, session: str | None, /) -> ListBlobsResult:
        """Return the next keys, and the session to ask for more; none at the end."""
        with told():
            if not session:
                session = self._lists.begin(lambda: iter(self._given.storm.blobstore()))
            with self._lists.using(session) as left:
                listed = list(islice(left, _LISTED))
            if not listed:
                self._lists.end(session)
        return ListBlobsResult(listed, session)

    def getBlobReplication(self, key: str, /) -> int:
        """Return how many Nimbuses that are alive have a blob."""
        self._record(key)
        return len({holder.nimbus for holder in self._given.storm.blobstore_info(key)})

    def updateBlobReplication(self, key: str, replication: int, /) -> int:
        """Refuse: every Nimbus has every blob."""
        del replication
        self._record(key)
        raise CallerError("every Nimbus keeps a copy of every blob: start another Nimbus")

    def createStateInZookeeper(self, key: str, /) -> None:
        """Do what Storm's clients ask for after an upload, and which its end has done here."""
        with told(key):
            keys.check(key)

    def isRemoteBlobExists(self, key: str, /) -> bool:
        """Return whether there is a blob."""
        return keys.is_key(key) and self._given.code.publisher.known(key) is not None

    def _record(self, key: str) -> BlobRecord:
        """Return what is known of a blob, wherever it is.

        Raises
        ------
        KeyNotFoundException
            There is none.
        """
        with told(key):
            record = self._given.code.publisher.known(keys.check(key))
        if record is None:
            raise KeyNotFoundException(key)
        return record


def _written(meta: SettableBlobMeta) -> bytes:
    data = encode(meta)
    if len(data) > _LONGEST_META:
        raise CallerError(f"an access list may have {_LONGEST_META:,} bytes, and not {len(data):,}")
    return data


def settable_of(record: BlobRecord) -> SettableBlobMeta:
    """Return who may do what with a blob: everybody everything where nobody has said."""
    everybody = AccessControl(AccessControlType.OTHER, None, _EVERYTHING)
    try:
        said = decode(SettableBlobMeta, record.settable) if record.settable else None
    except SerializationError as error:
        raise CallRefusedError(f"the access list of the blob is damaged: {error}") from error
    if said is None:
        return SettableBlobMeta([everybody])
    return SettableBlobMeta(said.acl or [everybody], said.replication_factor)
