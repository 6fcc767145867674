"""Serves metrics and health over HTTP, and reports to systemd, for a running Pacemaker."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from stormkeeper.daemon.http import HttpEndpoint
from stormkeeper.daemon.lifecycle import ServiceManager
from stormkeeper.daemon.logs import counted
from stormkeeper.daemon.sockets import listen
from stormkeeper.errors import ListenError
from stormkeeper.pacemaker.server.snapshot import ServerSnapshot

_log = logging.getLogger(__name__)

#: The name under which systemd passes the socket of the metrics.
METRICS_SOCKET: Final = "metrics"

#: For errors: what to set where an address cannot be bound.
AN_ADDRESS: Final = (
    "an address of this machine (`ip address` lists them), or to 0.0.0.0 for all of them"
)
#: For errors: what to do where a port needs a privilege.
PRIVILEGE: Final = "have systemd open it (ListenStream= of a socket unit)"

_BACKLOG: Final = 16
#: Seconds between two lines of status for systemd.
_STATUS_SECS: Final = 10.0


class Monitoring:
    """Serves the pages of one server, and reports on it, from `start` to `close`.

    It works in the running event loop.

    Parameters
    ----------
    conf
        ``pacemaker.metrics.port`` (None: no endpoint; 0: any free one),
        ``pacemaker.metrics.bind.host`` and ``pacemaker.bind.host`` are read.
    snapshot
        Returns what is to be seen of the server now.
    manager
        Whoever started the daemon. A socket that it passed as `METRICS_SOCKET` takes the place of
        the port; it is taken at once, the others are left.

    Raises
    ------
    ListenError
        If such a socket does not listen.
    """

    def __init__(
        self,
        conf: Mapping[str, Any],
        snapshot: Callable[[], ServerSnapshot],
        manager: ServiceManager,
    ) -> None:
        self._conf = conf
        self._snapshot = snapshot
        self._manager = manager
        self._passed = manager.take_listeners(METRICS_SOCKET)
        self._endpoint: HttpEndpoint | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def address(self) -> str | None:
        """``HOST:PORT`` of the endpoint; None if there is none."""
        return None if self._endpoint is None else self._endpoint.address

    def start(self) -> None:
        """Open the endpoint, and say that the server is ready.

        Raises
        ------
        ListenError
            If the endpoint's address cannot be listened on.
        """
        self._open_endpoint()
        self.ready()
        if self._manager.watchdog is not None:
            self._repeat("watchdog", self._manager.watchdog / 2, self._manager.alive)
        self._repeat("status", _STATUS_SECS, lambda: self._manager.status(self._status()))

    def ready(self) -> None:
        """Say that the server serves, as at the end of a reload."""
        self._manager.ready(self._status())

    def reloading(self) -> None:
        """Say that the server reads its configuration again."""
        self._manager.reloading()

    def stopping(self) -> None:
        """Say that the server is about to end; the endpoint goes on until `close`."""
        timer = self._timers.pop("status", None)
        if timer is not None:
            timer.cancel()
        self._manager.stopping(f"draining: {self._status()}")

    def close(self) -> None:
        """Close the endpoint."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._endpoint is not None:
            self._endpoint.close()

    def _open_endpoint(self) -> None:
        passed = self._passed
        port = self._conf.get("pacemaker.metrics.port")
        if len(passed) > 1:
            raise ListenError(f"systemd passed {len(passed)} sockets for metrics; one is enough")
        if passed:
            listener = passed.pop()
        elif port is None:
            return
        else:
            host = self._conf.get("pacemaker.metrics.bind.host")
            by_whom = (
                "the Pacemaker itself has it, as pacemaker.port is the same"
                if port == self._conf.get("pacemaker.port")
                else "another Pacemaker's metrics may be there"
            )
            listener = listen(
                self._conf["pacemaker.bind.host"] if host is None else host,
                port,
                keys="pacemaker.metrics.bind.host, pacemaker.metrics.port",
                backlog=_BACKLOG,
                if_taken=f"{by_whom}; set pacemaker.metrics.port to another port",
                if_elsewhere=f"set pacemaker.metrics.bind.host to {AN_ADDRESS}",
                if_forbidden=f"set pacemaker.metrics.port to 1024 or more, or {PRIVILEGE}",
            )
        # 0.3 s and 5 MB, which a daemon without metrics needs not.
        from stormkeeper.pacemaker.server.metrics import pages  # noqa: PLC0415

        self._endpoint = HttpEndpoint(listener, pages(self._snapshot))
        _log.info("metrics on http://%s/metrics", self._endpoint.address)

    def _status(self) -> str:
        snapshot = self._snapshot()
        connections, pulses = snapshot.connections, snapshot.keys
        return f"{counted(connections, 'connection')}, {counted(pulses, 'pulse')} held"

    def _repeat(self, name: str, secs: float, action: Callable[[], None]) -> None:
        # First of all, as what fails once is to be done the next time all the same.
        self._timers[name] = asyncio.get_running_loop().call_later(
            secs, self._repeat, name, secs, action
        )
        action()
