"""A few pages over HTTP, such as a daemon's metrics and health, in the daemon's event loop.

The rules that hold here:

- The daemon's own work comes first. A connection carries one request, and has `DEADLINE` seconds
  and `MAX_REQUEST` bytes for it. There are at most `MAX_CONNECTIONS` at a time. One more takes the
  place of the oldest, so that slow clients keep nobody out.
- After each request, no connection is accepted for `_REST` times as long as the request took, and
  `_LONG_REST` seconds at most: on a busy machine requests take long through no fault of theirs. So
  a client that asks all the time takes less than a tenth of the daemon's time, connecting included.
- Pages are made when they are asked for, by plain functions that neither block nor wait. Those that
  read files belong into an endpoint with a thread of its own (`http_thread`).

HTTP itself, RFC 9112, is h11's.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

import h11

from stormkeeper.daemon.listening import address_of

_log = logging.getLogger(__name__)

#: Seconds from the beginning of a connection to its end, and the reading of the answer.
DEADLINE: Final = 5.0
#: Bytes of a request's line and headers; Prometheus sends some 400.
MAX_REQUEST: Final = 16_384
#: Connections at a time.
MAX_CONNECTIONS: Final = 16

_BACKLOG: Final = 16
_REST: Final = 20
#: The shortest rest, in seconds.
_LEAST_REST: Final = 0.005
#: The longest, and that when the system has no more descriptors.
_LONG_REST: Final = 1.0

TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """What a page says at the moment; `status` is HTTP's."""

    status: int
    body: bytes
    content_type: str = TEXT
    #: Further headers, with their values.
    headers: tuple[tuple[str, str], ...] = ()


#: What makes pages, by their paths.
Pages = Mapping[str, Callable[[str], Page]]


class HttpEndpoint:
    """Serves pages on one socket, from the running event loop, until it is closed.

    Parameters
    ----------
    listener
        A socket that listens and does not block; it is closed with the endpoint.
    pages
        What makes each page, by its path. Called with the request's ``Accept`` header, empty where
        there was none.
    queries
        What makes the page that answers a query, by its path. Called with what stands behind the
        question mark, as it came; empty where nothing does.
    """

    def __init__(
        self,
        listener: socket.socket,
        pages: Pages,
        queries: Pages = MappingProxyType({}),
    ) -> None:
        self._listener = listener
        self._pages = pages
        self._queries = queries
        #: The oldest first.
        self._connections: dict[_Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._rest = _LEAST_REST
        self._is_closed = False
        self._loop.add_reader(listener, self._accept)

    @property
    def address(self) -> str:
        """``HOST:PORT``, with the real port; IPv6 in brackets."""
        return address_of(self._listener)

    def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()

    def answer(self, request: h11.Request) -> Page:
        """Make the page that a request asks for, or the one that says why there is none."""
        target, _, query = request.target.partition(b"?")
        path = target.decode("ascii", "replace")
        page = self._pages.get(path) or self._queries.get(path)
        if page is None:
            names = " ".join(sorted([*self._pages, *self._queries]))
            return refusal(HTTPStatus.NOT_FOUND, f"there are {names}")
        if request.method not in (b"GET", b"HEAD"):
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, "pages can be read, with GET or HEAD")
        accept = b",".join(value for name, value in request.headers if name == b"accept")
        try:
            return page((accept if path in self._pages else query).decode("latin-1"))
        except Exception:
            _log.exception("cannot make %s: an error of this server", path)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "see this server's log")

    def took(self, secs: float) -> None:
        """Note how long a request took, and rest accordingly from the next connection on."""
        self._rest = min(max(_LEAST_REST, _REST * secs), _LONG_REST)

    def add(self, connection: "_Connection") -> None:
        """Take in a connection, in place of the oldest if there are enough."""
        while len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self.discard(oldest)
            oldest.transport.abort()
        self._connections[connection] = None

    def discard(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    def _accept(self) -> None:
        rest = self._rest
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError:  # no descriptor is left, and who asks waits in the backlog
            rest = _LONG_REST
        else:
            accepted.setblocking(False)
            task = self._loop.create_task(self._adopt(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(rest, self._accept_again)

    def _accept_again(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    async def _adopt(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: _Connection(self), accepted)
        except OSError:  # reset by the client before it was served
            accepted.close()


class _Connection(asyncio.Protocol):
    """One request and its answer; then the connection is closed."""

    transport: asyncio.Transport

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
        self._is_head = self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._timer = asyncio.get_running_loop().call_later(DEADLINE, transport.abort)
        self._endpoint.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's interface
        self._timer.cancel()
        self._endpoint.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._take(data)
        self._endpoint.took(loop.time() - started)

    def _take(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._send(refusal(error.error_status_hint, str(error)))
            return
        if isinstance(event, h11.Request):
            self._is_head = event.method == b"HEAD"
            self._send(self._endpoint.answer(event))
        elif event is not h11.NEED_DATA:
            self.transport.close()

    def _send(self, page: Page) -> None:
        """Write the answer and half-close; what the client still sends is dropped."""
        self._is_answered = True
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
            *page.headers,
        ]
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        reason = HTTPStatus(page.status).phrase
        # A request that is no HTTP cannot be answered in the order that HTTP wants.
        with contextlib.suppress(h11.LocalProtocolError):
            head = self._http.send(
                h11.Response(status_code=page.status, headers=headers, reason=reason)
            )
            self.transport.write((head or b"") + (b"" if self._is_head else page.body))
        # Closed at once with something unread, the connection would be reset, and the answer lost.
        self.transport.write_eof()


def refusal(status: int, reason: str) -> Page:
    """Return a page that says why there is none."""
    phrase = HTTPStatus(status).phrase
    return Page(status, f"{phrase}: {reason}\n".encode())
