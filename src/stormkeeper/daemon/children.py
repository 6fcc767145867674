"""Child processes: start, ready line, log, memory and end.

Each child has its own session, so that Ctrl-C reaches only the parent, which stops the children in
order. A mark in the environment, which descendants inherit, finds orphans.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from stormkeeper.errors import ChildError

TAIL_LINES = 200

#: A longer line of standard output counts as several.
LINE_BYTES = 64 * 1024

#: Lines of the log in an error, enough for a Python traceback, and bytes read for them.
ERROR_LINES = 25
ERROR_BYTES = 64 * 1024

#: Lines of a program's output in an error, before the log's.
OUTPUT_LINES: Final = 12

POLL_SECS = 0.05

GRACE_SECS: Final = 3.0

RUN_MARK = "STORMKEEPER_RUN"

KILLED_SECS = 2.0

_NEVER = re.compile(r"(?!)")

#: Asks Linux for SIGTERM at the parent's death, then becomes the program. A separate process, as
#: code between fork and exec is unsafe with threads. 1 is PR_SET_PDEATHSIG.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
if sys.platform.startswith("linux"):
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the parent died before the request: no signal would come
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(argv: Sequence[str]) -> list[str]:
    """Return a command that runs `argv` until the calling thread ends."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]


def how_it_ended(exit_code: int) -> str:
    """Return an exit code as text; a negative code is that of a signal."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal, most of which have no name
        return f"ended by signal {-exit_code}"


def memory_mib(pid: int, *, without: Collection[int] = ()) -> float:
    """Return the memory of a process with descendants, except `without`; 0 without a process.

    Shared pages count once, as Spark forks its Python workers.
    """
    total = 0
    others = {member.pid for other in without for member in _family(other)}
    for member in _family(pid):
        if member.pid not in others:
            with contextlib.suppress(psutil.Error):
                memory = member.memory_full_info()
                total += getattr(memory, "pss", memory.rss)
    return total / 2**20


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def last_lines(log: Path) -> str:
    """Return the last lines of a log; empty without a log."""
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - ERROR_BYTES))
            text = opened.read(ERROR_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-ERROR_LINES:])


class GrowingLog:
    """Reads a growing log, from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[str]:
        """Return the complete lines since the last call."""
        try:
            with self._path.open("rb") as log:
                if log.seek(0, os.SEEK_END) < self._offset:  # the log was rotated
                    self._offset = 0
                log.seek(self._offset)
                new, newline, _ = log.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(new) + len(newline)
        return new.decode(errors="replace").splitlines() if newline else []


class Child:
    """A child process, which ends with the calling thread. Raises `ChildError` if none can start.

    Standard error goes to `log`; standard output stays apart in memory. `ready` matches the
    output's line of readiness. The child inherits the descriptors `pass_fds`.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        ready: re.Pattern[str] = _NEVER,
        pass_fds: Collection[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        self._output_lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._line_count = 0
        self.ready_match: re.Match[str] | None = None
        self._ready = ready
        self.growing_log = GrowingLog(log)
        try:
            with log.open("ab") as log_file:
                self._process = subprocess.Popen(
                    dying_with_us(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    env=dict(env),
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
        except OSError as error:
            raise ChildError(f"{name} cannot be started: {error}") from error
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative after a signal; None while the process runs."""
        return self._process.poll()

    def state(self) -> str:
        """Return ``starting``, ``running``, or for example ``ended by SIGKILL``."""
        code = self.returncode
        if code is None:
            return "running" if self.ready_match else "starting"
        return how_it_ended(code)

    def output(self) -> tuple[list[str], int]:
        """Return the last lines of output, and the number of all."""
        with self._output_lock:
            return list(self._lines), self._line_count

    def log_tail(self) -> str:
        return last_lines(self.log) or "\n".join(self.output()[0][-ERROR_LINES:])

    def memory_mib(self, *, without: Collection[int] = ()) -> float:
        return memory_mib(self.pid, without=without) if self.returncode is None else 0.0

    def request_stop(self) -> None:
        """Send SIGTERM, and SIGCONT for a suspended process."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
                self._process.send_signal(signal.SIGCONT)

    def wait_stopped(self, grace_secs: float) -> bool:
        """Wait for the end, then kill the session; return whether the process ended by itself."""
        by_itself = True
        try:
            self._process.wait(timeout=grace_secs)
        except subprocess.TimeoutExpired:
            by_itself = False
        # The system reuses the id of an empty session: a process or group with that id may be a
        # stranger's.
        if not (by_itself and psutil.pid_exists(self.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=1.0)
        return by_itself

    def stop(self, grace_secs: float) -> bool:
        """Send SIGTERM, and SIGKILL after `grace_secs`; return whether SIGTERM sufficed."""
        self.request_stop()
        return self.wait_stopped(grace_secs)

    def _read(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        with stdout:
            while raw := stdout.readline(LINE_BYTES):
                line = raw.decode(errors="replace").rstrip()
                if self.ready_match is None and (match := self._ready.search(line)):
                    self.ready_match = match
                else:
                    with self._output_lock:
                        self._lines.append(line)
                        self._line_count += 1


class Children:
    """Child processes by name, in the order of starts."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._note = note
        self._ended: set[str] = set()
        self.by_name: dict[str, Child] = {}

    def start(
        self,
        name: str,
        command: Sequence[str],
        ready: re.Pattern[str],
        environment: Mapping[str, str],
    ) -> None:
        """Start a `Child` with `environment` added to this process's own."""
        log = self._folder / f"{name.replace(' ', '-')}.log"
        self.by_name[name] = Child(
            name, command, log=log, env={**os.environ, **environment}, ready=ready
        )

    def memory_mib(self, *, without: Collection[int] = ()) -> dict[str, float]:
        return {name: child.memory_mib(without=without) for name, child in self.by_name.items()}

    def note_ends(self) -> None:
        for name, child in self.by_name.items():
            if child.returncode is not None and name not in self._ended:
                self._ended.add(name)
                self._note(f"{name} (process {child.pid}) {child.state()}")

    def stop(self, names: Sequence[str], grace_secs: float) -> None:
        """Stop children at the same time, after `grace_secs` by force; skip unknown names."""
        children = [self.by_name[name] for name in names if name in self.by_name]
        for child in children:
            child.request_stop()
        for child in children:
            if not child.wait_stopped(grace_secs):
                self._note(f"{child.name} did not end in {grace_secs:.0f} s: ended by force")


def run(
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    secs: float,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a program until the end of the program or of the calling thread.

    `cancelled` is polled; `progress` may miss lines of output. Raises `ChildError`, with the last
    lines, for a failure, a cancellation or a timeout.
    """
    child = Child(name, argv, log=log, env=env)
    deadline = time.monotonic() + secs
    why, heard = "", 0
    try:
        while child.returncode is None and not why:
            heard = _pass_on(child, heard, progress)
            if cancelled():
                why = "when it was cancelled"
            elif time.monotonic() > deadline:
                why = f"after {secs:.0f} s"
            else:
                time.sleep(POLL_SECS)
    finally:
        child.stop(GRACE_SECS)
    _pass_on(child, heard, progress)
    if why:
        raise ChildError(f"{name} was ended {why}:\n{_last_words(child)}")
    if child.returncode != 0:
        raise ChildError(f"{name} {child.state()}:\n{_last_words(child)}")


def _pass_on(child: Child, heard: int, progress: Callable[[str], None]) -> int:
    lines, count = child.output()
    for line in lines[len(lines) - min(count - heard, len(lines)) :]:
        progress(line)
    return count


def _last_words(child: Child) -> str:
    if not child.log.stat().st_size:
        return child.log_tail()  # the output
    return "\n".join([*child.output()[0][-OUTPUT_LINES:], child.log_tail()])


def end_marked(run: str, *, settle_secs: float) -> int:
    """Kill every process with the mark of `run`; return the number of kills.

    Processes that end within `settle_secs` do not count.
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
    """Return the live processes, except this process, with the mark of `run`."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
