"""Health checks of a machine: disks take files, and the operator's checks pass.

The checks are executables in a folder, as in Storm. A check fails if its exit code is not 0, it
cannot be run, or (unless allowed) it takes too long.
"""

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import how_it_ended
from stormkeeper.daemon.durable import find_fault
from stormkeeper.daemon.periodic import PeriodicThread

log = logging.getLogger(__name__)

PERIOD_SECS: Final = 30.0

_KILLED_SECS: Final = 1.0

_OUTPUT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A failed check's file name, and the reason with the last line of output."""

    name: str
    reason: str


def check(conf: Mapping[str, Any]) -> list[FailedCheck]:
    chosen = conf["storm.health.check.dir"]
    if chosen is None:
        return []
    return run(
        folder("storm.health.check.dir", chosen),
        timeout_secs=conf["storm.health.check.timeout.ms"] / 1000,
        fail_on_timeouts=conf["storm.health.check.fail.on.timeouts"],
    )


def run(directory: Path, *, timeout_secs: float, fail_on_timeouts: bool) -> list[FailedCheck]:
    """Run all executables of a folder, if present, in parallel; return the failed checks, by name.

    After `timeout_secs` the checks are killed, with all processes of their sessions.
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
    return sorted(failed, key=lambda check: check.name)


def _name(path: Path) -> str:
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
    """Wait for a check; return the failure. Without a `limit` a timeout is no failure."""
    try:
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        # Not reaped yet, so no other session has this number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_SECS)
        return "" if limit is None else f"it was not done after {limit:g} s"
    return f"it {how_it_ended(code)}" if code else ""


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    return f": {lines[-1]}" if lines else ""


class HealthWatch(PeriodicThread):
    """A thread that runs the checks; `publish` gets why the machine takes no new work, or None."""

    def __init__(
        self, conf: Conf, folders: Sequence[Path], publish: Callable[[str | None], None]
    ) -> None:
        super().__init__(
            "health", self.check, period_secs=PERIOD_SECS, first_secs=PERIOD_SECS, retried=()
        )
        self._conf = conf
        self._folders = folders
        self._publish = publish
        self._reason: str | None = None
        self._is_full = False

    def check(self) -> None:
        """Run the checks once; raises `ConfigError`."""
        reason = self._find_fault()
        if reason != self._reason:
            if reason is None:
                log.info("this machine passes its health checks again, and takes new work")
            else:
                log.warning("this machine takes no new work: %s", reason)
        self._reason = reason
        self._publish(reason)

    def _find_fault(self) -> str | None:
        full = [find_fault(each, had_fault=self._is_full) for each in self._folders]
        self._is_full = any(full)
        disk = "; ".join(dict.fromkeys(filter(None, full)))
        # The operator's checks need the temporary folder.
        return disk or describe_failures(check(self._conf))


def describe_failures(failed: Iterable[FailedCheck]) -> str | None:
    texts = [f"the health check {each.name} failed: {each.reason}" for each in failed]
    return "; ".join(texts) or None
