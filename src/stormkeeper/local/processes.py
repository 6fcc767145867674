"""A child process of a local cluster: its start, its ready line, its log, its end.

Every child runs in a session of its own, so that Ctrl-C in the terminal reaches the parent alone,
which then stops the children in order. Children carry ``RUN_MARK`` in their environment, and
what they start inherits it, so that whoever is left at the end can be found by it even when its
parent is long gone.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from stormkeeper.errors import LocalClusterError

RUN_MARK = "STORMKEEPER_RUN"

#: Lines of a child's standard output that are kept for the view.
TAIL_LINES = 200

#: Lines of a child's log that an error shows: enough for a Python traceback.
ERROR_LINES = 25

#: How long killed processes may take to be gone, in seconds.
KILLED_SECS = 2.0

#: How often a wait looks again at a child, in seconds.
POLL_SECS = 0.05


class Child:
    """One process of the cluster.

    Parameters
    ----------
    name
        What an operator calls it: ``pacemaker 1``, ``worker``.
    argv
        The command.
    log
        File that gets its standard error. Its standard output is kept in memory alone, so that no
        line of it is taken for one of the log's.
    env
        Its environment.
    ready
        The line on standard output by which it says that it serves.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        ready: re.Pattern[str],
    ) -> None:
        self.name = name
        self.log = log
        self._output_lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._line_count = 0
        self.ready_match: re.Match[str] | None = None
        self._ready = ready
        self._log_read = 0
        try:
            with log.open("ab") as log_file:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    env=dict(env),
                    start_new_session=True,
                )
        except OSError as error:
            raise LocalClusterError(f"{name} cannot be started: {error}") from error
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code once it has ended, negative where a signal ended it; None while it runs."""
        return self._process.poll()

    def state(self) -> str:
        """In words, what the process is doing: ``starting``, ``running``, ``ended by SIGKILL``."""
        code = self.returncode
        if code is None:
            return "running" if self.ready_match else "starting"
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def wait_ready(self, timeout_secs: float) -> re.Match[str] | None:
        """Wait up to `timeout_secs` for its ready line; None when it has not come yet.

        Raises
        ------
        LocalClusterError
            It ended; the message ends with the tail of its log.
        """
        deadline = time.monotonic() + timeout_secs
        while self.ready_match is None:
            if self.returncode is not None:
                # Its last lines may still be on their way through the pipe.
                self._reader.join(timeout=1.0)
                if self.ready_match is None:
                    raise LocalClusterError(f"the {self.name} {self.state()}:\n{self.log_tail()}")
            elif time.monotonic() > deadline:
                break
            else:
                time.sleep(POLL_SECS)
        return self.ready_match

    def output(self) -> tuple[list[str], int]:
        """Return its last lines on standard output, and how many there have been."""
        with self._output_lock:
            return list(self._lines), self._line_count

    def log_tail(self) -> str:
        """Return the last lines of its log, or of its output where it has logged nothing."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = text.splitlines() or self.output()[0]
        return "\n".join(lines[-ERROR_LINES:])

    def new_log_lines(self) -> list[str]:
        """Return the whole lines that the log has got since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._log_read)
            new, newline, _ = log.read().rpartition(b"\n")
        self._log_read += len(new) + len(newline)
        return new.decode(errors="replace").splitlines()

    def memory_mib(self) -> float:
        """Memory of the process and all that it started, in MiB; 0 once it ended.

        Pages that several of them share (Spark forks its Python workers) count once.
        """
        total = 0
        if self.returncode is not None:
            return total
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    memory = member.memory_full_info()
                    total += getattr(memory, "pss", memory.rss)
        return total / 2**20

    def request_stop(self) -> None:
        """Ask it to end; a suspended process is continued, so that it can act on the signal."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
                self._process.send_signal(signal.SIGCONT)

    def wait_stopped(self, grace_secs: float) -> bool:
        """Wait `grace_secs` for its end, then end it and everything in its session by force.

        Returns whether it ended by itself.
        """
        by_itself = True
        try:
            self._process.wait(timeout=grace_secs)
        except subprocess.TimeoutExpired:
            by_itself = False
        # No process gets its id while another one of its session is left. One that has it now is a
        # stranger's, of whom it may be the process group as well.
        if not (by_itself and psutil.pid_exists(self.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=1.0)
        return by_itself

    def stop(self, grace_secs: float) -> bool:
        """End it: SIGTERM, `grace_secs` to comply, then SIGKILL; return whether it complied."""
        self.request_stop()
        return self.wait_stopped(grace_secs)

    def _read(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        with stdout:
            for raw in stdout:
                line = raw.decode(errors="replace").rstrip()
                if self.ready_match is None and (match := self._ready.search(line)):
                    self.ready_match = match
                else:
                    with self._output_lock:
                        self._lines.append(line)
                        self._line_count += 1


def end_marked(run: str, *, settle_secs: float) -> int:
    """End every process that carries the mark of `run`, and say how many had to be ended.

    Those that are on their way out already get `settle_secs` for it and do not count. At the return
    the others are gone too.
    """
    deadline = time.monotonic() + settle_secs
    while (left := marked(run)) and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
    ended = len(left)
    deadline = time.monotonic() + KILLED_SECS
    while left and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_SECS)
        left = marked(run)
    return ended


def marked(run: str) -> list[psutil.Process]:
    """Return the live processes, other than this one, that carry the mark of `run`."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
