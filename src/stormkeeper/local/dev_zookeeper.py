"""A real ZooKeeper server on this machine, started out of the jars that PySpark ships.

For development and tests: one server, no replication. It is durable against its own death and
ours, not against the machine's (``forceSync=no``), which makes a write cheap on any disk.
"""

import contextlib
import importlib.util
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from stormkeeper.errors import LocalClusterError
from stormkeeper.local import tether
from stormkeeper.local.java import find_java

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"

#: What the server needs of PySpark's 280 jars, by name without version. With all of them it takes
#: 30 MB more memory and starts more slowly; all of them are used where one of these is not found.
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
)

#: The serial collector and the C1 compiler: a small, quick JVM. A larger heap than a development
#: cluster fills costs nothing until it is filled.
JVM_OPTIONS = (
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disable.jmx=true",
    "-Dzookeeper.forceSync=no",
    # The transaction log is preallocated in blocks of this many KiB; the default is 64 MiB.
    "-Dzookeeper.preAllocSize=1024",
)

#: Sessions may be shorter (tests) and longer (Storm's 20 s default fits anyway) than ZooKeeper's
#: own bounds of 2 and 20 ticks allow. Expiry is noticed at ticks, so ticks are short.
TICK_MILLIS = 250
MIN_SESSION_MILLIS = 500
MAX_SESSION_MILLIS = 120_000

#: How many free ports are tried when another process takes the chosen one first.
PORT_ATTEMPTS = 5

#: How often a starting server is asked, and for how long one question may take, in seconds.
POLL_SECS = 0.02
QUESTION_SECS = 2.0

#: Lines of the log that an error shows.
ERROR_LINES = 15


class DevZooKeeper:
    """One ZooKeeper server as a child process.

    Parameters
    ----------
    data_dir
        Holds its data, its configuration and its log; made if absent. What an earlier server left
        there is served again.
    port
        TCP port to listen on; 0 for any free one, chosen at the first start and kept from then on.
    host
        Address to listen on.
    environ
        Where ``JAVA_HOME`` and ``PATH`` are looked up.

    Notes
    -----
    The process dies with this one, even if this one is killed (on Linux). One object starts one
    server at a time, and again after `stop`. Not safe for concurrent use, except `running`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        self.log = self.data_dir / "zookeeper.log"
        self._port = port
        self._environ = environ
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None

    @property
    def port(self) -> int:
        """TCP port; 0 before the first start of a server that takes any free one."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port``, as clients connect to it."""
        return f"[{self.host}]:{self._port}" if ":" in self.host else f"{self.host}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the server, None when it was never started."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code once it has ended, negative where a signal ended it; None while it runs."""
        return self._process.poll() if self._process else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, deadline_secs: float = 60.0) -> None:
        """Start the server and return when it serves.

        Raises
        ------
        LocalClusterError
            No Java of version 17 or newer, no PySpark, the port is in use, the server ended, or it
            did not serve within `deadline_secs`. Nothing is left running then.
        """
        if self.running:
            return
        deadline = time.monotonic() + deadline_secs
        java = find_java(self._environ)
        classpath = zookeeper_classpath()
        any_port = self._port == 0
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._port = _free_port(self.host, self._port)
            try:
                self._launch(java, classpath)
                self._wait_serving(deadline)
            except BaseException as error:
                self.stop()
                clash = "BindException" in self.log_tail()
                if any_port:
                    self._port = 0
                if clash and isinstance(error, LocalClusterError):
                    if any_port and attempt < PORT_ATTEMPTS:
                        continue
                    raise _in_use(self.address) from error
                raise
            return

    def stop(self, grace_secs: float = 5.0) -> None:
        """End the server: SIGTERM, `grace_secs` to comply, then SIGKILL. Without one, nothing."""
        process, keeper = self._process, self._keeper
        if process is None or keeper is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            # A suspended process acts on nothing but this.
            process.send_signal(signal.SIGCONT)
        keeper.join(grace_secs)
        if keeper.is_alive():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            keeper.join(grace_secs)
        self._keeper = None

    def log_tail(self, lines: int = ERROR_LINES) -> str:
        """Return the last `lines` lines that the server logged since it was last started."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def _launch(self, java: Path, classpath: str) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        settings = self.data_dir / "zoo.cfg"
        settings.write_text(_server_settings(self.data_dir / "data", self.host, self._port))
        logging = self.data_dir / "log4j2.properties"
        logging.write_text(_logging_settings(self.log))
        with contextlib.suppress(OSError):
            self._log_start = self.log.stat().st_size
        argv = [
            sys.executable,
            *("-I", "-S", tether.__file__, str(os.getpid())),
            *(str(java), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging.as_uri()}"),
            *("-cp", classpath, MAIN_CLASS, str(settings)),
        ]
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        # Linux ends the child at the death of the thread that started it, so it gets one that
        # waits for its end.
        keeper = threading.Thread(
            target=_keep, args=(argv, self.log, started), name="dev-zookeeper", daemon=True
        )
        keeper.start()
        process = started.get()
        if isinstance(process, OSError):
            raise LocalClusterError(f"ZooKeeper cannot be started with {java}: {process}")
        self._process, self._keeper = process, keeper

    def _wait_serving(self, deadline: float) -> None:
        while not self._serves():
            if not self.running:
                raise LocalClusterError(
                    f"ZooKeeper on {self.address} ended with code {self.returncode} before it"
                    f" served; its log, {self.log}, ends with:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"ZooKeeper on {self.address} did not serve before the deadline; its log,"
                    f" {self.log}, ends with:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECS)

    def _serves(self) -> bool:
        # "ruok" is answered before the server serves; "Mode:" only once it does. The data folder
        # tells our server from another one that took the port first.
        with contextlib.suppress(OSError):
            if "Mode:" in four_letter_word(self.host, self._port, "srvr"):
                settings = four_letter_word(self.host, self._port, "conf")
                return f"dataDir={self.data_dir / 'data'}{os.sep}" in settings
        return False


def four_letter_word(host: str, port: int, word: str) -> str:
    """Ask a ZooKeeper server one of its administrative questions, such as ``srvr`` or ``mntr``.

    Raises
    ------
    OSError
        It could not be reached, or did not answer within two seconds.
    """
    with socket.create_connection((host, port), timeout=QUESTION_SECS) as connection:
        connection.sendall(word.encode())
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    return answer.decode(errors="replace")


def zookeeper_classpath() -> str:
    """Return the class path of a ZooKeeper server, out of PySpark's jars.

    Raises
    ------
    LocalClusterError
        PySpark is not installed, or has no ZooKeeper among its jars.
    """
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations or []) if spec else []
    folder = next((f for place in places if (f := Path(place) / "jars").is_dir()), None)
    if folder is None:
        raise LocalClusterError(
            "ZooKeeper is started out of PySpark's jars, and PySpark was not found:"
            " pip install pyspark"
        )
    chosen = [sorted(folder.glob(f"{name}-[0-9]*.jar")) for name in JARS]
    if not chosen[0]:
        raise LocalClusterError(f"there is no zookeeper-*.jar in {folder}: re-install pyspark 4")
    if all(chosen):
        return os.pathsep.join(str(jar) for jars in chosen for jar in jars)
    return str(folder / "*")


def _keep(
    argv: list[str],
    log: Path,
    started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError],
) -> None:
    try:
        with log.open("ab") as output:
            # A process group of its own: Ctrl-C in a terminal reaches us alone, and we stop it.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
    except OSError as error:
        started.put(error)
        return
    started.put(process)
    process.wait()


def _free_port(host: str, port: int) -> int:
    """Return `port` if nobody listens on it, or any such port for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the server itself will: a port with mere leftovers of connections is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise LocalClusterError(
            f"ZooKeeper cannot listen on {host}:{port} ({error.strerror}): stop what uses the port,"
            " or set storm.zookeeper.port to another one, or to 0 for any free one"
        ) from error


def _in_use(address: str) -> LocalClusterError:
    return LocalClusterError(
        f"ZooKeeper cannot listen on {address}: another process took the port while it started"
    )


def _server_settings(data: Path, host: str, port: int) -> str:
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
    }
    return "".join(f"{key}={_java_property(value)}\n" for key, value in values.items())


def _logging_settings(log: Path) -> str:
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
    return "".join(f"{key}={_java_property(value)}\n" for key, value in values.items())


def _java_property(value: str) -> str:
    """Write a value as Java's Properties.load reads it: Latin-1, with backslash escapes."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)
