"""The processes of a run: they end with it, however it ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from pacemaker.servers import HOST, Stormkeeper, on_cores

STOP_SECS = 60
#: A line of `storm simulate` on its progress.
_PROGRESS = re.compile(
    r"(\d+) s: (\d+) sent, (\d+) acknowledged, (\d+) failed, (\d+) left out; .* (\d+) ms \(p99\)"
)


class Pacemaker(Stormkeeper):
    """It has no core for itself: all of a run share the machine."""

    pinned = False

    @property
    def pid(self):
        return self._process.pid


class Storm:
    """A ``storm`` command that runs until it is stopped; its output is kept.

    Parameters
    ----------
    name
        For messages.
    arguments
        Of ``storm``.
    conf
        The configuration: nothing of the machine's is read.
    """

    def __init__(self, name, arguments, conf):
        self.name = name
        settings = [part for key, value in conf.items() for part in ("-c", f"{key}={value}")]
        self._command = [sys.executable, "-m", "stormkeeper", *arguments, *settings]
        self._lines = []
        self._changed = threading.Condition()

    def __enter__(self):
        environ = {key: value for key, value in os.environ.items() if key != "STORM_CONF_DIR"}
        self._out = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.PIPE,
            text=True,
            env={**environ, "HOME": "/nonexistent"},
            # A Ctrl-C in the terminal is for the bench, which then ends them in order.
            start_new_session=True,
            preexec_fn=on_cores(None),  # noqa: PLW1509 - nothing here holds a lock at that time
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exc):
        self.stop()
        self._out.close()

    @property
    def pid(self):
        return self._process.pid

    @property
    def is_running(self):
        return self._process.poll() is None

    @property
    def lines(self):
        """What it wrote to stderr until now."""
        with self._changed:
            return list(self._lines)

    @property
    def output(self):
        """What it wrote to stdout until now."""
        return os.pread(self._out.fileno(), 1 << 20, 0).decode(errors="replace")

    def stop(self):
        """Ask it to end; it is killed if it does not."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        return self._process.returncode

    def wait(self, secs):
        """Wait until it has ended by itself; return its exit code."""
        try:
            return self._process.wait(secs)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{self.name} has not ended after {secs:.0f} s") from None

    def until(self, has_come, secs):
        """Wait until what it has written shows something, and return that."""
        deadline = time.monotonic() + secs
        while not (found := has_come(self)):
            if not self.is_running or time.monotonic() > deadline:
                said = "\n".join(self.lines[-20:])
                raise SystemExit(f"{self.name} has not come so far in {secs:.0f} s:\n{said}")
            with self._changed:
                self._changed.wait(0.1)
        return found

    def _read(self):
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line.rstrip())
                self._changed.notify_all()


def pipeline(servers, tables, shape, conf):
    """Return a ``storm pipeline`` over some Pacemakers."""
    wanted = {
        "pacemaker.servers": _addresses(servers),
        "pipeline.tables.dir": tables,
        "pipeline.trigger.secs": shape.trigger_secs,
        "pipeline.statistics.secs": shape.statistics_secs,
        "pipeline.statistics.parts": shape.parts,
        # What is true is judged by all that was read, of which the default keeps an hour at most.
        "pipeline.retention.executor.stats.hours": 24,
        "pipeline.retention.executor.stats.mb": 65_536,
        "task.heartbeat.frequency.secs": max(1, round(shape.period_secs)),
        "storm.local.dir": tables.parent,
    }
    return Storm("storm pipeline", ["pipeline"], wanted | conf)


def simulation(servers, truth, shape, secs, seed):
    """Return a ``storm simulate`` of a shape that ends by itself after so many seconds."""
    arguments = [
        *("simulate", "--profile", shape.profile, "--rate", str(shape.rate)),
        *("--count-every", str(shape.count_every), "--duration", str(secs), "--json"),
        *("--seed", str(seed)),
    ]
    for option, value in (
        ("--nodes", shape.nodes),
        ("--workers-per-node", shape.workers_per_node),
        ("--topologies", shape.topologies),
        ("--connections", shape.connections),
        ("--truth", truth),
    ):
        if value is not None:
            arguments += [option, str(value)]
    arguments += ["--faults"] if shape.troubles else []
    arguments += ["--components"] if shape.components else []
    arguments += [] if shape.counters else ["--no-counters"]
    return Storm("storm simulate", arguments, {"pacemaker.servers": _addresses(servers)})


def progress(simulating):
    """Return the newest line on progress of a simulation as numbers; None before the first one."""
    for line in reversed(simulating.lines):
        if found := _PROGRESS.match(line):
            names = ("secs", "sent", "acknowledged", "failed", "left_out", "p99_ms")
            return dict(zip(names, map(int, found.groups()), strict=True))
    return None


def _addresses(servers):
    return "[" + ", ".join(f"{HOST}:{server.port}" for server in servers) + "]"
