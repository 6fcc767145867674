"""Storm's own daemons and clients, for whoever has Storm's jars: see docs/interop.md.

What runs is Storm's; what drives it is in ``tests/interop/java``.
"""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stormkeeper.daemon.spark_environment import find_java
from stormkeeper.local import reservations

#: The folder with Storm's jars.
VARIABLE = "PEER"

_SOURCES = Path(__file__).parents[1] / "interop" / "java"
_PACKAGE = "org.apache.storm.pacemaker"

#: The driver's own; what Storm logs is for who looks for the cause of a failure.
_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1.} %m%n
"""

#: A JVM's start on a busy machine; a client's tries until it gives a server up, several times over.
_START_SECS = 60.0
_CHECKS_SECS = 300.0
_ANSWER_SECS = 120.0
_STOP_SECS = 60.0


class StormPeer:
    """One build of Storm, with our drivers compiled for it.

    Parameters
    ----------
    jars
        The folder with Storm's jars.
    folder
        For all that is written.
    """

    def __init__(self, jars: Path, folder: Path) -> None:
        self._folder = folder
        self._classes = folder / "classes"
        self._classes.mkdir()
        self._path = f"{jars}/*"
        (self._classes / "log4j2.properties").write_text(_LOGGING)
        compiled = subprocess.run(
            [
                *(str(_javac()), "-proc:none", "-nowarn"),
                *("-cp", self._path, "-d", str(self._classes)),
                *sorted(map(str, _SOURCES.glob("*.java"))),
            ],
            capture_output=True,
            text=True,
            timeout=_CHECKS_SECS,
            check=False,
        )
        assert compiled.returncode == 0, f"not Storm's jars in {jars}?\n{compiled.stderr}"
        release, *delegates = self.run("Peer").split()
        #: Whose records it reads and writes: Storm 2's or Storm 3's.
        self.release = int(release)
        #: The classes of its serialization delegates.
        self.delegates = delegates
        self._logs_in: dict[object, bool] = {}

    def command(self, driver: str, *arguments: str, conf: Mapping[str, Any]) -> list[str]:
        """Return the command line that runs a driver with a ``storm.yaml`` of `conf`."""
        folder = self._folder / f"conf-{len(list(self._folder.iterdir()))}"
        folder.mkdir()
        # JSON is YAML.
        (folder / "storm.yaml").write_text(json.dumps(dict(conf)))
        kerberos = os.environ.get("KRB5_CONFIG")
        return [
            str(find_java()),
            "-Xmx512m",
            "-XX:TieredStopAtLevel=1",
            *([f"-Djava.security.krb5.conf={kerberos}"] if kerberos else []),
            "-cp",
            os.pathsep.join([str(folder), str(self._classes), self._path]),
            f"{_PACKAGE}.{driver}",
            *arguments,
        ]

    def run(self, driver: str, *arguments: str, conf: Mapping[str, Any] | None = None) -> str:
        """Run a driver to its end, and return what it printed."""
        ran = subprocess.run(
            self.command(driver, *arguments, conf=conf or {}),
            capture_output=True,
            text=True,
            timeout=_CHECKS_SECS,
            check=False,
        )
        assert ran.returncode in (0, 1), f"{driver} ended with {ran.returncode}:\n{ran.stderr}"
        assert ran.stdout, f"{driver} printed nothing:\n{ran.stderr}"
        return ran.stdout

    def checks(self, driver: str, *arguments: str, conf: Mapping[str, Any]) -> str:
        """Have a driver hold something to its checks, and return how many passed.

        Raises
        ------
        AssertionError
            If one failed, or there was none.
        """
        *lines, total = self.run(driver, *arguments, conf=conf).splitlines()
        failures = [line for line in lines if not line.startswith("PASS ")]
        assert not failures, "\n".join(failures)
        assert total == f"TOTAL {len(lines)} of {len(lines)}"
        assert lines
        return f"{len(lines)} of {len(lines)}"

    def logs_in(self, security: Mapping[str, Any]) -> bool:
        """Return whether Storm's client authenticates with Storm's own Pacemaker.

        Where it does not, it will not do so with another one either.
        """
        method = security["pacemaker.auth.method"]
        if method not in self._logs_in:
            conf = {**security, "pacemaker.servers": ["localhost"], "pacemaker.port": free_port()}
            with PeerProcess(self, "Server", conf=conf):
                self._logs_in[method] = "FAIL" not in self.run("Client", "login", conf=conf)
        return self._logs_in[method]


class PeerProcess:
    """A driver that runs until it is told to end, or is killed.

    Parameters
    ----------
    peer, driver, arguments, conf
        As of `StormPeer.run`.
    """

    def __init__(
        self, peer: StormPeer, driver: str, *arguments: str, conf: Mapping[str, Any]
    ) -> None:
        self._command = peer.command(driver, *arguments, conf=conf)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it says that it is ready."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            line = self._line(_START_SECS)
            assert line == "READY", f"not READY: {line!r}"
        except BaseException:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def ask(self, line: str) -> int:
        """Send it a line, and return the number that it answers with."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._line(_ANSWER_SECS))

    def end(self) -> int:
        """End its input, and return its exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(_STOP_SECS)

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECS)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._process = None

    def _line(self, deadline_secs: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        late = threading.Timer(deadline_secs, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        assert line, f"it ended, or said nothing for {deadline_secs} s"
        return line.strip()


def why_not(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why there is no peer to be had, None where there is one."""
    folder = environ.get(VARIABLE)
    if not folder:
        return f"no jars of Storm's are named (make interop {VARIABLE}=DIR; see docs/interop.md)"
    if not any(Path(folder).glob("storm*.jar")):
        return f"no jars of Storm's are in {folder} ({VARIABLE})"
    if not _javac().exists():
        return f"no compiler beside {find_java()}: a JDK is needed, not only a JRE"
    return None


def _javac() -> Path:
    return find_java().resolve().with_name("javac")


def free_port() -> int:
    """Return a port for a server of Storm's, which listens on every address."""
    return reservations.reserve("0.0.0.0")
