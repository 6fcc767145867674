"""The log levels that ``storm set_log_level`` gives a topology whose workers run.

A level counts for the loggers of Python in the worker's process, and for those of the JVM of its
Spark driver (log4j 2): neither for Spark's Python workers nor for executors on other machines.
``ROOT`` is the root logger of both. When a level is removed, or its time is over, the loggers have
the levels that they had before, or the one that the request names for that (``reset_log_level``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.thrift.records import LogConfig

log = logging.getLogger(__name__)

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
_LOOK_SECS: Final = 1.0


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
            self._woken.wait(_LOOK_SECS if levels else None)

    def _apply_to_spark(self, levels: Mapping[str, str]) -> None:
        session = self._session()
        if session is None:
            return
        if self._of is not session or self._spark is None:
            self._spark, self._of = AppliedLevels(SparkLoggers(session)), session
        self._spark.apply(levels)
