"""Sends a package to Nimbus, in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Final

from stormkeeper.client.connection import Connection

#: Bytes of a piece: Storm's clients send as many.
_CHUNK: Final = 307_200
#: What of a message is left for all but the piece.
_BESIDE: Final = 4_096


def upload(
    connection: Connection,
    file: BinaryIO,
    *,
    max_frame: int,
    sent: Callable[[int], None] = lambda _sent: None,
) -> str:
    """Send a file, and return where Nimbus keeps it.

    Parameters
    ----------
    connection
        To the leading Nimbus.
    file
        From its beginning.
    max_frame
        The longest message, in bytes: ``nimbus.thrift.max_buffer_size``.
    sent
        Called with how many bytes have arrived.

    Raises
    ------
    RpcError
        If a piece does not arrive. What has arrived is removed by Nimbus in time.
    RefusedError
        If Nimbus does not want it.
    """
    nimbus = connection.nimbus
    location = nimbus.beginFileUpload()
    file.seek(0)
    arrived = 0
    while chunk := file.read(max(1, min(_CHUNK, max_frame - _BESIDE))):
        nimbus.uploadChunk(location, chunk)
        arrived += len(chunk)
        sent(arrived)
    nimbus.finishFileUpload(location)
    return location
