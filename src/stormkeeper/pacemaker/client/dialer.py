"""Makes a TCP connection without blocking the thread that drives it.

A host that is an address is connected to without any wait. Looking up a name blocks for as long as
the resolver likes, so a thread of its own does that, one at a time, and lives no longer than that.
Where a name has several addresses they are tried in turn, and each attempt begins with another
one, so that an address that swallows everything does not hide the others.
"""

import errno
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]

_IN_PROGRESS = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY, errno.EINTR})


def resolve(host: str, port: int, flags: int) -> list[Candidate]:
    """Look up where to connect to, in the resolver's order; raises `OSError` alone."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        # A label of the name is empty, or longer than a name server could be asked for.
        raise socket.gaierror(socket.EAI_NONAME, f"no host name: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


class Dialer:
    """Makes one connection at a time; to be used by one thread.

    Parameters
    ----------
    host, port
        What to connect to.
    selector
        In which a socket is registered while it connects; `poll` is due when it is ready.
    wake
        Called, from another thread, when a name was looked up; `poll` is due then.
    name
        Of the thread that looks up names.
    resolve
        Looks up the addresses of a host; called with host, port and flags of ``getaddrinfo``.
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
        #: To which a connection is being made, or was made last.
        self._candidate: Candidate | None = None
        self._socket: socket.socket | None = None
        self._error: OSError | None = None
        self._lookup: threading.Thread | None = None
        #: Set by the looking-up thread, taken by `poll`.
        self._found: list[Candidate] | OSError | None = None

    def start(self, *, again: bool = False) -> None:
        """Begin an attempt; give up the one before.

        Parameters
        ----------
        again
            Connect to the address, and no other, to which the last connection was made.
        """
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
                    # No more threads, for now: this attempt fails.
                    self._error = OSError(errno.EAGAIN, f"no thread to look up its name: {error}")
                else:
                    self._lookup = lookup

    def poll(self) -> socket.socket | None:
        """Go on with the attempt; return the connection once it is made.

        Raises
        ------
        OSError
            If the name has no address or none of the addresses took the connection.
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
                    # TCP lets a socket connect to itself, when the kernel gives it the very port
                    # that it asks for: nobody listens there.
                    connected.close()
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
                return connected
            else:
                return None
        if self._lookup is None:
            raise self._error or OSError(errno.EADDRNOTAVAIL, "no address to connect to")
        return None

    def cancel(self) -> None:
        """Give up the attempt. A lookup under way serves the next one."""
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
            # The system has a limit on what is registered, too.
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
        # Whatever comes of it: a second time there is nothing to close.
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
            # Else the attempt would wait for ever.
            log.exception("looking up %s failed: this is a defect of Stormkeeper", self._host)
            self._found = OSError(errno.EIO, f"a defect of Stormkeeper, {type(error).__name__}")
        self._wake()
