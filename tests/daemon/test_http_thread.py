import http.client
import threading

import pytest

from stormkeeper.daemon.http import Page
from stormkeeper.daemon.http_thread import HttpThread
from stormkeeper.daemon.listening import address_of, listen


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
