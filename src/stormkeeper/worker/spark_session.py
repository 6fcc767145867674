"""The worker's Spark session, and the settings with which Spark starts, here or on a cluster.

Settings such as ``spark.driver.memory`` take effect only at the JVM's start, and may stand in the
topology's conf or in a script's ``SparkSession.builder``. So Spark starts when the topology is
created or the script asks for a session, whichever comes first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from stormkeeper.conf import Conf
from stormkeeper.conf.address import Address, hostname
from stormkeeper.conf.folders import checkpoint_root, is_local
from stormkeeper.daemon import spark as engine
from stormkeeper.daemon import spark_callbacks
from stormkeeper.errors import ConfigError, EngineError, WorkerError
from stormkeeper.names import bracketed
from stormkeeper.topology import faults
from stormkeeper.worker.job import UnpackedPackage
from stormkeeper.worker.spark_watch import LOST_SECS, ExecutorWatch, is_running, watch_executors

log = logging.getLogger(__name__)

_MASTER: Final = "spark.master"
_PACKAGES: Final = "spark.jars.packages"
_PYTHON: Final = "spark.pyspark.python"

_STANDALONE: Final = "spark://"
_PORT: Final = 7077
_CONNECT_SECS: Final = 3.0

#: Spark's wait for a stopped query's thread; by default for ever.
_STOP_TIMEOUT: Final = "20s"

#: Smallest heap with which Spark starts: 1.5 times its reserve of 300 MB.
LEAST_HEAP_MB: Final = 512

#: Memory besides the heap, measured with 1.3 million rows through a Python function: 250 MB for the
#: JVM and 165 MB for the driver's Python, and 100 MB for each core's Python worker.
BESIDE_MB: Final = 415
CORE_MB: Final = 100

_STDERR: Final = 2
_STDERR_PATH: Final = "/proc/self/fd/2"

_MOST_SAID: Final = 256 * 1024

#: Loggers that fill pages with errors of the user's code, which the worker logs once. On a cluster
#: a task's failure is news, as Spark retries the task.
_WORDY: Final = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)
_WORDY_LOCAL: Final = (
    "org.apache.spark.TaskContextImpl",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.util.Utils",
)
#: Python's loggers of the same: py4j for ``foreachBatch``, PySpark for its errors.
_WORDY_PYTHON: Final = ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger")

#: Failures on executors elsewhere, by text, and the remedies.
_REMEDIES: Final = (
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        "executors of spark.master={master} have no Python at {0}: name with spark.pyspark.python"
        " one that is on all of their machines, of this version, with PySpark, Stormkeeper and what"
        " the topology requires",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH"),
        "executors of spark.master={master} run another Python than this worker: name with"
        " spark.pyspark.python one of the same version that is on all of their machines",
    ),
    (
        re.compile(r"No module named '([^']+)'"),
        "where it is missing on executors of spark.master={master}, install it there, in the Python"
        " that spark.pyspark.python names",
    ),
    (
        re.compile(r"Master removed our application"),
        "the master of spark.master={master} gave the driver up, as no executor of it would start:"
        " the logs of Spark's workers say why",
    ),
    (
        # Spark gives up after a minute, with an unrelated error.
        re.compile(r"Spark did not start .*stopped SparkContext|All masters are unresponsive"),
        "no master of spark.master={master} took the driver in: is what listens there a Spark"
        " master, of this release?",
    ),
)


def is_remote(master: object) -> bool:
    return master is not None and not str(master).startswith("local")


def spark_values(
    conf: Mapping[str, Any], script: Mapping[str, Any], share: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the ``spark.*`` settings; `conf` beats `script`, which beats `share`."""
    chosen: dict[str, Any] = {
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT,
        # Plans tell whether an action reads a batch to its end.
        "spark.sql.ui.retainedExecutions": "200",
    }
    if is_local(checkpoint_root(conf)):
        chosen |= engine.LOCAL_CHECKPOINTS
    chosen |= {**(share or {}), **script}
    return chosen | {key: value for key, value in conf.items() if key.startswith("spark.")}


def slot_share(conf: Mapping[str, Any], cores: int) -> dict[str, str]:
    """Return the Spark settings for a slot of a machine.

    Half of ``topology.worker.memory.mb`` is the JVM's heap; the rest is for the JVM besides, the
    driver's Python, and Python workers, which limit the slot's cores.
    """
    memory_mb = int(conf["topology.worker.memory.mb"])
    heap_mb = max(LEAST_HEAP_MB, memory_mb // 2)
    with_room = (memory_mb - heap_mb - BESIDE_MB) // CORE_MB
    return {
        _MASTER: f"local[{max(1, min(_slot_cores(conf, cores), with_room))}]",
        "spark.driver.memory": f"{heap_mb}m",
    }


def standalone_defaults(conf: Conf, cores: int) -> dict[str, str]:
    """Return the default settings of a driver for a standalone master.

    The driver takes its slot's cores: without a limit the first driver would get all of the
    cluster's. It listens on all addresses, as its name may resolve to loopback on the machine
    itself.
    """
    capacity = conf["supervisor.cpu.capacity"]
    of_supervisor = cores if capacity is None else int(capacity / 100)
    return {
        "spark.cores.max": str(_slot_cores(conf, of_supervisor)),
        "spark.driver.host": bracketed(hostname(conf)),
        "spark.driver.bindAddress": "0.0.0.0",
    }


def _slot_cores(conf: Mapping[str, Any], cores: int) -> int:
    return max(1, cores // max(1, len(conf["supervisor.slots.ports"])))


def warn_of_own_checkpoints(conf: Mapping[str, Any]) -> None:
    root = checkpoint_root(conf)
    if is_local(root) and not conf["topology.checkpoint.shared"]:
        log.warning(
            "executors on other machines would keep the state of queries in a %s of their own,"
            " which the others cannot read: set topology.checkpoint.dir to a folder that all"
            " machines share, and topology.checkpoint.shared to true",
            root,
        )


def check_master(master: str) -> None:
    """Raise `EngineError` if no named standalone master accepts a connection.

    Spark tries for a minute and then fails with an unrelated error. Other kinds of masters are left
    to Spark.
    """
    if not master.startswith(_STANDALONE):
        return
    refusals = []
    for named in master.removeprefix(_STANDALONE).split(","):
        try:
            address = Address.parse(named, _PORT)
        except ConfigError:
            return  # Spark reports the fault
        try:
            socket.create_connection((address.host, address.port), _CONNECT_SECS).close()
        except OSError as error:
            refusals.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise EngineError(
        f"no Spark master answers at spark.master={master} ({'; '.join(refusals)}): start it, or"
        " name one that runs"
    )


def remedy(text: str, values: Mapping[str, Any]) -> str | None:
    """Return the remedy of a failure on executors, by text; `values` are Spark's settings."""
    master = values.get(_MASTER)
    if not is_remote(master):
        return None
    for sign, what in _REMEDIES:
        found = sign.search(text)
        if found is not None:
            return what.format(*found.groups(), master=master)
    return None


@dataclass(eq=False, repr=False)
class WorkerSession:
    """The single Spark session of a worker.

    `package`, from a supervisor, adds jars, the slot's share of the machine, and code for executors
    elsewhere. `cancelled` is polled while Spark starts.
    """

    conf: Callable[[], Conf]
    name: str
    py_files: Sequence[Path] = ()
    _: KW_ONLY
    package: UnpackedPackage | None = None
    cancelled: Callable[[], bool] = lambda: False
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    #: The last session, even after the end.
    session: SparkSession | None = field(default=None, init=False)
    _given: dict[str, Any] = field(default_factory=dict, init=False)
    _starting: bool = field(default=False, init=False)
    #: The code for executors elsewhere, which may ask for it at any time.
    _sent: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)
    _watch: ExecutorWatch | None = field(default=None, init=False)

    @property
    def started(self) -> SparkSession | None:
        return self.session if is_running(self.session) else None

    def get(self, asked: Mapping[str, Any] | None = None) -> SparkSession:
        """Return the session, started with the `asked` settings if needed."""
        with self._lock:
            if not is_running(self.session):
                self.session = self._start(asked or {})
                _quieten(self.session)
                for file in (*self.py_files, *self._archive()):
                    self.session.sparkContext.addPyFile(str(file))
                if self._watch is not None:
                    self._watch.close(0.0)
                self._watch = watch_executors(self.session, self._given)
            assert self.session is not None
            return self.session

    def _start(self, asked: Mapping[str, Any]) -> SparkSession:
        self._given = self._values(asked, self._defaults(asked))
        _check_classic(self._given)
        self._log_master(asked)
        if self._is_remote:
            self._prepare_remote()
        else:  # executors elsewhere may not have this program
            self._given.setdefault("spark.python.daemon.module", spark_callbacks.__name__)
        self._starting = True
        log_size = _log_size()
        try:
            return engine.session(self._given, self.name, cancelled=self.cancelled)
        except EngineError as error:
            raise self._fetch_failure(log_size) or error from error
        finally:
            self._starting = False

    @contextlib.contextmanager
    def offered(self, before_stop: Callable[[], None]) -> Iterator[None]:
        """Give this session to all code of this process that asks PySpark for a session.

        `before_stop` is called before such code stops the session.
        """
        get_or_create = SparkSession.Builder.getOrCreate
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
                for key in asking._options.keys() & self.conf().keys():
                    del asking._options[key]  # the configuration wins
                return get_or_create(asking)

        def ours_if_none(_: type[SparkSession]) -> SparkSession | None:
            if self.started is None and not self._starting:
                return self.get()
            active: SparkSession | None = get_active.__get__(None, SparkSession)()
            return active

        def stop_ours(session: SparkSession) -> None:
            before_stop()
            stop(session)

        given = {"getActiveSession": classmethod(ours_if_none), "stop": stop_ours}
        with (
            spark_callbacks.replaced(SparkSession.Builder, getOrCreate=ours),
            spark_callbacks.replaced(SparkSession, **given),
        ):
            yield

    def adapt(self) -> None:
        """Apply changed settings, or log that Spark cannot."""
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
        values = spark_values(self.conf(), asked, share)
        return values if self.package is None else self.package.with_jars(values)

    def _defaults(self, asked: Mapping[str, Any]) -> dict[str, str]:
        conf, cores = self.conf(), len(os.sched_getaffinity(0))
        chosen = slot_share(conf, cores) if self.package is not None else {}
        if str(conf.get(_MASTER) or asked.get(_MASTER)).startswith(_STANDALONE):
            chosen |= standalone_defaults(conf, cores)
        return chosen

    def _log_master(self, asked: Mapping[str, Any]) -> None:
        wanted, runs_on = asked.get(_MASTER), self._given.get(_MASTER)
        share = self._defaults(asked).get(_MASTER)
        if wanted is None or self.package is None:
            return
        if wanted != runs_on:
            log.warning(
                "the script's .master(%r) has no effect: spark.master=%s wins", wanted, runs_on
            )
        elif share is not None and wanted != share:
            log.warning(
                "the script's .master(%r) overrides the slot's share of this machine, %s:"
                " remove .master(...) to use that share",
                *(wanted, share),
            )

    def _fetch_failure(self, log_size: int | None) -> EngineError | None:
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
        return is_remote(self._given.get(_MASTER))

    def _prepare_remote(self) -> None:
        check_master(str(self._given[_MASTER]))
        warn_of_own_checkpoints(self.conf())
        python = self._given.get(_PYTHON)
        if python is not None:
            # Spark sends executors this name of their Python with each task.
            os.environ["PYSPARK_PYTHON"] = str(python)

    def _archive(self) -> list[Path]:
        """Return the archive of the code, if executors do not see the folder.

        Sent last, as executors prefer the last of modules with the same name.
        """
        if self.package is None or not self._is_remote:
            return []
        if self._sent is None:
            self._sent = tempfile.TemporaryDirectory(prefix="code-", ignore_cleanup_errors=True)
        return [self.package.write_code(Path(self._sent.name))]

    @property
    def waiting(self) -> str | None:
        return None if self._watch is None else self._watch.waiting

    def check_executors(self) -> None:
        """Raise `WorkerError` if the session has lost all executors elsewhere."""
        if self._watch is not None and self._watch.has_lost and self.started is not None:
            raise WorkerError(
                f"Spark has lost all executors at spark.master={self._given[_MASTER]},"
                f" and got no new one for {LOST_SECS:.0f} s: Spark's workers are"
                " gone, or its master has restarted and does not know this driver, which"
                " registers again at its own restart"
            )

    def explained(self, error: Exception) -> Exception:
        """Add the remedy to an error that executors caused."""
        what = remedy(str(error), self._given)
        if what is None:
            return error
        component = error.component if isinstance(error, WorkerError) else None
        return WorkerError(f"{error}\n{what}", component)

    def end(self, timeout_secs: float) -> None:
        """End the session, the JVM and Spark's Python workers, within `timeout_secs`."""
        if self._watch is not None:
            self._watch.close(0.0)
        if self.session is not None:
            engine.end(self.session, timeout_secs)
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


def _quieten(session: SparkSession) -> None:
    for name in _WORDY_PYTHON:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    levels = session._jvm.org.apache.logging.log4j.Level  # type: ignore[union-attr]
    configurator = session._jvm.org.apache.logging.log4j.core.config.Configurator  # type: ignore[union-attr]
    local = str(session.sparkContext.master).startswith("local")
    for name in (*_WORDY, *(_WORDY_LOCAL if local else ())):
        configurator.setLevel(name, levels.OFF)
