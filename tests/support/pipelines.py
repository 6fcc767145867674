"""The pipeline as a process that can be killed at any time, and what it has kept."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow as pa

from stormkeeper.daemon.children import dying_with_us
from stormkeeper.history import manifest
from stormkeeper.history.table_reader import Tables
from stormkeeper.pipeline import tables
from support.processes import all_gone, family
from support.waiting import until

#: Spark on a busy machine.
START_SECS = 150.0


class PipelineProcess:
    """Runs ``storm pipeline``; started again, it goes on with the same tables and checkpoint.

    Parameters
    ----------
    folder
        Its ``pipeline.tables.dir``.
    servers
        The Pacemakers that it reads, from its next start on.
    conf
        Configuration, given with ``-c``; it may name another folder.
    program
        What Python runs in place of ``storm pipeline``.
    """

    def __init__(
        self,
        folder: Path,
        servers: list[str],
        conf: Mapping[str, Any],
        program: Sequence[str] = ("-m", "stormkeeper", "pipeline"),
    ) -> None:
        self._program = program
        self.folder = folder
        self.servers = servers
        self._conf = conf
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._close()
        self._log.close()

    def start(self, prelude: str | None = None) -> Self:
        """Start it; with a `prelude`, after this Python code has run in its process."""
        self._close()
        program = self._program
        if prelude is not None:
            code = f"{prelude}\nfrom stormkeeper.cli import main\nmain()"
            program = ("-c", code, "pipeline")
        conf = {
            "pipeline.tables.dir": str(self.folder),
            "pacemaker.servers": self.servers,
            **self._conf,
        }
        options = [f"-c{key}={json.dumps(value)}" for key, value in conf.items()]
        self._process = subprocess.Popen(
            dying_with_us([sys.executable, *program, *options]),
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "HOME": "/nonexistent"},
            text=True,
        )
        return self

    def _close(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def first_line(self) -> str:
        """Return what it prints first; empty if it ends before."""
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(START_SECS, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        return line.strip()

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that it has started, and they."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children(recursive=True)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL, and wait until nothing of it is left."""
        if self.is_running and self._process is not None:
            started = family(self._process.pid)
            self._process.kill()
            self._process.wait()
            all_gone(started)

    def stop(self) -> int:
        """Ask it to end, and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Wait for its end, and return the exit code."""
        assert self._process is not None
        return self._process.wait(START_SECS)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def lines(self) -> list[str]:
        """What it has logged."""
        size = os.fstat(self._log.fileno()).st_size
        lines = os.pread(self._log.fileno(), size, 0).decode().splitlines()
        return [line for line in lines if "incubator modules" not in line]

    @property
    def errors(self) -> list[str]:
        """The same without how servers are, and without what is as it should be.

        A busy machine may keep a server from answering.
        """
        usual = " stormkeeper.pipeline.status ", " INFO stormkeeper.pipeline.process "
        return [line for line in self.lines if not any(words in line for words in usual)]

    @property
    def stops(self) -> list[str]:
        """What it has said of its end."""
        said = [line.partition(" stormkeeper.pipeline.process ")[2] for line in self.lines]
        return [line for line in said if line.startswith("stop")]

    def version(self, query: str) -> int:
        """Return the number of a query's newest commit, 0 before the first."""
        found = manifest.load(self.folder / query)
        return 0 if found is None else found.version

    def wait_published(self, more: int = 1) -> None:
        """Wait until each query has published so often from now on."""
        goal = {query: self.version(query) + more for query in (tables.LIVENESS, tables.STATISTICS)}

        def published() -> bool:
            assert self.is_running, self.lines[-20:]
            return all(self.version(query) >= number for query, number in goal.items())

        until(published, START_SECS)

    def rows(self, query: str, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table as it is now."""
        found: list[dict[str, Any]] = self.table(query, name).to_pylist()
        return found

    def table(self, query: str, name: str) -> pa.Table:
        return Tables(self.folder / query).arrow(name)
