"""The servers that are measured: each is started as its user would, and stopped again."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pacemaker.compiling import compiled
from stormkeeper.local import reservations

HOST = "127.0.0.1"
START_SECS = 60
STOP_SECS = 15
PR_SET_PDEATHSIG = 1


class UnavailableError(Exception):
    """A server that cannot be had here; the message is the line that says why."""


def cores():
    """Return the sets of cores of the server and of the generator; None each on a single core."""
    mine = sorted(os.sched_getaffinity(0))
    return ({mine[0]}, {mine[1]}) if len(mine) >= 2 else (None, None)


def on_cores(chosen):
    """Return what a child runs before its program: it stays on its cores, and dies with us."""

    def settle():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if chosen:
            os.sched_setaffinity(0, chosen)

    return settle


class Server:
    """A server process; use it as a context manager.

    A kind of server says its `name` (as in the results), `protocol` (as the generator knows it),
    `command`, and when it `is_ready`.
    """

    name = protocol = ""
    #: Whether the answers of a read can be checked against what was written.
    keeps_values = True
    #: Seconds of load before the first measurement.
    burn_in_secs = 0.5
    pinned = True

    def __init__(self):
        self.port = None
        self._process = None
        self._log = None
        self._folder = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.stop()

    @property
    def pids(self):
        """The process and all that it started, as the generator takes them."""
        family = [self._process.pid]
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            family += [child.pid for child in children]
        return ",".join(map(str, family))

    @property
    def is_running(self):
        return self._process is not None and self._process.poll() is None

    @property
    def log(self):
        """What it wrote to stderr until now."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def start(self):
        self.port = reservations.reserve(HOST)
        self._folder = tempfile.mkdtemp(prefix="bench-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the server
        self._process = subprocess.Popen(
            self.command(Path(self._folder)),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self.environment(),
            cwd=self._folder,
            preexec_fn=on_cores(cores()[0] if self.pinned else None),  # noqa: PLW1509 - one thread
        )
        deadline = time.monotonic() + START_SECS
        while not self.is_ready():
            if not self.is_running or time.monotonic() > deadline:
                said = self.log.strip().splitlines()[-1:] or ["nothing"]
                self.stop()
                raise UnavailableError(f"{self.name} does not start; it says: {said[0]}")
            time.sleep(0.02)

    def stop(self):
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        if self._log:
            self._log.close()
            self._log = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def environment(self):
        return None

    def is_ready(self):
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False


class Stormkeeper(Server):
    """``storm pacemaker``, with the engine that was asked for, or none."""

    protocol = "pacemaker"
    engine = "compiled"

    def __init__(self, **conf):
        super().__init__()
        self._conf = conf

    @property
    def name(self):
        return "stormkeeper" if self.engine == "compiled" else "stormkeeper-interpreted"

    def command(self, folder):
        conf = {
            "pacemaker.bind.host": HOST,
            "pacemaker.port": self.port,
            "pacemaker.engine": self.engine,
            "storm.local.dir": str(folder),
            **self._conf,
        }
        settings = [f"{key}={json.dumps(value)}" for key, value in conf.items()]
        options = [part for setting in settings for part in ("-c", setting)]
        return [sys.executable, "-m", "stormkeeper", "pacemaker", *options]

    def environment(self):
        # Neither the user's storm.yaml nor the machine's.
        mine = {key: value for key, value in os.environ.items() if key != "STORM_CONF_DIR"}
        return {**mine, "HOME": "/nonexistent"}

    def is_ready(self):
        return "pacemaker listening on " in self.log

    def start(self):
        super().start()
        if self.engine == "compiled" and "engine: compiled" not in self.log:
            self.stop()
            raise UnavailableError(f"{self.name} did not say that it runs compiled")


class StormkeeperInterpreted(Stormkeeper):
    engine = "interpreted"


class Echo(Server):
    """The limit: reads frames and answers, stores nothing."""

    name = "echo"
    protocol = "pacemaker"
    keeps_values = False

    def command(self, folder):  # noqa: ARG002
        return [compiled("echo"), str(self.port)]


class StoringEcho(Echo):
    """What it costs more to keep the values: for the cells where that is the question."""

    name = "echo-store"

    def command(self, folder):
        return [*super().command(folder), "--store"]


class Redis(Server):
    """One thread, nothing on disk, no limit on memory or clients."""

    name = protocol = "redis"

    def command(self, folder):
        return [
            *(program("redis-server"), "--port", str(self.port), "--bind", HOST),
            *("--save", "", "--appendonly", "no", "--io-threads", "1"),
            *("--maxmemory", "0", "--maxclients", "16000", "--timeout", "0"),
            *("--tcp-backlog", "1024", "--daemonize", "no", "--dir", str(folder)),
        ]

    def is_ready(self):
        return "Ready to accept connections" in self.log


class Memcached(Server):
    """One thread, more memory than the bench fills, so that nothing is evicted."""

    name = protocol = "memcached"

    def command(self, folder):  # noqa: ARG002
        return [
            *(program("memcached"), "-l", HOST, "-p", str(self.port), "-U", "0"),
            *("-t", "1", "-m", "4096", "-c", "16000", "-b", "1024"),
            *(["-u", "root"] if os.geteuid() == 0 else []),
        ]


class Storm(Server):
    """Storm's own Pacemaker, out of ``STORM_HOME``, on all cores: it has a thread for each."""

    name = "storm"
    protocol = "pacemaker"
    burn_in_secs = 10.0  # for the JIT compiler
    pinned = False

    def command(self, folder):
        home = os.environ.get("STORM_HOME")
        if not home:
            raise UnavailableError("storm: STORM_HOME is not set")
        conf = {
            "pacemaker.port": self.port,
            "pacemaker.auth.method": "NONE",
            "pacemaker.childopts": "-Xmx3g",
            "storm.local.dir": str(folder),
            "storm.log.dir": str(folder),
        }
        options = [part for key, value in conf.items() for part in ("-c", f"{key}={value}")]
        return [Path(home) / "bin" / "storm", "pacemaker", *options]


#: In the order of the columns.
SERVERS = (Stormkeeper, StormkeeperInterpreted, Echo, Redis, Memcached, Storm)
#: Those that are measured only if they are named.
MORE_SERVERS = (StoringEcho,)


def program(name):
    path = shutil.which(name)
    if path is None:
        raise UnavailableError(f"{name} is not installed: scripts/bench-setup does it on Debian")
    return path


def available(kinds=SERVERS):
    """Return the kinds that start here, and a line for each that does not."""
    found, missing = [], []
    for kind in kinds:
        try:
            with kind():
                found.append(kind)
        except UnavailableError as reason:
            missing.append(str(reason))
    return found, missing
