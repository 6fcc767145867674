"""The installed ``storm`` command, and what a command line imports."""

import ast
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support.waiting import DEADLINE_SECS

STORM = Path(sys.executable).with_name("storm")

#: What makes a command slow to start, and so must wait until it is needed.
HEAVY = {"pyspark", "py4j", "thriftpy2", "pandas", "numpy", "pyarrow", "rich", "kazoo", "asyncio"}

#: What a command begins with that may read what any user may: root may read everything.
AS_ANY_USER = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
)

needs_any_user = pytest.mark.skipif(
    bool(AS_ANY_USER) and not shutil.which("setpriv"),
    reason="root may read everything, and needs setpriv to do without",
)


def imported_by(arguments: Sequence[str], environ: Mapping[str, str]) -> set[str]:
    """Return the top-level modules that a command line has imported when it ends."""
    program = (
        "import sys\n"
        "from stormkeeper.cli.commands import storm\n"
        "try:\n"
        f"    storm.main({list(arguments)!r}, prog_name='storm')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=True,
    )
    return set(ast.literal_eval(ran.stdout.splitlines()[-1]))


class Running:
    """A command that runs until it is interrupted, line by line."""

    def __init__(self, arguments, environ):
        self._process = subprocess.Popen(
            [STORM, *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines, self._readers = {}, []
        for name in ("stdout", "stderr"):
            lines = self._lines[name] = queue.SimpleQueue()
            stream = getattr(self._process, name)
            reader = threading.Thread(target=_read, args=(stream, lines.put), daemon=True)
            reader.start()
            self._readers.append(reader)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(DEADLINE_SECS)
        for reader in self._readers:
            reader.join(DEADLINE_SECS)
        self._process.stdout.close()
        self._process.stderr.close()

    def line(self):
        """Return the next line of standard output."""
        return self._lines["stdout"].get(timeout=DEADLINE_SECS)

    def remark(self):
        """Return the next line of standard error."""
        return self._lines["stderr"].get(timeout=DEADLINE_SECS)

    def interrupt(self):
        """End it as Ctrl-C does, and return its exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(DEADLINE_SECS)


def _read(stream, put):
    for line in stream:
        put(line.rstrip("\n"))
