"""A Spark session for a daemon, from the ``spark.*`` keys of the configuration.

Other settings suit a small driver: no web UI, serial collector, C1 compiler, as many shuffle
partitions as cores; with a local master, no socket on an outside address.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.core import context
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.daemon import spark_callbacks, spark_environment
from stormkeeper.daemon.logs import is_json
from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.errors import EngineError
from stormkeeper.names import as_text

log = logging.getLogger(__name__)

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

#: For checkpoints on a local disk. Without Hadoop's native library, Spark's default forks a program
#: for every file, which doubles the time of a small batch.
LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager"
}

#: The JVM ignores an archive that does not fit its version and jars.
QUIET_ABOUT_CLASSES = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")

#: Errors of a Python worker that did not call Spark back within 10 s on a busy machine.
_SLOW_PYTHON = (
    "Python worker failed to connect back",
    "Python worker did not connect back in time",
)

_STARTS = 4

#: Pause before the second start, which doubles, and the longest.
_RETRY_SECS = 1.0
_LONGEST_RETRY_SECS = 30.0

#: Keeps the archive at its address. A JVM that relocates it writes on its pages: 80 MiB that all
#: JVMs could share. The archive holds no code.
_ARCHIVE_STAYS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
)

#: The user's JVM options replace ours: a JVM with two collectors or compilers does not start.
_USER_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

_LOOK_SECS = 0.1


def settings(
    conf: Mapping[str, Any],
    app_name: str,
    *,
    archive: bool = True,
    java_options: Sequence[str] = (),
) -> dict[str, str]:
    """Return a session's settings: `conf`'s ``spark.*`` keys that are not None, over our own.

    JVM options of the configuration replace ours and `java_options`.
    """
    given = {k: as_text(v) for k, v in conf.items() if k.startswith("spark.") and v is not None}
    chosen = {
        "spark.app.name": app_name,
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # History for the web UI, which is off.
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
    }
    if given.get("spark.jars.packages") and not spark_environment.is_home_writable(os.environ):
        chosen["spark.jars.ivy"] = tempfile.mkdtemp(prefix="ivy-")
    master = given.get("spark.master", chosen["spark.master"])
    if master.startswith("local"):
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.sql.shuffle.partitions"] = str(_local_cores(master))
    elif given.get("spark.cores.max", "").isdecimal():
        chosen["spark.sql.shuffle.partitions"] = given["spark.cores.max"]
    if not any(key in given for key in _USER_JAVA_OPTIONS):
        chosen["spark.driver.defaultJavaOptions"] = " ".join(
            (
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                # A killed JVM would leave a temporary file.
                "-XX:-UsePerfData",
                shlex.quote(f"-Djava.io.tmpdir={tempfile.gettempdir()}"),
                shlex.quote(f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"),
                f"-Dstormkeeper.log={'json' if is_json() else 'text'}",
                *(_archive_options() if archive else ()),
                *java_options,
            )
        )
    return chosen | given


def archive_place() -> Path:
    """Return the path of the archive of Spark's classes, which halves the start of a JVM."""
    return Path(sys.prefix, "var", "stormkeeper", "spark.jsa")


def _archive_options() -> list[str]:
    archive = archive_place()
    if not archive.is_file():
        return []
    return [shlex.quote(f"-XX:SharedArchiveFile={archive}"), *QUIET_ABOUT_CLASSES, *_ARCHIVE_STAYS]


def session(
    conf: Mapping[str, Any],
    app_name: str,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    java_options: Sequence[str] = (),
) -> SparkSession:
    """Start a Spark session, or adapt this process's session; the JVM ends with this process.

    Python workers use this Python, unless ``PYSPARK_PYTHON`` is set. Signal handlers stay, without
    Spark's for SIGINT. `cancelled` is polled in a thread. Raises `EngineError` if Spark does not
    start, or the start was cancelled.
    """
    try:
        chosen = settings(conf, app_name, java_options=java_options)
    except OSError as error:
        raise EngineError(
            f"Spark has no temporary folder ({error}): set TMPDIR to a folder that can be written"
        ) from error
    # py4j logs errors that its callers log, and a lost JVM to the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)
    spark_environment.find_java()
    spark_environment.complete(os.environ)
    spark_environment.complete_address(os.environ, chosen["spark.master"])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with (
            settings_file(launched=_log_in),
            spark_callbacks.replaced(context, signal=_NoSignals),
            _unhurt_by_sigterm(),
            _ended_when(cancelled),
        ):
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise EngineError(
            f"Spark did not start with spark.master={chosen['spark.master']!r}: "
            f"{reason(error)}; what Spark wrote on stderr may say more"
        ) from error


def _log_in(gateway: Any) -> None:
    name = spark_environment.login_name(os.environ)
    if name is not None:
        hadoop = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        hadoop.setLoginUser(hadoop.createRemoteUser(name))


def end(session: SparkSession, timeout_secs: float = 15.0) -> None:
    """Stop a session, the JVM and Spark's Python workers, by force after `timeout_secs`."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    deadline = time.monotonic() + timeout_secs
    stopped = _within(timeout_secs, session.stop)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    if stopped:
        # Otherwise Python objects would release their twins in the JVM.
        stopped = _within(_left(deadline), gateway.shutdown)
    process.stdin.close()
    try:
        process.wait(_left(deadline) if stopped else 0)
    except subprocess.TimeoutExpired:
        log.warning("Spark's JVM (process %d) did not end in time; ended by force", process.pid)
        process.kill()
        process.wait()


def kill_jvm() -> None:
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


def jvm_exit(session: SparkSession, timeout_secs: float = 0.0) -> int | None:
    """Return a JVM's exit status, negative after a signal.

    None if the JVM runs after `timeout_secs`, or is no child of this process.
    """
    gateway = session.sparkContext._gateway or SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        status: int = process.wait(timeout_secs)
    except subprocess.TimeoutExpired:
        return None
    return status


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _within(timeout_secs: float, call: Callable[[], None]) -> bool:
    """Return whether a call to the JVM ended in time; py4j has no timeouts."""

    def run() -> None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            call()

    thread = threading.Thread(target=run, name="spark-end", daemon=True)
    thread.start()
    thread.join(timeout_secs)
    return not thread.is_alive()


def reason(error: BaseException) -> str:
    """Return Spark's failure in a line; call this while the JVM runs.

    That is the last line of a Python traceback, Java's message, or else the first line.
    """
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    text = spark_callbacks.without_separators(text)
    trace = r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+"
    ends = re.findall(rf"{trace}(?:py4j\.protocol\.Py4JJavaError: .*\n: )?(\S.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (ends[-1] if ends else lines[0] if lines else type(error).__name__).strip()


class Starts:
    """Restart policy of a query with a Python worker that was slow to start."""

    def __init__(self, most: int = _STARTS) -> None:
        self._most = most
        self._failures = FailureStreak(_RETRY_SECS, _LONGEST_RETRY_SECS)

    def next_pause(self, error: str, *, has_batch: bool) -> float | None:
        """Return the seconds before the next start; None: no more starts."""
        if has_batch:
            self._failures.reset()
        is_last = self._failures.count == self._most - 1
        if is_last or not any(text in error for text in _SLOW_PYTHON):
            return None
        return self._failures.record()


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


class _NoSignals:
    """Keeps PySpark from installing a SIGINT handler, which would call the JVM amid another call.

    Replaces the module `signal`.
    """

    SIGINT = signal.SIGINT

    @staticmethod
    def signal(number: int, handler: Any) -> None:
        """Do nothing."""


@contextlib.contextmanager
def _unhurt_by_sigterm() -> Iterator[None]:
    """Have the JVM, started in this block, ignore SIGTERM.

    Service managers signal all processes, and the JVM would end under the last batch.
    """
    global _shielding  # noqa: PLW0603 - a fork hook has no arguments
    if not _shielding_hooked:
        os.register_at_fork(after_in_child=_ignore_sigterm)
        _shielding_hooked.append(True)
    _shielding = True
    try:
        yield
    finally:
        _shielding = False


@contextlib.contextmanager
def _ended_when(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Kill programs that start in this block, once `cancelled` returns True.

    PySpark waits for a starting JVM. The JVM's temporary files stay.
    """
    us, over = psutil.Process(), threading.Event()
    others = us.children()

    def watch() -> None:
        while not over.wait(_LOOK_SECS):
            if cancelled():
                for program in us.children():
                    if program not in others:
                        _kill(program)

    watcher = threading.Thread(target=watch, name="spark-start", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _kill(program: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        # The program first: `spark-class` would log the end of its child.
        for process in (program, *program.children(recursive=True)):
            process.kill()


_shielding = False
_shielding_hooked: list[bool] = []


def _ignore_sigterm() -> None:
    if _shielding:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _local_cores(master: str) -> int:
    if master == "local":
        return 1
    named = re.match(r"local\[(\d+)", master)
    return max(1, min(int(named[1]) if named else os.cpu_count() or 1, 8))


#: PySpark's arguments for the JVM, and their default.
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_DEFAULT = "pyspark-shell"


@contextlib.contextmanager
def settings_file(
    launched: Callable[[Any], None] = lambda _: None,
) -> Iterator[None]:
    """Have a JVM that PySpark starts in this block read settings from a private file.

    Every user can read command lines, here with passwords. `launched` gets the gateway before
    PySpark uses it.
    """
    launch = vars(context)["launch_gateway"]

    def launching(conf: SparkConf | None = None, popen_kwargs: Any = None) -> Any:
        with _handed_over(dict(conf.getAll()) if conf is not None else {}):
            gateway = launch(None, popen_kwargs)
        launched(gateway)
        return gateway

    with spark_callbacks.replaced(context, launch_gateway=launching):
        yield


@contextlib.contextmanager
def _handed_over(settings: Mapping[str, str]) -> Iterator[None]:
    descriptor, name = tempfile.mkstemp(prefix="spark-", suffix=".properties")  # of mode 0600
    before = os.environ.get(_ARGUMENTS)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(spark_environment.java_properties(settings))
        # Without this option Spark ignores spark-defaults.conf.
        ours = f"--properties-file {shlex.quote(name)} --load-spark-defaults"
        os.environ[_ARGUMENTS] = f"{ours} {before or _DEFAULT}"
        yield
    finally:
        Path(name).unlink()
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before
