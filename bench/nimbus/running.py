"""The processes of the bench, each as its user would start it, and what is measured of them."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil
import yaml

from nimbus import cluster
from stormkeeper.local import reservations
from stormkeeper.paths import NimbusId

STOP_SECS = 20
PREFIX = "stormkeeper_nimbus_"
LEADS = "this Nimbus leads"
SCHEDULER = "nimbus.scheduler "
PR_SET_PDEATHSIG = 1


def dying_with_us():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A process with its log in a file; use it as a context manager."""

    def __init__(self, command, log, environ=None, **more):
        self.log = Path(log)
        self._command = [str(part) for part in command]
        self._more = {"env": environ, **more}
        self._process = self._of = None

    def __enter__(self):
        with self.log.open("wb") as file:
            self._process = subprocess.Popen(
                self._command,
                stderr=file,
                preexec_fn=dying_with_us,  # noqa: PLW1509 - a single call of C
                # Linux may share the cores among sessions first. ZooKeeper has a session of its
                # own, so the Nimbus has one, too: else it would share its half with the bench.
                start_new_session=True,
                **self._more,
            )
        self._of = psutil.Process(self.pid)
        return self

    def __exit__(self, *exc):
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self):
        return self._process.pid

    @property
    def is_running(self):
        return self._process.poll() is None

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def check(self):
        if not self.is_running:
            end = self.log.read_text(errors="replace").splitlines()[-15:]
            raise RuntimeError("\n".join([f"{self.log.stem} has ended:", *end]))

    @property
    def cpu_secs(self):
        times = self._of.cpu_times()
        return times.user + times.system

    def memory_mib(self):
        """Return the resident memory, now and at most, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return tuple(
            int(re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)[1]) / 1024
            for name in ("VmRSS", "VmHWM")
        )


class Nimbus(Process):
    """``storm nimbus``; `python` is the interpreter that has it installed."""

    def __init__(self, folder, name, settings, python=sys.executable):
        self.folder = Path(folder) / name
        self.folder.mkdir()
        port, self._metrics_port = (reservations.reserve(cluster.HOST) for _ in range(2))
        self.id = NimbusId(cluster.HOST, port, 0)
        own = {
            "nimbus.thrift.port": port,
            "nimbus.bind.host": cluster.HOST,
            "nimbus.metrics.port": self._metrics_port,
            "nimbus.metrics.bind.host": cluster.HOST,
            "storm.local.dir": str(self.folder),
        }
        (self.folder / "storm.yaml").write_text(yaml.safe_dump({**settings, **own}))
        mine = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        super().__init__(
            [python, "-m", "stormkeeper", "nimbus"],
            self.folder / f"{name}.log",
            {**mine, "STORM_CONF_DIR": str(self.folder)},
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def page(self, name):
        with contextlib.suppress(OSError):
            url = f"http://{cluster.HOST}:{self._metrics_port}/{name}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.read().decode()
        return ""

    def leads(self):
        return self.page("readyz") == "leads\n"

    def metrics(self):
        """Return the metrics by name, with labels as ``name{label="value"}``."""
        found = {}
        for line in self.page("metrics").splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith(PREFIX):
                found[name.removeprefix(PREFIX)] = float(value)
        return found

    def led_at(self, after=0.0):
        """Return when this Nimbus began to lead after a moment, by its log; None: not yet."""
        return next((at for at, text in self._lines(after) if LEADS in text), None)

    def first_texts(self, after):
        """Return the first state of each topology in the log after a moment, and when it was.

        A new leader writes them at the end of its first round.
        """
        found = {}
        for at, text in self._lines(after):
            _, is_text, rest = text.partition(SCHEDULER)
            storm_id, _, state = rest.partition(": ")
            if is_text and not state.startswith("assigned"):
                found.setdefault(storm_id, (at, state))
        return found

    def _lines(self, after):
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                at = datetime.fromisoformat(line.partition(" ")[0]).timestamp()
                if at >= after:
                    yield at, line


class Fleet(Process):
    """The simulated supervisors (`nimbus.fleet`); each method is a command to it."""

    def __init__(self, folder, shape, settings, pacemaker_ports):
        given = {
            "supervisors": shape.supervisors + shape.spares,
            "beat_secs": shape.beat_secs,
            "pacemakers": pacemaker_ports,
            "conf": settings,
        }
        super().__init__(
            [sys.executable, Path(__file__).with_name("fleet.py"), json.dumps(given)],
            Path(folder) / "fleet.log",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        super().__enter__()
        self._answer()
        return self

    def up(self, first, count):
        return self._ask(do="up", first=first, count=count)

    def die(self, first, count):
        return self._ask(do="die", first=first, count=count)

    def status(self):
        return self._ask(do="status")

    def _ask(self, **command):
        self.check()
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(STOP_SECS)
            self.check()
        return json.loads(line)


class ProcessorTime:
    """Samples the processor time of processes; use it as a context manager."""

    PERIOD_SECS = 0.1

    def __init__(self):
        self._processes, self._samples = {}, {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._ended.set()
        self._thread.join()

    def add(self, name, pid):
        self._samples[name] = []
        self._processes[name] = psutil.Process(pid)

    def between(self, name, began, ended):
        """Return the seconds that a process spent between two moments, by linear interpolation."""
        first, last = np.interp([began, ended], *zip(*self._samples[name], strict=True))
        return float(last - first)

    def _sample(self):
        while not self._ended.wait(self.PERIOD_SECS):
            for name, process in list(self._processes.items()):
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    del self._processes[name]
                else:
                    self._samples[name].append((time.time(), times.user + times.system))


def word(zookeeper, text):
    """Return ZooKeeper's answer to a word of four letters."""
    with socket.create_connection((zookeeper.host, zookeeper.port), 10) as connection:
        connection.sendall(text.encode())
        data = b""
        while block := connection.recv(1 << 16):
            data += block
    return data.decode()


def sockets_of(pid, port):
    """Return the local ports of a process's connections to a port, and all bytes of these.

    Bytes are Linux's counts, both ways, by ``ss``; None where it is not installed.
    """
    mine = [
        one.laddr.port
        for one in psutil.Process(pid).net_connections("tcp")
        if one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED
    ]
    try:
        lines = subprocess.run(
            ["ss", "-tinH", "dst", f":{port}"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return mine, None
    size = 0
    for head, counts in zip(lines[::2], lines[1::2], strict=False):
        if any(f":{each} " in head for each in mine):
            size += sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", counts)))
    return mine, size


class Traffic:
    """What a process has exchanged with ZooKeeper and with Pacemakers until now."""

    def __init__(self, zookeeper, pacemaker_ports, pid):
        mine, self.bytes = sockets_of(pid, zookeeper.port)
        self.requests = self.answers = 0
        for line in word(zookeeper, "cons").splitlines():
            if any(f":{port}[" in line for port in mine):
                self.requests += int(re.search(r"recved=(\d+)", line)[1])
                self.answers += int(re.search(r"sent=(\d+)", line)[1])
        sizes = [sockets_of(pid, port)[1] for port in pacemaker_ports]
        self.pulse_bytes = None if None in sizes else sum(sizes)

    def since(self, before):
        requests = self.requests - before.requests
        has_bytes = None not in (self.bytes, before.bytes)
        return {
            "requests": requests,
            "pushed": self.answers - before.answers - requests,
            "bytes": self.bytes - before.bytes if has_bytes else None,
            "pulse_bytes": self.pulse_bytes - before.pulse_bytes if has_bytes else None,
        }


def await_true(found, what, secs, *, pause_secs=0.1, check=lambda: None):
    """Return the first true value of a function."""
    deadline = time.monotonic() + secs
    while not (value := found()):
        check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {secs:g} s")
        time.sleep(pause_secs)
    return value
