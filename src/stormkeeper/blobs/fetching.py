"""Fetches a blob from another Nimbus: in chunks, gone on with after an interruption, and checked.

What the bytes have to be is known before the first comes: the record in ZooKeeper has their
SHA-256. So it does not matter whom they come from, nor that a file was begun by another process
with the bytes of another peer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from stormkeeper import paths
from stormkeeper.blobs.drafts import Content, Draft
from stormkeeper.errors import PeerError, PeerUnavailableError
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blobs import BlobRecord

#: How long a peer may take for one answer.
ANSWER_SECS: Final = 10.0

#: A peer that has sent for so long must have sent so many bytes a second, or another is asked.
GRACE_SECS: Final = 30.0
SLOWEST: Final = 16 * 1024


class Download(NamedTuple):
    """A download that has begun: a ``BeginDownloadResult``."""

    #: The CRC-32C of the blob.
    version: int
    session: str
    #: The size of the whole blob in bytes; None where the peer does not say.
    size: int | None
    #: From which byte on it is sent. Storm's Nimbus knows no offsets, and sends all.
    offset: int


class Peer(Protocol):
    """Another Nimbus, as far as blobs are fetched from it.

    The calls are two of its Thrift service's, ``beginBlobDownload`` and ``downloadBlobChunk``.
    (``getBlobMeta`` is not needed: all it says is in the blob's record.) Each ends by its
    deadline, and raises `PeerUnavailableError` where the peer cannot be reached or does not answer,
    and `PeerError` where it has no such blob, or refuses.
    """

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:
        """Begin at a byte of the blob, or, where the peer knows no offsets, at the first."""
        ...

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:
        """Return the next bytes; none at the end."""
        ...


#: Connects to a Nimbus, for as long as the context lasts; raises `PeerUnavailableError`.
Peers = Callable[[NimbusId], AbstractContextManager[Peer]]


@dataclass(frozen=True)
class Patience:
    """How long a fetch is gone on with."""

    #: How long a peer may take for one answer.
    answer_secs: float = ANSWER_SECS
    #: Asked before each chunk is kept: whether to go on.
    is_wanted: Callable[[], bool] = lambda: True
    #: Seconds of a monotonic clock.
    clock: Callable[[], float] = time.monotonic


#: That of one who has nothing else to do.
PATIENCE: Final = Patience()


def fetch_from(
    peers: Peers,
    nimbus: str,
    key: str,
    record: BlobRecord,
    path: Path,
    *,
    patience: Patience = PATIENCE,
) -> Draft:
    """Connect to a Nimbus by its id, and `fetch` a blob from it."""
    nimbus_id = paths.parse_nimbus_id(nimbus)
    if nimbus_id is None:
        raise PeerUnavailableError(f"{nimbus!r} has {key}, and is no host:port of a Nimbus")
    with peers(nimbus_id) as peer:
        return fetch(peer, key, record, path, patience)


def fetch(
    peer: Peer, key: str, record: BlobRecord, path: Path, patience: Patience = PATIENCE
) -> Draft:
    """Gather the bytes of a blob in a file, from where an earlier try has left it.

    Parameters
    ----------
    peer
        Who has them.
    key, record
        The blob.
    path
        The file. After a `PeerError` it has what came so far, if that may be of use.
    patience
        How long to go on.

    Returns
    -------
    Draft
        The file, finished: it has the bytes that the record says.

    Raises
    ------
    PeerError
        The peer failed, is too slow, or has other bytes; or it is not wanted any more.
    BlobStorageError
        The disk did not take them; the file is removed.
    """
    draft = Draft(path)
    begun = draft.size
    try:
        if begun < record.size:
            _append(peer, key, record, draft, patience)
        is_right = draft.content() == Content(record.sha256, record.size)
        if is_right:
            draft.finish()
    except BaseException:
        draft.close()
        raise
    if is_right:
        return draft
    draft.discard()
    if begun:
        # Perhaps what was there is to blame.
        return fetch(peer, key, record, path, patience)
    raise PeerError(
        f"what was sent of {key} is not what was uploaded: its SHA-256 is not {record.sha256}"
    )


def _append(peer: Peer, key: str, record: BlobRecord, draft: Draft, patience: Patience) -> None:
    for chunk in _chunks(peer, key, record, draft.size, patience):
        if not patience.is_wanted():
            raise PeerError(f"{key} is not wanted any more")
        draft.write(chunk)
        if draft.size > record.size:
            return  # the checksum will tell
    if draft.size < record.size:
        raise PeerError(f"{key} ended after {draft.size} of {record.size} bytes")


def _chunks(
    peer: Peer, key: str, record: BlobRecord, offset: int, patience: Patience
) -> Iterator[bytes]:
    """Yield what a peer sends of a blob from a byte on, to the end, so that it can forget it."""
    began = patience.clock()
    download = peer.begin_blob_download(key, offset, patience.answer_secs)
    if download.size not in (None, record.size) or not 0 <= download.offset <= offset:
        raise PeerError(
            f"another version of {key} was to be sent: {download.size} bytes from byte"
            f" {download.offset} on, instead of {record.size} from {offset} on"
        )
    known = offset - download.offset
    received = 0
    while chunk := peer.download_blob_chunk(download.session, patience.answer_secs):
        received += len(chunk)
        skipped = min(known, len(chunk))
        known -= skipped
        yield chunk[skipped:]
        passed = patience.clock() - began
        is_slow = passed > GRACE_SECS and received < passed * SLOWEST
        if is_slow and download.offset + received < record.size:
            raise PeerError(
                f"{key} comes too slowly: {received} bytes in {passed:.0f} s, and {SLOWEST} a"
                " second is the least"
            )
