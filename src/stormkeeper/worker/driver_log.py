"""The log of a worker's Spark driver: rotation, and levels that are set at run time.

The worker, the JVM and Python workers share the open file, which cannot be replaced or truncated
without a loss. So old content is copied to compressed files and removed at the beginning in whole
blocks (FALLOC_FL_COLLAPSE_RANGE of fallocate(2)), unnoticed by appending writers. A file system
without this call loses lines that are written between copy and truncation.

``storm set_log_level`` sets levels for Python in the worker's process and for the driver's JVM
(log4j 2), not for Python workers or executors.
"""

from __future__ import annotations

import ctypes
import fcntl
import gzip
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.thrift.records import LogConfig

log = logging.getLogger(__name__)

#: Size that triggers a rotation, and most compressed files, as in Storm.
MOST_BYTES: Final = 100 * 1024 * 1024
KEPT: Final = 9

LOOK_SECS: Final = 5.0

RETRY_SECS: Final = 600.0

_COLLAPSE: Final = 0x08  # <linux/falloc.h>
_CHUNK: Final = 1024 * 1024

ROOT: Final = "ROOT"

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

_LEVELS_LOOK_SECS: Final = 1.0


class LogRotation(PeriodicThread):
    """A thread that rotates the file, if any, to which a descriptor appends."""

    def __init__(
        self,
        descriptor: int | None,
        *,
        most_bytes: int = MOST_BYTES,
        kept: int = KEPT,
        look_secs: float = LOOK_SECS,
    ) -> None:
        super().__init__(
            "worker-log",
            self._rotate,
            period_secs=look_secs,
            first_secs=look_secs,
            streak=FailureStreak(RETRY_SECS, RETRY_SECS),
            failure="the log cannot be rotated",
            logger=log,
        )
        self._file = None if descriptor is None else _file_of(descriptor)
        self._most_bytes = most_bytes
        self._kept = kept

    def start(self) -> None:
        if self._file is not None:
            super().start()

    def rotate_if_large(self) -> bool:
        if self._file is None or self._file.stat().st_size <= self._most_bytes:
            return False
        return rotate(self._file, self._kept, lambda: self.is_closing)

    def _rotate(self) -> None:
        self.rotate_if_large()


def rotate(file: Path, kept: int, cancelled: Callable[[], bool] = lambda: False) -> bool:
    """Move all of a file but the last block to ``FILE.1.gz``; older files get the next number.

    All writers have to append. Returns False, without a change, if `cancelled`. Raises `OSError` if
    the copy fails.
    """
    first, new = _numbered(file, 1), file.with_name(f"{file.name}.new")
    with file.open("rb+") as log_file:
        descriptor = log_file.fileno()
        block = os.fstatvfs(descriptor).f_bsize
        # The end of a file cannot be removed.
        taken = (os.fstat(descriptor).st_size - 1) // block * block
        try:
            with gzip.open(new, "wb") as copy:
                if not _copied(log_file, copy, taken, cancelled):
                    return False
            for number in range(kept - 1, 0, -1):
                if _numbered(file, number).exists():
                    _numbered(file, number).replace(_numbered(file, number + 1))
            # Copied before the removal: an interruption duplicates lines and loses none.
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
    left = inf if size is None else size
    while left and (chunk := source.read(int(min(_CHUNK, left)))):
        if cancelled():
            return False
        target.write(chunk)
        left -= len(chunk)
    return True


def _take_out(descriptor: int, size: int) -> bool:
    """Remove the first bytes atomically; return False if the system cannot."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:  # no Linux
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(descriptor, _COLLAPSE, 0, size) == 0)


def _numbered(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}.gz")


def _file_of(descriptor: int) -> Path | None:
    try:
        opened = os.fstat(descriptor)
        appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        is_there = stat.S_ISREG(opened.st_mode) and file.stat().st_ino == opened.st_ino
    except OSError:
        return None
    return file if appends and is_there else None


def levels_at(config: LogConfig | None, now: float) -> dict[str, str]:
    """Return the levels in force at `now`, in seconds since 1970, by logger name."""
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


class PythonLoggers:
    """The loggers of this process."""

    def set(self, name: str, level: str) -> int:
        """Return the state before, for `restore`."""
        logger = self._logger(name)
        before = logger.level
        logger.setLevel(PYTHON_LEVELS[level])
        return before

    def restore(self, name: str, before: int) -> None:
        self._logger(name).setLevel(before)

    def _logger(self, name: str) -> logging.Logger:
        return logging.getLogger(None if name == ROOT else name)


class SparkLoggers:
    """The loggers of a session's JVM; raises Py4JError or OSError if the JVM does not answer."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm
        self._levels = jvm.org.apache.logging.log4j.Level
        self._configurator = jvm.org.apache.logging.log4j.core.config.Configurator
        self._context = jvm.org.apache.logging.log4j.LogManager.getContext(False)

    def set(self, name: str, level: str) -> Any:
        name = "" if name == ROOT else name
        configured = self._context.getConfiguration().getLoggerConfig(name)
        before = configured.getLevel() if configured.getName() == name else None
        self._configurator.setLevel(name, self._levels.toLevel(level))
        return before

    def restore(self, name: str, before: Any) -> None:
        name = "" if name == ROOT else name
        if before is not None:
            self._configurator.setLevel(name, before)
        else:  # the parent's level applies again
            self._context.getConfiguration().removeLogger(name)
            self._context.updateLoggers()


class AppliedLevels:
    """The levels that were set in a logging system, and the levels before."""

    def __init__(self, loggers: PythonLoggers | SparkLoggers) -> None:
        self._loggers = loggers
        self._set: dict[str, tuple[str, Any]] = {}

    def apply(self, levels: Mapping[str, str]) -> None:
        """Set exactly these levels, and restore all others."""
        for name in [*self._set]:
            if self._set[name][0] != levels.get(name):
                self._loggers.restore(name, self._set[name][1])
                del self._set[name]
        for name, level in levels.items():
            if name not in self._set:
                self._set[name] = level, self._loggers.set(name, level)


class LogLevels(PeriodicThread):
    """Applies a topology's log levels in a thread, as the JVM may not answer."""

    def __init__(
        self, session: Callable[[], SparkSession | None], clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__("worker-log-levels", self._apply, logger=log)
        self._session = session
        self._now = clock
        self._config: LogConfig | None = None
        self._python = AppliedLevels(PythonLoggers())
        self._spark: AppliedLevels | None = None
        self._spark_session: SparkSession | None = None
        self._logged: dict[str, str] = {}

    def update(self, config: LogConfig | None) -> None:
        if config is not None or self._config is not None:
            self._config = config
            self.wake()

    def _apply(self) -> float:
        levels = levels_at(self._config, self._now())
        if levels != self._logged:
            text = ", ".join(f"{name}={level}" for name, level in sorted(levels.items()))
            log.info("log levels set for the topology: %s", text or "none any more")
            self._logged = levels
        self._python.apply(levels)
        try:
            self._apply_to_spark(levels)
        except (Py4JError, OSError) as error:
            log.debug("the log levels of Spark's JVM cannot be set: %s", error)
        return _LEVELS_LOOK_SECS if levels else inf

    def _apply_to_spark(self, levels: Mapping[str, str]) -> None:
        session = self._session()
        if session is None:
            return
        if self._spark_session is not session or self._spark is None:
            self._spark, self._spark_session = AppliedLevels(SparkLoggers(session)), session
        self._spark.apply(levels)
