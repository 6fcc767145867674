"""The thread and socket of a client, which carry out the effects of a `ClientProtocol`.

One daemon thread per client connects, reads, keeps deadlines and completes futures. A calling
thread sends its own request as far as the kernel takes the bytes; the client's thread sends the
rest. Only the client's thread opens and closes sockets, so no other thread writes to a reused
descriptor.
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Final

from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.errors import (
    AuthenticationError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UntrustedServerError,
)
from stormkeeper.names import host_port
from stormkeeper.pacemaker.client.authentication import StepRunner
from stormkeeper.pacemaker.client.calls import ClientCall, Compute, Connect, Drop, Reconnect, Send
from stormkeeper.pacemaker.client.client_connection import (
    Dialer,
    PacemakerConnection,
    describe_error,
)
from stormkeeper.pacemaker.client.client_tls import TlsStream
from stormkeeper.pacemaker.client.protocol import NEVER, ClientProtocol, LinkState
from stormkeeper.pacemaker.wire import Message
from stormkeeper.tls_files import Contexts

log = logging.getLogger(__name__)

#: Seconds that `close` waits for the thread, which a callback may delay.
_JOIN_SECS: Final = 5.0

# First and longest pause after an internal error, in seconds.
_DEFECT_SECS: Final = 0.1
_LONGEST_DEFECT_SECS: Final = 1.0

_Settled = list[tuple[Future[Message], Message | StormkeeperError]]


class SocketThread:
    """Runs a `ClientProtocol` over TCP, with TLS if `tls` is given; thread-safe."""

    def __init__(
        self,
        protocol: ClientProtocol,
        host: str,
        port: int,
        *,
        name: str,
        max_message_size: int,
        tls: Contexts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._protocol = protocol
        self._host = host
        self._port = port
        self._name = name
        self._max_message_size = max_message_size
        self._tls = tls
        self._clock = clock
        self._pid = os.getpid()

        #: Guards the protocol and the attributes below, and orders the bytes on the socket.
        self._lock = threading.Lock()
        self._futures: dict[ClientCall, Future[Message]] = {}
        self._thread: threading.Thread | None = None
        self._connection: PacemakerConnection | None = None
        self._dropped: list[socket.socket] = []
        self._attempt_wanted: int | None = None
        self._attempts = 0
        self._is_reconnect = False
        #: Whether the thread will check these attributes again before it sleeps.
        self._awake = True
        self._is_failure_logged = False
        self._steps = StepRunner(f"{name} authentication")
        self.defects = 0

        # Used by the thread only, once it runs.
        self._selector: selectors.BaseSelector
        self._waker: socket.socket
        self._sleeper: socket.socket
        self._dialer: Dialer
        self._attempt: int | None = None
        self._watched = 0
        self._streak = FailureStreak(_DEFECT_SECS, _LONGEST_DEFECT_SECS)
        #: When the thread last began to poll its sockets.
        self._looked_at = clock()

    def submit(self, call: ClientCall) -> Future[Message]:
        """Make a call and return the future, which is complete by the call's deadline.

        The future cannot be cancelled; callbacks run in the client's thread and must not block.
        Raises `PacemakerClosedError`, and `PacemakerUnavailableError` in a fork of the process or
        without threads or files.
        """
        if os.getpid() != self._pid:
            # Threads do not survive a fork, and a lost thread may hold the lock.
            raise PacemakerUnavailableError(
                f"{self._name} was made in process {self._pid} and cannot be used in its fork"
                f" {os.getpid()}; make a new one there"
            )
        future: Future[Message] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._thread is None and self._protocol.state is not LinkState.CLOSED:
                # Before the call, which no thread would settle if this fails.
                self._start()
            alarm = self._protocol.alarm
            self._protocol.submit(call, self._clock())
            self._futures[call] = future
            settled = self._perform()
            if self._protocol.alarm < alarm:
                self._wake()
        _settle(settled)
        return future

    def retry_in(self) -> float:
        """Return the seconds of back-off left."""
        if os.getpid() != self._pid:
            return 0.0  # `submit` raises
        with self._lock:
            return self._protocol.retry_in(self._clock())

    @property
    def suspect(self) -> bool:
        """Whether the server failed since the last answer."""
        return self._protocol.suspect

    @property
    def last_failure(self) -> str:
        """Reason of the server's last failure; empty before the first."""
        return self._protocol.last_failure

    @property
    def is_current(self) -> bool:
        """Whether the caller is the client's thread."""
        return threading.current_thread() is self._thread

    def close_idle(self) -> None:
        """Close an idle connection."""
        if os.getpid() == self._pid:
            with self._lock:
                self._protocol.close_idle()
                settled = self._perform()
            _settle(settled)

    def close(self) -> None:
        """Fail all open calls and end the thread. Idempotent."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._protocol.close()
            settled = self._perform()
            self._wake()
            thread = self._thread
        _settle(settled)
        if thread is not None and not self.is_current:
            thread.join(_JOIN_SECS)
            if thread.is_alive():
                log.warning("Thread %s did not end within %g s", thread.name, _JOIN_SECS)

    def _start(self) -> None:
        with ExitStack() as undoing:
            try:
                self._waker, self._sleeper = socket.socketpair()
                for ours in (self._waker, self._sleeper):
                    undoing.enter_context(ours)
                    ours.setblocking(False)
                self._open_selector()
                undoing.callback(self._selector.close)
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
            except (OSError, RuntimeError) as error:
                raise PacemakerUnavailableError(
                    f"{self._name} has no thread, as the system does not give what it needs now:"
                    f" {error}"
                ) from error
            undoing.pop_all()
        self._thread = thread

    def _open_selector(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sleeper, selectors.EVENT_READ)
        self._attempt, self._watched = None, 0
        self._dialer = Dialer(
            self._host,
            self._port,
            selector=self._selector,
            wake=self._wake_from_lookup,
            name=f"{self._name} lookup",
        )

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._waker.send(b"\x00")

    def _perform(self) -> _Settled:
        """Carry out the effects; return the futures to complete without the lock."""
        settled: _Settled = []
        effects = self._protocol.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Send):
                self._send(effect.data)
            elif isinstance(effect, Connect):
                self._connect(again=False)
            elif isinstance(effect, Reconnect):
                self._release_connection()
                self._connect(again=True)
            elif isinstance(effect, Compute):
                self._start_step(effect)
            elif isinstance(effect, Drop):
                self._drop(effect.reason)
            else:
                settled.append((self._futures.pop(effect.call), effect.outcome))
        return settled

    def _fail(self, fault: StormkeeperError, now: float) -> None:
        if isinstance(fault, UntrustedServerError):
            self._protocol.refused(fault, now)
        else:
            at_fault = isinstance(fault, RemoteProtocolError)
            self._protocol.failed(str(fault), now, peer_at_fault=at_fault)

    def _send(self, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.send(data)
        except StormkeeperError as error:
            self._fail(error, self._clock())
        if connection.has_unsent:
            self._wake()

    def _start_step(self, step: Compute) -> None:
        try:
            self._steps.run(partial(self._compute, step))
        except RuntimeError as error:
            self._protocol.abandoned(f"no thread to authenticate in: {error}", self._clock())

    def _connect(self, *, again: bool) -> None:
        self._attempts += 1
        self._attempt_wanted = self._attempts
        self._is_reconnect = again
        self._wake()

    def _release_connection(self) -> None:
        if self._connection is not None:
            self._dropped.append(self._connection.socket)
            self._connection = None

    def _drop(self, reason: str) -> None:
        self._release_connection()
        self._attempt_wanted = None
        self._wake()
        if self._protocol.suspect and not self._is_failure_logged:
            self._is_failure_logged = True
            log.info("%s: %s", self._name, reason)
        else:
            log.debug("%s: %s", self._name, reason)

    # --- in the client's thread

    def _run(self) -> None:
        try:
            while self._take_safe_turn():
                pass
        except BaseException:
            log.exception("%s ends after an internal error", self._name)
            with self._lock:
                self._protocol.close()
                settled = self._perform()
            _settle(settled)
        finally:
            self._dialer.cancel()
            self._selector.close()
            with self._lock:
                self._awake = True  # no thread is left to wake
                for ours in (self._waker, self._sleeper, *self._dropped):
                    ours.close()
                if self._connection is not None:
                    self._connection.socket.close()

    def _take_safe_turn(self) -> bool:
        """Take a turn; an internal error costs only the connection. False at the end."""
        try:
            goes_on = self._turn()
        except BaseException as error:
            self.defects += 1
            if self.defects & (self.defects - 1) == 0:
                log.exception(
                    "%s reconnects after an internal error (%s so far)",
                    self._name,
                    self.defects,
                )
            # Without the lock, so that other threads continue.
            time.sleep(self._streak.record())
            return self._reset(f"internal error: {error!r}")
        self._streak.reset()
        return goes_on

    def _reset(self, reason: str) -> bool:
        """Drop the connection and all sockets; False at the end."""
        with self._lock:
            self._dialer.cancel()
            self._selector.close()
            self._release_connection()
            dropped, self._dropped = self._dropped, []
            for gone in dropped:
                gone.close()
            self._attempt_wanted = None
            self._open_selector()
            closed = self._protocol.state is LinkState.CLOSED
            if not closed:
                self._protocol.abandoned(reason, self._clock())
            settled = self._perform()
        _settle(settled)
        return not closed

    def _turn(self) -> bool:
        """Do what is due, then sleep until the next event; False at the end."""
        with self._lock:
            # Not the current time: a server times out only if a poll after the timeout found no
            # bytes, however long this thread was not scheduled.
            self._protocol.passed(self._looked_at)
            settled = self._perform()
            dropped, self._dropped = self._dropped, []
            current = self._connection
            has_unsent = current is not None and current.has_unsent
            wanted, to_the_same = self._attempt_wanted, self._is_reconnect
            closed = self._protocol.state is LinkState.CLOSED
            alarm = self._protocol.alarm
            self._awake = False
        for gone in dropped:
            self._selector.unregister(gone)
            gone.close()
        _settle(settled)
        if closed:
            return False
        if current is not None:
            self._watch(current.socket, has_unsent=has_unsent)
        if wanted != self._attempt:
            self._attempt = wanted
            if wanted is None:
                self._dialer.cancel()
            else:
                self._dialer.start(again=to_the_same)
        if self._attempt is not None and self._dial():
            return True
        self._looked_at = self._clock()
        events = self._selector.select(
            None if alarm == NEVER else max(0.0, alarm - self._looked_at)
        )
        with self._lock:
            self._awake = True
        for key, mask in events:
            if key.fileobj is self._sleeper:
                self._sleeper.recv(4096)
            elif current is not None and key.fileobj is current.socket:
                if mask & selectors.EVENT_WRITE:
                    self._flush(current)
                if mask & selectors.EVENT_READ:
                    self._read(current)
        return True

    def _watch(self, current: socket.socket, *, has_unsent: bool) -> None:
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if has_unsent else 0)
        if mask != self._watched:
            self._selector.modify(current, mask)
            self._watched = mask

    def _dial(self) -> bool:
        try:
            made = self._dialer.poll()
        except OSError as error:
            attempt, self._attempt = self._attempt, None
            with self._lock:
                if attempt == self._attempt_wanted:
                    self._protocol.failed(describe_error(error), self._clock())
                settled = self._perform()
            _settle(settled)
            return True
        if made is None:
            return False
        self._watched = selectors.EVENT_READ
        self._selector.register(made, self._watched)
        attempt, self._attempt = self._attempt, None
        with self._lock:
            if attempt == self._attempt_wanted:
                self._attempt_wanted = None
                self._greet(made)
            else:
                self._dropped.append(made)
            settled = self._perform()
        _settle(settled)
        return True

    def _greet(self, made: socket.socket) -> None:
        peer = host_port(self._host, self._port)
        stream = None if self._tls is None else TlsStream(self._tls(), self._host, peer)
        self._connection = connection = PacemakerConnection(
            made, peer=peer, max_message_size=self._max_message_size, stream=stream
        )
        try:
            connection.begin()
        except StormkeeperError as error:
            self._fail(error, self._clock())
        else:
            if connection.is_up:
                self._protocol.connected(self._clock())

    def _flush(self, current: PacemakerConnection) -> None:
        with self._lock:
            if self._connection is not current or not current.has_unsent:
                return
            try:
                if current.flush():
                    self._protocol.taken(self._clock())
            except StormkeeperError as error:
                self._fail(error, self._clock())
            settled = self._perform()
        _settle(settled)

    def _read(self, current: PacemakerConnection) -> None:
        answers: list[Message] = []
        fault: StormkeeperError | None = None
        try:
            data = current.receive()
            plain = None if data is None else self._open(current, data)
            if plain is None:
                return
            answers, fault = current.read_messages(plain)
        except StormkeeperError as error:
            fault = error
        with self._lock:
            if self._connection is not current:
                return
            now, before = self._clock(), self._protocol.state
            self._protocol.received(answers, now)
            # Unless the answers have ended this connection already.
            if fault is not None and self._protocol.state in (before, LinkState.UP):
                self._fail(fault, now)
            settled = self._perform()
            if self._is_failure_logged and not self._protocol.suspect:
                self._is_failure_logged = False
                log.info("%s: the server answers again", self._name)
        _settle(settled)

    def _open(self, current: PacemakerConnection, data: bytes) -> bytes | None:
        """Decrypt received bytes; None if the connection was dropped."""
        if self._tls is None:
            return data
        with self._lock:
            if self._connection is not current:
                return None
            was_up = current.is_up
            plain = current.decrypt(data)
            if current.is_up and not was_up:
                self._protocol.connected(self._clock())
            settled = self._perform()
        _settle(settled)
        return plain

    def _compute(self, step: Compute) -> None:
        """Do blocking work in another thread, and pass the result to the protocol."""
        outcome: bytes | StormkeeperError | None
        try:
            outcome = step.work()
        except StormkeeperError as error:
            outcome = error
        except Exception as error:
            log.exception("%s: authenticating failed with an internal error", self._name)
            outcome = AuthenticationError(f"internal error, {type(error).__name__}")
        with self._lock:
            alarm = self._protocol.alarm
            self._protocol.computed(step, outcome, self._clock())
            settled = self._perform()
            if self._protocol.alarm < alarm and self._protocol.state is not LinkState.CLOSED:
                self._wake()
        _settle(settled)

    def _wake_from_lookup(self) -> None:
        with self._lock:
            if self._protocol.state is not LinkState.CLOSED:
                self._wake()


def _settle(settled: _Settled) -> None:
    for future, outcome in settled:
        if isinstance(outcome, StormkeeperError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
