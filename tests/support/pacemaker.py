"""The real Pacemaker daemon as a process of its own, for tests that talk to it or break it.

Use `PacemakerProcess` as a context manager, or import the fixtures in a room's ``conftest.py``:
``from support.pacemaker import pacemaker, start_pacemaker``.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import pytest

from stormkeeper.conf import Address
from stormkeeper.local import ports
from support.waiting import DEADLINE_SECS, until

_READY = "pacemaker listening on "


class PacemakerProcess:
    """Runs ``storm pacemaker`` on a loopback port; started again, it comes back on the same one.

    Parameters
    ----------
    port
        Where it listens; 0 for any free port, which is reserved for it.
    conf
        Further configuration.
    options
        Further options of the command line.
    environ
        Further variables of its environment.
    """

    #: What Python runs, up to the command's name.
    program: Sequence[str] = ("-m", "stormkeeper")

    def __init__(
        self,
        port: int = 0,
        conf: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = port or ports.reserve()
        self._options = list(options)
        self._environ = {"HOME": "/nonexistent", **(environ or {})}
        self._conf = dict(conf or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the controller

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self._log.close()

    @property
    def address(self) -> str:
        """``HOST:PORT``, as ``pacemaker.servers`` takes it."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the Pacemaker is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the daemons of this controller wrote to stderr until now."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode()

    def start(self) -> None:
        """Start the daemon and wait until it says that it listens."""
        assert self._process is None, "the Pacemaker is running"
        conf = {
            **self._conf,
            "pacemaker.bind.host": self.host,
            "pacemaker.port": self.port,
        }
        options = [
            part for key, value in conf.items() for part in ("-c", f"{key}={json.dumps(value)}")
        ]
        environment = {k: v for k, v in os.environ.items() if k != "STORM_CONF_DIR"}
        self._process = subprocess.Popen(
            [sys.executable, *self.program, "pacemaker", *options, *self._options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            env={**environment, **self._environ, "STORMKEEPER_DIE_WITH_PARENT": "1"},
        )
        try:
            line = self._first_line()
            assert line.startswith(_READY), f"not a ready line: {line!r}; log: {self.log}"
        except BaseException:
            self.kill()
            raise
        self.port = int(line.rpartition(":")[2])

    def stop(self) -> int:
        """Ask the daemon to stop, wait for its end, and return its exit code."""
        assert self._process is not None, "the Pacemaker is not running"
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End the daemon with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self) -> int:
        """Wait for the daemon's end, and return its exit code."""
        assert self._process is not None
        code = self._process.wait(DEADLINE_SECS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return code

    def reload(self) -> None:
        """Have the daemon read its configuration again, and wait until it says that it did."""
        before = self.log.count("reloaded")
        os.kill(self.pid, signal.SIGHUP)
        until(lambda: self.log.count("reloaded") > before)

    def suspend(self) -> None:
        """Stop the daemon's process without ending it; its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended daemon go on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the daemon and start another on the same port."""
        self.kill()
        self.start()

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + DEADLINE_SECS
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                assert left > 0, f"no ready line in {DEADLINE_SECS} s; log: {self.log}"
                if selector.select(left):
                    piece = os.read(descriptor, 4096)
                    assert piece, f"the Pacemaker ended before it was ready; log: {self.log}"
                    line += piece
        return line.decode().strip()


def nobody() -> Address:
    """Return an address at which nobody listens."""
    return Address("127.0.0.1", ports.reserve())


@pytest.fixture
def pacemaker() -> Iterator[PacemakerProcess]:
    """One running Pacemaker of the test's own."""
    with PacemakerProcess() as process:
        yield process


@pytest.fixture
def start_pacemaker() -> Iterator[Callable[..., PacemakerProcess]]:
    """Starts as many Pacemakers as a test calls it for (arguments as `PacemakerProcess`)."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(PacemakerProcess(*args, **kwargs))
