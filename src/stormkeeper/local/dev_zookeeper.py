"""A real ZooKeeper server on this machine, from the jars that PySpark ships.

For development and tests: one server, or a member of an ensemble. Data survives a crash of the
server, but not of the machine (``forceSync=no``), so writes are cheap on any disk.
"""

import contextlib
import importlib.util
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from stormkeeper import extras
from stormkeeper.conf import Address
from stormkeeper.conf.folders import folder
from stormkeeper.daemon.children import Child
from stormkeeper.daemon.durable import try_lock
from stormkeeper.daemon.lifecycle import StopSignals, announce
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.spark_environment import find_java, java_properties
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import reservations
from stormkeeper.names import host_port

#: In the data folder.
LOCK = ".server"

#: Seconds in which a server whose starter was killed ends.
LEAVING_SECS = 2.0

#: Seconds between two questions to a starting server, and each question's timeout.
POLL_SECS = 0.02
QUESTION_SECS = 2.0

WATCH_SECS = 0.5

#: Of a member of an ensemble, and of a single server, whose old snapshots this class removes.
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

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

    On Linux the server dies with the thread that started it, even in a killed process. An object
    starts one server at a time, again after `stop`. Not safe for many threads, except `running`.

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
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        #: 0 before the first start on any free port.
        self.port = port
        self.log = self.data_dir / "zookeeper.log"
        self._settings = dict(settings or {})
        self._jvm_options = tuple(jvm_options)
        self._child: Child | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the server runs."""
        return self._child.returncode if self._child else None

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
        java = find_java()
        jars = zookeeper_classpath()
        with _sole_server(self.data_dir) as lock:
            self.port = _free_port(self.host, self.port)
            try:
                self._launch(java, jars, lock)
                self._wait_serving(deadline, cancelled)
            except BaseException:
                self.stop()
                raise

    def stop(self, grace_secs: float = 5.0) -> None:
        """Stop the server, if any: SIGTERM, then SIGKILL after `grace_secs`."""
        if self._child is not None:
            self._child.stop(grace_secs)

    def _launch(self, java: Path, classpath: str, lock: int) -> None:
        settings = self.data_dir / "zoo.cfg"
        settings.write_text(
            server_settings(self.data_dir / "data", self.host, self.port, self._settings)
        )
        logging = self.data_dir / "log4j2.properties"
        logging.write_text(logging_settings(self.log))
        argv = server_command(java, classpath, settings, logging, options=self._jvm_options)
        self._child = Child("zookeeper", argv, log=self.log, env=os.environ, pass_fds=(lock,))

    def ended_error(self, when: str) -> LocalClusterError:
        return self._error(f"ended with code {self.returncode} {when}")

    def _error(self, what: str) -> LocalClusterError:
        tail = self._child.log_tail() if self._child else ""
        return LocalClusterError(
            f"ZooKeeper on {self.address} {what}; its log, {self.log}, ends with:\n{tail}"
        )

    def _wait_serving(self, deadline: float, cancelled: Callable[[], bool]) -> None:
        while not self._serves():
            if cancelled():
                self.stop()
                return
            if not self.running:
                raise self.ended_error("before it served")
            if time.monotonic() > deadline:
                raise self._error("did not serve before the deadline")
            time.sleep(POLL_SECS)

    def _serves(self) -> bool:
        # The server answers "ruok" before it serves, "Mode:" when it serves. The data folder
        # distinguishes our server from another that took the port.
        with contextlib.suppress(OSError):
            if "Mode:" in four_letter_word(self.host, self.port, "srvr"):
                settings = four_letter_word(self.host, self.port, "conf")
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
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).with_name("jars")
    chosen = [sorted(folder.glob(f"{name}-[0-9]*.jar")) for name in JARS]
    if not chosen[0]:
        raise LocalClusterError(f"there is no zookeeper-*.jar in {folder}: re-install pyspark 4")
    if all(chosen):
        return os.pathsep.join(str(jar) for jars in chosen for jar in jars)
    return str(folder / "*")


def server_command(
    java: Path, classpath: str, settings: Path, logging: Path, *, options: Sequence[str] = ()
) -> list[str]:
    """Return a server's command line; `options` prevail over `JVM_OPTIONS`."""
    return [
        *(str(java), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging.as_uri()}", *options),
        *("-cp", classpath, MAIN_CLASS, str(settings)),
    ]


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
