"""One connection of a client: bytes and messages over a socket, in the clear or over TLS.

The socket is non-blocking. What the kernel has no room for is kept and sent by `flush`. Reading is
in three steps, as only the middle one touches what sending touches too: `receive` takes bytes from
the socket, `opened` decrypts them, `messages` makes messages of them. The caller guards `begin`,
`send`, `flush` and `opened` with one lock; `receive` and `messages` belong to one thread.

Everything raises what a client's caller is to be told: `PacemakerUnavailableError`,
`RemoteProtocolError`, `UntrustedServerError`.
"""

import errno
import socket
from typing import Final

from stormkeeper.errors import PacemakerUnavailableError, StormkeeperError, UntrustedServerError
from stormkeeper.pacemaker.client.client_tls import NO_ROOM, TlsStream, says_tls
from stormkeeper.pacemaker.wire import FrameSplitter, Message, decode

#: Bytes read at once: many small answers, and small enough that malloc asks no system call for it.
_READ_SIZE: Final = 65_536

#: Bytes offered to the kernel at once from what it had no room for.
_WRITE_SIZE: Final = 1_048_576

_CLOSED: Final = "the server closed the connection"

_IN_WORDS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: _CLOSED,
    errno.ETIMEDOUT: "the network timed out",
}

#: The errors by which a socket tells that the peer has ended the connection.
_BY_PEER: Final = (errno.ECONNRESET, errno.EPIPE)


def in_words(error: OSError) -> str:
    """Say what a socket's error means."""
    if isinstance(error, socket.gaierror):  # whose numbers are others
        return f"the host's name could not be looked up: {error.strerror}"
    if error.errno in _IN_WORDS:
        return _IN_WORDS[error.errno]
    return error.strerror or str(error)


class Connection:
    """A connection.

    Parameters
    ----------
    connected
        Its socket, connected and non-blocking; stays the caller's, who closes it.
    peer
        The server's name in messages.
    max_message_size
        Largest payload that is accepted, in bytes.
    stream
        TLS on it; None for plain TCP.
    """

    __slots__ = ("_has_heard", "_peer", "_splitter", "_stream", "_unsent", "socket")

    def __init__(
        self,
        connected: socket.socket,
        *,
        peer: str,
        max_message_size: int,
        stream: TlsStream | None,
    ) -> None:
        self.socket = connected
        self._peer = peer
        self._stream = stream
        self._splitter = FrameSplitter(max_message_size)
        #: Bytes that the kernel had no room for.
        self._unsent = bytearray()
        #: Whether anything came.
        self._has_heard = False

    @property
    def is_up(self) -> bool:
        """Whether messages may be sent: TLS, if it is spoken, has made sure of the server."""
        return self._stream is None or self._stream.is_up

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._unsent)

    def begin(self) -> None:
        """Begin with TLS, if it is spoken."""
        if self._stream is not None:
            self._put(self._stream.begin())

    def send(self, data: bytes) -> None:
        """Send frames, as far as the kernel takes them at once."""
        self._put(data if self._stream is None else self._stream.sealed(data))

    def flush(self) -> bool:
        """Send what is left; return whether the peer took any of it."""
        try:
            with memoryview(self._unsent) as unsent:
                sent = self.socket.send(unsent[:_WRITE_SIZE])
        except BlockingIOError:
            return False
        except OSError as error:
            raise PacemakerUnavailableError(self._broken(error)) from error
        del self._unsent[:sent]
        return True

    def receive(self) -> bytes | None:
        """Return what came; None if nothing did."""
        try:
            data = self.socket.recv(_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise PacemakerUnavailableError(self._broken(error)) from error
        if not data:
            raise PacemakerUnavailableError(self._ended(_CLOSED))
        if self._stream is None and not self._has_heard and says_tls(data):
            raise UntrustedServerError(
                f"{self._peer} speaks TLS, and this client does not: set pacemaker.tls.enable to"
                " true"
            )
        self._has_heard = True
        return data

    def opened(self, data: bytes) -> bytes:
        """Return the plain bytes in what came; send what TLS itself has to answer."""
        stream = self._stream
        if stream is None:
            return data
        try:
            plain, answer = stream.received(data)
        except StormkeeperError:
            self._put(stream.farewell())
            raise
        self._put(answer)
        return plain

    def messages(self, plain: bytes) -> tuple[list[Message], StormkeeperError | None]:
        """Return the messages that plain bytes complete, and what is wrong with what follows.

        That nothing follows, as the peer has said over TLS, is such a fault too.
        """
        messages: list[Message] = []
        try:
            for payload in self._splitter.feed(plain):
                messages.append(decode(payload))
        except StormkeeperError as error:
            return messages, error
        fault: StormkeeperError | None = self._splitter.fault
        if fault is None and self._stream is not None and self._stream.is_ended:
            fault = PacemakerUnavailableError(self._ended(_CLOSED))
        return messages, fault

    def _put(self, data: bytes) -> None:
        sent = 0
        if data and not self._unsent:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                raise PacemakerUnavailableError(self._broken(error)) from error
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def _broken(self, error: OSError) -> str:
        """Say what it means that the socket failed."""
        reason = in_words(error)
        return self._ended(reason) if error.errno in _BY_PEER else reason

    def _ended(self, reason: str) -> str:
        """Say that the peer ended the connection, and what it may mean that nothing came on it."""
        if self._stream is not None:
            return self._stream.ended(reason)
        if self._has_heard:
            return reason
        return (
            f"{reason} before it answered; if it speaks TLS, set pacemaker.tls.enable to true; or"
            f" it {NO_ROOM}"
        )
