"""The real worker as a process of its own, for tests that watch it, stop it, or kill it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from stormkeeper.daemon.children import RUN_MARK, dying_with_us, end_marked
from support.processes import command_line, family, send
from support.waiting import DEADLINE_SECS, until

#: Spark on a busy machine with two cores needs most of a minute.
START_SECS = 120.0
STOP_SECS = 120.0


class WorkerProcess:
    """Runs ``python -m stormkeeper.worker`` on a script; what it writes is gathered line by line.

    Parameters
    ----------
    script
        What it runs.
    conf
        Configuration, given with ``-c``.
    folder
        Where it runs; the end of its life leaves temporary files nowhere else.
    options
        Further options of its command line.
    arguments
        The script's own.
    storm_id, node, port
        Whose heartbeats it sends.
    """

    def __init__(
        self,
        script: Path,
        conf: Mapping[str, Any],
        folder: Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        storm_id: str = "topology-1-1",
        node: str = "node",
        port: int = 6700,
    ) -> None:
        self.path = f"/workerbeats/{storm_id}/{node}-{port}"
        self.lines: list[str] = []
        self.errors: list[str] = []
        command = ["--storm-id", storm_id, "--node", node, "--port", str(port)]
        command += options
        for key, value in conf.items():
            command += ["-c", f"{key}={json.dumps(value)}"]
        command += ["--", *arguments]
        environment = {k: v for k, v in os.environ.items() if k != "STORM_CONF_DIR"}
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            dying_with_us([sys.executable, "-m", "stormkeeper.worker", str(script), *command]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={
                **environment,
                "HOME": "/nonexistent",
                RUN_MARK: self._mark,
                "TMPDIR": str(folder),
                "SPARK_LOCAL_DIRS": str(folder),
            },
        )
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self._process.stdout, self.lines),
                (self._process.stderr, self.errors),
            )
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        # What it started may outlive it, and be nobody's child by now.
        until(lambda: not end_marked(self._mark, settle_secs=0))
        self.ended()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        """All that it wrote until now."""
        return "\n".join(["stdout:", *self.lines, "stderr:", *self.errors])

    def wait_for(self, pattern: str, deadline_secs: float = START_SECS) -> re.Match[str]:
        """Wait for a line on stdout that `pattern` is found in."""

        def found() -> re.Match[str] | None:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert self._process.poll() is None, f"ended before {pattern!r}:\n{self.text}"
            return None

        try:
            return until(found, deadline_secs)
        except AssertionError as error:
            raise AssertionError(f"no {pattern!r}:\n{self.text}") from error

    def family(self) -> list[psutil.Process]:
        """The process and all that it started."""
        return family(self._process.pid)

    def command_lines(self) -> list[str]:
        """What every user of the machine can read of these processes."""
        return [command_line(process) for process in self.family()]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker alone."""
        self._process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all that it started, as service managers do."""
        send(self.family(), number)

    def stand_still(self) -> list[psutil.Process]:
        """Stop the worker and all that it started, and return these: only they can go on again."""
        # Until it is told, each may start another one, as Spark does for a file's mode.
        stopped: list[psutil.Process] = []
        while new := [process for process in self.family() if process not in stopped]:
            send(new, signal.SIGSTOP)
            stopped += new
        return stopped

    def ended(self, deadline_secs: float = STOP_SECS) -> int:
        """Wait for the end, and return the exit code."""
        code = self._process.wait(deadline_secs)
        for reader in self._readers:
            reader.join(DEADLINE_SECS)
        return code

    def stop(self) -> int:
        """Ask it to stop, wait for its end, and return the exit code."""
        self.send(signal.SIGTERM)
        return self.ended()
