"""Beginning and ending, with real signals and real parents."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from stormkeeper.daemon.lifecycle import ServiceManager, StopSignals, announce
from support.activation import activated
from support.waiting import DEADLINE_SECS

#: Wait for a signal, and are then slow to stop: that takes them until they are told to go on.
SYNCHRONOUS = """
import sys
from stormkeeper.daemon import lifecycle
from stormkeeper.daemon.lifecycle import StopSignals, announce
if "without end" in sys.argv:
    lifecycle._SAME_SIGNAL = 600.0
with StopSignals() as stop:
    announce("ready")
    if not stop.wait(60.0):
        raise SystemExit(9)
    announce("stopping")
    if "slow" in sys.argv:
        sys.stdin.readline()
"""

ASYNCHRONOUS = """
import asyncio, sys
from stormkeeper.daemon import lifecycle
from stormkeeper.daemon.lifecycle import StopSignals, announce, end_of_signals
if "without end" in sys.argv:
    lifecycle._SAME_SIGNAL = 600.0
async def main(stop):
    announce("ready")
    await asyncio.wait_for(stop.requested(), 60.0)
    announce("stopping")
    if "slow" in sys.argv:
        await asyncio.to_thread(sys.stdin.readline)
    end_of_signals()
    announce("stopped")
with StopSignals() as stop:
    asyncio.run(main(stop))
if "late" in sys.argv:
    sys.stdin.readline()
"""


def start(program, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends(program, number):
    with start(program) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(DEADLINE_SECS) == 0
    with start(program, "slow") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        time.sleep(1.2)
        process.send_signal(number)
        assert process.wait(DEADLINE_SECS) == 128 + number
        assert process.stderr.read() == ""


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_more_signal_soon_after_the_first_is_the_same(program, number):
    # However long this takes: what counts as soon has no end here.
    with start(program, "slow", "without end") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        _, told = process.communicate("\n", DEADLINE_SECS)
        assert (process.returncode, told) == (0, "")


def test_in_the_last_moments_signals_disturb_nothing():
    with start(ASYNCHRONOUS, "late") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        assert process.stdout.readline() == "stopped\n"
        for _ in range(10):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
            time.sleep(0.01)  # while the loop is closed
        out, told = process.communicate("\n", DEADLINE_SECS)
        assert (process.returncode, out, told) == (0, "", "")


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals() as stop:
        assert (stop.stopped, stop.asked_by) == (False, "")
        assert not stop.wait(0.0)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert stop.wait(DEADLINE_SECS)
        assert (stop.stopped, stop.asked_by) == (True, "SIGTERM")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_announced_line_is_out_at_once(capfd):
    announce("pacemaker listening on 127.0.0.1:6699")
    assert capfd.readouterr().out == "pacemaker listening on 127.0.0.1:6699\n"


def test_an_announced_line_is_whole_beside_a_line_that_is_begun():
    code = "import sys; from stormkeeper.daemon.lifecycle import announce\n"
    code += "sys.stdout.reconfigure(write_through=False)\n"
    code += "sys.stdout.write('ra'); announce('ready'); print('n')"
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert ran.stdout == b"ready\nran\n"


def test_the_file_limit_is_raised_to_what_is_allowed():
    program = (
        "import resource as r; from stormkeeper.daemon.lifecycle import raise_file_limit\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "assert r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard)"
    )
    with start(program) as process:
        assert process.wait(DEADLINE_SECS) == 0


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
from stormkeeper.daemon.sockets import address_of
from stormkeeper.daemon.lifecycle import ServiceManager
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
