"""The real Pacemaker daemon as a process of its own, for tests that talk to it or break it.

Use `PacemakerProcess` as a context manager, or import the fixtures in a room's ``conftest.py``:
``from support.pacemaker import pacemaker, start_pacemaker``.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from stormkeeper.conf import Address
from stormkeeper.local import reservations
from support.daemon import DaemonProcess
from support.waiting import until


class PacemakerProcess(DaemonProcess):
    """Runs ``storm pacemaker`` on a loopback port; started again, it comes back on the same one.

    Parameters
    ----------
    port
        Where it listens; 0 for any free port, which is reserved for it.
    conf, options, environ
        As of a `DaemonProcess`.
    host
        The address at which it listens.
    """

    def __init__(
        self,
        port: int = 0,
        conf: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.port = port or reservations.reserve()
        address = {"pacemaker.bind.host": self.host, "pacemaker.port": self.port}
        super().__init__(
            "pacemaker", "pacemaker listening on ", {**(conf or {}), **address}, options, environ
        )

    @property
    def address(self) -> str:
        """``HOST:PORT``, as ``pacemaker.servers`` takes it."""
        return f"{self.host}:{self.port}"

    def reload(self) -> None:
        """Have the daemon read its configuration again, and wait until it says that it did."""
        before = self.log.count("reloaded")
        os.kill(self.pid, signal.SIGHUP)
        until(lambda: self.log.count("reloaded") > before)


def nobody() -> Address:
    """Return an address at which nobody listens."""
    return Address("127.0.0.1", reservations.reserve())


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
