"""A real ZooKeeper server on this machine, from the jars that PySpark ships.

For development and tests: one server, or a member of an ensemble. Data survives a crash of the
server, but not of the machine (``forceSync=no``), so writes are cheap on any disk.
"""

import contextlib
import importlib.util
import logging
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from stormkeeper import extras
from stormkeeper.conf import Address
from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import dying_with_us
from stormkeeper.daemon.durable import try_lock
from stormkeeper.daemon.lifecycle import StopSignals, announce, die_with_parent
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.spark_environment import find_java, java_properties
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import reservations
from stormkeeper.names import host_port

_log = logging.getLogger(__name__)

#: In the data folder.
LOCK = ".server"

#: Seconds in which a server whose starter was killed ends.
LEAVING_SECS = 2.0

#: If other processes take the free port first.
PORT_ATTEMPTS = 5

#: Seconds between two questions to a starting server, and each question's timeout.
POLL_SECS = 0.02
QUESTION_SECS = 2.0

ERROR_LINES = 15

WATCH_SECS = 0.5

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
MEMBER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

#: Without versions. All 280 jars of PySpark, used if any is missing, need 30 MB more memory and
#: more time to start.
JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "commons-io",
    "snappy-java",
    "audience-annotations",
    "netty-buffer",
    "netty-codec",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    # For clients with TLS.
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
    "netty-tcnative-classes",
)

#: The serial collector and the C1 compiler make a small, quick JVM.
JVM_OPTIONS = (
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    # A killed JVM leaves no files in the temporary folder.
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disable.jmx=true",
    "-Dzookeeper.forceSync=no",
    # In KiB; the default is 64 MiB.
    "-Dzookeeper.preAllocSize=1024",
)

#: Sessions expire at ticks, so ticks are short; ZooKeeper's own bounds are 2 and 20 ticks.
TICK_MILLIS = 250
MIN_SESSION_MILLIS = 500
MAX_SESSION_MILLIS = 120_000


def serve(conf: Mapping[str, Any]) -> int:
    """Run a server until SIGTERM or SIGINT; returns the exit code, 0.

    Raises `EngineError` without Java 17 or newer; `LocalClusterError`, with the end of the log, if
    the server ends by itself.
    """
    configure_logging()
    die_with_parent()
    data_dir = folder("storm.local.dir", conf["storm.local.dir"]) / "zookeeper"
    server = DevZooKeeper(data_dir, conf["storm.zookeeper.port"])
    with StopSignals() as stop:
        try:
            server.start(cancelled=lambda: stop.stopped)
            if server.running:
                announce(f"zookeeper listening on {server.address}")
            while not stop.wait(WATCH_SECS):
                if not server.running:
                    raise server.ended_error("while it served")
        finally:
            server.stop()
    return 0


class DevZooKeeper:
    """A ZooKeeper server as a child process.

    On Linux the server dies with this process, even a killed one. An object starts one server at a
    time, again after `stop`. Not safe for many threads, except `running`.

    `data_dir` holds data, configuration and log; earlier data is served again. `port` 0 is any free
    port, chosen at the first start and then reserved. `settings` are entries of ``zoo.cfg``; they
    and `jvm_options` prevail over the defaults. A member of an ensemble has ``server.N`` in
    `settings`, and ``data/myid`` in `data_dir`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        self.log = self.data_dir / "zookeeper.log"
        self._port = port
        self._settings = dict(settings or {})
        self._jvm_options = tuple(jvm_options)
        self._environ = environ
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None

    @property
    def port(self) -> int:
        """0 before the first start on any free port."""
        return self._port

    @property
    def address(self) -> Address:
        return Address(self.host, self._port)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the server runs."""
        return self._process.poll() if self._process else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self, deadline_secs: float = 60.0, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Start the server; returns once clients are served, or `cancelled` returns True.

        Raises `EngineError` without Java, and `LocalClusterError` for any other failure; then no
        process is left.
        """
        if self.running:
            return
        deadline = time.monotonic() + deadline_secs
        java = find_java(self._environ)
        jars = zookeeper_classpath()
        with _sole_server(self.data_dir) as lock:
            self._start(java, jars, lock, deadline, cancelled)

    def _start(
        self,
        java: Path,
        classpath: str,
        lock: int,
        deadline: float,
        cancelled: Callable[[], bool],
    ) -> None:
        any_port = self._port == 0
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._port = _free_port(self.host, self._port)
            try:
                self._launch(java, classpath, lock)
                self._wait_serving(deadline, cancelled)
            except BaseException as error:
                self.stop()
                clash = "BindException" in self.log_tail()
                taken = self.address
                if any_port:
                    self._port = 0
                if clash and isinstance(error, LocalClusterError):
                    if any_port and attempt < PORT_ATTEMPTS:
                        continue
                    raise LocalClusterError(
                        f"ZooKeeper cannot listen on {taken}: another process took the port while"
                        " it started"
                    ) from error
                raise
            return

    def stop(self, grace_secs: float = 5.0) -> None:
        """Stop the server, if any: SIGTERM, then SIGKILL after `grace_secs`."""
        process, keeper = self._process, self._keeper
        if process is None or keeper is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            # A suspended process handles SIGTERM only after SIGCONT.
            process.send_signal(signal.SIGCONT)
        keeper.join(grace_secs)
        if keeper.is_alive():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            keeper.join(grace_secs)
        self._keeper = None

    def log_tail(self, lines: int = ERROR_LINES) -> str:
        """Return the last lines of the log since the last start."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def _launch(self, java: Path, classpath: str, lock: int) -> None:
        settings = self.data_dir / "zoo.cfg"
        settings.write_text(
            server_settings(self.data_dir / "data", self.host, self._port, self._settings)
        )
        logging = self.data_dir / "log4j2.properties"
        logging.write_text(logging_settings(self.log))
        with contextlib.suppress(OSError):
            self._log_start = self.log.stat().st_size
        argv = dying_with_us(
            server_command(
                java,
                classpath,
                settings,
                logging,
                options=self._jvm_options,
                main=main_class(self._settings),
            )
        )
        started: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()
        # PR_SET_PDEATHSIG follows the thread that started the child, so a thread waits for its end.
        keeper = threading.Thread(
            target=_keep, args=(argv, self.log, lock, started), name="dev-zookeeper", daemon=True
        )
        keeper.start()
        process = started.get()
        if isinstance(process, Exception):
            raise LocalClusterError(f"ZooKeeper cannot be started with {java}: {process}")
        self._process, self._keeper = process, keeper

    def ended_error(self, when: str) -> LocalClusterError:
        return LocalClusterError(
            f"ZooKeeper on {self.address} ended with code {self.returncode} {when}; its log,"
            f" {self.log}, ends with:\n{self.log_tail()}"
        )

    def _wait_serving(self, deadline: float, cancelled: Callable[[], bool]) -> None:
        while not self._serves():
            if cancelled():
                self.stop()
                return
            if not self.running:
                raise self.ended_error("before it served")
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"ZooKeeper on {self.address} did not serve before the deadline; its log,"
                    f" {self.log}, ends with:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECS)

    def _serves(self) -> bool:
        # The server answers "ruok" before it serves, "Mode:" when it serves. The data folder
        # distinguishes our server from another that took the port.
        with contextlib.suppress(OSError):
            if "Mode:" in four_letter_word(self.host, self._port, "srvr"):
                settings = four_letter_word(self.host, self._port, "conf")
                return f"dataDir={self.data_dir / 'data'}{os.sep}" in settings
        return False


def four_letter_word(host: str, port: int, word: str) -> str:
    """Return the answer to an administrative command, such as ``srvr`` or ``mntr``.

    Raises `OSError` if the server does not answer for two seconds.
    """
    with socket.create_connection((host, port), timeout=QUESTION_SECS) as connection:
        connection.sendall(word.encode())
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    return answer.decode(errors="replace")


@contextlib.contextmanager
def _sole_server(data_dir: Path) -> Iterator[int]:
    """Lock the folder, and yield the lock's descriptor, which the server inherits and keeps."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = (data_dir / LOCK).open("ab")
    except OSError as error:
        raise LocalClusterError(
            f"ZooKeeper cannot keep its data in {data_dir} ({error.strerror}): set"
            " storm.local.dir to a folder that can be written"
        ) from error
    with lock:
        deadline = time.monotonic() + LEAVING_SECS
        while not try_lock(lock, if_unsupported=True):
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"another ZooKeeper keeps its data in {data_dir}: stop it, or give each its"
                    " own storm.local.dir"
                )
            time.sleep(POLL_SECS)
        yield lock.fileno()


def _keep(
    argv: list[str],
    log: Path,
    lock: int,
    started: queue.SimpleQueue[subprocess.Popen[bytes] | Exception],
) -> None:
    try:
        with log.open("ab") as output:
            # A process group of its own: Ctrl-C in a terminal must not stop the server.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=(lock,),
            )
    except Exception as error:
        started.put(error)
        return
    started.put(process)
    process.wait()


def _free_port(host: str, port: int) -> int:
    if port == 0:
        return reservations.reserve(host)
    if reservations.is_free(host, port):
        return port
    raise LocalClusterError(
        f"ZooKeeper cannot listen on {host_port(host, port)} (it is in use): stop what uses the"
        " port, or set storm.zookeeper.port to another one, or to 0 for any free one"
    )


def zookeeper_classpath() -> str:
    """Return the class path; raises `MissingExtraError` without PySpark."""
    extras.require("spark", "ZooKeeper, which is started out of PySpark's jars,", "pyspark")
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations or []) if spec else []
    folders = [Path(place) / "jars" for place in places]
    folder = next(filter(Path.is_dir, folders), Path("jars"))
    chosen = [sorted(folder.glob(f"{name}-[0-9]*.jar")) for name in JARS]
    if not chosen[0]:
        raise LocalClusterError(f"there is no zookeeper-*.jar in {folder}: re-install pyspark 4")
    if all(chosen):
        return os.pathsep.join(str(jar) for jars in chosen for jar in jars)
    return str(folder / "*")


def server_command(
    java: Path,
    classpath: str,
    settings: Path,
    logging: Path,
    *,
    options: Sequence[str] = (),
    main: str = MAIN_CLASS,
) -> list[str]:
    """Return a server's command line; `options` prevail over `JVM_OPTIONS`."""
    return [
        *(str(java), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging.as_uri()}", *options),
        *("-cp", classpath, main, str(settings)),
    ]


def main_class(settings: Mapping[str, str]) -> str:
    return MEMBER_CLASS if any(key.startswith("server.") for key in settings) else MAIN_CLASS


def server_settings(
    data: Path, host: str, port: int, settings: Mapping[str, str] | None = None
) -> str:
    """Return the text of a ``zoo.cfg``; `settings` prevail over the defaults."""
    values = {
        "dataDir": str(data),
        "clientPortAddress": host,
        "clientPort": str(port),
        "tickTime": str(TICK_MILLIS),
        "minSessionTimeout": str(MIN_SESSION_MILLIS),
        "maxSessionTimeout": str(MAX_SESSION_MILLIS),
        "maxClientCnxns": "0",
        "4lw.commands.whitelist": "*",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "1",
        **(settings or {}),
    }
    return java_properties(values)


def logging_settings(log: Path) -> str:
    """Return a ``log4j2.properties`` that writes warnings and errors to `log`."""
    values = {
        "status": "error",
        "appender.file.type": "File",
        "appender.file.name": "file",
        "appender.file.fileName": str(log),
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %-5p %c{1} %m%n",
        "rootLogger.level": "warn",
        "rootLogger.appenderRef.file.ref": "file",
    }
    return java_properties(values)
