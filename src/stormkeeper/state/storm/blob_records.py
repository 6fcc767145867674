"""Who holds which version of a blob, who has held it, and how versions are counted.

Storm's nodes say who holds a blob now: they are ephemeral. Who has held it is ours: a persistent
record below the number of the blob's versions, by each Nimbus for itself. It has the blob's
checksum, and it goes when the blob is deleted, as Storm deletes the number with all below it.
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
from stormkeeper.state.storm.subscriptions import Callback
from stormkeeper.state.watches import WatchKind

#: How Storm writes a sequence number.
_NUMBER = struct.Struct(">i")
_LARGEST = 2**31 - 1


class BlobRecord(msgspec.Struct, frozen=True):
    """One version of a blob: its number, and what is in it."""

    #: The first is 1.
    version: Annotated[int, Meta(ge=1, le=_LARGEST)]
    #: Of its bytes, in hexadecimal digits; its size is in bytes.
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0)]
    #: What Storm's clients take for the version: the same on every Nimbus that has these bytes.
    crc32c: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    #: Which blob of that key: the change of the store that made its number (its creation zxid).
    #: After it was deleted, another one may get the same key, and the same versions.
    born: Annotated[int, Meta(ge=0)]
    #: A ``SettableBlobMeta`` in Thrift's binary protocol, or nothing.
    settable: bytes = b""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> BlobRecord:
        """Read what `encode` has written.

        Raises
        ------
        SerializationError
            It is something else.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise SerializationError(f"not a record of a blob: {error}") from error


class BlobEntry(NamedTuple):
    """What is known of a blob: its newest version that any Nimbus has held, and who that is."""

    #: The highest version that is counted. Where it is above that of `record`, one is being made,
    #: or was lost before anybody could say that it was there.
    number: int
    #: The change of the store that made the number; see `BlobRecord.born`.
    born: int
    #: None where nobody has held any.
    record: BlobRecord | None
    #: The ids of the Nimbuses that have held that version, sorted, whatever became of them.
    held: tuple[str, ...]
    #: The ids of those that hold it now, sorted.
    alive: tuple[str, ...]


class VersionedNumber(NamedTuple):
    """A blob's sequence number, and the version of the node that has it."""

    number: int
    version: int


class BlobReads(RecordReader):
    """Which blobs there are."""

    def blobstore(self, callback: Callback | None = None) -> list[str]:
        """Return the keys of all blobs, sorted, as of now or later.

        `callback` is told, once, when a blob comes or goes.
        """
        self._state.sync_path(paths.BLOBSTORE)
        return self._names(paths.BLOBSTORE, callback)

    def blobstore_info(self, key: str, callback: Callback | None = None) -> list[BlobHolder]:
        """Return who holds a blob, and in which version, as of now or later.

        `callback` is told, once, when a holder comes or goes.
        """
        path = paths.blob(key)
        self._state.sync_path(path)
        holders = map(paths.parse_blob_holder, self._names(path, callback))
        return [holder for holder in holders if holder]

    def blob_holders(self, keys: Collection[str]) -> dict[str, list[BlobHolder]]:
        """Return who holds each of some blobs, as of now or a moment ago, read in one go."""
        names = self._state.children_many([paths.blob(key) for key in keys])
        return {
            key: [holder for holder in map(paths.parse_blob_holder, of_key or ()) if holder]
            for key, of_key in zip(keys, names, strict=True)
        }

    def blobs(
        self, keys: Collection[str] | None = None, callback: Callback | None = None
    ) -> dict[str, BlobEntry]:
        """Return what is known of blobs, by their keys, as of now or later, read in one go.

        Parameters
        ----------
        keys : collection of str, optional
            Which; all if left out. One that does not exist is left out of the result.
        callback : callable, optional
            Told once when a version of one of them is counted or deleted, and when a key comes or
            goes if all were asked for. Who holds a new version is said a moment later:
            `blobstore_info` tells when.
        """
        self._state.sync_path(paths.BLOB_KEY_SEQUENCES)
        if keys is None:
            keys = self._names(paths.BLOB_KEY_SEQUENCES, callback)
        if not keys:
            return {}
        numbers = [paths.blob_key_sequence(key) for key in keys]
        with ExitStack() as reads:
            for path in numbers if callback is not None else ():
                reads.enter_context(self._callbacks.once(WatchKind.NODE, path, callback))
            counted = self._state.read_many(numbers, callback is not None)
        recorded = [_newest(names) for names in self._state.children_many(numbers)]
        announced = self._state.children_many([paths.blob(key) for key in keys])
        firsts = [
            paths.blob_record(key, *held[0]) if held else number
            for key, number, held in zip(keys, numbers, recorded, strict=True)
        ]
        entries = {}
        for key, counter, held, path, node, names in zip(
            keys, counted, recorded, firsts, self._state.read_many(firsts), announced, strict=True
        ):
            if counter is None:
                continue
            record = self._blob_record(path, node) if held and node is not None else None
            now = _newest(names, version=record.version) if record else []
            entries[key] = BlobEntry(
                _NUMBER.unpack(counter.data)[0] if len(counter.data) == _NUMBER.size else 0,
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
        """Return the highest version that a blob has had, None when none is counted.

        Raises
        ------
        SerializationError
            What is there is not a number of four bytes.
        """
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
    """What a Nimbus says of the blobs that it holds."""

    def setup_blob(self, key: str, nimbus_id: str | NimbusId, version: int) -> None:
        """Say that a Nimbus holds a version of a blob, and no other of its versions any more.

        It is said until the Nimbus's session ends or is closed, and again in the session that
        follows one that was lost.
        """
        top = paths.blob(key)
        self._state.mkdirs(top)
        self._delete_others(top, nimbus_id, version)
        self._state.set_ephemeral_node(paths.blob_holder(key, str(nimbus_id), version), b"")

    def announce_blob(self, key: str, nimbus_id: str | NimbusId, record: BlobRecord) -> None:
        """Say that a Nimbus holds a version of a blob, as `setup_blob`, and write it down for good.

        Raises
        ------
        NoNodeError
            There is no such blob: it was deleted, or none of its versions was ever counted.
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
        """Say no more that a Nimbus holds a blob, of whichever version; that it has stays written.

        What an earlier life of it has said is withdrawn too.
        """
        self._delete_others(paths.blob(key), nimbus_id, None)

    def leave_blob(self, key: str, nimbus_id: str | NimbusId, version: int) -> None:
        """Say no more, in no later session either, that a Nimbus holds a blob that was deleted.

        The last one to leave deletes what has the announcements.
        """
        # Also where it is gone: it would be made again in the next session.
        self._state.delete_node(paths.blob_holder(key, str(nimbus_id), version))
        self.withdraw_blob(key, nimbus_id)
        try:
            self._state.commit([Delete(paths.blob(key))])
        except TransactionError as error:
            if not isinstance(error.reason, NoNodeError | NotEmptyError):
                raise error.reason from error

    def _delete_others(self, top: str, nimbus_id: str | NimbusId, version: int | None) -> None:
        """Delete what is below `top` of a Nimbus's versions but one."""
        for name in self._names(top):
            holder = paths.parse_blob_holder(name)
            if holder and holder.nimbus == str(nimbus_id) and holder.version != version:
                self._state.delete_node(f"{top}/{name}")


class BlobWrites(RecordWriter):
    """What any Nimbus writes of blobs; the leader's are fenced."""

    def remove_blobstore_key(self, key: str) -> None:
        """Delete a blob's key with all that hold it; none is fine."""
        self._writer.delete_node(paths.blob(key))

    def set_blob_key_sequence(self, key: str, number: int, expected_version: int | None) -> None:
        """Set a blob's sequence number if nobody else has since it was read.

        Parameters
        ----------
        key : str
            The blob.
        number : int
            The new number, of at most 31 bits; the first version of a blob is 1.
        expected_version : int, optional
            ``blob_key_sequence(key).version``; None where there was none.

        Raises
        ------
        BadVersionError, NodeExistsError, NoNodeError
            Somebody else has set, made or deleted it: read again.
        OutcomeUnknownError
            The connection was lost meanwhile: read again.
        ValueError
            It is no such number.
        """
        if not isinstance(number, int) or not 0 <= number <= _LARGEST:
            raise ValueError(
                f"{number!r} is no sequence number of a blob: it must be from 0 to {_LARGEST}"
            )
        path = paths.blob_key_sequence(key)
        data = _NUMBER.pack(number)
        if expected_version is None:
            self._writer.mkdirs(paths.BLOB_KEY_SEQUENCES)
        writing = self._writer.transaction()
        if expected_version is None:
            writing.create(path, data)
        else:
            writing.set_data(path, data, expected_version)
        try:
            writing.commit()
        except TransactionError as error:
            raise error.reason from error

    def remove_blob_key_sequence(self, key: str) -> None:
        """Forget a blob's sequence number; none is fine."""
        self._writer.delete_node(paths.blob_key_sequence(key))


def _newest(names: Collection[str] | None, version: int | None = None) -> list[BlobHolder]:
    """Return who is named of those that have a version, or else the highest one; sorted."""
    holders = [holder for holder in map(paths.parse_blob_holder, names or ()) if holder]
    if version is None:
        version = max((holder.version for holder in holders), default=0)
    return sorted(holder for holder in holders if holder.version == version)
