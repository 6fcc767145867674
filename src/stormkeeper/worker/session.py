"""The worker's Spark session: started when first needed, and handed to a script that asks for one.

A setting such as ``spark.driver.memory`` or ``spark.jars.packages`` has an effect only when the JVM
starts. A user may give it in the topology's conf or in a script's ``SparkSession.builder``. So
Spark is started when the topology is made or when the script asks for a session, whichever comes
first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stormkeeper.daemon import spark as engine
from stormkeeper.errors import WorkerError
from stormkeeper.worker.settings import spark_values
from stormkeeper.worker.sizes import slot_share
from stormkeeper.worker.unpacked import Unpacked

log = logging.getLogger(__name__)

#: Loggers of Spark that fill pages with what a user's own code raised. The worker says it once, and
#: readably. On a cluster the failure of a task is news by itself, as Spark tries the task again.
_WORDY = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)
_WORDY_LOCAL = (
    "org.apache.spark.TaskContextImpl",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.util.Utils",
)
#: The same in Python: py4j on ``foreachBatch``, PySpark on what it raises anyway.
_WORDY_PYTHON = ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger")


class WorkerSession:
    """The one Spark session of a worker.

    Parameters
    ----------
    conf
        Returns the configuration to start it with, when it is started.
    name
        ``spark.app.name``, unless the configuration names one.
    py_files
        Modules and archives of modules that Spark's Python workers get.
    package
        What a supervisor has it run: with its jars, and in the share that a slot has of the
        machine. None where there is none.
    cancelled
        Asked while Spark starts; once it says so, the start is given up.
    """

    def __init__(
        self,
        conf: Callable[[], Mapping[str, Any]],
        name: str,
        py_files: Sequence[Path] = (),
        *,
        package: Unpacked | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._conf = conf
        self._name = name
        self._py_files = py_files
        self._package = package
        self._cancelled = cancelled
        self._lock = threading.RLock()
        self._session: SparkSession | None = None
        self._given: dict[str, Any] = {}
        self._starting = False

    @property
    def session(self) -> SparkSession | None:
        """The session that was started last, also when it runs no more."""
        return self._session

    @property
    def started(self) -> SparkSession | None:
        """The session, None while there is none."""
        return self._session if is_running(self._session) else None

    def get(self, asked: Mapping[str, Any] | None = None) -> SparkSession:
        """Return the session; start it, with what was `asked` for as well, if there is none.

        Raises
        ------
        EngineError
            When Spark does not start, or its start was cancelled.
        """
        with self._lock:
            if not is_running(self._session):
                self._given = self._values(asked or {}, self._share())
                self._starting = True
                try:
                    self._session = engine.session(
                        self._given, self._name, cancelled=self._cancelled
                    )
                finally:
                    self._starting = False
                _quieten(self._session)
                for file in self._py_files:
                    self._session.sparkContext.addPyFile(str(file))
            assert self._session is not None
            return self._session

    @contextlib.contextmanager
    def offered(self, before_stop: Callable[[], None]) -> Iterator[None]:
        """Give this session to all code of this process that asks PySpark for one.

        Parameters
        ----------
        before_stop
            Called when such code stops the session, before it is stopped.
        """
        builder = SparkSession.Builder
        get_or_create = builder.getOrCreate
        get_active = SparkSession.__dict__["getActiveSession"]
        stop = SparkSession.stop

        def ours(asking: Any) -> SparkSession:
            with self._lock:
                if self._starting:
                    return get_or_create(asking)
                if self.started is None:
                    return self.get(asking._options)
                for key in asking._options.keys() & self._conf().keys():
                    del asking._options[key]  # the configuration's stands
                return get_or_create(asking)

        def ours_if_none(_: type[SparkSession]) -> SparkSession | None:
            started = self.started
            if started is None and not self._starting:
                return self.get()
            active: SparkSession | None = get_active.__get__(None, SparkSession)()
            return active

        def stop_ours(session: SparkSession) -> None:
            before_stop()
            stop(session)

        builder.getOrCreate = ours  # type: ignore[method-assign,assignment]
        SparkSession.getActiveSession = classmethod(ours_if_none)  # type: ignore[assignment]
        SparkSession.stop = stop_ours  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            builder.getOrCreate = get_or_create  # type: ignore[method-assign]
            SparkSession.getActiveSession = get_active  # type: ignore[method-assign]
            SparkSession.stop = stop  # type: ignore[method-assign]

    def adapt(self) -> None:
        """Give the running session the settings that have changed since its start.

        What cannot be changed in a running session is logged.
        """
        session = self.get()
        for key, value in self._values({}, {}).items():
            if value is None or self._given.get(key) == value:
                continue
            if session.conf.isModifiable(key):
                session.conf.set(key, value)
            else:
                log.warning(
                    "%s=%s comes too late, Spark runs already: make the Topology before anything "
                    "else of PySpark",
                    key,
                    value,
                )

    def _values(self, asked: Mapping[str, Any], share: Mapping[str, Any]) -> dict[str, Any]:
        values = spark_values(self._conf(), asked, share)
        return values if self._package is None else self._package.with_jars(values)

    def _share(self) -> dict[str, str]:
        if self._package is None:
            return {}
        return slot_share(self._conf(), len(os.sched_getaffinity(0)))

    def end(self, timeout_secs: float) -> None:
        """End the session, if there is one, with the JVM and Spark's Python workers.

        It takes `timeout_secs` at most.
        """
        if self._session is not None:
            engine.end(self._session, timeout_secs)


def is_running(session: SparkSession | None) -> bool:
    """Return whether there is a session, nobody has stopped it, and its JVM runs."""
    return (
        session is not None
        and session.sparkContext._jsc is not None
        and engine.jvm_exit(session) is None
    )


def check_jvm(sessions: Iterable[SparkSession], timeout_secs: float = 0.0) -> None:
    """Look whether the JVM of every session runs.

    Raises
    ------
    WorkerError
        When one has ended, within `timeout_secs`.
    """
    for session in sessions:
        status = engine.jvm_exit(session, timeout_secs)
        if status is not None:
            raise WorkerError(_ended_with(status))


def _ended_with(status: int) -> str:
    if status == -signal.SIGKILL:
        return (
            "Spark's JVM ended with SIGKILL, and all queries with it: if the kernel killed it for "
            "want of memory, which its log tells, give the host or container more, or the JVM less "
            "(spark.driver.memory)"
        )
    what = f"status {status}" if status >= 0 else f"signal {-status}"
    return (
        f"Spark's JVM ended with {what}, and all queries with it: what it wrote on stderr may say "
        "why; where that is an OutOfMemoryError, give it more spark.driver.memory"
    )


def _quieten(session: SparkSession) -> None:
    for name in _WORDY_PYTHON:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    levels = session._jvm.org.apache.logging.log4j.Level  # type: ignore[union-attr]
    configurator = session._jvm.org.apache.logging.log4j.core.config.Configurator  # type: ignore[union-attr]
    local = str(session.sparkContext.master).startswith("local")
    for name in (*_WORDY, *(_WORDY_LOCAL if local else ())):
        configurator.setLevel(name, levels.OFF)
