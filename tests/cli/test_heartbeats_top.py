"""`storm heartbeats top` with real Pacemakers."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from datetime import datetime, timedelta

import pytest

from stormkeeper.pacemaker.client import PacemakerClient
from support.command import HEAVY, STORM, imported_by
from support.pacemaker import PacemakerProcess
from support.waiting import DEADLINE_SECS, until

TOPOLOGIES = {"word-count-1-1760000000": 3_000, "quiet-2-1760000000": 10}


def fill(address, times=1):
    with PacemakerClient(address) as client:
        for topology, size in TOPOLOGIES.items():
            for n in range(times * 5):
                client.send_pulse(f"/workerbeats/{topology}/node-{n % 5}", bytes(size))


@pytest.fixture(scope="module")
def servers():
    with PacemakerProcess() as first, PacemakerProcess() as second:
        fill(first.address)
        yield [first, second]


def top(servers, *options):
    return [
        str(STORM),
        "heartbeats",
        "top",
        "-c",
        f"pacemaker.servers={json.dumps(servers)}",
        *options,
    ]


def ran(servers, environ, *options):
    return subprocess.run(
        top(servers, *options),
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )


@pytest.fixture(scope="module")
def nobody():
    """An address where nothing listens."""
    with PacemakerProcess() as process:
        return process.address


def test_one_picture_of_all_servers_and_those_that_are_down(servers, nobody, environ):
    addresses = [*(server.address for server in servers), nobody]
    told = ran(addresses, environ, "--once", "--interval", "0.2")
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    assert told.stdout.startswith("10 workers of 2 topologies · 2 of 3 Pacemakers · ")
    assert f"  {nobody} did not answer" in told.stdout
    assert "word-count-1-1760000000" in told.stdout
    assert "\x1b" not in told.stdout  # no terminal, no colours


def test_outside_a_terminal_no_column_is_left_out(servers, environ):
    told = ran([servers[0].address], {**environ, "COLUMNS": "40"}, "--once", "--interval", "0.2")
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert sum(line.endswith((" version", " mean size", " size")) for line in lines) == 3
    assert not any("…" in line for line in lines)
    assert max(map(len, lines)) < 200


def test_rates_and_sizes_as_json(servers, environ):
    process = subprocess.Popen(
        top([servers[0].address], "--json", "--interval", "0.5"),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first = json.loads(process.stdout.readline())
        assert (first["workers"], first["pulses_per_s"]) == (10, None)
        times = [datetime.fromisoformat(first["time"])]

        def picture_of_both():
            fill(servers[0].address)
            shown = json.loads(process.stdout.readline())
            return all(row["bytes_per_s"] for row in shown["topologies"]) and shown

        summary = until(picture_of_both)
        times.append(datetime.fromisoformat(summary["time"]))
        assert times[0] < times[1]
        assert times[1].utcoffset() == timedelta(0)
        noisy, quiet = summary["topologies"]
        assert (noisy["topology"], noisy["workers"], noisy["mean_bytes"]) == (
            "word-count-1-1760000000",
            5,
            3000,
        )
        assert noisy["bytes_per_s"] > quiet["bytes_per_s"] > 0
        assert summary["servers"][0]["state"] in ("serving", "filling")
        assert summary["servers"][0]["pulses_per_s"] > 0
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECS) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_live_view_in_a_terminal_ends_cleanly(servers, environ):
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background may ignore it
        os.execve(
            str(STORM),
            top([servers[0].address], "--interval", "0.3"),
            {**environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        )
    shown = b""
    try:
        deadline = time.monotonic() + DEADLINE_SECS
        while shown.count(b"pulses/s") < 9 and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1.0)[0]:
                shown += os.read(terminal, 65_536)
        os.write(terminal, b"\x03")
        deadline = time.monotonic() + DEADLINE_SECS
        while time.monotonic() < deadline and select.select([terminal], [], [], DEADLINE_SECS)[0]:
            try:
                shown += os.read(terminal, 65_536)
            except OSError:
                break
    finally:
        os.close(terminal)  # the end of a terminal ends who is in it
        _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"Traceback" not in shown
    assert b"word-count-1-1760000000" in shown
    assert shown.rstrip().endswith(b"\x1b[?1049l")  # the terminal as it was


def test_what_cannot_be_watched_is_said(nobody, environ):
    told = ran([nobody], environ, "--once")
    assert told.returncode == 3
    assert told.stdout == ""
    assert told.stderr.startswith(f"storm: {nobody} did not answer")
    assert "start one with `storm pacemaker`" in told.stderr
    told = ran([], environ, "--once")
    assert told.returncode == 2
    assert "no Pacemaker is configured" in told.stderr
    told = ran([nobody], environ, "--interval", "0")
    assert told.returncode == 2


def test_help_stays_light(environ):
    assert not imported_by(["heartbeats", "top", "--help"], environ) & HEAVY


def test_a_server_that_refuses_is_told_from_one_that_is_read(
    servers, tmp_path, start_pacemaker, environ
):
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('PacemakerDigest { username="nimbus" password="hush-hush"; };')
    security = {"pacemaker.auth.method": "DIGEST", "java.security.auth.login.config": str(jaas)}
    secured = start_pacemaker(conf=security)
    fill(secured.address)  # who writes need not authenticate
    told = ran([servers[0].address, secured.address], environ, "--once", "--interval", "0.2")
    assert told.returncode == 0, told.stderr
    assert "  refused" in told.stdout
    assert "10 workers of 2 topologies · 1 of 2 Pacemakers" in told.stdout
    told = ran([secured.address], environ, "--once")
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.startswith(f"storm: {secured.address}")
    assert "pacemaker.auth.method" in told.stderr
    options = [part for key, value in security.items() for part in ("-c", f"{key}={value}")]
    told = ran([secured.address], environ, "--once", "--interval", "0.2", *options)
    assert told.returncode == 0, told.stderr
    assert "10 workers of 2 topologies · 1 of 1 Pacemaker" in told.stdout
    assert "hush-hush" not in told.stdout + told.stderr + secured.log
