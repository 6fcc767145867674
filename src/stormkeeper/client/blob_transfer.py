"""Blobs of a cluster, there and back: piece by piece, so that none has to fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final

from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.errors import RefusedError, RemoteProtocolError, StormkeeperError
from stormkeeper.thrift.nimbus import AccessControl, AccessControlType, SettableBlobMeta

#: Bytes of a piece: Storm's clients send as many.
_CHUNK: Final = 307_200
#: What of a message is left for all but the piece.
_BESIDE: Final = 4_096

#: What an entry of an ACL allows, as bits and letters.
_RIGHTS: Final = ((1, "r"), (2, "w"), (4, "a"))


@dataclass(frozen=True, slots=True)
class Blob:
    """What Nimbus says of a blob.

    Parameters
    ----------
    key
        Its name.
    version
        Another one for other bytes.
    acl
        Who may do what: entries such as ``u:bob:rw-`` and ``o::r--``.
    replication
        How often it was asked to be there; None: nobody said.
    """

    key: str
    version: int
    acl: tuple[str, ...]
    replication: int | None


def keys(connection: NimbusConnection) -> list[str]:
    """Return the keys of all blobs, sorted."""
    found: set[str] = set()
    session = ""
    while (page := connection.nimbus.listBlobs(session)).keys:
        found.update(page.keys)
        session = page.session
    return sorted(found)


def describe(connection: NimbusConnection, key: str) -> Blob:
    """Return what there is to say of a blob.

    Raises
    ------
    RefusedError
        There is none, or it is not ours to see.
    """
    meta = connection.nimbus.getBlobMeta(key)
    settable = meta.settable
    acl = tuple(_entry(each) for each in settable.acl)
    return Blob(key, meta.version, acl, settable.replication_factor)


def all_blobs(connection: NimbusConnection) -> Iterator[Blob]:
    """Yield every blob; one that goes in between is left out."""
    for key in keys(connection):
        with suppress(RefusedError):
            yield describe(connection, key)


def download(connection: NimbusConnection, key: str, write: Callable[[bytes], object]) -> int:
    """Fetch a blob, and return how many bytes it has.

    Parameters
    ----------
    write
        Is called with each piece, in turn.

    Raises
    ------
    RefusedError
        There is none, or it is not ours to see.
    RpcError
        It was interrupted.
    RemoteProtocolError
        Nimbus sent another number of bytes than it had announced.
    """
    begun = connection.nimbus.beginBlobDownload(key)
    size = 0
    while piece := connection.nimbus.downloadBlobChunk(begun.session):
        write(piece)
        size += len(piece)
    if begun.data_size is not None and size != begun.data_size:
        raise RemoteProtocolError(
            f"Nimbus sent {size} of the {begun.data_size} bytes of {key}: try again"
        )
    return size


def create(
    connection: NimbusConnection,
    key: str,
    file: BinaryIO,
    *,
    replication: int | None,
    max_frame: int,
) -> int:
    """Make a blob of what a file has from where it is, and return how many bytes that were.

    Parameters
    ----------
    replication
        On how many Nimbuses it should be; None: what their configuration says.
    max_frame
        The longest message, in bytes: ``nimbus.thrift.max_buffer_size``.

    Raises
    ------
    RefusedError
        There is one of that key, or it is not ours to make.
    RpcError
        It was not made, or nobody knows. A Nimbus that was reached forgets what was sent.
    """
    nimbus = connection.nimbus
    session = nimbus.beginCreateBlob(key, SettableBlobMeta([], replication))
    size = _send(connection, session, file, max_frame)
    # Which Nimbuses have it is written by the Nimbus that took it; Storm's want to be told to.
    nimbus.createStateInZookeeper(key)
    return size


def update(connection: NimbusConnection, key: str, file: BinaryIO, *, max_frame: int) -> int:
    """Have a blob be what a file has; else as `create`."""
    return _send(connection, connection.nimbus.beginUpdateBlob(key), file, max_frame)


def _send(connection: NimbusConnection, session: str, file: BinaryIO, max_frame: int) -> int:
    nimbus = connection.nimbus
    size = 0
    try:
        while piece := file.read(max(1, min(_CHUNK, max_frame - _BESIDE))):
            nimbus.uploadBlobChunk(session, piece)
            size += len(piece)
        nimbus.finishBlobUpload(session)
    except BaseException:
        # Or what it was sent would take its space until it is forgotten.
        with suppress(StormkeeperError):
            nimbus.cancelBlobUpload(session)
        raise
    return size


def _entry(control: AccessControl) -> str:
    kind = "o" if control.type == AccessControlType.OTHER else "u"
    rights = "".join(letter if control.access & bit else "-" for bit, letter in _RIGHTS)
    return f"{kind}:{control.name or ''}:{rights}"
