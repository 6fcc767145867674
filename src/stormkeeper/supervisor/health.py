"""Whether a machine is fit for new work: its disks take files, and the operator's checks pass.

The checks are executables in a folder, as Storm runs them. A check fails if its exit code is not 0,
whatever it prints, or if it cannot be run. A check that takes too long fails unless that is
allowed.
"""

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import how_it_ended
from stormkeeper.daemon.durable import find_fault

log = logging.getLogger(__name__)

#: Time between two rounds of checks, in seconds, as in Storm.
PERIOD_SECS: Final = 30.0

#: How long the thread may take to end, in seconds; checks that run then end by themselves.
_END_SECS: Final = 1.0

#: How long a killed check may take to be gone, in seconds.
_KILLED_SECS: Final = 1.0

#: How much of a check's output is looked at, in bytes, for the line that says why it failed.
_OUTPUT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that failed: the name of its file, and why, with the last line of its output."""

    name: str
    reason: str


def check(conf: Mapping[str, Any]) -> list[FailedCheck]:
    """Run the checks of a configuration; return those that failed, by their names' order.

    Raises
    ------
    ConfigError
        Their folder begins with the home of a user who has none.
    """
    chosen = conf["storm.health.check.dir"]
    if chosen is None:
        return []
    return run(
        folder("storm.health.check.dir", chosen),
        timeout_secs=conf["storm.health.check.timeout.ms"] / 1000,
        fail_on_timeouts=conf["storm.health.check.fail.on.timeouts"],
    )


def run(directory: Path, *, timeout_secs: float, fail_on_timeouts: bool) -> list[FailedCheck]:
    """Run all checks of a folder at the same time; return those that failed.

    Parameters
    ----------
    directory
        Its executables are the checks. Where there is no such folder, there are no checks.
    timeout_secs
        What they may take; then they are ended by force, with all in their sessions.
    fail_on_timeouts
        Whether one that took longer has failed.
    """
    try:
        files = sorted(path for path in directory.iterdir() if _is_executable(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [FailedCheck(directory.name, f"the folder {directory} cannot be read: {error}")]
    failed = []
    with contextlib.ExitStack() as stack:
        running: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []
        for path in files:
            try:
                output: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
                running.append((_name(path), _start(path, output), output))
            except OSError as error:
                failed.append(FailedCheck(_name(path), f"it cannot be run: {error.strerror}"))
        deadline = time.monotonic() + timeout_secs
        for name, process, output in running:
            reason = _wait(process, deadline, timeout_secs if fail_on_timeouts else None)
            if reason:
                failed.append(FailedCheck(name, reason + _last_line(output)))
    return sorted(failed, key=lambda one: one.name)


def _name(path: Path) -> str:
    """Return a file's name as text that can be sent, which not every name is."""
    return path.name.encode(errors="backslashreplace").decode()


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _start(path: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [path.absolute()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], deadline: float, limit: float | None) -> str:
    """Wait for a check; return why it failed. `limit` is None where it may take too long."""
    try:
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        # It has not been waited for, so its session's number is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_SECS)
        return "" if limit is None else f"it was not done after {limit:g} s"
    return f"it {how_it_ended(code)}" if code else ""


def _last_line(output: IO[bytes]) -> str:
    """Return what a check said last, behind a colon."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f": {said[-1]}" if said else ""


class HealthWatch:
    """Runs the checks of a configuration.

    Parameters
    ----------
    conf
        Names the folder of the operator's checks.
    folders
        Folders in which workers and the supervisor make files.
    tell
        Takes the result of each round: why the machine is unfit for new work, None if it is fit.
    """

    def __init__(
        self, conf: Conf, folders: Sequence[Path], tell: Callable[[str | None], None]
    ) -> None:
        self._conf = conf
        self._folders = folders
        self._tell = tell
        self._reason: str | None = None
        self._is_full = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def look(self) -> None:
        """Run the checks once.

        Raises
        ------
        ConfigError
            Their folder begins with the home of a user who has none.
        """
        reason = self._unfit()
        if reason != self._reason:
            if reason is None:
                log.info("this machine passes its health checks again, and takes new work")
            else:
                log.warning("this machine takes no new work: %s", reason)
        self._reason = reason
        self._tell(reason)

    def _unfit(self) -> str | None:
        full = [find_fault(each, had_fault=self._is_full) for each in self._folders]
        self._is_full = any(full)
        disk = "; ".join(dict.fromkeys(filter(None, full)))
        # The operator's checks need the temporary folder.
        return disk or in_words(check(self._conf))

    def start(self) -> None:
        """Go on with it."""
        self._thread.start()

    def close(self) -> None:
        """Begin no round any more."""
        self._closed.set()
        self._thread.join(_END_SECS)

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_SECS):
            self.look()


def in_words(failed: Iterable[FailedCheck]) -> str | None:
    """Return why a machine is unfit; None where no check has failed.

    Examples
    --------
    >>> in_words([FailedCheck("disk.sh", "it ended with exit code 1: / is full")])
    'the health check disk.sh failed: it ended with exit code 1: / is full'
    """
    said = [f"the health check {each.name} failed: {each.reason}" for each in failed]
    return "; ".join(said) or None
