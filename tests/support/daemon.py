"""A daemon of ours as a process of its own, for tests that talk to it or break it."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from stormkeeper.daemon.children import dying_with_us
from support.waiting import DEADLINE_SECS


class DaemonProcess:
    """Runs ``storm COMMAND`` until it is told to stop. A context manager, which starts it.

    Parameters
    ----------
    command
        The daemon, ``pacemaker`` for one.
    ready
        How the line begins that says that it can be used.
    conf
        Its configuration.
    options
        Further options of the command line.
    environ
        Further variables of its environment.
    ready_secs
        How long it may take until it can be used.
    """

    #: What Python runs, up to the command's name.
    program: Sequence[str] = ("-m", "stormkeeper")

    def __init__(
        self,
        command: str,
        ready: str,
        conf: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        ready_secs: float = DEADLINE_SECS,
    ) -> None:
        self._command = command
        self._ready_secs = ready_secs
        self._ready = ready
        self._conf = dict(conf or {})
        self._options = list(options)
        self._environ = {"HOME": "/nonexistent", **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the controller

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    @property
    def pid(self) -> int:
        """The process id of the running daemon."""
        assert self._process is not None, f"storm {self._command} is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the daemons of this controller wrote to stderr until now."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode()

    def start(self) -> str:
        """Start the daemon, wait until it says that it is ready, and return the rest of that."""
        assert self._process is None, f"storm {self._command} is running"
        options = [
            part
            for key, value in self._conf.items()
            for part in ("-c", f"{key}={json.dumps(value)}")
        ]
        environment = {k: v for k, v in os.environ.items() if k != "STORM_CONF_DIR"}
        self._process = subprocess.Popen(
            dying_with_us([sys.executable, *self.program, self._command, *options, *self._options]),
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            env={**environment, **self._environ},
        )
        try:
            line = self._first_line()
            assert line.startswith(self._ready), f"not a ready line: {line!r}; log: {self.log}"
        except BaseException:
            self.kill()
            raise
        return line.removeprefix(self._ready)

    def stop(self) -> int:
        """Ask the daemon to stop, wait for its end, and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
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

    def suspend(self) -> None:
        """Stop the daemon's process without ending it; its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended daemon go on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the daemon and start another."""
        self.kill()
        self.start()

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + self._ready_secs
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                assert left > 0, f"no ready line in {self._ready_secs} s; log: {self.log}"
                if selector.select(left):
                    piece = os.read(descriptor, 4096)
                    assert piece, f"it ended before it was ready; log: {self.log}"
                    line += piece
        return line.decode().strip()
