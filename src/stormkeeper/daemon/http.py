"""Pages over HTTP, such as a daemon's metrics and health, in an event loop or thread.

- The daemon's own work comes first: a connection carries a single request, limited in size and
  time, and then the endpoint rests `_REST` times as long as the request took.
- Addresses take turns. At a limit, a new connection replaces the oldest, preferably one without a
  whole request, so that slow clients lock no others out.
- Plain functions make pages; one that reads files belongs in an `HttpThread`.

h11 speaks the protocol (RFC 9112).
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import h11
import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stormkeeper.daemon.sockets import Acceptor, Places, address_of, network_of

_log = logging.getLogger(__name__)

#: Seconds from a connection to the request, and to read the answer.
DEADLINE: Final = 5.0
#: Bytes of request line and headers; Prometheus sends about 400.
MAX_REQUEST: Final = 16_384
MAX_CONNECTIONS: Final = 64
MAX_PER_ADDRESS: Final = 32

_REST: Final = 10
#: Rest after a connection, in seconds.
_LEAST_REST: Final = 0.01
#: Longest rest after a request, in seconds.
_LONG_REST: Final = 1.0

TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """The answer to a request, with HTTP's `status`."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Pages = Mapping[str, Callable[[str], Page]]


class HttpEndpoint:
    """Serves pages on a non-blocking listening socket, in the running event loop.

    `pages` are functions of the ``Accept`` header or "", by path; `queries` get the raw query
    string.
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
        self._places: Places[_Connection] = Places(MAX_CONNECTIONS, MAX_PER_ADDRESS)
        self._connections: set[_Connection] = set()
        #: Waiting requests by network, in order of turns.
        self._waiting: dict[str, deque[tuple[_Connection, h11.Request]]] = {}
        self._is_free = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._acceptor = Acceptor(listener, self._welcome, lambda: None, at_once=1)
        self._acceptor.start()

    @property
    def address(self) -> str:
        """``HOST:PORT``, with the real port; IPv6 in brackets."""
        return address_of(self._listener)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._acceptor.stop()
        for connection in list(self._connections):
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()

    def answer(self, request: h11.Request) -> Page:
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

    def add(self, connection: "_Connection") -> None:
        """Record a connection; may close an old connection."""
        address = connection.address
        while self._places.refuses(address, len(self._connections)):
            oldest = self._places.given_up(
                address, len(self._connections), lambda each: not each.is_waiting
            ) or self._places.given_up(address, len(self._connections))
            if oldest is None:
                break
            self.discard(oldest)
            oldest.transport.abort()
        self._connections.add(connection)
        self._places.take(connection, address)

    def discard(self, connection: "_Connection") -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._places.leave(connection, connection.address)

    def ask(self, connection: "_Connection", request: h11.Request) -> None:
        """Queue a request until the turn of the address."""
        self._waiting.setdefault(network_of(connection.address), deque()).append(
            (connection, request)
        )
        if self._is_free:
            self._serve()

    def _serve(self) -> None:
        self._is_free = True
        while self._waiting and not self._is_closed:
            network, requests = next(iter(self._waiting.items()))
            del self._waiting[network]
            connection, request = requests.popleft()
            if requests:
                self._waiting[network] = requests
            if connection not in self._connections:
                continue
            self._is_free = False
            started = self._loop.time()
            try:
                connection.send(self.answer(request))
            except OSError:  # the client has reset the connection
                connection.transport.abort()
            finally:
                took = self._loop.time() - started
                self._loop.call_later(min(_REST * took, _LONG_REST), self._serve)
            return

    def _welcome(self, accepted: socket.socket, address: str, _port: int) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._adopt(accepted, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._acceptor.pause(_LEAST_REST)

    async def _adopt(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: _Connection(self, address), accepted)
        except OSError:  # the client has reset the connection
            accepted.close()


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, endpoint: HttpEndpoint, address: str) -> None:
        self.address = address
        self.is_waiting = False
        self._endpoint = endpoint
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
        self._is_head = self._has_asked = self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._limit_time()
        self._endpoint.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's interface
        self._timer.cancel()
        self._endpoint.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._has_asked:
            return
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self.send(refusal(error.error_status_hint, str(error)))
            return
        if isinstance(event, h11.Request):
            self._is_head = event.method == b"HEAD"
            self._has_asked = self.is_waiting = True
            self._timer.cancel()
            self._endpoint.ask(self, event)
        elif event is not h11.NEED_DATA:
            self.transport.close()

    def eof_received(self) -> bool:
        self._has_ended = True
        return self.is_waiting

    def _limit_time(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DEADLINE, self.transport.abort)

    def send(self, page: Page) -> None:
        """Write the answer and half-close; drop further input."""
        self._has_asked, self.is_waiting = True, False
        self._timer.cancel()
        self._limit_time()
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
        # h11 refuses to answer a request that is no HTTP.
        with contextlib.suppress(h11.LocalProtocolError):
            head = self._http.send(
                h11.Response(status_code=page.status, headers=headers, reason=reason)
            )
            self.transport.write((head or b"") + (b"" if self._is_head else page.body))
        if self._has_ended:
            self.transport.close()
        else:
            # A close with unread data would reset the connection and lose the answer.
            self.transport.write_eof()


def refusal(status: int, reason: str) -> Page:
    phrase = HTTPStatus(status).phrase
    return Page(status, f"{phrase}: {reason}\n".encode())


_PATIENCE: Final = 5.0


class HttpThread:
    """Serves pages as `HttpEndpoint` does, in a separate thread, while entered."""

    def __init__(
        self, listener: socket.socket, pages: Pages, queries: Pages = MappingProxyType({})
    ) -> None:
        self._listener = listener
        self._pages = pages
        self._queries = queries
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        endpoint = HttpEndpoint(self._listener, self._pages, self._queries)
        await self._is_over.wait()
        endpoint.close()
        await asyncio.sleep(0)  # for the ends of connections


_FILES: Final = "/proc/self/fd"


def metrics_page(*collectors: Collector) -> Callable[[str], Page]:
    """Return a page of metrics, also of this process, in the client's format."""
    # Our own registry adds no exemplars and no creation times.
    registry = CollectorRegistry(auto_describe=False)
    for collector in (*collectors, ProcessMetrics()):
        registry.register(collector)

    def page(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(200, encode(registry), content_type)

    return page


def figure(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    prefix: str,
    name: str,
    text: str,
    value: float | Mapping[Any, float | None],
    *labels: str,
) -> Metric:
    """Return a metric of one or several values."""
    if not isinstance(value, Mapping):
        return kind(f"{prefix}{name}", text, float(value))
    family = kind(f"{prefix}{name}", text, labels=labels)
    for texts, each in value.items():
        if each is not None:
            family.add_metric([texts] if isinstance(texts, str) else texts, each)
    return family


def health_page(find_fault: Callable[[], str | None], healthy: str = "ok") -> Callable[[str], Page]:
    """Return a page with status 200 and `healthy`, or 503 and the fault."""

    def page(_: str) -> Page:
        fault = find_fault()
        return Page(200 if fault is None else 503, f"{fault or healthy}\n".encode())

    return page


class ProcessMetrics(Collector):
    """Memory, CPU time, open files and start time of this process, by Prometheus's usual names.

    prometheus-client's collector lists open files, which stops a daemon with thousands of
    connections for milliseconds.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()

    def collect(self) -> Iterator[Metric]:
        """Read the figures, in 0.5 ms."""
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
            started = self._process.create_time()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = float("inf") if soft == resource.RLIM_INFINITY else soft
        spent = times.user + times.system
        yield CounterMetricFamily(
            "process_cpu_seconds", "Processor time spent, in user and system mode.", spent
        )
        for name, text, value in (
            ("start_time_seconds", "When the process began, since the epoch.", started),
            ("virtual_memory_bytes", "Size of the address space.", memory.vms),
            ("resident_memory_bytes", "Memory that is resident.", memory.rss),
            ("open_fds", "Open file descriptors.", open_files()),
            ("max_fds", "File descriptors that may be open.", most),
        ):
            yield GaugeMetricFamily(f"process_{name}", text, value)


def open_files() -> int:
    # Since Linux 6.2 the directory's size is their number.
    return os.stat(_FILES).st_size or len(os.listdir(_FILES)) - 1  # noqa: PTH116, PTH208
