"""A client's TCP connection: connecting without blocking, then bytes and messages, also over TLS.

A numeric address needs no lookup. A name is looked up in a short-lived thread, one lookup at a
time, as the resolver may block. The addresses of a name are tried in turn, and each attempt begins
with another one, so that an address that swallows packets does not hide the others.
"""

import errno
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from stormkeeper.errors import PacemakerUnavailableError, StormkeeperError, UntrustedServerError
from stormkeeper.pacemaker.client.client_tls import NO_ROOM, TlsStream, says_tls
from stormkeeper.pacemaker.wire import Message, PacemakerFrameSplitter, decode

log = logging.getLogger(__name__)

Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]

_IN_PROGRESS = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY, errno.EINTR})


#: Bytes read at once: small enough that malloc needs no system call.
_READ_SIZE: Final = 65_536

_WRITE_SIZE: Final = 1_048_576

_CLOSED: Final = "the server closed the connection"

_IN_WORDS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: _CLOSED,
    errno.ETIMEDOUT: "the network timed out",
}

_BY_PEER: Final = (errno.ECONNRESET, errno.EPIPE)


def resolve(host: str, port: int, flags: int) -> list[Candidate]:
    """Look up the addresses of a host, in the resolver's order; raises only `OSError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"no host name: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


class Dialer:
    """Makes a connection at a time; for a single thread.

    A connecting socket is registered in `selector`: call `poll` when the socket is ready, or after
    `wake`, which another thread calls at the end of a lookup.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        selector: selectors.BaseSelector,
        wake: Callable[[], None],
        name: str,
        resolve: Callable[[str, int, int], list[Candidate]] = resolve,
    ) -> None:
        self._host = host
        self._port = port
        self._selector = selector
        self._wake = wake
        self._name = name
        self._resolve = resolve
        self._attempts = 0
        self._candidates: list[Candidate] = []
        self._candidate: Candidate | None = None
        self._socket: socket.socket | None = None
        self._error: OSError | None = None
        self._lookup: threading.Thread | None = None
        #: Result of the lookup thread, taken by `poll`.
        self._found: list[Candidate] | OSError | None = None

    def start(self, *, again: bool = False) -> None:
        """Begin an attempt, with `again` to the last connection's address only."""
        self.cancel()
        self._error = None
        if again and self._candidate is not None:
            self._candidates = [self._candidate]
            return
        self._attempts += 1
        try:
            self._take(self._resolve(self._host, self._port, socket.AI_NUMERICHOST))
        except socket.gaierror:
            if self._lookup is None:
                self._found = None
                lookup = threading.Thread(target=self._look_up, name=self._name, daemon=True)
                try:
                    lookup.start()
                except RuntimeError as error:
                    self._error = OSError(errno.EAGAIN, f"no thread to look up its name: {error}")
                else:
                    self._lookup = lookup

    def poll(self) -> socket.socket | None:
        """Continue the attempt and return the socket once connected.

        Raises `OSError` if the name has no address or no address accepts the connection.
        """
        if self._lookup is not None and self._found is not None:
            found, self._found, self._lookup = self._found, None, None
            if isinstance(found, OSError):
                raise found
            self._take(found)
        while self._socket is not None or self._candidates:
            if self._socket is None:
                self._begin(self._candidates.pop(0))
                continue
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._abandon(OSError(error, os.strerror(error)))
            elif self._is_connected(self._socket):
                connected, self._socket = self._socket, None
                self._candidates = []
                self._selector.unregister(connected)
                if connected.getsockname() == connected.getpeername():
                    # TCP lets a socket connect to itself if the kernel assigns it the very port
                    # that it connects to.
                    connected.close()
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
                return connected
            else:
                return None
        if self._lookup is None:
            raise self._error or OSError(errno.EADDRNOTAVAIL, "no address to connect to")
        return None

    def cancel(self) -> None:
        """Give up the attempt; a running lookup serves the next attempt."""
        self._candidates = []
        self._close()

    def _take(self, found: list[Candidate]) -> None:
        first = (self._attempts - 1) % len(found) if found else 0
        self._candidates = found[first:] + found[:first]

    def _begin(self, candidate: Candidate) -> None:
        self._candidate = candidate
        family, address = candidate
        try:
            connecting = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._error = error
            return
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # May fail too, as the kernel limits registrations.
            self._selector.register(connecting, selectors.EVENT_WRITE)
        except OSError as error:
            connecting.close()
            self._error = error
            return
        self._socket = connecting
        error_number = connecting.connect_ex(address)
        if error_number not in _IN_PROGRESS:
            self._abandon(OSError(error_number, os.strerror(error_number)))

    def _abandon(self, error: OSError) -> None:
        self._error = error
        self._close()

    def _close(self) -> None:
        # Cleared first, so that a failure does not close the socket twice.
        gone, self._socket = self._socket, None
        if gone is not None:
            self._selector.unregister(gone)
            gone.close()

    def _is_connected(self, connecting: socket.socket) -> bool:
        try:
            connecting.getpeername()
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                return False
            raise
        return True

    def _look_up(self) -> None:
        try:
            self._found = self._resolve(self._host, self._port, 0)
        except OSError as error:
            self._found = error
        except BaseException as error:
            # Without a result the attempt would never end.
            log.exception("looking up %s failed with an internal error", self._host)
            self._found = OSError(errno.EIO, f"internal error, {type(error).__name__}")
        self._wake()


def describe_error(error: OSError) -> str:
    """Describe a socket's error."""
    if isinstance(error, socket.gaierror):  # has numbers of its own
        return f"the host's name could not be looked up: {error.strerror}"
    if error.errno in _IN_WORDS:
        return _IN_WORDS[error.errno]
    return error.strerror or str(error)


class PacemakerConnection:
    """Bytes and messages over a connected, non-blocking socket, with TLS if `stream` is given.

    Reading has three steps: `receive` from the socket, `decrypt`, `read_messages`. The caller
    guards `begin`, `send`, `flush` and `decrypt` with one lock; the other two belong to one thread.
    The caller closes the socket. Methods raise `PacemakerUnavailableError`, `RemoteProtocolError`
    or `UntrustedServerError`.
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
        self._splitter = PacemakerFrameSplitter(max_message_size)
        self._unsent = bytearray()
        self._has_heard = False

    @property
    def is_up(self) -> bool:
        """Whether messages may be sent: the TLS handshake, if any, is complete."""
        return self._stream is None or self._stream.is_up

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has bytes to send."""
        return bool(self._unsent)

    def begin(self) -> None:
        """Begin the TLS handshake, if any."""
        if self._stream is not None:
            self._put(self._stream.begin())

    def send(self, data: bytes) -> None:
        """Send frames as far as the kernel takes bytes, and keep the rest."""
        self._put(data if self._stream is None else self._stream.sealed(data))

    def flush(self) -> bool:
        """Send kept bytes; return whether the kernel took any."""
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
        """Return received bytes, or None."""
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

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt received bytes, and send the answers of TLS itself."""
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

    def read_messages(self, plain: bytes) -> tuple[list[Message], StormkeeperError | None]:
        """Return the messages that plain bytes complete, and the fault that follows, if any.

        The end of the stream over TLS is a fault too.
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
        reason = describe_error(error)
        return self._ended(reason) if error.errno in _BY_PEER else reason

    def _ended(self, reason: str) -> str:
        """Describe the end of a connection, with possible reasons if there was no answer."""
        if self._stream is not None:
            return self._stream.ended(reason)
        if self._has_heard:
            return reason
        return (
            f"{reason} before it answered; if it speaks TLS, set pacemaker.tls.enable to true; or"
            f" it {NO_ROOM}"
        )


log = logging.getLogger(__name__)
