"""Files and blobs between a client and Nimbus, in chunks: no file has to fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final

from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.errors import RefusedError, RemoteProtocolError, StormkeeperError
from stormkeeper.thrift.nimbus import AccessControl, AccessControlType, SettableBlobMeta

#: Bytes of a chunk, as in Storm's clients.
_CHUNK: Final = 307_200
#: Bytes of a message around the chunk.
_OVERHEAD: Final = 4_096

#: Bits and letters in an access list.
_RIGHTS: Final = ((1, "r"), (2, "w"), (4, "a"))


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob's metadata; `acl` has entries such as ``u:bob:rw-``. Fields are keys of ``--json``."""

    key: str
    version: int
    acl: tuple[str, ...]
    replication: int | None


def upload_package(
    connection: NimbusConnection, file: BinaryIO, report: Callable[[int], None] = lambda _sent: None
) -> str:
    """Send a whole file, and return the location at Nimbus, which deletes unfinished uploads.

    `report` gets the bytes sent so far. Raises `RpcError` for a lost chunk, `RefusedError` if
    Nimbus refuses.
    """
    nimbus = connection.nimbus
    location = nimbus.beginFileUpload()
    file.seek(0)
    sent = 0
    for chunk in _chunks(connection, file):
        nimbus.uploadChunk(location, chunk)
        sent += len(chunk)
        report(sent)
    nimbus.finishFileUpload(location)
    return location


def list_keys(connection: NimbusConnection) -> list[str]:
    found: set[str] = set()
    session = ""
    while (page := connection.nimbus.listBlobs(session)).keys:
        found.update(page.keys)
        session = page.session
    return sorted(found)


def describe_blob(connection: NimbusConnection, key: str) -> Blob:
    """Return a blob's metadata; raises `RefusedError` if missing or unreadable."""
    meta = connection.nimbus.getBlobMeta(key)
    settable = meta.settable
    acl = tuple(_entry(each) for each in settable.acl)
    return Blob(key, meta.version, acl, settable.replication_factor)


def all_blobs(connection: NimbusConnection) -> Iterator[Blob]:
    """Yield every blob, without blobs deleted meanwhile."""
    for key in list_keys(connection):
        with suppress(RefusedError):
            yield describe_blob(connection, key)


def download_blob(connection: NimbusConnection, key: str, write: Callable[[bytes], object]) -> None:
    """Fetch a blob, and call `write` with each chunk.

    Raises `RefusedError` if missing or unreadable, `RemoteProtocolError` for missing bytes.
    """
    begun = connection.nimbus.beginBlobDownload(key)
    size = 0
    while chunk := connection.nimbus.downloadBlobChunk(begun.session):
        write(chunk)
        size += len(chunk)
    if begun.data_size is not None and size != begun.data_size:
        raise RemoteProtocolError(
            f"Nimbus sent {size} of the {begun.data_size} bytes of {key}: try again"
        )


def create_blob(
    connection: NimbusConnection, key: str, file: BinaryIO, *, replication: int | None
) -> int:
    """Create a blob from the rest of a file, and return the size in bytes.

    `replication` None: Nimbus's default. Raises `RefusedError` if the key exists or is invalid.
    """
    nimbus = connection.nimbus
    session = nimbus.beginCreateBlob(key, SettableBlobMeta([], replication))
    size = _send(connection, session, file)
    # Storm's Nimbus registers the blob only after this call.
    nimbus.createStateInZookeeper(key)
    return size


def update_blob(connection: NimbusConnection, key: str, file: BinaryIO) -> int:
    """Replace a blob by the rest of a file, and return the size in bytes."""
    return _send(connection, connection.nimbus.beginUpdateBlob(key), file)


def _send(connection: NimbusConnection, session: str, file: BinaryIO) -> int:
    nimbus = connection.nimbus
    size = 0
    try:
        for chunk in _chunks(connection, file):
            nimbus.uploadBlobChunk(session, chunk)
            size += len(chunk)
        nimbus.finishBlobUpload(session)
    except BaseException:
        # Otherwise the chunks stay until Nimbus's session times out.
        with suppress(StormkeeperError):
            nimbus.cancelBlobUpload(session)
        raise
    return size


def _chunks(connection: NimbusConnection, file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(max(1, min(_CHUNK, connection.max_frame - _OVERHEAD))):
        yield chunk


def _entry(control: AccessControl) -> str:
    kind = "o" if control.type == AccessControlType.OTHER else "u"
    rights = "".join(letter if control.access & bit else "-" for bit, letter in _RIGHTS)
    return f"{kind}:{control.name or ''}:{rights}"
