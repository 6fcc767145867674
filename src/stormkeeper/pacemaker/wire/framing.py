"""Pacemaker's frames: how large they may be, and what a bad length tells."""

from typing import Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.messages import DEFAULT_MAX_SIZE
from stormkeeper.thrift import framing

#: A TLS record of the handshake, of whichever version.
_TLS_HANDSHAKE: Final = b"\x16\x03"
#: How requests to a web server begin, as somebody sends them who looks for the metrics; and how its
#: answers do, as they come to a client that was told the metrics' port.
_HTTP: Final = (b"GET ", b"HEAD", b"POST")
_HTTP_ANSWER: Final = b"HTTP"


class FrameSplitter(framing.FrameSplitter):
    """Cuts a stream of bytes, however it is chopped, into the payloads of Pacemaker's frames.

    Parameters
    ----------
    max_size
        The largest payload that is accepted, in bytes.
    """

    __slots__ = ()

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE) -> None:
        super().__init__(max_size, bad_length)


def bad_length(length: int, max_size: int) -> RemoteProtocolError:
    """Return the fault of a frame whose length is negative or above `max_size`."""
    raw = length.to_bytes(4, "big", signed=True)
    hint = ""
    if raw.startswith(_TLS_HANDSHAKE):
        hint = "; this is how TLS begins: set pacemaker.tls.enable alike at both ends"
    elif raw.startswith(_HTTP):
        hint = "; this is HTTP, which is answered on pacemaker.metrics.port, where that is set"
    elif raw.startswith(_HTTP_ANSWER):
        hint = "; this is HTTP: no port for heartbeats, but perhaps a pacemaker.metrics.port"
    return RemoteProtocolError(
        f"frame of {length} bytes announced (by the bytes {raw!r}); a length is 0 to"
        f" {max_size}, pacemaker.thrift.message.size.max{hint}"
    )
