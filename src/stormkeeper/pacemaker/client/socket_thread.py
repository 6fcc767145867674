"""The thread and the socket behind a client: carries out what an `Exchange` says.

One daemon thread, named after the client and its server, makes the connection, reads from it,
keeps the deadlines and settles the futures. Whoever makes a call also sends it, as far as the
kernel takes the bytes at once; the thread sends the rest. Sockets are opened and closed by the
thread alone, so that no other thread ever writes to a descriptor that means something else by now.
"""

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from stormkeeper.errors import (
    AuthenticationError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UntrustedServerError,
)
from stormkeeper.pacemaker.client.background import Background
from stormkeeper.pacemaker.client.calls import Call, Compute, Connect, Drop, Send
from stormkeeper.pacemaker.client.dialer import Dialer
from stormkeeper.pacemaker.client.exchange import NEVER, Exchange, Link
from stormkeeper.pacemaker.client.secure_stream import SecureStream, says_tls
from stormkeeper.pacemaker.client.tls import Contexts
from stormkeeper.pacemaker.wire import FrameSplitter, Message, decode

log = logging.getLogger(__name__)

#: Bytes read at once: many small answers, and small enough that malloc asks no system call for it.
_READ_SIZE: Final = 65_536

#: Bytes offered to the kernel at once from what it had no room for.
_WRITE_SIZE: Final = 1_048_576

#: Seconds that `close` waits for the thread, which only a callback of a future can delay.
_JOIN_SECS: Final = 5.0

_Settled = list[tuple[Future[Message], Message | StormkeeperError]]


class SocketThread:
    """Runs an `Exchange` over TCP; safe for many threads.

    Parameters
    ----------
    exchange
        The state machine; nobody else may touch it from now on.
    host, port
        Where the server listens.
    name
        Of the thread.
    max_message_size
        Largest payload that is accepted, in bytes.
    tls
        Gives how TLS is spoken on a new connection; None for plain TCP.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        exchange: Exchange,
        host: str,
        port: int,
        *,
        name: str,
        max_message_size: int,
        tls: Contexts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = exchange
        self._host = host
        self._port = port
        self._name = name
        self._max_message_size = max_message_size
        self._tls = tls
        self._clock = clock
        self._pid = os.getpid()

        #: Guards what follows and the exchange, and keeps the bytes on the socket in its order.
        self._lock = threading.Lock()
        self._futures: dict[Call, Future[Message]] = {}
        self._thread: threading.Thread | None = None
        #: The connection, once it is made and until it is dropped.
        self._socket: socket.socket | None = None
        #: TLS on it, if it is spoken.
        self._stream: SecureStream | None = None
        #: Bytes that the kernel had no room for.
        self._unsent = bytearray()
        self._dropped: list[socket.socket] = []
        #: Number of the attempt to connect that is wanted; None when none is.
        self._attempt_wanted: int | None = None
        self._attempts = 0
        #: Whether the thread will look at all this again before it sleeps.
        self._awake = True
        self._complained = False
        self._background = Background(f"{name} authentication")

        # Of the thread alone, once it runs.
        self._selector: selectors.BaseSelector
        self._waker: socket.socket
        self._sleeper: socket.socket
        self._dialer: Dialer
        self._attempt: int | None = None
        self._splitter = FrameSplitter(max_message_size)
        #: Whether anything came on this connection.
        self._has_heard = False
        self._watched = 0
        #: When the thread began to look for what happened on its sockets.
        self._looked_at = clock()

    # --- for any thread --------------------------------------------------------------------------

    def submit(self, call: Call) -> Future[Message]:
        """Make a call; the future is settled at the call's deadline at the latest.

        It cannot be cancelled. Its callbacks run in the client's thread and must not block.

        Raises
        ------
        PacemakerClosedError
            If the client is closed.
        PacemakerUnavailableError
            If the process is a fork of the one in which the client was made.
        """
        if os.getpid() != self._pid:
            # Threads do not survive a fork, and the lock may be held by one that is gone.
            raise PacemakerUnavailableError(
                f"{self._name} was made in process {self._pid} and cannot be used in its fork"
                f" {os.getpid()}; make a new one there"
            )
        future: Future[Message] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            alarm = self._exchange.alarm
            self._exchange.submit(call, self._clock())
            self._futures[call] = future
            if self._thread is None:
                self._start()
            settled = self._perform()
            if self._exchange.alarm < alarm:
                self._wake()
        _settle(settled)
        return future

    def retry_in(self) -> float:
        """Return the seconds until the server may be tried again; 0 when it may be now."""
        if os.getpid() != self._pid:
            return 0.0  # `submit` says what is wrong
        with self._lock:
            return self._exchange.retry_in(self._clock())

    @property
    def suspect(self) -> bool:
        """Whether the server failed since it last answered."""
        return self._exchange.suspect

    @property
    def last_failure(self) -> str:
        """Why the server failed the last time; empty if it never did."""
        return self._exchange.last_failure

    @property
    def is_current(self) -> bool:
        """Whether it is this very thread that asks."""
        return threading.current_thread() is self._thread

    def rest(self) -> None:
        """Let go of the connection if nothing is under way on it."""
        if os.getpid() == self._pid:
            with self._lock:
                self._exchange.rest()
                settled = self._perform()
            _settle(settled)

    def close(self) -> None:
        """Fail every open call and end the thread; doing it again does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._exchange.close()
            settled = self._perform()
            self._wake()
            thread = self._thread
        _settle(settled)
        if thread is not None and not self.is_current:
            thread.join(_JOIN_SECS)
            if thread.is_alive():
                log.warning("Thread %s did not end within %g s", thread.name, _JOIN_SECS)

    # --- with the lock held ----------------------------------------------------------------------

    def _start(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._waker, self._sleeper = socket.socketpair()
        self._waker.setblocking(False)
        self._sleeper.setblocking(False)
        self._selector.register(self._sleeper, selectors.EVENT_READ)
        self._dialer = Dialer(
            self._host,
            self._port,
            selector=self._selector,
            wake=self._wake_from_lookup,
            name=f"{self._name} lookup",
        )
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._waker.send(b"\x00")

    def _perform(self) -> _Settled:
        """Carry out the effects; return what is to be settled when the lock is free."""
        settled: _Settled = []
        effects = self._exchange.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Send):
                self._seal_and_send(effect.data)
            elif isinstance(effect, Connect):
                self._attempts += 1
                self._attempt_wanted = self._attempts
                self._wake()
            elif isinstance(effect, Compute):
                self._background.run(partial(self._compute, effect))
            elif isinstance(effect, Drop):
                self._drop(effect.reason)
            else:
                settled.append((self._futures.pop(effect.call), effect.outcome))
        return settled

    def _fail(self, fault: StormkeeperError, now: float) -> None:
        if isinstance(fault, UntrustedServerError):
            self._exchange.refused(fault, now)
        else:
            at_fault = isinstance(fault, RemoteProtocolError)
            self._exchange.failed(str(fault), now, peer_at_fault=at_fault)

    def _seal_and_send(self, data: bytes) -> None:
        try:
            if self._stream is not None:
                data = self._stream.sealed(data)
        except StormkeeperError as error:
            self._fail(error, self._clock())
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self._socket is None or not data:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                self._exchange.failed(_reason(error), self._clock())
                return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._wake()

    def _drop(self, reason: str) -> None:
        if self._socket is not None:
            self._dropped.append(self._socket)
            self._socket = None
        self._stream = None
        self._unsent = bytearray()
        self._attempt_wanted = None
        self._wake()
        if self._exchange.suspect and not self._complained:
            self._complained = True
            log.info("%s: %s", self._name, reason)
        else:
            log.debug("%s: %s", self._name, reason)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException:
            log.exception("%s ends: this is a defect of Stormkeeper", self._name)
            with self._lock:
                self._exchange.close()
                settled = self._perform()
            _settle(settled)
        finally:
            self._dialer.cancel()
            self._selector.close()
            with self._lock:
                self._awake = True  # nobody to wake any more
                for ours in (self._waker, self._sleeper, *self._dropped):
                    ours.close()
                if self._socket is not None:
                    self._socket.close()

    def _turn(self) -> bool:
        """Do what is due, then sleep until something happens; return False at the end."""
        with self._lock:
            # Not the time that it is: a peer is given up only when a look after its time had passed
            # found nothing from it, however long this thread has not had the processor.
            self._exchange.passed(self._looked_at)
            settled = self._perform()
            dropped, self._dropped = self._dropped, []
            current, has_unsent = self._socket, bool(self._unsent)
            wanted = self._attempt_wanted
            closed = self._exchange.state is Link.CLOSED
            alarm = self._exchange.alarm
            self._awake = False
        for gone in dropped:
            self._selector.unregister(gone)
            gone.close()
        _settle(settled)
        if closed:
            return False
        if current is not None:
            self._watch(current, has_unsent=has_unsent)
        if wanted != self._attempt:
            self._attempt = wanted
            if wanted is None:
                self._dialer.cancel()
            else:
                self._dialer.start()
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
            elif key.fileobj is current and current is not None:
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
        """Go on connecting; return whether that came to an end."""
        try:
            made = self._dialer.poll()
        except OSError as error:
            attempt, self._attempt = self._attempt, None
            with self._lock:
                if attempt == self._attempt_wanted:
                    self._exchange.failed(_reason(error), self._clock())
                settled = self._perform()
            _settle(settled)
            return True
        if made is None:
            return False
        self._splitter = FrameSplitter(self._max_message_size)
        self._has_heard = False
        self._watched = selectors.EVENT_READ
        self._selector.register(made, self._watched)
        attempt, self._attempt = self._attempt, None
        with self._lock:
            if attempt == self._attempt_wanted:
                self._attempt_wanted = None
                self._socket = made
                self._greet()
            else:
                self._dropped.append(made)
            settled = self._perform()
        _settle(settled)
        return True

    def _greet(self) -> None:
        """Begin to use a connection: with TLS, if it is spoken."""
        if self._tls is None:
            self._exchange.connected(self._clock())
            return
        self._stream = SecureStream(self._tls(), self._host, f"{self._host}:{self._port}")
        self._send(self._stream.begin())

    def _flush(self, current: socket.socket) -> None:
        with self._lock:
            if self._socket is not current or not self._unsent:
                return
            try:
                with memoryview(self._unsent) as unsent:
                    sent = current.send(unsent[:_WRITE_SIZE])
                del self._unsent[:sent]
                self._exchange.taken(self._clock())
            except BlockingIOError:
                pass
            except OSError as error:
                self._exchange.failed(_reason(error), self._clock())
            settled = self._perform()
        _settle(settled)

    def _read(self, current: socket.socket) -> None:
        answers: list[Message] = []
        fault: StormkeeperError | None = None
        try:
            data = self._receive(current)
            if data is None:
                return
            for payload in self._splitter.feed(data):
                answers.append(decode(payload))
            if self._splitter.fault is not None:
                raise self._splitter.fault
        except StormkeeperError as error:
            fault = error
        with self._lock:
            if self._socket is not current:
                return
            now, before = self._clock(), self._exchange.state
            self._exchange.received(answers, now)
            # Unless what was received has ended this connection already.
            if fault is not None and self._exchange.state in (before, Link.UP):
                self._fail(fault, now)
            settled = self._perform()
            if self._complained and not self._exchange.suspect:
                self._complained = False
                log.info("%s: the server answers again", self._name)
        _settle(settled)

    def _receive(self, current: socket.socket) -> bytes | None:
        """Return what came, decrypted; None if nothing did or the connection is not ours any more.

        Raises
        ------
        StormkeeperError
            If the connection ended or cannot be used.
        """
        try:
            data = current.recv(_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise PacemakerUnavailableError(self._ended(_reason(error))) from error
        with self._lock:
            if self._socket is not current:
                return None
            stream = self._stream
            if not data:
                ended = "the server closed the connection" if stream is None else stream.ended()
                raise PacemakerUnavailableError(self._ended(ended))
            if stream is None:
                if not self._has_heard and says_tls(data):
                    raise UntrustedServerError(
                        f"{self._host}:{self._port} speaks TLS, and this client does not:"
                        " set pacemaker.tls.enable to true"
                    )
                self._has_heard = True
                return data
            was_up = stream.is_up
            try:
                data, answer = stream.received(data)
            except StormkeeperError:
                self._send(stream.farewell())
                raise
            self._send(answer)
            if stream.is_up and not was_up:
                self._exchange.connected(self._clock())
            settled = self._perform()
        _settle(settled)
        return data

    def _ended(self, reason: str) -> str:
        """Say that the connection ended, with what it may mean that nothing ever came on it."""
        if self._has_heard or self._tls is not None:
            return reason
        return f"{reason} before it answered; if it speaks TLS, set pacemaker.tls.enable to true"

    def _compute(self, step: Compute) -> None:
        """Do what may block, in a thread of its own, and tell the exchange."""
        outcome: bytes | StormkeeperError | None
        try:
            outcome = step.work()
        except StormkeeperError as error:
            outcome = error
        except Exception as error:
            log.exception("%s: authenticating failed: this is a defect of Stormkeeper", self._name)
            outcome = AuthenticationError(f"a defect of Stormkeeper, {type(error).__name__}")
        with self._lock:
            alarm = self._exchange.alarm
            self._exchange.computed(step, outcome, self._clock())
            settled = self._perform()
            if self._exchange.alarm < alarm and self._exchange.state is not Link.CLOSED:
                self._wake()
        _settle(settled)

    def _wake_from_lookup(self) -> None:
        with self._lock:
            if self._exchange.state is not Link.CLOSED:
                self._wake()


def _settle(settled: _Settled) -> None:
    for future, outcome in settled:
        if isinstance(outcome, StormkeeperError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _reason(error: OSError) -> str:
    if error.errno in _IN_WORDS:
        return _IN_WORDS[error.errno]
    return error.strerror or str(error)


_IN_WORDS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: "the server closed the connection",
    errno.ETIMEDOUT: "the network timed out",
}
