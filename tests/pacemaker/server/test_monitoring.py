"""The endpoint and the reports of one server, in a loop of the test's own."""

import asyncio
import socket
import urllib.request

import pytest

from stormkeeper.daemon.lifecycle import ServiceManager
from stormkeeper.errors import ListenError
from stormkeeper.pacemaker.server.daemon import Monitoring
from support.snapshots import SNAPSHOT
from support.waiting import DEADLINE_SECS

CONF = {
    "pacemaker.bind.host": "127.0.0.1",
    "pacemaker.metrics.bind.host": None,
    "pacemaker.metrics.port": 0,
}


def run(body, conf=CONF, environ=None):
    async def inside():
        monitoring = Monitoring(conf, lambda: SNAPSHOT, ServiceManager(environ or {}))
        try:
            return await body(monitoring)
        finally:
            monitoring.close()

    return asyncio.run(asyncio.wait_for(inside(), 20))


def fetch(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_SECS) as answer:
        return answer.read().decode()


def test_pages_are_served():
    async def body(monitoring):
        monitoring.start()
        return [
            await asyncio.to_thread(fetch, monitoring.address, path)
            for path in ("/metrics", "/readyz", "/healthz")
        ]

    metrics, ready, health = run(body)
    assert "\nstormkeeper_pacemaker_pulses 7.0\n" in metrics
    assert (ready, health) == ("ready\n", "ok\n")


def test_without_a_port_there_is_no_endpoint():
    async def body(monitoring):
        monitoring.start()
        return monitoring.address

    assert run(body, CONF | {"pacemaker.metrics.port": None}) is None


def test_an_address_of_its_own():
    async def body(monitoring):
        monitoring.start()
        return monitoring.address

    conf = CONF | {"pacemaker.bind.host": "192.0.2.1", "pacemaker.metrics.bind.host": "127.0.0.1"}
    assert run(body, conf).startswith("127.0.0.1:")


def test_port_in_use_error_names_the_keys():
    async def body(monitoring):
        monitoring.start()

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        keys = "pacemaker.metrics.bind.host, pacemaker.metrics.port"
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port} \({keys}\): Address already"):
            run(body, CONF | {"pacemaker.metrics.port": port})


def test_reports_to_systemd(tmp_path):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        receiver.settimeout(DEADLINE_SECS)

        async def until_told(beginning):
            while not (message := await asyncio.to_thread(receiver.recv, 4096)).startswith(
                beginning
            ):
                pass
            return message

        async def body(monitoring):
            monitoring.start()
            assert receiver.recv(4096) == b"READY=1\nSTATUS=5 connections, 7 pulses held"
            for _ in range(3):  # more than once, so without end
                assert await until_told(b"WATCHDOG=1")
            monitoring.reloading()
            assert await until_told(b"RELOADING=1\nMONOTONIC_USEC=")
            monitoring.ready()
            assert await until_told(b"READY=1")
            monitoring.stopping()
            assert await until_told(b"STOPPING=1\nSTATUS=draining: 5 connections, 7 pulses held")
            assert await until_told(b"WATCHDOG=1")  # while it drains too

        run(body, environ={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000"})


def test_failed_report_is_repeated_next_time():
    async def body(monitoring):
        loop = asyncio.get_running_loop()
        failures, done = [], asyncio.Event()
        loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
        times = iter(range(10))

        def action():
            number = next(times)
            if number == 1:
                raise OSError("on purpose")
            if number == 2:
                done.set()

        monitoring._repeat(0.01, action)
        await done.wait()
        return [str(failure) for failure in failures]

    assert run(body) == ["on purpose"]
