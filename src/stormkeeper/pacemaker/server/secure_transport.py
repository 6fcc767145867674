"""TLS over a transport of asyncio, with a small buffer for each connection.

What ``loop.start_tls`` does, which has no word for the size of the buffer: asyncio makes one of
256 KiB for every connection, all of it touched, and a Pacemaker has thousands. So its protocol is
used here by name, which the documentation of asyncio does not mention. Nothing of it is changed for
others in the process, and no underscore of it is used; its attribute `max_size`, its arguments and
what every `asyncio.BufferedProtocol` has are, and the tests of this module fail if they change.
"""

import asyncio
import ssl
from asyncio import sslproto
from typing import Final

#: Bytes that are decrypted at a time: a record has no more.
TLS_BYTES: Final = 16_384


#: A fatal alert, protocol_version (RFC 8446 §6): what a client that speaks no TLS is told, since
#: OpenSSL tells it nothing. One of ours knows by it that another try is in vain.
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x46"

#: How TLS begins: with a record of the type handshake, or, in the form of SSL 2, a length with this
#: bit.
_HANDSHAKE: Final = 0x16
_SSL_2: Final = 0x80


class _SmallTls(sslproto.SSLProtocol):
    max_size = TLS_BYTES
    #: The connection, until the client has sent something.
    below: asyncio.Transport | None = None
    #: Where that is put.
    taken: memoryview

    def get_buffer(self, n: int) -> memoryview:
        self.taken = super().get_buffer(n)
        return self.taken

    def buffer_updated(self, nbytes: int) -> None:
        if self.below is not None:
            if self.taken[0] != _HANDSHAKE and self.taken[0] < _SSL_2:
                self.below.write(_ALERT)
            self.below = None
        super().buffer_updated(nbytes)


async def secure(
    below: asyncio.Transport,
    protocol: asyncio.BufferedProtocol,
    context: ssl.SSLContext,
    *,
    handshake_timeout: float,
    shutdown_timeout: float,
) -> None:
    """Speak TLS on a connection, as its server; return when the client has done its part.

    Parameters
    ----------
    below
        The connection, which is not read from; it is from now on.
    protocol
        Is given, by then, a transport with the extra information ``ssl_object``.
    context
        How TLS is spoken.
    handshake_timeout, shutdown_timeout
        Seconds for TLS to begin, and to end.

    Raises
    ------
    OSError
        If it did not come to that; the connection is closed.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    tls = _SmallTls(
        loop,
        protocol,
        context,
        done,
        server_side=True,
        ssl_handshake_timeout=handshake_timeout,  # type: ignore[arg-type]  # as start_tls does
        ssl_shutdown_timeout=shutdown_timeout,
    )
    tls.below = below
    below.set_protocol(tls)
    tls.connection_made(below)
    below.resume_reading()
    try:
        await done
    except BaseException:
        below.close()
        raise
