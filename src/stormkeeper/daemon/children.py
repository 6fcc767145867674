"""Child processes of a daemon or a command: their start, ready line, log and end.

Every child runs in a session of its own. So Ctrl-C in the terminal reaches the parent alone, which
then stops the children in order.
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

from stormkeeper.daemon import die_with_parent
from stormkeeper.errors import ChildError

#: Lines of a child's standard output that are kept for the view.
TAIL_LINES = 200

#: Longest line of a child's standard output; a longer one counts as several.
LINE_BYTES = 64 * 1024

#: Lines of a child's log that an error shows: enough for a Python traceback. They are looked for in
#: so many bytes at its end, as the log of a long run is large.
ERROR_LINES = 25
ERROR_BYTES = 64 * 1024

#: How often a wait looks again at a child, in seconds.
POLL_SECS = 0.05


def how_it_ended(exit_code: int) -> str:
    """Return in words how a process ended; the exit code is negative where a signal ended it."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal, most of which have no name
        return f"ended by signal {-exit_code}"


def memory_mib(pid: int, *, without: Collection[int] = ()) -> float:
    """Return what a process and all that it started take, in MiB; 0 where there is none.

    Pages that several of them share (Spark forks its Python workers) count once.

    Parameters
    ----------
    pid
        The process.
    without
        Processes that do not count, nor what they started.
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


class Child:
    """One child process.

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
        The line on standard output by which it says that it is ready.

    Raises
    ------
    ChildError
        The command cannot be started.
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
            raise ChildError(f"{name} cannot be started: {error}") from error
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
        return how_it_ended(code)

    def wait_ready(self, timeout_secs: float) -> re.Match[str] | None:
        """Wait up to `timeout_secs` for its ready line; None when it has not come yet.

        Raises
        ------
        ChildError
            It ended; the message ends with the tail of its log.
        """
        deadline = time.monotonic() + timeout_secs
        while self.ready_match is None:
            if self.returncode is not None:
                # Its last lines may still be on their way through the pipe.
                self._reader.join(timeout=1.0)
                if self.ready_match is None:
                    raise ChildError(f"the {self.name} {self.state()}:\n{self.log_tail()}")
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
        text = ""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - ERROR_BYTES))
            text = log.read(ERROR_BYTES).decode(errors="replace")
        lines = text.splitlines() or self.output()[0]
        return "\n".join(lines[-ERROR_LINES:])

    def new_log_lines(self) -> list[str]:
        """Return the whole lines that the log has got since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._log_read)
            new, newline, _ = log.read().rpartition(b"\n")
        self._log_read += len(new) + len(newline)
        return new.decode(errors="replace").splitlines()

    def memory_mib(self, *, without: Collection[int] = ()) -> float:
        """Memory of the process and all that it started, in MiB; 0 once it ended."""
        return memory_mib(self.pid, without=without) if self.returncode is None else 0.0

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
        # As long as a process of its session is left, no other process gets its id. If one has it
        # now, that is a stranger, and so may the process group of this number be.
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
            while raw := stdout.readline(LINE_BYTES):
                line = raw.decode(errors="replace").rstrip()
                if self.ready_match is None and (match := self._ready.search(line)):
                    self.ready_match = match
                else:
                    with self._output_lock:
                        self._lines.append(line)
                        self._line_count += 1


class Children:
    """Child processes by their names, in the order of their start.

    Parameters
    ----------
    folder
        Holds their logs: ``pacemaker-1.log`` is that of ``pacemaker 1``.
    note
        Called with each line that is to be said of them.
    """

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
        """Start a process.

        Parameters
        ----------
        name, command, ready
            As of `Child`.
        environment
            What is added to this process's own.

        Raises
        ------
        ChildError
            The command cannot be started.
        """
        log = self._folder / f"{name.replace(' ', '-')}.log"
        self.by_name[name] = Child(
            name, command, log=log, env={**os.environ, **environment}, ready=ready
        )

    def memory_mib(self, *, without: Collection[int] = ()) -> dict[str, float]:
        """Return what each process takes, with all that it started, as `memory_mib` does."""
        return {name: child.memory_mib(without=without) for name, child in self.by_name.items()}

    def note_ends(self) -> None:
        """Say once of each process that it has ended."""
        for name, child in self.by_name.items():
            if child.returncode is not None and name not in self._ended:
                self._ended.add(name)
                self._note(f"{name} (process {child.pid}) {child.state()}")

    def stop(self, names: Sequence[str], grace_secs: float) -> None:
        """End processes, all at once; those that were never started are passed over.

        What has not ended after `grace_secs` is ended by force.
        """
        children = [self.by_name[name] for name in names if name in self.by_name]
        for child in children:
            child.request_stop()
        for child in children:
            if not child.wait_stopped(grace_secs):
                self._note(f"{child.name} did not end in {grace_secs:.0f} s: ended by force")


#: How long a program may take to end when it is asked to, in seconds.
GRACE_SECS: Final = 3.0

#: Lines of its output that an error shows before those of its log.
OUTPUT_LINES: Final = 12

#: How often it is looked at, in seconds.
_POLL_SECS = 0.05

_NEVER = re.compile(r"(?!)")


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
    """Run a program to its end.

    It ends with the thread that runs it, and so does what it has started in its session.

    Parameters
    ----------
    name, argv, log, env
        As of `Child`; `argv` begins with a path.
    secs
        How long it may take.
    cancelled
        Asked while it runs; once it says so, the program is ended.
    progress
        Called with each line of its output, as far as the lines do not come too fast.

    Raises
    ------
    ChildError
        It cannot be started, takes longer, is cancelled, or fails; the message ends with what
        it said last.
    """
    with_us = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    child = Child(name, [*with_us, *argv], log=log, env=env, ready=_NEVER)
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
                time.sleep(_POLL_SECS)
    finally:
        child.stop(GRACE_SECS)
    _pass_on(child, heard, progress)
    if why:
        raise ChildError(f"{name} was ended {why}:\n{_last_words(child)}")
    if child.returncode != 0:
        raise ChildError(f"{name} {child.state()}:\n{_last_words(child)}")


def _pass_on(child: Child, heard: int, progress: Callable[[str], None]) -> int:
    """Pass the lines on that came after the first `heard` ones; return how many there are now."""
    lines, count = child.output()
    for line in lines[len(lines) - min(count - heard, len(lines)) :]:
        progress(line)
    return count


def _last_words(child: Child) -> str:
    """Return the last lines of its output, which may say why, and those of its log."""
    if not child.log.stat().st_size:
        return child.log_tail()  # which is the output then
    return "\n".join([*child.output()[0][-OUTPUT_LINES:], child.log_tail()])


#: The variable that holds the mark.
RUN_MARK = "STORMKEEPER_RUN"

#: How long killed processes may take to be gone, in seconds.
KILLED_SECS = 2.0


def end_marked(run: str, *, settle_secs: float) -> int:
    """End every process that carries the mark of `run`, and say how many had to be ended.

    Those that are about to end get `settle_secs` for it, and do not count. The others are killed,
    and are gone when this returns.
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
