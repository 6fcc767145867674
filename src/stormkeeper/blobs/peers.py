"""Who blobs are fetched from: other Nimbuses, and supervisors where no Nimbus has a blob.

A Nimbus is asked by two calls of its Thrift service, a supervisor over HTTP.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from stormkeeper.blobs.fetching import Download, Peers
from stormkeeper.conf import Address, Conf
from stormkeeper.errors import (
    PeerError,
    PeerUnavailableError,
    ProtocolError,
    RpcError,
    RpcUnavailableError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.rpc.calling import Client
from stormkeeper.thrift.nimbus import AuthorizationException, KeyNotFoundException, Nimbus


class NimbusPeer:
    """A Nimbus, ours or Storm's, that is called by `client`; see `stormkeeper.blobs.fetching.Peer`.

    The offset goes in a field of ours (id 1000), which Storm's Nimbus skips, and begins at 0.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:
        """See `stormkeeper.blobs.fetching.Peer.begin_blob_download`."""
        begun = self._call("beginBlobDownload", key, offset, timeout=timeout_secs)
        return Download(begun.version, begun.session, begun.data_size, begun.offset or 0)

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:
        """See `stormkeeper.blobs.fetching.Peer.download_blob_chunk`."""
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


#: Bytes that an answer of a supervisor may have.
_MOST_BYTES: Final = 2**20


class SupervisorPeer:
    """A supervisor that has a topology's code; see `stormkeeper.blobs.fetching.Peer`.

    Parameters
    ----------
    address
        Where it serves its workers' logs.
    storm_id, part, sha256
        Which part of which topology's code, and its checksum: without that it is not sent.
    """

    def __init__(self, address: Address, storm_id: str, part: str, sha256: str) -> None:
        self._address = address
        self._asked = {"topology": storm_id, "part": part, "sha256": sha256}
        self._start = 0

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:  # noqa: ARG002
        """See `stormkeeper.blobs.fetching.Peer.begin_blob_download`."""
        self._start = offset
        return Download(0, "", None, offset)

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:  # noqa: ARG002
        """See `stormkeeper.blobs.fetching.Peer.download_blob_chunk`."""
        path = f"/api/v1/code?{urlencode({**self._asked, 'start': self._start})}"
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
            said = body[:200].decode(errors="replace").strip()
            raise PeerError(f"{self._address}: {said or f'HTTP status {answer.status}'}")
        self._start += len(body)
        return body


def peers(conf: Conf) -> Peers:
    """Return what connects to the other Nimbuses of a cluster."""
    max_frame = conf["nimbus.thrift.max_buffer_size"]
    longest = conf["storm.thrift.socket.timeout.ms"] / 1000

    @contextmanager
    def connect(nimbus: NimbusId) -> Iterator[NimbusPeer]:
        address = Address(nimbus.host, nimbus.port)
        with Client(Nimbus, address, max_frame=max_frame, timeout=longest) as client:
            yield NimbusPeer(client)

    return connect
