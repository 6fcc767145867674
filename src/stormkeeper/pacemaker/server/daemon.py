"""The Pacemaker daemon: sockets and signals around `ServerConnection`, on asyncio.

The rules that hold here:

- Whatever a client does costs that client its connection at most. A bad frame makes one line in
  the log; an error of ours a traceback.
- A client that does not read its answers is not read from, until it does.
- When the system has no more file descriptors, accepting rests for a second; clients wait in the
  backlog.

Exit codes: 0 after SIGTERM or SIGINT; 1 if it could not start, as when the port is taken. (Bad
configuration ends the command with 2, before it comes here.)
"""

import asyncio
import errno
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from typing import Any, Final

import stormkeeper
from stormkeeper.daemon.lifecycle import (
    announce,
    die_with_parent,
    raise_file_limit,
    stop_requested,
)
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.errors import ConfigError, PacemakerError
from stormkeeper.pacemaker.server.answering import Answerer, ServerStatus
from stormkeeper.pacemaker.server.connection import ServerConnection
from stormkeeper.pacemaker.server.horizon import Horizon, clock
from stormkeeper.pacemaker.server.store import PulseStore

_log = logging.getLogger(__name__)

#: Connections that may wait to be accepted: a cluster's workers all come back at once.
_BACKLOG: Final = 1_024
#: Connections accepted before others are served again.
_ACCEPT_AT_ONCE: Final = 64
#: Seconds without accepting when the system has no more descriptors or memory.
_ACCEPT_REST: Final = 1.0
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Bytes read from a client at a time.
_READ_BYTES: Final = 262_144
#: Unsent answers (bytes) above which a client's requests are left waiting.
_HIGH_WATER: Final = 262_144
#: Seconds that a client with a bad frame has to read the answers to its earlier ones. Closing at
#: once would reset the connection, and the system would drop them.
_LINGER: Final = 1.0
#: Seconds that clients have to read their answers when the daemon stops.
_STOP_GRACE: Final = 1.0
_TICK: Final = 1.0


class PacemakerServer:
    """A Pacemaker on one address.

    Parameters
    ----------
    conf
        ``pacemaker.bind.host``, ``pacemaker.port`` (0: any free one),
        ``pacemaker.thrift.message.size.max`` and ``pacemaker.pulse.ttl.secs`` (0: pulses are kept
        until they are deleted) are read.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._host: str = conf["pacemaker.bind.host"]
        self._port: int = conf["pacemaker.port"]
        self.max_size: int = conf["pacemaker.thrift.message.size.max"]
        self._pulse_ttl: float = conf.get("pacemaker.pulse.ttl.secs", 0)
        self.store = PulseStore(clock, uuid.uuid4().hex)
        self.answerer = Answerer(self.store, self._status, max_size=self.max_size)
        self.clients: set[_Client] = set()
        #: What comes from a socket, until it is taken from here at once: one buffer for all, where
        #: asyncio would make and cut one for every reading.
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._horizon = Horizon(clock)
        self._started = clock()
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """``HOST:PORT`` where the server listens, with the real port; IPv6 in brackets."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """Begin to listen.

        Raises
        ------
        PacemakerError
            If the address cannot be listened on.
        """
        self._loop = asyncio.get_running_loop()
        try:
            family, _, _, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._listener = socket.create_server(
                address,
                family=family,
                backlog=_BACKLOG,
                dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            is_lookup = isinstance(error, socket.gaierror)
            reason = error.strerror if is_lookup else os.strerror(error.errno or 0)
            raise PacemakerError(
                f"cannot listen on {self._host}:{self._port}"
                f" (pacemaker.bind.host, pacemaker.port): {reason}"
            ) from error
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self._tick()

    async def stop(self) -> None:
        """Stop accepting, close all connections, and wait for their end (about a second)."""
        self._is_stopping = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for client in list(self.clients):
            client.transport.close()
        deadline = self._loop.time() + _STOP_GRACE
        while self.clients and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for client in list(self.clients):
            client.transport.abort()
        await asyncio.sleep(0)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                _log.error(
                    "cannot accept connections: %s; %d are open, trying again in %g s",
                    error.strerror,
                    len(self.clients),
                    _ACCEPT_REST,
                )
                self._horizon.restart()
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_ACCEPT_REST, self._accept_again)
                return
            task = self._loop.create_task(self._adopt(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _accept_again(self) -> None:
        if not self._is_stopping:
            self._loop.add_reader(self._listener, self._accept)

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            # So that a client whose machine is gone does not stay for ever.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(lambda: _Client(self), connection)
        except OSError:  # reset by the client before it was served
            connection.close()

    def _tick(self) -> None:
        self._observe()
        # While the horizon is nearer, a pulse may be old because its next could not come.
        if 0 < self._pulse_ttl <= self._horizon.seconds():
            expired = self.store.expire(self._pulse_ttl)
            if expired:
                _log.info("%d pulses expired, %d are held", expired, self.store.keys)
        self._loop.call_later(_TICK, self._tick)

    def _observe(self) -> None:
        silence = self._horizon.observe()
        if silence is not None:
            _log.warning("was stopped for %.1f s: pulses sent meanwhile may be lost", silence)

    def _status(self) -> ServerStatus:
        # After a suspension it may be asked before its timer comes due.
        self._observe()
        return ServerStatus(
            instance=self.store.instance,
            uptime_ms=int((clock() - self._started) * 1000),
            horizon_ms=int(self._horizon.seconds() * 1000),
            version=stormkeeper.__version__,
            revision=self.store.revision,
            keys=self.store.keys,
            pulses_received=self.store.pulses_received,
            connections=len(self.clients),
        )


class _Client(asyncio.BufferedProtocol):
    """Moves bytes between a transport and a `ServerConnection`.

    A client's end of stream is seen only when all that it sent is answered, as nothing is read
    while requests wait; so closing then, which asyncio does after the last answer, loses nothing.
    """

    transport: asyncio.Transport

    def __init__(self, server: PacemakerServer) -> None:
        self._server = server
        self._is_full = False
        self._is_ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self._connection = ServerConnection(
            self._server.answerer, f"{host}:{port}", max_size=self._server.max_size
        )
        self._server.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._is_ending = True
        self._server.clients.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.receive(self._server.buffer[:nbytes].tobytes())
        self._answer()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._answer()

    def _answer(self) -> None:
        """Send answers until all is answered or the client has enough to read."""
        connection, transport = self._connection, self.transport
        try:
            while not self._is_full and not self._is_ending:
                answers = connection.next_answers()
                if answers:
                    transport.write(answers)
                elif connection.fault is None:
                    break
                if connection.fault is not None:
                    self._end(str(connection.fault))
            if connection.has_unanswered:
                transport.pause_reading()
            else:
                transport.resume_reading()
        except Exception:
            _log.exception("closing %s: an error of this server", connection.peer)
            transport.abort()

    def _end(self, fault: str) -> None:
        self._is_ending = True
        _log.warning("closing %s: %s", self._connection.peer, fault)
        # Half-closed first: what the client still sends is read and dropped.
        self.transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER, self.transport.abort)


def serve(conf: Mapping[str, Any]) -> int:
    """Run a Pacemaker until SIGTERM or SIGINT; return the exit code (0, or 1 if it cannot start).

    Prints ``pacemaker listening on HOST:PORT`` on stdout when clients can connect.

    Raises
    ------
    ConfigError
        If the configuration asks for authentication, which this server does not have yet.
    """
    method = conf.get("pacemaker.auth.method", "NONE")
    if method != "NONE":
        raise ConfigError(
            f"pacemaker.auth.method: {method} cannot be had yet; a server that did without it would"
            " be open to everyone: set NONE if that is meant"
        )
    configure_logging()
    die_with_parent()
    raise_file_limit()
    return asyncio.run(_serve(conf))


async def _serve(conf: Mapping[str, Any]) -> int:
    stop = stop_requested(asyncio.get_running_loop())
    server = PacemakerServer(conf)
    try:
        await server.start()
    except PacemakerError as error:
        _log.error("%s", error)
        return 1
    announce(f"pacemaker listening on {server.address}")
    await stop
    _log.info("stopping: %d connections, %d pulses held", len(server.clients), server.store.keys)
    await server.stop()
    return 0
