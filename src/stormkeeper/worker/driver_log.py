"""Keeps the log of a worker small: what is old goes into compressed files beside it.

The supervisor has opened the log as the worker's standard output and standard error. The JVM and
Spark's Python workers have inherited both, and write to it at any moment. So it cannot be replaced
by another file. It is not cut off at its end either, as that would lose what is written meanwhile.
What is old is copied, and then taken out of the file at its beginning (fallocate(2),
FALLOC_FL_COLLAPSE_RANGE): nothing is lost, and whoever appends to it notices nothing. Only whole
blocks can be taken out, so a line may be divided between two files.

Not every file system can do that. Elsewhere the file is copied and emptied, and what others write
within the milliseconds between is lost.
"""

from __future__ import annotations

import ctypes
import fcntl
import gzip
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.thrift.records import LogConfig

log = logging.getLogger(__name__)

#: The size of the log that is too much, and how many compressed files are kept: as in the
#: configuration that Storm brings for its workers' logs.
MOST_BYTES: Final = 100 * 1024 * 1024
KEPT: Final = 9

#: How often the size is looked at.
LOOK_SECS: Final = 5.0

#: And after a failure, such as a full disk.
RETRY_SECS: Final = 600.0

_COLLAPSE: Final = 0x08  # <linux/falloc.h>
_CHUNK: Final = 1024 * 1024


class LogRotation:
    """A thread that looks after the file to which a descriptor appends.

    Parameters
    ----------
    descriptor
        Such as 2. Where it is None, or no file that is appended to, nothing is done.
    most_bytes, kept, look_secs
        See above.
    """

    def __init__(
        self,
        descriptor: int | None,
        *,
        most_bytes: int = MOST_BYTES,
        kept: int = KEPT,
        look_secs: float = LOOK_SECS,
    ) -> None:
        self._file = None if descriptor is None else _file_of(descriptor)
        self._most_bytes = most_bytes
        self._kept = kept
        self._look_secs = look_secs
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-log", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._file is not None:
            self._thread.start()

    def close(self) -> None:
        """End; what is being copied is given up."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> bool:
        """Put what is old aside if the file is too large; return whether it was."""
        if self._file is None or self._file.stat().st_size <= self._most_bytes:
            return False
        return put_aside(self._file, self._kept, self._closing.is_set)

    def _run(self) -> None:
        pause = self._look_secs
        while not self._closing.wait(pause):
            pause = self._look_secs
            try:
                self.look()
            except OSError as error:
                log.warning("the log cannot be kept small: %s", error)
                pause = RETRY_SECS


def put_aside(file: Path, kept: int, cancelled: Callable[[], bool] = lambda: False) -> bool:
    """Move all of a file, but for its last block, to ``FILE.1.gz``; older ones move up by one.

    Parameters
    ----------
    file
        Whoever writes to it appends.
    kept
        How many such files there are at most.
    cancelled
        Asked now and then; once it says so, nothing has happened.

    Returns
    -------
    bool
        Whether it was done.

    Raises
    ------
    OSError
        The disk does not take the copy.
    """
    first, new = _numbered(file, 1), file.with_name(f"{file.name}.new")
    with file.open("rb+") as log_file:
        descriptor = log_file.fileno()
        block = os.fstatvfs(descriptor).f_bsize
        # A file has to keep something: the end cannot be taken out.
        taken = (os.fstat(descriptor).st_size - 1) // block * block
        try:
            with gzip.open(new, "wb") as copy:
                if not _copied(log_file, copy, taken, cancelled):
                    return False
            for number in range(kept - 1, 0, -1):
                if _numbered(file, number).exists():
                    _numbered(file, number).replace(_numbered(file, number + 1))
            # Before it is taken out: what is interrupted here is there twice.
            new.replace(first)
        finally:
            new.unlink(missing_ok=True)
        if not _take_out(descriptor, taken):
            with gzip.open(first, "ab") as copy:
                _copied(log_file, copy, None, lambda: False)
            os.ftruncate(descriptor, 0)
    return True


def _copied(
    source: BinaryIO, target: gzip.GzipFile, size: int | None, cancelled: Callable[[], bool]
) -> bool:
    """Copy so many bytes, or all; return whether that was not cancelled."""
    left = inf if size is None else size
    while left and (chunk := source.read(int(min(_CHUNK, left)))):
        if cancelled():
            return False
        target.write(chunk)
        left -= len(chunk)
    return True


def _take_out(descriptor: int, size: int) -> bool:
    """Take the first bytes out of a file, in one step; return whether its system can do that."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:  # no Linux
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(descriptor, _COLLAPSE, 0, size) == 0)


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}.gz")


def _file_of(descriptor: int) -> Path | None:
    """Return the file that a descriptor appends to; None where it is none, or has no name."""
    try:
        opened = os.fstat(descriptor)
        appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        is_there = stat.S_ISREG(opened.st_mode) and file.stat().st_ino == opened.st_ino
    except OSError:
        return None
    return file if appends and is_there else None


#: The name of the root logger in a request.
ROOT: Final = "ROOT"

#: What Python calls log4j's levels.
PYTHON_LEVELS: Final = {
    "ALL": 1,
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}

#: How often it is looked whether a time is over, or a JVM has started, while any level is set.
_LEVELS_LOOK_SECS: Final = 1.0


def levels_at(config: LogConfig | None, now: float) -> dict[str, str]:
    """Return the levels that count at `now`, in seconds since 1970, by the loggers' names."""
    found = {}
    for name, each in ((config and config.named_logger_level) or {}).items():
        ends_ms = each.reset_log_level_timeout_epoch
        is_over = ends_ms is not None and ends_ms <= now * 1000
        level = each.reset_log_level if is_over else each.target_log_level
        if level in PYTHON_LEVELS:
            found[name] = level
        elif level is not None:
            log.warning("%r is no log level, and %s stays as it is", level, name)
    return found


class Loggers(Protocol):
    """The loggers of one logging system."""

    def set(self, name: str, level: str) -> Any:
        """Give a logger a level, and return what `restore` needs."""

    def restore(self, name: str, before: Any) -> None:
        """Give a logger the level back that it had before."""


class PythonLoggers:
    """The loggers of this process."""

    def set(self, name: str, level: str) -> int:
        """See `Loggers`."""
        logger = self._logger(name)
        before = logger.level
        logger.setLevel(PYTHON_LEVELS[level])
        return before

    def restore(self, name: str, before: int) -> None:
        """See `Loggers`."""
        self._logger(name).setLevel(before)

    def _logger(self, name: str) -> logging.Logger:
        return logging.getLogger(None if name == ROOT else name)


class SparkLoggers:
    """The loggers of a session's JVM; raises Py4JError or OSError where that does not answer."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm
        self._levels = jvm.org.apache.logging.log4j.Level
        self._configurator = jvm.org.apache.logging.log4j.core.config.Configurator
        self._context = jvm.org.apache.logging.log4j.LogManager.getContext(False)

    def set(self, name: str, level: str) -> Any:
        """See `Loggers`."""
        name = "" if name == ROOT else name
        configured = self._context.getConfiguration().getLoggerConfig(name)
        before = configured.getLevel() if configured.getName() == name else None
        self._configurator.setLevel(name, self._levels.toLevel(level))
        return before

    def restore(self, name: str, before: Any) -> None:
        """See `Loggers`."""
        name = "" if name == ROOT else name
        if before is not None:
            self._configurator.setLevel(name, before)
        else:  # the logger has its parent's level again
            self._context.getConfiguration().removeLogger(name)
            self._context.updateLoggers()


class AppliedLevels:
    """What was set of the loggers of one logging system, so that it can be given back."""

    def __init__(self, loggers: Loggers) -> None:
        self._loggers = loggers
        #: By name, the level that is set, and what there was before.
        self._set: dict[str, tuple[str, Any]] = {}

    def apply(self, levels: Mapping[str, str]) -> None:
        """Have exactly these levels set."""
        for name in [*self._set]:
            if self._set[name][0] != levels.get(name):
                self._loggers.restore(name, self._set[name][1])
                del self._set[name]
        for name, level in levels.items():
            if name not in self._set:
                self._set[name] = level, self._loggers.set(name, level)


class LogLevels:
    """Sets the levels in a thread of its own, as a JVM may not answer.

    Parameters
    ----------
    session
        Returns the Spark session, None while there is none.
    clock
        Seconds since 1970.
    """

    def __init__(
        self, session: Callable[[], SparkSession | None], clock: Callable[[], float] = time.time
    ) -> None:
        self._session = session
        self._clock = clock
        self._config: LogConfig | None = None
        self._woken = threading.Event()
        self._is_closed = False
        self._python = AppliedLevels(PythonLoggers())
        self._spark: AppliedLevels | None = None
        self._of: SparkSession | None = None
        self._told: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="worker-log-levels", daemon=True)

    def take(self, config: LogConfig | None) -> None:
        """Have the levels of a topology set; returns at once."""
        if config is None and self._config is None:
            return
        self._config = config
        self._woken.set()
        if self._thread.ident is None and not self._is_closed:
            self._thread.start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._is_closed = True
        self._woken.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            levels = levels_at(self._config, self._clock())
            if levels != self._told:
                said = ", ".join(f"{name}={level}" for name, level in sorted(levels.items()))
                log.info("log levels set for the topology: %s", said or "none any more")
                self._told = levels
            self._python.apply(levels)
            try:
                self._apply_to_spark(levels)
            except (Py4JError, OSError) as error:
                log.debug("the log levels of Spark's JVM cannot be set: %s", error)
            self._woken.wait(_LEVELS_LOOK_SECS if levels else None)

    def _apply_to_spark(self, levels: Mapping[str, str]) -> None:
        session = self._session()
        if session is None:
            return
        if self._of is not session or self._spark is None:
            self._spark, self._of = AppliedLevels(SparkLoggers(session)), session
        self._spark.apply(levels)
