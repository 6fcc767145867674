"""A Spark session for a daemon, from configuration.

Spark gets every ``spark.*`` key of the configuration as it is. The other settings are those of a
small, quick driver: no web UI, the serial collector and the C1 compiler, as many shuffle partitions
as cores; with a local master, no socket on an outside address. Spark's own log goes to stderr, from
warnings up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import string
import struct
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
from stormkeeper.errors import EngineError

log = logging.getLogger(__name__)

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

#: For checkpoints on a local disk: written with plain system calls. Spark's own choice forks a
#: program for every file where Hadoop's native library is missing, which doubles a small batch's
#: time.
LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager"
}

#: The JVM sees for itself whether an archive fits it and its jars, and else does without.
QUIET_ABOUT_CLASSES = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")

#: A new Python worker has 10 s to call Spark back. On a busy machine that may not be enough, though
#: nothing is wrong with the query.
_SLOW_PYTHON = (
    "Python worker failed to connect back",
    "Python worker did not connect back in time",
)

#: Starts of a query without a single batch between them.
_STARTS = 4

#: Wait before the second start; twice as long before each further one, to the longest wait.
_RETRY_SECS = 1.0
_LONGEST_RETRY_SECS = 30.0

#: The archive lies where it was made for. Else the JVM moves it to a random address, and so writes
#: on its pages: 80 MiB that each JVM then has for itself, where all of a machine can share the
#: file's. Descriptions of classes lie there, no code.
_ARCHIVE_STAYS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
)

#: The user's own JVM options, in either key, may name another collector or compiler: two of a
#: kind would keep the JVM from starting, so ours then stay away.
_USER_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

#: How often it is asked, while Spark starts, whether that is still wanted, in seconds.
_LOOK_SECS = 0.1


def settings(
    conf: Mapping[str, Any],
    app_name: str,
    *,
    archive: bool = True,
    java_options: Sequence[str] = (),
) -> dict[str, str]:
    """Return what a session of this configuration is started with, all ``spark.*``.

    Parameters
    ----------
    conf
        Any mapping; only keys that begin with ``spark.`` count, and None means "not set".
    app_name
        ``spark.app.name``, unless the configuration names one.
    archive
        Whether the JVM uses the archive of Spark's classes, where there is one.
    java_options
        Further ones of the JVM, where the configuration names none.
    """
    given = {k: _text(v) for k, v in conf.items() if k.startswith("spark.") and v is not None}
    chosen = {
        "spark.app.name": app_name,
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The driver's progress history is kept for the web UI, which is off.
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
                # A JVM that is killed leaves nothing in the system's own folder.
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
    """Return where the archive of Spark's classes is, or would be: in this Python's environment.

    `stormkeeper.daemon.spark_archive` makes it. With it a JVM starts in half the time.
    """
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
    """Start a Spark session, or adapt the one that runs in this process already.

    The Python that runs this is the one that Spark's Python workers run (``PYSPARK_PYTHON``,
    unless the environment names another). Signal handlers stay as they are, also meanwhile: Spark's
    own for SIGINT never gets its place. When this process ends, however it ends, the JVM ends with
    it.

    Parameters
    ----------
    conf, app_name, java_options
        As those of `settings`.
    cancelled
        Asked meanwhile, in a thread of its own; once it says so, the start is given up.

    Raises
    ------
    EngineError
        When Spark does not start: no Java, no temporary folder, or a setting that it refuses; or it
        was cancelled.
    """
    try:
        chosen = settings(conf, app_name, java_options=java_options)
    except OSError as error:
        raise EngineError(
            f"Spark has no place for what it puts aside ({error}): set TMPDIR to a folder that can"
            " be written"
        ) from error
    # It tells of every call, and of every error that is reported by whoever gets it; of a JVM that
    # is gone it tells the root logger.
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
            off_the_command_line(launched=_log_in),
            _own_interrupts(),
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
    """Log in to Hadoop by a name of ours if the system has none, without which Spark ends."""
    name = spark_environment.login_name(os.environ)
    if name is not None:
        hadoop = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        hadoop.setLoginUser(hadoop.createRemoteUser(name))


def end(session: SparkSession, timeout_secs: float = 15.0) -> None:
    """Stop a session, end the JVM and Spark's Python workers with it, and wait until they are gone.

    The JVM ends as it does when this process ends: its standard input closes. Stopping the session
    and ending the JVM may take `timeout_secs` together; then the JVM is killed. Does nothing when
    there is no JVM.
    """
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    deadline = time.monotonic() + timeout_secs
    stopped = _within(timeout_secs, session.stop)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    if stopped:
        # else Python objects would go on releasing their twins in the JVM
        stopped = _within(_left(deadline), gateway.shutdown)
    process.stdin.close()
    try:
        process.wait(_left(deadline) if stopped else 0)
    except subprocess.TimeoutExpired:
        log.warning("Spark's JVM (process %d) did not end in time; ended by force", process.pid)
        process.kill()
        process.wait()


def kill_jvm() -> None:
    """End the JVM of this process by force, if there is one."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


def jvm_exit(session: SparkSession, timeout_secs: float = 0.0) -> int | None:
    """Return the exit status of a session's JVM, negative where a signal ended it.

    None if it has not ended within `timeout_secs`, or is not a child of this process.
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
    """Whether a call to the JVM, which has no limit of its own, ended in time, well or not."""

    def run() -> None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            call()

    thread = threading.Thread(target=run, name="spark-end", daemon=True)
    thread.start()
    thread.join(timeout_secs)
    return not thread.is_alive()


def reason(error: BaseException) -> str:
    """Return in one line why Spark failed, out of a message with traces of several languages.

    If Python code failed, that is the last line of its traceback, or what Java said to it; else the
    first line of all. Call it while the JVM runs, which holds the text of some errors.
    """
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    text = spark_callbacks.without_separators(text)
    trace = r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+"
    ends = re.findall(rf"{trace}(?:py4j\.protocol\.Py4JJavaError: .*\n: )?(\S.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (ends[-1] if ends else lines[0] if lines else type(error).__name__).strip()


class Starts:
    """The starts of a streaming query, which starts again if a Python worker was slow to start.

    Parameters
    ----------
    most
        How many there are without a batch between them.
    """

    def __init__(self, most: int = _STARTS) -> None:
        self._most = most
        self._count = 1

    def next_pause(self, error: str, *, has_batch: bool) -> float | None:
        """Return the seconds before the next start of a query that failed; None if it is final.

        Parameters
        ----------
        error
            The text of its exception.
        has_batch
            Whether a batch ended since the last start.
        """
        if has_batch:
            self._count = 0
        if not any(text in error for text in _SLOW_PYTHON) or self._count >= self._most:
            return None
        pause: float = min(_RETRY_SECS * 2 ** max(0, self._count - 1), _LONGEST_RETRY_SECS)
        self._count += 1
        return pause


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep PySpark from setting a SIGINT handler meanwhile, as it does once the JVM is up.

    Its handler calls the JVM in the midst of whatever call a signal interrupts, which py4j cannot
    do, and raises KeyboardInterrupt: a process that stops on SIGINT would fail instead.
    """
    names = vars(context)
    names["signal"] = _NoSignals
    try:
        yield
    finally:
        names["signal"] = signal


class _NoSignals:
    """In the place of the module `signal`, for code that sets a handler for SIGINT."""

    SIGINT = signal.SIGINT

    @staticmethod
    def signal(number: int, handler: Any) -> None:
        """Leave the handler as it is."""


@contextlib.contextmanager
def _unhurt_by_sigterm() -> Iterator[None]:
    """Have programs that are started meanwhile ignore SIGTERM, which the JVM then does as well.

    Service managers send it to all processes of a service. The JVM would end at once, under the
    batch that is being finished; it ends with this process anyhow. PySpark protects it from
    SIGINT in the same way.
    """
    global _shielding  # noqa: PLW0603  (a fork's hook is told nothing but this)
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
    """End programs that are started meanwhile, once `cancelled` says so.

    A JVM that starts takes no notice of anything until it is up, and PySpark waits for that. So it
    is killed, and what it has put into the temporary folder by then stays there.
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
    """Kill a program and all that it has started."""
    with contextlib.suppress(psutil.Error):
        # The program first: `spark-class`, a shell script, would complain of its own's end.
        for process in (program, *program.children(recursive=True)):
            process.kill()


_shielding = False
_shielding_hooked: list[bool] = []


def _ignore_sigterm() -> None:
    if _shielding:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _local_cores(master: str) -> int:
    """Return how many cores a master such as ``local[3]`` or ``local[*]`` uses, 8 at most."""
    if master == "local":
        return 1
    named = re.match(r"local\[(\d+)", master)
    return max(1, min(int(named[1]) if named else os.cpu_count() or 1, 8))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


#: What says how PySpark starts the JVM, and what it is when it is not set.
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_DEFAULT = "pyspark-shell"

#: What has the same meaning everywhere in a file of Java's properties.
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-/")


@contextlib.contextmanager
def off_the_command_line(
    launched: Callable[[Any], None] = lambda _: None,
) -> Iterator[None]:
    """Have a JVM that PySpark starts meanwhile read its settings from a file.

    PySpark waits until the JVM can be called. The JVM has read the file by then, which is removed.

    Parameters
    ----------
    launched
        Called with the gateway to the JVM before PySpark uses it.
    """
    names = vars(context)
    launch = names["launch_gateway"]

    def launching(conf: SparkConf | None = None, popen_kwargs: Any = None) -> Any:
        with _handed_over(dict(conf.getAll()) if conf is not None else {}):
            gateway = launch(None, popen_kwargs)
        launched(gateway)
        return gateway

    names["launch_gateway"] = launching
    try:
        yield
    finally:
        names["launch_gateway"] = launch


def text(settings: Mapping[str, str]) -> str:
    """Return settings as a file of Java's properties has them (java.util.Properties, `load`)."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


@contextlib.contextmanager
def _handed_over(settings: Mapping[str, str]) -> Iterator[None]:
    descriptor, name = tempfile.mkstemp(prefix="spark-", suffix=".properties")  # of mode 0600
    before = os.environ.get(_ARGUMENTS)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text(settings))
        # A file that is named keeps Spark from reading spark-defaults.conf, unless it is told to.
        ours = f"--properties-file {shlex.quote(name)} --load-spark-defaults"
        os.environ[_ARGUMENTS] = f"{ours} {before or _DEFAULT}"
        yield
    finally:
        Path(name).unlink()
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


def _escaped(value: str) -> str:
    units = struct.iter_unpack(">H", value.encode("utf-16-be", "surrogatepass"))
    return "".join(chr(unit) if chr(unit) in _PLAIN else f"\\u{unit:04x}" for (unit,) in units)
