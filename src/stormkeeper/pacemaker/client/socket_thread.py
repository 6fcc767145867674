"""The thread and the socket behind a client: carries out what a `ClientProtocol` says.

One daemon thread, named after the client and its server, makes the connection, reads from it,
keeps the deadlines and settles the futures. The caller's own thread sends its call, as far as the
kernel takes the bytes at once; the client's thread sends the rest. Only the client's thread opens
and closes sockets, so that no other thread writes to a descriptor that was closed and used again.
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
from contextlib import ExitStack
from functools import partial
from typing import Final

from stormkeeper.errors import (
    AuthenticationError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UntrustedServerError,
)
from stormkeeper.names import host_port
from stormkeeper.pacemaker.client.authentication import Background
from stormkeeper.pacemaker.client.calls import ClientCall, Compute, Connect, Drop, Reconnect, Send
from stormkeeper.pacemaker.client.client_tls import NO_ROOM, TlsStream, says_tls
from stormkeeper.pacemaker.client.dialer import Dialer
from stormkeeper.pacemaker.client.protocol import NEVER, ClientProtocol, LinkState
from stormkeeper.pacemaker.wire import Message, PacemakerFrameSplitter, decode
from stormkeeper.tls_files import Contexts

#: Bytes read at once: many small answers, and small enough that malloc asks no system call for it.
_READ_SIZE: Final = 65_536


#: Bytes offered to the kernel at once from what it had no room for.
_WRITE_SIZE: Final = 1_048_576


_CLOSED: Final = "the server closed the connection"


_IN_WORDS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: _CLOSED,
    errno.ETIMEDOUT: "the network timed out",
}


#: The errors by which a socket tells that the peer has ended the connection.
_BY_PEER: Final = (errno.ECONNRESET, errno.EPIPE)


def in_words(error: OSError) -> str:
    """Say what a socket's error means."""
    if isinstance(error, socket.gaierror):  # whose numbers are others
        return f"the host's name could not be looked up: {error.strerror}"
    if error.errno in _IN_WORDS:
        return _IN_WORDS[error.errno]
    return error.strerror or str(error)


class PacemakerConnection:
    """A connection.

    Parameters
    ----------
    connected
        Its socket, connected and non-blocking; stays the caller's, who closes it.
    peer
        The server's name in messages.
    max_message_size
        Largest payload that is accepted, in bytes.
    stream
        TLS on it; None for plain TCP.
    """

    __slots__ = ("_has_heard", "_peer", "_splitter", "_stream", "_unsent", "socket")

    def __init__(
        self,
        connected: socket.socket,
        *,
        peer: str,
        max_message_size: int,
        stream: TlsStream | None,
    ) -> None:
        self.socket = connected
        self._peer = peer
        self._stream = stream
        self._splitter = PacemakerFrameSplitter(max_message_size)
        #: Bytes that the kernel had no room for.
        self._unsent = bytearray()
        #: Whether anything came.
        self._has_heard = False

    @property
    def is_up(self) -> bool:
        """Whether messages may be sent: TLS, if it is spoken, has made sure of the server."""
        return self._stream is None or self._stream.is_up

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._unsent)

    def begin(self) -> None:
        """Begin with TLS, if it is spoken."""
        if self._stream is not None:
            self._put(self._stream.begin())

    def send(self, data: bytes) -> None:
        """Send frames, as far as the kernel takes them at once."""
        self._put(data if self._stream is None else self._stream.sealed(data))

    def flush(self) -> bool:
        """Send what is left; return whether the peer took any of it."""
        try:
            with memoryview(self._unsent) as unsent:
                sent = self.socket.send(unsent[:_WRITE_SIZE])
        except BlockingIOError:
            return False
        except OSError as error:
            raise PacemakerUnavailableError(self._broken(error)) from error
        del self._unsent[:sent]
        return True

    def receive(self) -> bytes | None:
        """Return what came; None if nothing did."""
        try:
            data = self.socket.recv(_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise PacemakerUnavailableError(self._broken(error)) from error
        if not data:
            raise PacemakerUnavailableError(self._ended(_CLOSED))
        if self._stream is None and not self._has_heard and says_tls(data):
            raise UntrustedServerError(
                f"{self._peer} speaks TLS, and this client does not: set pacemaker.tls.enable to"
                " true"
            )
        self._has_heard = True
        return data

    def opened(self, data: bytes) -> bytes:
        """Return the plain bytes in what came; send what TLS itself has to answer."""
        stream = self._stream
        if stream is None:
            return data
        try:
            plain, answer = stream.received(data)
        except StormkeeperError:
            self._put(stream.farewell())
            raise
        self._put(answer)
        return plain

    def messages(self, plain: bytes) -> tuple[list[Message], StormkeeperError | None]:
        """Return the messages that plain bytes complete, and what is wrong with what follows.

        That nothing follows, as the peer has said over TLS, is such a fault too.
        """
        messages: list[Message] = []
        try:
            for payload in self._splitter.feed(plain):
                messages.append(decode(payload))
        except StormkeeperError as error:
            return messages, error
        fault: StormkeeperError | None = self._splitter.fault
        if fault is None and self._stream is not None and self._stream.is_ended:
            fault = PacemakerUnavailableError(self._ended(_CLOSED))
        return messages, fault

    def _put(self, data: bytes) -> None:
        sent = 0
        if data and not self._unsent:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                raise PacemakerUnavailableError(self._broken(error)) from error
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def _broken(self, error: OSError) -> str:
        """Say what it means that the socket failed."""
        reason = in_words(error)
        return self._ended(reason) if error.errno in _BY_PEER else reason

    def _ended(self, reason: str) -> str:
        """Say that the peer ended the connection, and what it may mean that nothing came on it."""
        if self._stream is not None:
            return self._stream.ended(reason)
        if self._has_heard:
            return reason
        return (
            f"{reason} before it answered; if it speaks TLS, set pacemaker.tls.enable to true; or"
            f" it {NO_ROOM}"
        )


log = logging.getLogger(__name__)

#: Seconds that `close` waits for the thread, which only a callback of a future can delay.
_JOIN_SECS: Final = 5.0

#: Seconds that the thread rests after a defect; twice as long each time, and at most.
_DEFECT_SECS: Final = 0.05
_LONGEST_DEFECT_SECS: Final = 1.0

_Settled = list[tuple[Future[Message], Message | StormkeeperError]]


class SocketThread:
    """Runs a `ClientProtocol` over TCP; safe for many threads.

    Parameters
    ----------
    protocol
        The state machine. It belongs to this thread from now on.
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

        #: Guards what follows and the protocol, and keeps the bytes on the socket in its order.
        self._lock = threading.Lock()
        self._futures: dict[ClientCall, Future[Message]] = {}
        self._thread: threading.Thread | None = None
        #: The connection, once it is made and until it is dropped.
        self._connection: PacemakerConnection | None = None
        self._dropped: list[socket.socket] = []
        #: Number of the attempt to connect that is wanted; None when none is.
        self._attempt_wanted: int | None = None
        self._attempts = 0
        #: Whether that attempt is for the address of the last connection.
        self._to_the_same = False
        #: Whether the thread will look at all this again before it sleeps.
        self._awake = True
        self._complained = False
        self._background = Background(f"{name} authentication")
        #: How often the thread met a defect of Stormkeeper.
        self.defects = 0

        # Of the thread alone, once it runs.
        self._selector: selectors.BaseSelector
        self._waker: socket.socket
        self._sleeper: socket.socket
        self._dialer: Dialer
        self._attempt: int | None = None
        self._watched = 0
        self._in_a_row = 0
        #: When the thread began to look for what happened on its sockets.
        self._looked_at = clock()

    # --- for any thread --------------------------------------------------------------------------

    def submit(self, call: ClientCall) -> Future[Message]:
        """Make a call; the future is settled at the call's deadline at the latest.

        It cannot be cancelled. Its callbacks run in the client's thread and must not block.

        Raises
        ------
        PacemakerClosedError
            If the client is closed.
        PacemakerUnavailableError
            If the process is a fork of the one in which the client was made, or can have no more
            threads or files.
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
            if self._thread is None and self._protocol.state is not LinkState.CLOSED:
                # Before there is a call that nobody would ever settle.
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
        """Return the seconds until the server may be tried again; 0 when it may be now."""
        if os.getpid() != self._pid:
            return 0.0  # `submit` says what is wrong
        with self._lock:
            return self._protocol.retry_in(self._clock())

    @property
    def suspect(self) -> bool:
        """Whether the server failed since it last answered."""
        return self._protocol.suspect

    @property
    def last_failure(self) -> str:
        """Why the server failed the last time; empty if it never did."""
        return self._protocol.last_failure

    @property
    def is_current(self) -> bool:
        """Whether it is this very thread that asks."""
        return threading.current_thread() is self._thread

    def rest(self) -> None:
        """Close the connection if nothing is under way on it."""
        if os.getpid() == self._pid:
            with self._lock:
                self._protocol.rest()
                settled = self._perform()
            _settle(settled)

    def close(self) -> None:
        """Fail every open call and end the thread; doing it again does nothing."""
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

    # --- with the lock held ----------------------------------------------------------------------

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
        """Carry out the effects; return what is to be settled when the lock is free."""
        settled: _Settled = []
        effects = self._protocol.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Send):
                self._send(effect.data)
            elif isinstance(effect, Connect):
                self._connect(again=False)
            elif isinstance(effect, Reconnect):
                self._let_go()
                self._connect(again=True)
            elif isinstance(effect, Compute):
                self._begin_to(effect)
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

    def _begin_to(self, step: Compute) -> None:
        try:
            self._background.run(partial(self._compute, step))
        except RuntimeError as error:
            # No more threads, for now.
            self._protocol.abandoned(f"no thread to authenticate in: {error}", self._clock())

    def _connect(self, *, again: bool) -> None:
        """Want a connection: again to the address of the last one, or to the next there is."""
        self._attempts += 1
        self._attempt_wanted = self._attempts
        self._to_the_same = again
        self._wake()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._dropped.append(self._connection.socket)
            self._connection = None

    def _drop(self, reason: str) -> None:
        self._let_go()
        self._attempt_wanted = None
        self._wake()
        if self._protocol.suspect and not self._complained:
            self._complained = True
            log.info("%s: %s", self._name, reason)
        else:
            log.debug("%s: %s", self._name, reason)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._goes_on():
                pass
        except BaseException:
            log.exception("%s ends: this is a defect of Stormkeeper", self._name)
            with self._lock:
                self._protocol.close()
                settled = self._perform()
            _settle(settled)
        finally:
            self._dialer.cancel()
            self._selector.close()
            with self._lock:
                self._awake = True  # nobody to wake any more
                for ours in (self._waker, self._sleeper, *self._dropped):
                    ours.close()
                if self._connection is not None:
                    self._connection.socket.close()

    def _goes_on(self) -> bool:
        """Take a turn; a defect costs the connection, and neither the thread nor the client."""
        try:
            goes_on = self._turn()
        except BaseException as error:
            self.defects += 1
            self._in_a_row += 1
            if self.defects & (self.defects - 1) == 0:
                log.exception(
                    "%s connects anew, for a defect of Stormkeeper (%s so far)",
                    self._name,
                    self.defects,
                )
            # Before the lock is taken: others go on meanwhile.
            time.sleep(min(_DEFECT_SECS * 2.0 ** min(self._in_a_row, 30), _LONGEST_DEFECT_SECS))
            return self._begin_anew(f"a defect of Stormkeeper: {error!r}")
        self._in_a_row = 0
        return goes_on

    def _begin_anew(self, reason: str) -> bool:
        """Let go of the connection and of all that is known of sockets; False at the end."""
        with self._lock:
            self._dialer.cancel()
            self._selector.close()
            self._let_go()
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
        """Do what is due, then sleep until something happens; return False at the end."""
        with self._lock:
            # Not the time that it is: a peer is given up only when a look after its time had passed
            # found nothing from it, however long this thread has not had the processor.
            self._protocol.passed(self._looked_at)
            settled = self._perform()
            dropped, self._dropped = self._dropped, []
            current = self._connection
            has_unsent = current is not None and current.has_unsent
            wanted, to_the_same = self._attempt_wanted, self._to_the_same
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
        """Go on connecting; return whether that came to an end."""
        try:
            made = self._dialer.poll()
        except OSError as error:
            attempt, self._attempt = self._attempt, None
            with self._lock:
                if attempt == self._attempt_wanted:
                    self._protocol.failed(in_words(error), self._clock())
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
        """Begin to use a connection, with TLS if it is spoken."""
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
            answers, fault = current.messages(plain)
        except StormkeeperError as error:
            fault = error
        with self._lock:
            if self._connection is not current:
                return
            now, before = self._clock(), self._protocol.state
            self._protocol.received(answers, now)
            # Unless what was received has ended this connection already.
            if fault is not None and self._protocol.state in (before, LinkState.UP):
                self._fail(fault, now)
            settled = self._perform()
            if self._complained and not self._protocol.suspect:
                self._complained = False
                log.info("%s: the server answers again", self._name)
        _settle(settled)

    def _open(self, current: PacemakerConnection, data: bytes) -> bytes | None:
        """Return what came, decrypted; None if the connection is not ours any more."""
        if self._tls is None:
            return data
        with self._lock:
            if self._connection is not current:
                return None
            was_up = current.is_up
            plain = current.opened(data)
            if current.is_up and not was_up:
                self._protocol.connected(self._clock())
            settled = self._perform()
        _settle(settled)
        return plain

    def _compute(self, step: Compute) -> None:
        """Do what may block, in a thread of its own, and tell the protocol."""
        outcome: bytes | StormkeeperError | None
        try:
            outcome = step.work()
        except StormkeeperError as error:
            outcome = error
        except Exception as error:
            log.exception("%s: authenticating failed: this is a defect of Stormkeeper", self._name)
            outcome = AuthenticationError(f"a defect of Stormkeeper, {type(error).__name__}")
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
