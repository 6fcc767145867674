"""The Pacemaker daemon: a process around a `PacemakerServer`, its signals and its exit codes.

The rules that hold here:

- All files that the configuration names are read before the port is bound; what is wrong with them
  ends the command with exit code 2.
- SIGHUP reads configuration and files again. What is wrong then changes nothing.
  One that comes while the daemon starts is held back by the command until it is up.
- SIGTERM and SIGINT drain: no new connections, what has come is answered, and the process ends
  within `serving.DRAIN` seconds and a little. One more, a second or more later, ends it at once.

Exit codes: 0 after SIGTERM or SIGINT; 1 if it could not start, as when the port is taken; 2 for bad
configuration; 128 and the signal's number when one more of them ended it.
"""

import asyncio
import functools
import logging
import signal
import socket
from collections.abc import Callable
from typing import Final

import stormkeeper
from stormkeeper.conf import Conf
from stormkeeper.daemon.lifecycle import (
    ServiceManager,
    announce,
    die_with_parent,
    end_of_signals,
    raise_file_limit,
    stop_requested,
)
from stormkeeper.daemon.logs import configure_logging, counted
from stormkeeper.daemon.sockets import BACKLOG, address_of, listen
from stormkeeper.errors import ConfigError, ListenError
from stormkeeper.pacemaker.server.connections import tls
from stormkeeper.pacemaker.server.monitoring import AN_ADDRESS, PRIVILEGE, Monitoring
from stormkeeper.pacemaker.server.serving import PacemakerServer
from stormkeeper.sasl import methods

_log = logging.getLogger(__name__)

#: Keys of a Pacemaker's that count only with TLS.
_OF_TLS: Final = (*tls.FILES, "pacemaker.tls.client.auth", "pacemaker.tls.minimum.version")


def serve(conf: Conf, read_again: Callable[[Conf], Conf] | None = None) -> int:
    """Run a Pacemaker until SIGTERM or SIGINT; return the exit code (0, or 1 if it cannot start).

    Announces ``pacemaker listening on HOST:PORT`` when clients can connect.

    Parameters
    ----------
    conf
        Its configuration.
    read_again
        Reads that anew, for SIGHUP, given the one that holds; raises `ConfigError`. None: only the
        files that `conf` names are read anew.

    Raises
    ------
    ConfigError
        When something in the configuration or the files that it names is wrong.
    """
    configure_logging()
    die_with_parent()
    raise_file_limit()
    server = PacemakerServer(conf)
    file = None if conf["pacemaker.auth.method"] == "NONE" else methods.login_file(conf)
    if file is not None:
        _log.info("the JAAS file is %s", file)
    ignored = methods.ignored_childopts(conf)
    if ignored:
        _log.info("pacemaker.childopts: there is no JVM here for %s", ", ".join(ignored))
    for line in without_effect(conf):
        _log.warning("%s", line)
    return asyncio.run(_serve(server, read_again or (lambda held: held)))


def without_effect(conf: Conf) -> list[str]:
    """Tell of what is configured and counts only with something that is not; a line for each.

    Raises
    ------
    ConfigError
        When ``pacemaker.childopts`` has a quote without its second one.
    """
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


async def _serve(server: PacemakerServer, read_again: Callable[[Conf], Conf]) -> int:
    loop = asyncio.get_running_loop()
    stop = stop_requested(loop)
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
    asked_by = signal.Signals(await stop).name
    monitoring.stopping()
    connections = counted(len(server.sessions), "connection")
    held = counted(server.store.keys, "pulse")
    _log.info("stopping: %s, %s held; asked by %s", connections, held, asked_by)
    deaf = await server.stop()
    _log.info("stopped: %s had been open, answers not taken by %d", connections, deaf)
    monitoring.close()
    end_of_signals()
    return 0


def _version_and_files(conf: Conf) -> str:
    files = ", ".join(map(str, conf.files))
    return f"version {stormkeeper.__version__}; configuration read from {files or 'no file'}"


def _listener(conf: Conf, manager: ServiceManager) -> socket.socket:
    """Return the socket that the service manager passed, or open one."""
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
