"""The operator's own checks of a machine: executables in a folder, as Storm runs them.

A check fails if its exit code is not 0, whatever it prints, or if it cannot be run. One that takes
too long fails unless that is allowed. A machine with a failed check should get no new work.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import how_it_ended

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
