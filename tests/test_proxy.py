"""A connection through the proxy is as good as one to the target: there, or not there."""

import socket
import threading

import pytest

from stormkeeper.conf import Address
from support.pacemaker import nobody
from support.proxy import Proxy
from support.waiting import DEADLINE_SECS


@pytest.fixture
def target():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_SECS)
        yield listener


def proxy_of(target):
    return Proxy(Address("127.0.0.1", target.getsockname()[1]))


def connected(proxy):
    client = socket.socket()
    client.settimeout(DEADLINE_SECS)
    client.connect((proxy.address.host, proxy.address.port))
    return client


def test_a_target_that_is_not_there_ends_every_connection():
    with Proxy(nobody()) as proxy:
        for _ in range(2):
            with connected(proxy) as client:
                assert client.recv(1) == b""


@pytest.mark.parametrize("mended", [False, True])
def test_no_connection_that_is_being_made_escapes_a_cut(target, monkeypatch, mended):
    at_it, go_on = threading.Event(), threading.Event()
    connect = socket.create_connection

    def late(*arguments):
        at_it.set()
        assert go_on.wait(DEADLINE_SECS)
        return connect(*arguments)

    monkeypatch.setattr(socket, "create_connection", late)
    with proxy_of(target) as proxy, connected(proxy) as client:
        assert at_it.wait(DEADLINE_SECS)
        proxy.cut()
        if mended:
            proxy.mend()
        go_on.set()
        assert client.recv(1) == b""
        server, _ = target.accept()
        with server:
            server.settimeout(DEADLINE_SECS)
            assert server.recv(1) == b""


def test_what_is_injected_reaches_who_is_still_there(target):
    with proxy_of(target) as proxy, connected(proxy) as staying:
        server, _ = target.accept()
        with server:
            with connected(proxy):
                leaving, _ = target.accept()
            with leaving:
                leaving.settimeout(DEADLINE_SECS)
                assert leaving.recv(1) == b""
            proxy.inject(b"!")
            assert staying.recv(1) == b"!"
