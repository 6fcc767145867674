"""A real standalone Spark cluster of one master and one worker, out of PySpark's own jars."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Self

import psutil
import pyspark

from stormkeeper.daemon.children import dying_with_us
from support.processes import all_gone, send
from support.waiting import until

_HOME = Path(pyspark.__file__).parent

#: A JVM of Spark's on a busy machine.
_START_SECS = 90.0

_JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # A service that nobody asks here would have a port that is always the same.
    "-Dspark.master.rest.enabled=false",
)


class SparkCluster:
    """Runs a master and a worker on loopback, on ports that are free. A context manager.

    Of what runs the tests they have nothing: no ``PYTHONPATH``, no ``PYSPARK_PYTHON``, and another
    working folder. So executors find only what a driver sends them, and what is in the Python that
    it names.

    Parameters
    ----------
    folder
        Is theirs.
    cores
        What the worker has to give.
    """

    def __init__(self, folder: Path, cores: int) -> None:
        self._folder = folder
        self._cores = cores
        self._stack = contextlib.ExitStack()
        self._worker: subprocess.Popen[bytes] | None = None
        self.master = ""

    @property
    def work(self) -> Path:
        """Below it each executor has its working folder."""
        return self._folder / "work"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            _, log = self._start(stack, "master.Master", *common)
            self.master = _said(log, r"Starting Spark master at (spark://\S+)")
            place = ["--work-dir", str(self.work), "--memory", "4g", "--cores", str(self._cores)]
            self._worker, log = self._start(stack, "worker.Worker", *common, *place, self.master)
            _said(log, r"Successfully registered with master ()")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def lose_worker(self) -> None:
        """Kill the worker, as a loss of its machine does, with all executors."""
        assert self._worker is not None
        _end(self._worker)

    def _start(
        self, stack: contextlib.ExitStack, name: str, *arguments: str
    ) -> tuple["subprocess.Popen[bytes]", Path]:
        log = self._folder / f"{name}.log"
        options = [*_JAVA_OPTIONS, f"-Djava.io.tmpdir={self._folder}"]
        kept = {key: os.environ[key] for key in ("PATH", "JAVA_HOME") if key in os.environ}
        with log.open("wb") as output:
            process = subprocess.Popen(
                dying_with_us(
                    [
                        str(_HOME / "bin" / "spark-class"),
                        f"org.apache.spark.deploy.{name}",
                        *arguments,
                    ]
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={
                    **kept,
                    "HOME": "/nonexistent",
                    "SPARK_HOME": str(_HOME),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": str(self._folder),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": " ".join(options),
                },
            )
        stack.callback(_end, process)
        return process, log


def _said(log: Path, pattern: str) -> str:
    """Wait for a line of a log, and return what the pattern holds of it."""
    found = until(lambda: re.search(pattern, log.read_text(errors="replace")), _START_SECS)
    return found[1]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and what it has started, executors above all."""
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    send(started, signal.SIGKILL)
    all_gone(started)
