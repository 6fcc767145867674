"""systemd's protocols with real sockets and real passed descriptors."""

import os
import socket
import subprocess
import sys
import time

import pytest

from stormkeeper.daemon.systemd import ServiceManager
from support.activation import activated

SECS = 60.0


@pytest.fixture(params=["path", "abstract"])
def told(request, tmp_path):
    """A function that returns the next datagram, and the environment that names its socket."""
    name = str(tmp_path / "notify") if request.param == "path" else f"\0notify-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        receiver.settimeout(SECS)
        yield (lambda: receiver.recv(4096).decode()), {"NOTIFY_SOCKET": name.replace("\0", "@")}


def test_what_is_told(told):
    next_message, environ = told
    manager = ServiceManager(environ)
    assert environ == {}
    manager.ready("listening on\na:1")
    assert next_message() == "READY=1\nSTATUS=listening on a:1"
    before = time.monotonic_ns() // 1000
    manager.reloading()
    first, second = next_message().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    manager.status("7 pulses \ud800")
    assert next_message() == "STATUS=7 pulses \\ud800"
    manager.alive()
    assert next_message() == "WATCHDOG=1"
    manager.stopping("draining")
    assert next_message() == "STOPPING=1\nSTATUS=draining"


def test_without_systemd_nothing_happens():
    manager = ServiceManager({})
    manager.ready("x")
    manager.alive()
    assert manager.watchdog is None
    assert manager.take_listeners("") == []


def test_a_manager_that_does_not_listen_is_no_harm(tmp_path, caplog):
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    manager.ready("x")
    manager.alive()
    assert caplog.messages == ["cannot tell systemd READY=1: No such file or directory"]


def test_a_manager_that_does_not_read_never_stalls_the_daemon(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "full"))
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "full")})
        for _ in range(10_000):  # more than fit its buffer
            manager.alive()


@pytest.mark.parametrize(
    ("environ", "secs"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),  # meant for another
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog(environ, secs):
    assert ServiceManager(environ).watchdog == secs


#: A daemon that says what it was passed.
PASSED = """
import os
from stormkeeper.daemon.listening import address_of
from stormkeeper.daemon.systemd import ServiceManager
manager = ServiceManager()
assert "LISTEN_FDS" not in os.environ
for name in ("metrics", ""):
    for listener in manager.take_listeners(name):
        assert not listener.getblocking() and not os.get_inheritable(listener.fileno())
        print(name, address_of(listener))
"""


def passed(descriptors, names, *, pid_offset=0):
    """Run `PASSED` with sockets as its descriptors from 3 on."""
    return subprocess.run(
        activated(descriptors, [sys.executable, "-c", PASSED], pid_offset=pid_offset),
        env={**os.environ, "LISTEN_FDNAMES": names},
        pass_fds=descriptors,
        capture_output=True,
        text=True,
        timeout=SECS,
        check=False,
    )


def test_passed_sockets_are_taken_by_name():
    with (
        socket.create_server(("127.0.0.1", 0)) as pulses,
        socket.create_server(("127.0.0.1", 0)) as metrics,
    ):
        sockets = [pulses.fileno(), metrics.fileno()]
        ports = [s.getsockname()[1] for s in (pulses, metrics)]
        expected = [f"metrics 127.0.0.1:{ports[1]}", f" 127.0.0.1:{ports[0]}"]
        assert passed(sockets, "pacemaker:metrics").stdout.splitlines() == expected
        told = passed(sockets, "").stdout.splitlines()  # without names
        assert told == [f" 127.0.0.1:{port}" for port in ports]
        assert passed(sockets, "pacemaker:metrics", pid_offset=1).stdout == ""  # for another


def test_what_does_not_listen_is_refused(tmp_path):
    with socket.socket() as silent, (tmp_path / "file").open("w") as file:
        assert "does not listen for TCP connections" in passed([silent.fileno()], "a").stderr
        assert "is no socket" in passed([file.fileno()], "a").stderr
