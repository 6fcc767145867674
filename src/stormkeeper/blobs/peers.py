"""Fetches blobs from other Nimbuses over Thrift, or from supervisors over HTTP.

ZooKeeper has the SHA-256 of a blob before the first byte arrives, so any peer can send the bytes,
or the rest of a partial file.
"""

from __future__ import annotations

import http.client
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode

from stormkeeper import paths
from stormkeeper.blobs import keys
from stormkeeper.blobs.drafts import Content, Draft, disk_errors
from stormkeeper.conf import Address, Conf
from stormkeeper.daemon.durable import sync_folder
from stormkeeper.errors import (
    BlobNotFoundError,
    PeerError,
    PeerUnavailableError,
    ProtocolError,
    RpcError,
    RpcUnavailableError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.rpc.service_client import ServiceClient
from stormkeeper.state.storm.blob_records import BlobEntry, BlobRecord
from stormkeeper.state.storm.cluster import StormReads
from stormkeeper.thrift.nimbus import AuthorizationException, KeyNotFoundException, Nimbus

#: Timeout of one answer of a peer.
ANSWER_SECS: Final = 10.0

#: After the grace period, a peer that sends fewer bytes a second is given up.
GRACE_SECS: Final = 30.0
SLOWEST: Final = 16 * 1024

#: Of one answer of a supervisor.
_MOST_BYTES: Final = 2**20


class Download(NamedTuple):
    """A download that has begun: a ``BeginDownloadResult``."""

    #: The CRC-32C of the blob.
    version: int
    session: str
    #: Of the whole blob; None if unknown.
    size: int | None
    #: The first byte sent. Storm's Nimbus knows no offsets and sends the whole blob.
    offset: int


class Peer(Protocol):
    """A source of blobs, with two calls of Nimbus's Thrift service.

    Each call raises `PeerUnavailableError` without an answer in time, and `PeerError` for a refusal
    or a missing blob.
    """

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:
        """Begin at a byte of the blob, or at the first if the peer knows no offsets."""
        ...

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:
        """Return the next bytes; none at the end."""
        ...


#: Connects to a Nimbus while the context lasts; raises `PeerUnavailableError`.
PeerConnector = Callable[[NimbusId], AbstractContextManager[Peer]]


def peer_connector(conf: Conf) -> PeerConnector:
    max_frame = conf["nimbus.thrift.max_buffer_size"]
    longest = conf["storm.thrift.socket.timeout.ms"] / 1000

    @contextmanager
    def connect(nimbus: NimbusId) -> Iterator[NimbusPeer]:
        address = Address(nimbus.host, nimbus.port)
        with ServiceClient(Nimbus, address, max_frame=max_frame, timeout=longest) as client:
            yield NimbusPeer(client)

    return connect


class NimbusPeer:
    """A Nimbus as a `Peer`; the offset is a field of ours (id 1000), which Storm's skips."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:
        begun = self._call("beginBlobDownload", key, offset, timeout=timeout_secs)
        return Download(begun.version, begun.session, begun.data_size, begun.offset or 0)

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:
        chunk: bytes = self._call("downloadBlobChunk", session, timeout=timeout_secs)
        return chunk

    def _call(self, name: str, *arguments: Any, timeout: float) -> Any:
        try:
            return self._client.call(name, *arguments, timeout=timeout)
        except RpcUnavailableError as error:
            raise PeerUnavailableError(str(error)) from error
        except (RpcError, ProtocolError) as error:
            raise PeerError(str(error)) from error
        except (AuthorizationException, KeyNotFoundException) as error:
            raise PeerError(f"{self._client.address}: {name}: {error.msg}") from error


class SupervisorPeer:
    """A supervisor's HTTP server, with one part of a topology's code, as a `Peer`.

    The supervisor sends nothing without the part's SHA-256 in the request.
    """

    def __init__(self, address: Address, storm_id: str, part: str, sha256: str) -> None:
        self._address = address
        self._query = {"topology": storm_id, "part": part, "sha256": sha256}
        self._start = 0

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:  # noqa: ARG002
        self._start = offset
        return Download(0, "", None, offset)

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:  # noqa: ARG002
        path = f"/api/v1/code?{urlencode({**self._query, 'start': self._start})}"
        client = http.client.HTTPConnection(
            self._address.host, self._address.port, timeout=timeout_secs
        )
        try:
            with closing(client):
                client.request("GET", path, headers={"Connection": "close"})
                answer = client.getresponse()
                if answer.length is None or answer.length > _MOST_BYTES:
                    raise PeerError(f"{self._address}: not an answer of a supervisor")
                body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise PeerUnavailableError(f"{self._address}: {error}") from error
        if answer.status != HTTPStatus.OK:
            text = body[:200].decode(errors="replace").strip()
            raise PeerError(f"{self._address}: {text or f'HTTP status {answer.status}'}")
        self._start += len(body)
        return body


@dataclass(frozen=True)
class FetchLimits:
    """When to give up a fetch."""

    answer_secs: float = ANSWER_SECS
    #: Called before each chunk is written; False ends the fetch.
    is_wanted: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic


DEFAULT_LIMITS: Final = FetchLimits()


def fetch_from(
    peers: PeerConnector,
    nimbus: str,
    key: str,
    record: BlobRecord,
    path: Path,
    *,
    limits: FetchLimits = DEFAULT_LIMITS,
) -> Draft:
    """Connect to a Nimbus by its id, and `fetch` a blob from it."""
    nimbus_id = paths.parse_nimbus_id(nimbus)
    if nimbus_id is None:
        raise PeerUnavailableError(f"{key} is announced by {nimbus!r}, which is not a host:port")
    with peers(nimbus_id) as peer:
        return fetch(peer, key, record, path, limits)


def fetch(
    peer: Peer, key: str, record: BlobRecord, path: Path, limits: FetchLimits = DEFAULT_LIMITS
) -> Draft:
    """Download a blob into a file, continuing a partial file; return the file, finished.

    Raises `PeerError` if the peer fails, is too slow or has other bytes, or the blob is not wanted
    any more; a useful partial file stays.
    """
    draft = Draft(path)
    begun = draft.size
    try:
        if begun < record.size:
            _append(peer, key, record, draft, limits)
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
        # The partial file may be to blame: once more from the first byte.
        return fetch(peer, key, record, path, limits)
    raise PeerError(
        f"the peer sent other bytes of {key} than were uploaded: the SHA-256 is not {record.sha256}"
    )


def _append(peer: Peer, key: str, record: BlobRecord, draft: Draft, limits: FetchLimits) -> None:
    """Append the rest of a blob, to the peer's end of it, so that the peer's session ends."""
    began, offset = limits.clock(), draft.size
    download = peer.begin_blob_download(key, offset, limits.answer_secs)
    if download.size not in (None, record.size) or not 0 <= download.offset <= offset:
        raise PeerError(
            f"the peer has another version of {key}: {download.size} bytes from byte"
            f" {download.offset} on, instead of {record.size} from {offset} on"
        )
    known = offset - download.offset
    received = 0
    while chunk := peer.download_blob_chunk(download.session, limits.answer_secs):
        if not limits.is_wanted():
            raise PeerError(f"{key} is not wanted any more")
        received += len(chunk)
        skipped = min(known, len(chunk))
        known -= skipped
        draft.write(chunk[skipped:])
        if draft.size > record.size:
            return  # the checksum will be wrong
        passed = limits.clock() - began
        is_slow = passed > GRACE_SECS and received < passed * SLOWEST
        if is_slow and download.offset + received < record.size:
            raise PeerError(
                f"{key} comes too slowly: {received} bytes in {passed:.0f} s; the least is"
                f" {SLOWEST} a second"
            )
    if draft.size < record.size:
        raise PeerError(f"{key} ended after {draft.size} of {record.size} bytes")


def deliver(
    storm: StormReads,
    peers: PeerConnector,
    topology_id: str,
    folder: Path,
    *,
    limits: FetchLimits = DEFAULT_LIMITS,
) -> list[Path]:
    """Put the newest code of a topology into a folder, all or nothing; return the files.

    A hidden folder beside it gathers the files, survives a failure, and is then renamed. One
    process at a time may deliver to a folder. Raises `BlobNotFoundError` if no Nimbus ever had the
    code, `PeerError` if no live Nimbus can send it.
    """
    keys.check(topology_id)
    blobs = keys.of_topology(topology_id)
    entries = storm.blobs(blobs)
    gathered = folder.with_name(f".{folder.name}.part")
    with disk_errors(folder.parent, "make a folder for code"):
        gathered.mkdir(mode=0o700, parents=True, exist_ok=True)
    for key, part in zip(blobs, keys.PARTS, strict=True):
        _gather(peers, key, entries.get(key), gathered / part, limits)
    old = folder.with_name(f".{folder.name}.old")
    with disk_errors(folder.parent, f"put code into {folder.name}"):
        sync_folder(gathered)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        gathered.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    return [folder / part for part in keys.PARTS]


def _gather(
    peers: PeerConnector,
    key: str,
    entry: BlobEntry | None,
    path: Path,
    limits: FetchLimits,
) -> None:
    if entry is None or entry.record is None:
        raise BlobNotFoundError(f"no Nimbus has ever had {key}: was its topology submitted?")
    failures = []
    for nimbus in entry.alive:
        try:
            fetch_from(peers, nimbus, key, entry.record, path, limits=limits)
        except PeerError as error:
            failures.append(f"{nimbus}: {error}")
        else:
            return
    raise PeerError(
        f"{key} could not be fetched from any Nimbus ({'; '.join(failures)})"
        if failures
        else f"no live Nimbus has {key}: {', '.join(entry.held)} had it last"
    )
