"""Other Nimbuses, as blobs are fetched from them: two calls of their Thrift service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stormkeeper.code.fetching import Download, Peers
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
    """A Nimbus, ours or Storm's, that is called by `client`; see `stormkeeper.code.fetching.Peer`.

    The offset goes in a field of ours (id 1000), which Storm's Nimbus skips, and begins at 0.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:
        """See `stormkeeper.code.fetching.Peer.begin_blob_download`."""
        begun = self._call("beginBlobDownload", key, offset, timeout=timeout_secs)
        return Download(begun.version, begun.session, begun.data_size, begun.offset or 0)

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:
        """See `stormkeeper.code.fetching.Peer.download_blob_chunk`."""
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
