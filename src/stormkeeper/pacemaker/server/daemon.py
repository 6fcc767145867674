"""The Pacemaker daemon: a `PacemakerServer` with signals, systemd, and a metrics endpoint.

- All configured files are read before the port is bound.
- SIGHUP reloads configuration and files; an error changes nothing. The command blocks SIGHUP during
  the start.
- SIGTERM and SIGINT drain the server; another signal, a second or more later, ends the process.

Exit codes: 0 after SIGTERM or SIGINT; 1 if the start failed; 2 for a wrong configuration; 128 plus
the number of a second signal.
"""

import asyncio
import functools
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import stormkeeper
from stormkeeper.conf import Conf
from stormkeeper.daemon.lifecycle import (
    ServiceManager,
    StopSignals,
    announce,
    end_of_signals,
    raise_file_limit,
)
from stormkeeper.daemon.logs import configure_logging, counted
from stormkeeper.daemon.sockets import BACKLOG, address_of, listen
from stormkeeper.errors import ConfigError, ListenError
from stormkeeper.pacemaker.server import server_tls
from stormkeeper.pacemaker.server.pacemaker_server import PacemakerServer
from stormkeeper.pacemaker.server.server_status import ServerSnapshot, pages
from stormkeeper.sasl import methods
from stormkeeper.sasl.jaas import ignored_childopts, login_file

if TYPE_CHECKING:
    from stormkeeper.daemon.http import HttpEndpoint

_log = logging.getLogger(__name__)

#: FileDescriptorName of the socket passed by systemd.
METRICS_SOCKET: Final = "metrics"
AN_ADDRESS: Final = (
    "an address of this machine (`ip address` lists them), or to 0.0.0.0 for all of them"
)
PRIVILEGE: Final = "have systemd open it (ListenStream= of a socket unit)"

_BACKLOG: Final = 16
_STATUS_SECS: Final = 10.0


class Monitoring:
    """Serves metrics and health over HTTP, and reports to systemd, in the running event loop.

    A socket that `manager` passes as `METRICS_SOCKET` replaces ``pacemaker.metrics.port``; raises
    `ListenError` if the socket does not listen.
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

    @property
    def address(self) -> str | None:
        """``HOST:PORT`` of the endpoint."""
        return None if self._endpoint is None else self._endpoint.address

    def start(self) -> None:
        """Open the endpoint and report readiness; raises `ListenError`."""
        self._open_endpoint()
        self.ready()
        if self._manager.watchdog is not None:
            self._repeat(self._manager.watchdog / 2, self._manager.alive)
        self._repeat(_STATUS_SECS, lambda: self._manager.status(self._status()))

    def ready(self) -> None:
        """Report that the server serves, also after a reload."""
        self._manager.ready(self._status())

    def reloading(self) -> None:
        self._manager.reloading()

    def stopping(self) -> None:
        """Report the stop; the endpoint stays open until `close`."""
        self._manager.stopping(f"draining: {self._status()}")

    def close(self) -> None:
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
        # Takes 0.3 s and 5 MB.
        from stormkeeper.daemon.http import HttpEndpoint  # noqa: PLC0415

        self._endpoint = HttpEndpoint(listener, pages(self._snapshot))
        _log.info("metrics on http://%s/metrics", self._endpoint.address)

    def _status(self) -> str:
        snapshot = self._snapshot()
        connections, pulses = snapshot.connections, snapshot.keys
        return f"{counted(connections, 'connection')}, {counted(pulses, 'pulse')} held"

    def _repeat(self, secs: float, action: Callable[[], None]) -> None:
        # First, so that a failure does not end the repetition.
        asyncio.get_running_loop().call_later(secs, self._repeat, secs, action)
        action()


_OF_TLS: Final = (*server_tls.FILES, "pacemaker.tls.client.auth", "pacemaker.tls.minimum.version")


def serve(conf: Conf, read_again: Callable[[Conf], Conf] | None = None) -> int:
    """Run a Pacemaker until SIGTERM or SIGINT; return the exit code.

    Prints ``pacemaker listening on HOST:PORT`` when clients can connect. On SIGHUP `read_again`
    returns a new configuration, or raises `ConfigError`; by default the named files are read again.
    """
    configure_logging()
    raise_file_limit()
    server = PacemakerServer(conf)
    file = None if conf["pacemaker.auth.method"] == "NONE" else login_file(conf)
    if file is not None:
        _log.info("the JAAS file is %s", file)
    ignored = ignored_childopts(conf)
    if ignored:
        _log.info("pacemaker.childopts: there is no JVM here for %s", ", ".join(ignored))
    for line in without_effect(conf):
        _log.warning("%s", line)
    with StopSignals(at_once=_warn_of_end) as stop:
        return asyncio.run(_serve(server, read_again or (lambda held: held), stop))


def _warn_of_end(number: int) -> None:
    name = signal.Signals(number).name
    _log.warning("ended at once by a second %s: unfinished work is lost", name)


def without_effect(conf: Conf) -> list[str]:
    """Return a line for each configured key without effect."""
    lines = []
    login = methods.unused_login(conf)
    if login is not None:
        lines.append(login)
    method = conf["pacemaker.auth.method"]
    if conf["pacemaker.kerberos.users"] and method != "KERBEROS":
        lines.append(
            "pacemaker.kerberos.users has no effect: it counts where pacemaker.auth.method is"
            f" KERBEROS, and that is {method}"
        )
    given = conf.changed()
    of_tls = [key for key in _OF_TLS if key in given]
    if of_tls and not conf["pacemaker.tls.enable"]:
        have = "has" if len(of_tls) == 1 else "have"
        lines.append(
            f"{', '.join(of_tls)} {have} no effect, and the port speaks no TLS: set"
            " pacemaker.tls.enable to true to switch it on"
        )
    return lines


async def _serve(
    server: PacemakerServer, read_again: Callable[[Conf], Conf], stop: StopSignals
) -> int:
    loop = asyncio.get_running_loop()
    manager = ServiceManager()
    try:
        monitoring = Monitoring(server.conf, server.snapshot, manager)
        listener = _listener(server.conf, manager)
        address = address_of(listener)
        server.start(listener)
        monitoring.start()
    except ListenError as error:
        _log.error("%s", error)
        return 1
    loop.add_signal_handler(
        signal.SIGHUP, functools.partial(_reload, server, read_again, monitoring)
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    _log.info("%s", _version_and_files(server.conf))
    _log.info("%s", server.describe())
    _warn_of_shortage(server)
    announce(f"pacemaker listening on {address}")
    await stop.requested()
    monitoring.stopping()
    connections = counted(len(server.sessions), "connection")
    held = counted(server.store.index.keys, "pulse")
    _log.info("stopping: %s, %s held; asked by %s", connections, held, stop.asked_by)
    deaf = await server.stop()
    _log.info("stopped: closed %s, of which %d had unread answers", connections, deaf)
    monitoring.close()
    end_of_signals()
    return 0


def _version_and_files(conf: Conf) -> str:
    files = ", ".join(map(str, conf.files))
    return f"version {stormkeeper.__version__}; configuration read from {files or 'no file'}"


def _listener(conf: Conf, manager: ServiceManager) -> socket.socket:
    passed = manager.take_listeners("")
    if len(passed) > 1:
        raise ListenError(
            f"systemd passed {len(passed)} sockets for pulses; a Pacemaker serves one: let each"
            " socket unit have one ListenStream="
        )
    if passed:
        return passed.pop()
    return listen(
        conf["pacemaker.bind.host"],
        conf["pacemaker.port"],
        keys="pacemaker.bind.host, pacemaker.port",
        if_taken="another Pacemaker may run there; stop it, or set pacemaker.port to another port",
        if_elsewhere=f"set pacemaker.bind.host to {AN_ADDRESS}",
        if_forbidden=f"set pacemaker.port to 1024 or more, or {PRIVILEGE}",
        backlog=BACKLOG,
    )


def _warn_of_shortage(server: PacemakerServer) -> None:
    shortage = server.shortage()
    if shortage is not None:
        _log.warning("%s", shortage)


def _reload(
    server: PacemakerServer, read_again: Callable[[Conf], Conf], monitoring: Monitoring
) -> None:
    monitoring.reloading()
    try:
        change = server.reload(read_again(server.conf))
    except ConfigError as error:
        _log.error("not reloaded, all stays as it was: %s", error)
    else:
        level = logging.WARNING if change.later else logging.INFO
        _log.log(level, "reloaded: %s", change.describe())
        if any(text.startswith("pacemaker.max.connections = ") for text in change.changes):
            _warn_of_shortage(server)
    monitoring.ready()
