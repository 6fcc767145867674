"""Calls on blobs, for Storm's clients and for other Nimbuses, on any Nimbus.

Access control lists are stored and returned but not enforced while authentication is off, as in
Storm by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from stormkeeper import paths
from stormkeeper.blobs import keys
from stormkeeper.blobs.transfers import TransferSessions
from stormkeeper.errors import BlobInUseError, BlobNotFoundError, CallerError, CallRefusedError
from stormkeeper.nimbus.service.context import CallGroup, ServiceContext, client_errors
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

_LISTED: Final = 100

#: Storm's number for read, write and administer.
_EVERYTHING: Final = 7

#: Longest access list in bytes: ZooKeeper has it, and every Nimbus with each version.
_LONGEST_META: Final = 65_536


class BlobCalls(CallGroup):
    """The calls on blobs."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._lists: TransferSessions[Iterator[str]] = TransferSessions(
            "list of blobs", context.conf["nimbus.blobstore.expiration.secs"], lambda _keys: None
        )

    def beginCreateBlob(self, key: str, meta: SettableBlobMeta, /) -> str:
        with client_errors(key):
            return self._context.code.uploads.begin_create(key, _written(meta))

    def beginUpdateBlob(self, key: str, /) -> str:
        if keys.is_key(key) and keys.topology_of(key) is not None:
            self._record(key)
            raise AuthorizationException(
                f"{key} is a part of a topology's code, which only submissions and rebalances"
                " write: submit it again, or change its conf by `storm rebalance NAME -c`"
            )
        with client_errors(key):
            return self._context.code.uploads.begin_update(key)

    def uploadBlobChunk(self, session: str, chunk: bytes, /) -> None:
        with client_errors():
            self._context.code.uploads.chunk(session, chunk)

    def finishBlobUpload(self, session: str, /) -> None:
        with client_errors():
            self._context.code.uploads.finish(session)

    def cancelBlobUpload(self, session: str, /) -> None:
        with client_errors():
            self._context.code.uploads.end(session)

    def getBlobMeta(self, key: str, /) -> ReadableBlobMeta:
        """Return a blob's access list and version, the CRC of the bytes."""
        record = self._record(key)
        return ReadableBlobMeta(_settable_of(record), record.crc32c)

    def setBlobMeta(self, key: str, meta: SettableBlobMeta, /) -> None:
        self._record(key)
        with client_errors():
            self._context.code.publisher.publish_settable(key, _written(meta))

    def beginBlobDownload(self, key: str, offset: int | None = None, /) -> BeginDownloadResult:
        try:
            begun = self._context.code.downloads.begin(key, offset or 0)
        except BlobNotFoundError as error:
            self._record(key)
            self._context.code.sync.wake()
            raise CallRefusedError(
                f"the blob {key} is not on this Nimbus yet: ask another one, or again in a moment"
            ) from error
        return BeginDownloadResult(begun.version, begun.session, begun.size, begun.offset)

    def downloadBlobChunk(self, session: str, /) -> bytes:
        with client_errors():
            return self._context.code.downloads.chunk(session)

    def downloadChunk(self, session: str, /) -> bytes:
        """Refuse: no method begins such a download, in Storm either."""
        raise CallerError(f"no download {session} is under way: use beginBlobDownload")

    def deleteBlob(self, key: str, /) -> None:
        self._record(key)
        self._context.storm.state.sync_path(paths.STORMS)
        for storm_id in self._context.storm.active_storms():
            if key in keys.of_topology(storm_id):
                raise IllegalStateException(
                    f"Attempting to delete blob {key} from under active topology {storm_id}"
                )
            with client_errors():
                # Refuses if this Nimbus lacks the topology's code, which names its blobs.
                used = self._submitted(storm_id).conf.get("topology.blobstore.map")
            if key in (used or ()):
                raise IllegalStateException(
                    f"Attempting to delete active blob {key} used by topology {storm_id}"
                )
        try:
            with client_errors(key):
                self._context.code.delete(key)
        except BlobInUseError as error:  # submitted just now
            raise IllegalStateException(str(error)) from error

    def listBlobs(self, session: str | None, /) -> ListBlobsResult:
        """Return the next keys and the session for more; no keys at the end."""
        with client_errors():
            if not session:
                session = self._lists.add(lambda: iter(self._context.storm.blobstore()))
            with self._lists.using(session) as left:
                listed = list(islice(left, _LISTED))
            if not listed:
                self._lists.end(session)
        return ListBlobsResult(listed, session)

    def getBlobReplication(self, key: str, /) -> int:
        self._record(key)
        return len({holder.nimbus for holder in self._context.storm.blobstore_info(key)})

    def updateBlobReplication(self, key: str, replication: int, /) -> int:
        del replication
        self._record(key)
        raise CallerError("every Nimbus keeps a copy of every blob: start another Nimbus")

    def createStateInZookeeper(self, key: str, /) -> None:
        """Check the key only: the end of an upload writes the state for Storm's clients."""
        with client_errors(key):
            keys.check(key)

    def isRemoteBlobExists(self, key: str, /) -> bool:
        return keys.is_key(key) and self._context.code.publisher.known(key) is not None

    def _record(self, key: str) -> BlobRecord:
        with client_errors(key):
            record = self._context.code.publisher.known(keys.check(key))
        if record is None:
            raise KeyNotFoundException(key)
        return record


def _written(meta: SettableBlobMeta) -> bytes:
    data = encode(meta)
    if len(data) > _LONGEST_META:
        raise CallerError(f"an access list may have {_LONGEST_META:,} bytes, and not {len(data):,}")
    return data


def _settable_of(record: BlobRecord) -> SettableBlobMeta:
    """Return a blob's access list; without a list everybody may do everything."""
    everybody = AccessControl(AccessControlType.OTHER, None, _EVERYTHING)
    if not record.settable:
        return SettableBlobMeta([everybody])
    meta = decode(SettableBlobMeta, record.settable)
    return SettableBlobMeta(meta.acl or [everybody], meta.replication_factor)
