"""The real daemon as a service: metrics and health over HTTP, systemd's protocols, JSON logs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stormkeeper.daemon.children import dying_with_us
from stormkeeper.errors import NotAuthorizedError
from stormkeeper.local import reservations
from stormkeeper.pacemaker.client import PacemakerClient
from support.activation import activated
from support.pacemaker import PacemakerProcess
from support.waiting import DEADLINE_SECS, until

SECS = DEADLINE_SECS
PREFIX = "stormkeeper_pacemaker_"


def metrics_address(server):
    """``HOST:PORT`` out of the log."""
    until(lambda: "metrics on http://" in server.log)
    return server.log.rpartition("metrics on http://")[2].partition("/metrics")[0]


def fetch(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=SECS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(address):
    """All samples, as {(name, *label values): value}."""
    status, text = fetch(address, "/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def server(request):
    if request.param == "compiled":
        pytest.importorskip("stormkeeper.pacemaker.server._compiled")
    conf = {
        "pacemaker.metrics.port": 0,
        "pacemaker.engine": request.param,
        "pacemaker.path.max.segments": 4,
    }
    with PacemakerProcess(conf=conf) as process:
        yield process


def test_metrics_show_the_requests_of_clients(server):
    address = metrics_address(server)
    before = samples(address)
    with PacemakerClient(server.address) as client:
        for n in range(10):
            client.send_pulse(f"/workerbeats/t/node-{n}", bytes(100 * n))
        for _ in range(3):
            client.send_pulse("/workerbeats/t/node-0", bytes(50))
        client.get_pulse("/workerbeats/t/node-9")
        client.get_pulse("/nothing")
        client.children("/workerbeats/t")
        with pytest.raises(NotAuthorizedError):
            client.send_pulse("/a/b/c/d/e/f", b"x")
        for _ in range(2):
            with pytest.raises(NotAuthorizedError):
                client.get_pulse("/a/b/c/d/e/f")
        client.delete_pulse("/workerbeats/t/node-1")
        during = samples(address)
    increased = {key: during[key] - before.get(key, 0) for key in during}
    assert increased["requests_total", "send_pulse"] == 14
    # One more, in which the client asks who the server is, may be among them.
    assert increased["requests_total", "get_pulse"] in (4, 5)
    assert increased["requests_total", "get_all_nodes_for_path"] == 1
    assert increased["requests_total", "delete_pulse_id"] == 1
    assert increased["requests_total", "other"] == 0
    assert increased["pulses_received_total",] == 13
    assert increased["requests_refused_total", "path", "write"] == 1
    assert increased["requests_refused_total", "path", "read"] == 2
    assert increased["connections_accepted_total",] == 1
    requests = sum(count for (name, *_), count in increased.items() if name == "requests_total")
    assert increased["request_duration_seconds_count",] == requests
    assert increased["request_duration_seconds_sum",] > 0
    assert increased["received_bytes_total",] > 4500
    assert increased["sent_bytes_total",] > 900
    assert during["pulses",] == 9
    assert during["tombstones",] == 1
    assert during["revision",] == before["revision",] + 14
    assert during["store_bytes",] == sum(21 + size for size in (50, *range(200, 1000, 100)))
    assert during["connections",] == 1
    assert during["recent_pulse_size_bytes", "1.0"] == 900
    assert during["process_open_fds",] > before["process_open_fds",]
    until(lambda: samples(address)["connections",] == 0)


def test_end_by_a_bad_frame_is_counted(server):
    address = metrics_address(server)
    before = samples(address)["connections_ended_total", "protocol"]
    with socket.create_connection((server.host, server.port), SECS) as client:
        client.sendall(b"\0\0\0\0")
        assert client.recv(1) == b""
    until(lambda: samples(address)["connections_ended_total", "protocol"] == before + 1)


def test_health_and_how_long_it_has_been_there(server):
    address = metrics_address(server)
    assert fetch(address, "/healthz") == (200, "ok\n")
    assert fetch(address, "/readyz") == (200, "ready\n")
    seen = until(lambda: (s := samples(address))["heartbeat_period_seen",] and s)
    assert seen["heartbeat_period_seconds",] == 3
    assert 3 <= seen["horizon_seconds",] <= seen["uptime_seconds",]
    engine = [key for key in seen if key[0] == "info"]
    assert server._conf["pacemaker.engine"] in engine[0]


def test_period_counts_as_seen_after_it_has_passed(start_pacemaker):
    server = start_pacemaker(
        conf={"pacemaker.metrics.port": 0, "task.heartbeat.frequency.secs": 600}
    )
    now = samples(metrics_address(server))
    assert now["heartbeat_period_seen",] == 0
    assert now["horizon_seconds",] < 600


def test_constant_scrapes_take_little_of_the_daemon(server):
    address = metrics_address(server)
    process = psutil.Process(server.pid)
    started, used = time.monotonic(), sum(process.cpu_times()[:2])
    answers = 0
    # The longer an answer takes, the longer the next one is waited for.
    while answers <= 5 or time.monotonic() < started + 1.5:
        assert fetch(address, "/metrics")[0] == 200
        answers += 1
    share = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - started)
    assert share < 0.15  # about 0.05; unbounded, as much as the asker can make it


@pytest.mark.parametrize(
    ("port_too", "by_whom"),
    [(False, "another Pacemaker's metrics"), (True, "the Pacemaker itself has it")],
)
def test_metrics_port_in_use_ends_with_one_line_and_code_1(server, port_too, by_whom):
    port = metrics_address(server).rpartition(":")[2]
    if port_too:
        port = reservations.reserve()
    conf = ["pacemaker.bind.host=127.0.0.1", f"pacemaker.port={port if port_too else 0}"]
    conf.append(f"pacemaker.metrics.port={port}")
    options = [part for value in conf for part in ("-c", value)]
    told = subprocess.run(
        [sys.executable, "-m", "stormkeeper", "pacemaker", *options],
        capture_output=True,
        text=True,
        timeout=SECS,
        check=False,
    )
    assert told.returncode == 1
    assert told.stdout == ""
    assert f"cannot listen on 127.0.0.1:{port} (pacemaker.metrics.bind.host" in told.stderr
    assert f"Address already in use: {by_whom}" in told.stderr
    assert "Traceback" not in told.stderr


class Service:
    """A daemon started as systemd would, with a socket to notify and sockets that it opened."""

    def __init__(self, directory, *options, sockets=(), names="", **environ):
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(directory / "notify"))
        self.notified.settimeout(SECS)
        command = [sys.executable, "-m", "stormkeeper", "pacemaker", "--log-json"]
        for option in ("pacemaker.bind.host=127.0.0.1", "pacemaker.port=0", *options):
            command += ["-c", option]
        descriptors = [listener.fileno() for listener in sockets]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this
        self.process = subprocess.Popen(
            dying_with_us(activated(descriptors, command) if sockets else command),
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(directory / "notify"),
                "LISTEN_FDNAMES": names,
                **environ,
            },
            pass_fds=descriptors,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.communicate()
        self.notified.close()
        self._log.close()

    def told(self, beginning):
        """The next notification of that kind."""
        while not (message := self.notified.recv(4096).decode()).startswith(beginning):
            pass
        return message

    def records(self):
        """What it has logged until now."""
        log = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)
        return [json.loads(line) for line in log.splitlines(keepends=True) if line.endswith(b"\n")]

    def said(self, beginning):
        """The rest of the first record whose message begins so."""
        return until(
            lambda: [
                record["message"].removeprefix(beginning)
                for record in self.records()
                if record["message"].startswith(beginning)
            ]
        )[0]

    def end(self):
        """Stop it; return its exit code and the records of its log."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=SECS)
        assert out == ""
        return self.process.returncode, self.records()


def test_service_reports_ready_reloading_and_stopping(tmp_path):
    with Service(tmp_path, "pacemaker.metrics.port=0", WATCHDOG_USEC="200000") as service:
        assert service.told("READY=1") == "READY=1\nSTATUS=0 connections, 0 pulses held"
        port = int(service.said("pacemaker listening on 127.0.0.1:"))
        with socket.create_connection(("127.0.0.1", port), SECS) as client:
            peer = "{}:{}".format(*client.getsockname())
            client.sendall(bytes(4))
            assert client.recv(1) == b""
        service.told("WATCHDOG=1")
        service.told("WATCHDOG=1")
        service.process.send_signal(signal.SIGHUP)
        assert "\nMONOTONIC_USEC=" in service.told("RELOADING=1")
        service.told("READY=1")
        code, log = service.end()
        assert code == 0
        assert service.told("STOPPING=1").startswith("STOPPING=1\nSTATUS=draining: ")
    assert all(list(r)[:4] == ["time", "level", "logger", "message"] for r in log)
    assert [r["message"] for r in log if r["message"].startswith("engine: ")]
    [closing] = [r for r in log if r["message"].startswith("closing ")]
    assert (closing["level"], closing["peer"], closing["cause"]) == ("WARNING", peer, "protocol")
    assert [r for r in log if r["level"] not in ("INFO", "WARNING")] == []


def test_a_daemon_that_drains_is_not_ready(tmp_path):
    with Service(tmp_path, "pacemaker.metrics.port=0") as service:
        port = int(service.said("pacemaker listening on 127.0.0.1:"))
        address = service.said("metrics on http://").removesuffix("/metrics")
        assert fetch(address, "/readyz") == (200, "ready\n")
        with socket.create_connection(("127.0.0.1", port), SECS):  # who is waited for, for a while
            service.process.send_signal(signal.SIGTERM)
            service.told("STOPPING=1")
            assert fetch(address, "/readyz") == (503, "draining\n")
            assert fetch(address, "/healthz") == (200, "ok\n")
            assert service.process.wait(SECS) == 0


def test_stopped_daemon_does_not_notify_the_watchdog(tmp_path):
    with Service(tmp_path, WATCHDOG_USEC="200000") as service:
        service.told("WATCHDOG=1")
        service.process.send_signal(signal.SIGSTOP)
        service.notified.settimeout(0.5)
        with contextlib.suppress(TimeoutError):  # what was sent before
            while service.notified.recv(4096):
                pass
        with pytest.raises(TimeoutError):
            service.notified.recv(4096)
        service.notified.settimeout(SECS)
        service.process.send_signal(signal.SIGCONT)
        service.told("WATCHDOG=1")


def test_passed_sockets_are_served_and_stay_open_over_a_restart(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as pulses,
        socket.create_server(("127.0.0.1", 0)) as metrics,
    ):
        host, port = pulses.getsockname()
        passed = {"sockets": [metrics, pulses], "names": "metrics:pacemaker"}
        with Service(tmp_path, **passed) as service:
            assert service.said("pacemaker listening on ") == f"{host}:{port}"
            with PacemakerClient(f"{host}:{port}") as client:
                client.send_pulse("/a", b"1")
                page = fetch(f"127.0.0.1:{metrics.getsockname()[1]}", "/metrics")[1]
                assert f"\n{PREFIX}pulses 1.0\n" in page
            assert service.end()[0] == 0
        # Between the two nobody is refused: who connects waits.
        with socket.create_connection((host, port), SECS) as early:
            (tmp_path / "notify").unlink()
            with Service(tmp_path, **passed) as service:
                early.sendall(bytes(4))  # a bad frame, and so its end
                assert early.recv(1) == b""
                early.close()
                assert service.end()[0] == 0


def test_wrong_passed_sockets_end_with_one_line_and_code_1(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
        Service(tmp_path, sockets=[one, two]) as service,
    ):
        out, _ = service.process.communicate(timeout=SECS)
        assert (service.process.returncode, out) == (1, "")
        [line] = [record for record in service.records() if record["level"] == "ERROR"]
        assert "systemd passed 2 sockets" in line["message"]
