"""The endpoint over real sockets, in a loop of the test's own."""

import asyncio
import contextlib
import errno
import http.client
import socket
import threading
import time

import pytest

from stormkeeper.daemon import http as endpoint_module
from stormkeeper.daemon.http import MAX_PER_ADDRESS, HttpEndpoint, HttpThread, Page
from stormkeeper.daemon.sockets import address_of, listen
from support.waiting import DEADLINE_SECS, until

SLOW_SECS = 0.02
PAGES = {
    "/figures": lambda accept: Page(200, f"accept: {accept}\n".encode()),
    "/ill": lambda _: Page(503, b"not now\n"),
    "/faulty": lambda _: Page(200, str(1 / 0).encode()),
    "/slow": lambda _: time.sleep(SLOW_SECS) or Page(200, b"slow\n"),
    "/large": lambda _: Page(200, bytes(20_000_000)),
}
QUERIES = {"/ask": lambda query: Page(200, query.encode(), headers=(("X-Asked", "yes"),))}


class Served:
    """An endpoint in a thread, as a client sees it."""

    def __init__(self, endpoint, loop):
        self.endpoint, self.loop = endpoint, loop
        self.port = int(endpoint.address.rpartition(":")[2])

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECS)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())

    def send(self, data):
        """Return all that comes for `data`, up to the end of the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            return connection.makefile("rb").read()

    def connect(self, source="127.0.0.1"):
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_SECS, (source, 0))

    @property
    def connections(self):
        return len(self.endpoint._connections)


@pytest.fixture
def served():
    listener = listen("127.0.0.1", 0, keys="none", backlog=16)
    loop = asyncio.new_event_loop()

    async def start():
        return HttpEndpoint(listener, PAGES, QUERIES)

    endpoint = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Served(endpoint, loop)
    finally:
        loop.call_soon_threadsafe(endpoint.close)
        loop.call_soon_threadsafe(endpoint.close)  # twice is once
        loop.call_soon_threadsafe(lambda: loop.call_later(0.05, loop.stop))
        thread.join(DEADLINE_SECS)
        loop.close()
        assert listener.fileno() == -1


def test_pages(served):
    status, body, headers = served.ask("/figures?x=1", Accept="text/plain")
    assert (status, body) == (200, b"accept: text/plain\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Connection"] == "close"
    assert served.ask("/ill")[:2] == (503, b"not now\n")
    status, body, headers = served.ask("/figures", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "9")


def test_a_query_is_handed_over_as_it_came(served):
    status, body, headers = served.ask("/ask?a=1%2F2&a=%C3%BC", Accept="text/plain")
    assert (status, body, headers["X-Asked"]) == (200, b"a=1%2F2&a=%C3%BC", "yes")
    assert served.ask("/ask")[:2] == (200, b"")


def test_what_is_not_there_is_said(served):
    assert served.ask("/nothing")[:2] == (
        404,
        b"Not Found: there are /ask /faulty /figures /ill /large /slow\n",
    )
    status, _, headers = served.ask("/figures", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert served.ask("/..%00/")[0] == 404
    assert served.send(b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n").split()[1] == b"400"


def test_a_fault_in_a_page_is_logged_and_told(served, caplog):
    assert served.ask("/faulty")[:2] == (500, b"Internal Server Error: see this server's log\n")
    assert "cannot make /faulty: an error of this server" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert served.ask("/ill")[0] == 503


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /figures\r\n\r\n", b"400"),
        (b"GET /figures HTTP/1.1\r\n\r\n", b"400"),  # without Host
        (b"GET /figures HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, b"431"),
        (
            b"GET /figures HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"400",
        ),
        (b"GET /figures HTTP/1.0\r\n\r\n", b"200"),
        (b"POST /figures HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n" + b"y" * 99, b"405"),
        (b"GET /figures HTTP/1.1\r\nHost: a\r\n\r\n" * 3, b"200"),  # one request a connection
    ],
)
def test_every_request_gets_one_answer_and_the_end(served, sent, status):
    answer = served.send(sent)
    assert answer.split()[1] == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert served.ask("/figures")[0] == 200


def test_slow_clients_lock_no_client_out(served):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(served.connect()) for _ in range(MAX_PER_ADDRESS + 3)]
        for connection in slow[-MAX_PER_ADDRESS:]:
            connection.sendall(b"GET /fig")
        until(lambda: slow[0].recv(1) == b"")  # the oldest went for the newest
        assert served.ask("/figures")[0] == 200
        assert served.connections <= MAX_PER_ADDRESS
    until(lambda: served.connections == 0)


@pytest.mark.parametrize("sent", [b"", b"GET /fig", b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_connection_ends_at_its_deadline(served, monkeypatch, sent):
    monkeypatch.setattr(endpoint_module, "DEADLINE", 1.0)
    made, add = [], served.endpoint.add
    monkeypatch.setattr(served.endpoint, "add", lambda one: (made.append(one), add(one)))
    with served.connect() as connection:
        connection.sendall(sent)
        until(
            lambda: made and served.connections == 0
        )  # though nothing more came, or nothing was read


def test_who_asks_all_the_time_takes_a_small_part_of_the_loop(served):
    answers = []

    def ask_on(until_when):
        while time.monotonic() < until_when:
            with contextlib.suppress(OSError, http.client.HTTPException):
                answers.append(served.ask("/slow")[0])

    started = time.monotonic()
    greedy = [threading.Thread(target=ask_on, args=(started + 2.0,)) for _ in range(4)]
    for thread in greedy:
        thread.start()
    for thread in greedy:
        thread.join(DEADLINE_SECS)
    assert set(answers) == {200}
    # Unbounded, the loop would do nothing else.
    assert len(answers) * SLOW_SECS < 0.25 * (time.monotonic() - started)


def test_addresses_take_turns(served):
    """Ten pages that one address asks for delay the page of another by a few at most."""
    order = []

    def ask(source, path):
        with served.connect(source) as connection:
            connection.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
            order.append(source)
            return answer

    greedy = [threading.Thread(target=ask, args=("127.0.0.2", b"/slow")) for _ in range(10)]
    for thread in greedy:
        thread.start()
    until(lambda: served.connections >= 6)
    assert ask("127.0.0.3", b"/figures").endswith(b"accept: \n")
    before = order.index("127.0.0.3")
    for thread in greedy:
        thread.join(DEADLINE_SECS)
    assert order.count("127.0.0.2") == 10
    assert before < 8, "it waited for all that the other one had asked for"


def test_a_client_that_resets_meanwhile_stops_no_other(served, monkeypatch):
    shutdowns = []

    def write_eof(transport):
        shutdowns.append(transport)
        if len(shutdowns) == 1:  # as the system says of a connection that was reset
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        original(transport)

    original = asyncio.selector_events._SelectorSocketTransport.write_eof
    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write_eof", write_eof)
    served.send(b"GET /ill HTTP/1.1\r\nHost: a\r\n\r\n")
    assert served.ask("/ill")[:2] == (503, b"not now\n")
    until(lambda: not served.connections)


def test_pages_are_served_while_the_caller_does_something_else():
    names = []

    def page(_):
        names.append(threading.current_thread().name)
        return Page(200, b"here\n")

    listener = listen("127.0.0.1", 0, keys="none", backlog=16)
    port = int(address_of(listener).rpartition(":")[2])

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/page")
        return connection.getresponse().read()

    with HttpThread(listener, {"/page": page}):
        assert ask() == b"here\n"
    assert names == ["http"]
    assert "http" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ConnectionError):
        ask()
