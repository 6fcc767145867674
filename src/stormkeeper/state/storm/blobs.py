"""Who holds which version of a blob, and how versions are counted."""

from __future__ import annotations

import struct
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.errors import SerializationError, TransactionError
from stormkeeper.paths import BlobHolder, NimbusId
from stormkeeper.state.storm.records import RecordReader, RecordWriter, SessionWriter
from stormkeeper.state.storm.watching import Callback

#: How Storm writes a sequence number.
_NUMBER = struct.Struct(">i")
_LARGEST = 2**31 - 1


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


class BlobHolding(SessionWriter):
    """What a Nimbus says of the blobs that it holds."""

    def setup_blob(self, key: str, nimbus_id: str | NimbusId, version: int) -> None:
        """Say that a Nimbus holds a version of a blob, and no other of its versions any more.

        It is said until the Nimbus's session ends or is closed, and again in the session that
        follows one that was lost.
        """
        top = paths.blob(key)
        mine = paths.blob_holder(key, str(nimbus_id), version)
        self._state.mkdirs(top)
        for name in self._state.get_children(top):
            holder = paths.parse_blob_holder(name)
            if holder and holder.nimbus == str(nimbus_id) and holder.version != version:
                self._state.delete_node(f"{top}/{name}")
        self._state.set_ephemeral_node(mine, b"")


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
