"""Blobs in the cluster's state: versions, present holders, and past holders.

Storm's ephemeral nodes name present holders. Past holders are ours: persistent records with the
blob's checksum, below the number of versions, deleted with the blob.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from contextlib import ExitStack
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from stormkeeper import paths
from stormkeeper.errors import (
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SerializationError,
    TransactionError,
)
from stormkeeper.paths import BlobHolder, NimbusId
from stormkeeper.state.storage import Create, Delete, NodeData, SetData
from stormkeeper.state.storm.record_io import RecordReader, RecordWriter, SessionWriter
from stormkeeper.state.watches import Callback, WatchKind

_NUMBER = struct.Struct(">i")
_LARGEST = 2**31 - 1


class BlobRecord(msgspec.Struct, frozen=True):
    """A version of a blob, with checksum."""

    version: Annotated[int, Meta(ge=1, le=_LARGEST)]
    #: Hexadecimal digits, of the content.
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0)]
    #: Version for Storm's clients: the same on every Nimbus with this content.
    crc32c: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    #: Creation zxid of the blob's number: after a deletion, a new blob may get the same key and
    #: versions.
    born: Annotated[int, Meta(ge=0)]
    #: A ``SettableBlobMeta`` in Thrift's binary protocol, or empty.
    settable: bytes = b""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> BlobRecord:
        """Decode JSON; raises `SerializationError`."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise SerializationError(f"not a record of a blob: {error}") from error


class BlobEntry(NamedTuple):
    """A blob, with the newest version that any Nimbus has held."""

    #: Highest counted version. If above that of `record`, a version is being made, or was lost
    #: before a Nimbus announced it.
    number: int
    born: int
    #: None if no Nimbus has held a version.
    record: BlobRecord | None
    #: Ids of Nimbuses that have ever held that version, sorted.
    held: tuple[str, ...]
    #: Ids of its present holders, sorted.
    alive: tuple[str, ...]


class VersionedNumber(NamedTuple):
    """A blob's sequence number, and the node's version."""

    number: int
    version: int


class BlobReads(RecordReader):
    """Reads of blobs and holders."""

    def blobstore(self, callback: Callback | None = None) -> list[str]:
        """List all blobs' keys, sorted."""
        self._state.sync_path(paths.BLOBSTORE)
        return self._names(paths.BLOBSTORE, callback)

    def blobstore_info(self, key: str, callback: Callback | None = None) -> list[BlobHolder]:
        """List a blob's holders with versions."""
        path = paths.blob(key)
        self._state.sync_path(path)
        holders = map(paths.parse_blob_holder, self._names(path, callback))
        return [holder for holder in holders if holder]

    def blobs(
        self, keys: Collection[str] | None = None, callback: Callback | None = None
    ) -> dict[str, BlobEntry]:
        """Return blobs by key, as of now or later; all by default.

        `callback` is called once when a version of these blobs is counted or deleted, and, without
        `keys`, when a key comes or goes. Holders follow a moment later: watch `blobstore_info`.
        """
        if keys is not None and not keys:
            return {}
        self._state.sync_path(paths.BLOB_KEY_SEQUENCES)
        if keys is None:
            keys = self._names(paths.BLOB_KEY_SEQUENCES, callback)
        numbers = [paths.blob_key_sequence(key) for key in keys]
        with ExitStack() as reads:
            for path in numbers if callback is not None else ():
                reads.enter_context(self._callbacks.once(WatchKind.NODE, path, callback))
            counters = self._state.read_many(numbers, callback is not None)
        recorded = [_newest(names) for names in self._state.children_many(numbers)]
        announced = self._state.children_many([paths.blob(key) for key in keys])
        firsts = [
            paths.blob_record(key, *held[0]) if held else number
            for key, number, held in zip(keys, numbers, recorded, strict=True)
        ]
        entries = {}
        for key, counter, held, path, node, names in zip(
            keys, counters, recorded, firsts, self._state.read_many(firsts), announced, strict=True
        ):
            if counter is None:
                continue
            record = self._blob_record(path, node) if held and node is not None else None
            now = _newest(names, version=record.version) if record else []
            entries[key] = BlobEntry(
                counted(counter.data),
                counter.stat.created,
                record,
                tuple(holder.nimbus for holder in held),
                tuple(holder.nimbus for holder in now),
            )
        return entries

    def _blob_record(self, path: str, node: NodeData) -> BlobRecord | None:
        try:
            return BlobRecord.decode(node.data)
        except SerializationError as error:
            self._leave_out(path, node.data, error)
            return None

    def blob_key_sequence(self, key: str) -> VersionedNumber | None:
        """Return the highest version of a blob so far."""
        path = paths.blob_key_sequence(key)
        found = self._state.get_data_with_version(path)
        if found is None:
            return None
        if len(found.data) != _NUMBER.size:
            raise SerializationError(
                f"{path}: not a sequence number: {len(found.data)} bytes instead of {_NUMBER.size}"
            )
        return VersionedNumber(_NUMBER.unpack(found.data)[0], found.version)


class BlobHolderWrites(SessionWriter):
    """Announcements of a Nimbus's blobs."""

    def setup_blob(self, key: str, nimbus_id: str | NimbusId, version: int) -> None:
        """Announce that a Nimbus holds a version of a blob, and no other version any more.

        Announced again after a lost session.
        """
        top = paths.blob(key)
        self._state.mkdirs(top)
        self._delete_others(top, nimbus_id, version)
        self._state.set_ephemeral_node(paths.blob_holder(key, str(nimbus_id), version), b"")

    def announce_blob(self, key: str, nimbus_id: str | NimbusId, record: BlobRecord) -> None:
        """Announce as `setup_blob`, with a record that stays.

        Raises `NoNodeError` if the blob was deleted, or no version ever counted.
        """
        path = paths.blob_record(key, str(nimbus_id), record.version)
        try:
            try:
                self._state.commit([Create(path, record.encode())])
            except TransactionError as error:
                if not isinstance(error.reason, NodeExistsError):
                    raise
                self._state.commit([SetData(path, record.encode())])
        except TransactionError as error:
            raise error.reason from error
        self._delete_others(paths.blob_key_sequence(key), nimbus_id, record.version)
        self.setup_blob(key, nimbus_id, record.version)

    def withdraw_blob(self, key: str, nimbus_id: str | NimbusId) -> None:
        """Withdraw announcements of a blob, not the record."""
        self._delete_others(paths.blob(key), nimbus_id, None)

    def leave_blob(self, key: str, nimbus_id: str | NimbusId, version: int) -> None:
        """Withdraw the announcement of a deleted blob, also in later sessions.

        The last holder deletes the directory.
        """
        # Even if gone: the next session would make it again.
        self._state.delete_node(paths.blob_holder(key, str(nimbus_id), version))
        self.withdraw_blob(key, nimbus_id)
        try:
            self._state.commit([Delete(paths.blob(key))])
        except TransactionError as error:
            if not isinstance(error.reason, NoNodeError | NotEmptyError):
                raise error.reason from error

    def _delete_others(self, top: str, nimbus_id: str | NimbusId, version: int | None) -> None:
        for name in self._names(top):
            holder = paths.parse_blob_holder(name)
            if holder and holder.nimbus == str(nimbus_id) and holder.version != version:
                self._state.delete_node(f"{top}/{name}")


class BlobWrites(RecordWriter):
    """Writes about blobs by any Nimbus; the leader's are fenced."""

    def remove_blobstore_key(self, key: str) -> None:
        """Delete a blob's announcements, if any."""
        self._writer.delete_node(paths.blob(key))

    def set_blob_key_sequence(self, key: str, number: int, expected_version: int | None) -> None:
        """Set a blob's sequence number (31 bits) unless another process changed the number.

        `expected_version` is ``blob_key_sequence(key).version``, None if absent. After another
        process's change raises `BadVersionError`, `NodeExistsError` or `NoNodeError`.
        """
        if not isinstance(number, int) or not 0 <= number <= _LARGEST:
            raise ValueError(
                f"{number!r} is no sequence number of a blob: it must be from 0 to {_LARGEST}"
            )
        path = paths.blob_key_sequence(key)
        data = _NUMBER.pack(number)
        if expected_version is None:
            self._writer.mkdirs(paths.BLOB_KEY_SEQUENCES)
        write = (
            Create(path, data)
            if expected_version is None
            else SetData(path, data, expected_version)
        )
        try:
            self._writer.commit([write])
        except TransactionError as error:
            raise error.reason from error

    def remove_blob_key_sequence(self, key: str) -> None:
        """Delete a blob's sequence number, if any."""
        self._writer.delete_node(paths.blob_key_sequence(key))


def counted(data: bytes) -> int:
    """Return the number in a blob's sequence node, 0 if unreadable."""
    count: int = _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else 0
    return count


def _newest(names: Collection[str] | None, version: int | None = None) -> list[BlobHolder]:
    holders = [holder for holder in map(paths.parse_blob_holder, names or ()) if holder]
    if version is None:
        version = max((holder.version for holder in holders), default=0)
    return sorted(holder for holder in holders if holder.version == version)
