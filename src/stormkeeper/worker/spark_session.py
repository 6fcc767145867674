"""The worker's Spark session: started when first needed, and given to scripts.

Settings such as ``spark.driver.memory`` take effect only at the JVM's start, and may stand in the
topology's conf or in a script's ``SparkSession.builder``. So Spark starts when the topology is
created or when the script asks for a session, whichever comes first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stormkeeper.conf import Conf
from stormkeeper.daemon import spark as engine
from stormkeeper.errors import EngineError, WorkerError
from stormkeeper.topology import faults
from stormkeeper.worker import remote_spark, udf_daemon
from stormkeeper.worker.job import UnpackedPackage
from stormkeeper.worker.worker_conf import slot_share, spark_values, warn_of_own_checkpoints

log = logging.getLogger(__name__)

_MASTER = "spark.master"
_PACKAGES = "spark.jars.packages"

_STDERR = 2
_STDERR_PATH = "/proc/self/fd/2"

_MOST_SAID = 256 * 1024

#: Loggers of Spark that fill pages with errors of the user's code, which the worker logs once and
#: readably. On a cluster the failure of a task is news by itself, as Spark retries the task.
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
#: Python's loggers of the same: py4j for ``foreachBatch``, PySpark for errors that it raises.
_WORDY_PYTHON = ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger")


class WorkerSession:
    """The single Spark session of a worker.

    `package`, from a supervisor, adds jars, the slot's share of the machine, and code for executors
    elsewhere. `cancelled` is asked while Spark starts.
    """

    def __init__(
        self,
        conf: Callable[[], Conf],
        name: str,
        py_files: Sequence[Path] = (),
        *,
        package: UnpackedPackage | None = None,
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
        #: Holds the code for executors elsewhere, which may ask for it at any time.
        self._sent: tempfile.TemporaryDirectory[str] | None = None
        self._watch: remote_spark.ExecutorWatch | None = None

    @property
    def session(self) -> SparkSession | None:
        """The session that was started last, even after the end."""
        return self._session

    @property
    def started(self) -> SparkSession | None:
        """The running session, if any."""
        return self._session if is_running(self._session) else None

    def get(self, asked: Mapping[str, Any] | None = None) -> SparkSession:
        """Return the session; start a session with the `asked` settings if needed."""
        with self._lock:
            if not is_running(self._session):
                self._given = self._values(asked or {}, self._defaults(asked or {}))
                _check_classic(self._given)
                self._log_master(asked or {})
                if self._is_remote:
                    self._prepare_remote()
                else:  # executors elsewhere may not have this program
                    self._given.setdefault("spark.python.daemon.module", udf_daemon.__name__)
                self._starting = True
                log_size = _log_size()
                try:
                    self._session = engine.session(
                        self._given, self._name, cancelled=self._cancelled
                    )
                except EngineError as error:
                    raise self._fetch_failure(log_size) or error from error
                finally:
                    self._starting = False
                _quieten(self._session)
                for file in (*self._py_files, *self._archive()):
                    self._session.sparkContext.addPyFile(str(file))
                self._watch_executors(self._session)
            assert self._session is not None
            return self._session

    @contextlib.contextmanager
    def offered(self, before_stop: Callable[[], None]) -> Iterator[None]:
        """Give this session to all code of this process that asks PySpark for a session.

        `before_stop` is called before such code stops the session.
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
                _check_classic(asking._options)
                self._log_master(asking._options)
                for key in asking._options.keys() & self._conf().keys():
                    del asking._options[key]  # the configuration wins
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
        """Apply settings that have changed since the session's start, or log that Spark cannot."""
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

    def _defaults(self, asked: Mapping[str, Any]) -> dict[str, str]:
        conf, cores = self._conf(), len(os.sched_getaffinity(0))
        chosen = slot_share(conf, cores) if self._package is not None else {}
        if remote_spark.is_standalone(conf.get("spark.master") or asked.get("spark.master")):
            chosen |= remote_spark.defaults(conf, cores)
        return chosen

    def _log_master(self, asked: Mapping[str, Any]) -> None:
        wanted, runs_on = asked.get(_MASTER), self._given.get(_MASTER)
        share = self._defaults(asked).get(_MASTER)
        if wanted is None or self._package is None:
            return
        if wanted != runs_on:
            log.warning(
                "the script's .master(%r) has no effect: spark.master=%s wins", wanted, runs_on
            )
        elif share is not None and wanted != share:
            log.warning(
                "the script's .master(%r) takes the place of the slot's share of this machine, %s:"
                " leave .master(...) out to have that",
                *(wanted, share),
            )

    def _fetch_failure(self, log_size: int | None) -> EngineError | None:
        """Return the error of a start that failed because packages could not be fetched."""
        packages = self._given.get(_PACKAGES)
        if not packages or log_size is None:
            return None
        try:
            with open(_STDERR_PATH, "rb") as file:  # noqa: PTH123  (a descriptor's path)
                file.seek(log_size)
                said = file.read(_MOST_SAID).decode(errors="replace")
        except OSError:
            return None
        why = resolver_error(said)
        return None if why is None else EngineError(faults.unfetched(str(packages), why))

    @property
    def _is_remote(self) -> bool:
        return remote_spark.is_remote(self._given.get("spark.master"))

    def _prepare_remote(self) -> None:
        remote_spark.check_master(str(self._given["spark.master"]))
        warn_of_own_checkpoints(self._conf())
        python = self._given.get(remote_spark.PYTHON)
        if python is not None:
            # Spark sends executors this name of their Python with each task.
            os.environ["PYSPARK_PYTHON"] = str(python)

    def _archive(self) -> list[Path]:
        """Return the archive of the package's code, if executors do not see the folder.

        It is sent last, as executors prefer the last of modules with the same name.
        """
        if self._package is None or not self._is_remote:
            return []
        if self._sent is None:
            self._sent = tempfile.TemporaryDirectory(prefix="code-", ignore_cleanup_errors=True)
        return [remote_spark.write_code(self._package, Path(self._sent.name))]

    def _watch_executors(self, session: SparkSession) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = remote_spark.watch(session, self._given)

    @property
    def waiting(self) -> str | None:
        """Why the session waits for executors, if so."""
        return None if self._watch is None else self._watch.waiting

    def check_executors(self) -> None:
        """Raise `WorkerError` if the running session has lost all executors elsewhere."""
        if self._watch is not None and self._watch.has_lost and self.started is not None:
            raise WorkerError(
                f"Spark has lost all executors at spark.master={self._given['spark.master']},"
                f" and got no new one for {remote_spark.LOST_SECS:.0f} s: Spark's workers are"
                " gone, or its master has restarted and does not know this driver, which"
                " registers again at its own restart"
            )

    def explained(self, error: Exception) -> Exception:
        """Add the remedy to an error that executors caused."""
        what = remote_spark.remedy(str(error), self._given)
        if what is None:
            return error
        component = error.component if isinstance(error, WorkerError) else None
        return WorkerError(f"{error}\n{what}", component)

    def end(self, timeout_secs: float) -> None:
        """End the session with the JVM and Spark's Python workers, within `timeout_secs`."""
        if self._watch is not None:
            self._watch.close()
        if self._session is not None:
            engine.end(self._session, timeout_secs)
        if self._sent is not None:
            self._sent.cleanup()


def resolver_error(said: str) -> str | None:
    """Return why Spark could not fetch packages, from pages of stderr."""
    unresolved = re.search(r"unresolved dependency: [^]\n]*|download failed: [^]\n]*", said)
    if unresolved is None:
        return None
    refused = re.search(r"Server access error at url (\S+) \(([^)\n]*)\)", said)
    return unresolved[0] + (f" ({refused[1]}: {refused[2]})" if refused is not None else "")


def _check_classic(values: Mapping[str, Any]) -> None:
    if values.get("spark.remote") or values.get("spark.api.mode") == "connect":
        raise WorkerError(faults.CONNECT)


def _log_size() -> int | None:
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_running(session: SparkSession | None) -> bool:
    """Return whether the session was not stopped and the JVM runs."""
    return (
        session is not None
        and session.sparkContext._jsc is not None
        and engine.jvm_exit(session) is None
    )


def check_jvm(sessions: Iterable[SparkSession], timeout_secs: float = 0.0) -> None:
    """Raise `WorkerError` if the JVM of a session has ended, or ends within `timeout_secs`."""
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
