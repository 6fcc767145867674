"""A blocking client of one Pacemaker, safe for many threads.

The work is done elsewhere: `protocol` decides (order, patience, deadlines), `socket_thread` carries
it out. Here are the verbs, and the tries after the first.

A client cannot be used in a fork of its process: its thread is not there. It then raises an error
that says so. Make a new client after the fork.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Self

from stormkeeper.conf import Address
from stormkeeper.errors import (
    LocalProtocolError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
)
from stormkeeper.pacemaker.client.authentication import Identity
from stormkeeper.pacemaker.client.calls import (
    ClientCall,
    WrongAnswerError,
    is_request,
    subject,
    type_name,
)
from stormkeeper.pacemaker.client.protocol import Backoff, ClientProtocol
from stormkeeper.pacemaker.client.server_reads import JavaReader, server_info_of
from stormkeeper.pacemaker.client.socket_thread import SocketThread
from stormkeeper.pacemaker.wire import (
    DEFAULT_MAX_SIZE,
    RESERVED_PATH,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
    encode,
)
from stormkeeper.tls_files import Contexts

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

#: ``pacemaker.port``
DEFAULT_PORT: Final = 6699

#: Seconds without a sign of life after which a try is over, as in Storm's own client.
TRY_TIMEOUT: Final = 1.0

#: Tries after the first, as in Storm's own client.
RETRIES: Final = 10

#: Seconds after which a call is over, however many tries are left. The eleven tries of a frozen
#: server take 11 s, and the delays between them 3.3 s on average (6.6 s at most).
DEADLINE: Final = 15.0

#: Seconds beyond its deadline after which a call is not waited for: only a defect or a callback
#: that blocks the client's thread lets it come to that.
_GRACE: Final = 5.0


class PacemakerClient:
    """Speaks with one Pacemaker, ours or Storm's.

    Every verb blocks until it is answered, refused, or has failed for good, and may be used from
    any number of threads; at most 100 requests are under way at once. The connection is made by
    the first verb, and made again when it breaks.

    Parameters
    ----------
    address
        Where the server listens, or ``"host[:port]"``.
    name
        Names the client's thread.
    try_timeout
        Seconds without a sign of life from the server after which a try is over.
    retries
        Tries after the first.
    deadline
        Seconds after which a call is over, whatever tries are left.
    max_message_size
        Largest frame either way, in bytes: ``pacemaker.thrift.message.size.max``.
    identity
        Who we are; None if the server's method is NONE, and for clients that only write.
    tls
        Gives how TLS is spoken on a new connection (see `client_tls`); None for plain TCP.
    random
        Source of the jitter between tries.

    Notes
    -----
    Every verb raises

    - `PacemakerUnavailableError` if the server did not answer (`PacemakerClosedError` if the client
      is closed, before or meanwhile),
    - `NotAuthorizedError` if it refused, or the authentication failed,
    - `RemoteProtocolError` if it broke the protocol, in the last try,
    - `LocalProtocolError` if the request does not fit a frame.

    A write that failed may have been done nevertheless, as may one that is tried again; doing it
    twice is harmless. A write that is tried again may come after one that another thread has made
    meanwhile: what one thread writes is done in its order.
    """

    def __init__(
        self,
        address: Address | str,
        *,
        name: str = "pacemaker-client",
        try_timeout: float = TRY_TIMEOUT,
        retries: int = RETRIES,
        deadline: float = DEADLINE,
        max_message_size: int = DEFAULT_MAX_SIZE,
        identity: Identity | None = None,
        tls: Contexts | None = None,
        random: Random | None = None,
    ) -> None:
        if isinstance(address, str):
            address = Address.parse(address, DEFAULT_PORT)
        self._address = address
        self._retries = retries
        self._deadline = deadline
        self._max_message_size = max_message_size
        protocol = ClientProtocol(
            str(address),
            Backoff(random or Random()),
            try_timeout=try_timeout,
            identity=identity,
        )
        self._thread = SocketThread(
            protocol,
            address.host,
            address.port,
            name=f"{name} {address}",
            max_message_size=max_message_size,
            tls=tls,
        )

    @property
    def address(self) -> Address:
        """Where the server listens."""
        return self._address

    @property
    def suspect(self) -> bool:
        """Whether the server failed since it last answered."""
        return self._thread.suspect

    @property
    def last_failure(self) -> str:
        """Why the server failed the last time; empty if it never did."""
        return self._thread.last_failure

    @property
    def defects(self) -> int:
        """How often its thread met a defect of Stormkeeper, and connected anew."""
        return self._thread.defects

    def retry_in(self) -> float:
        """Return the seconds until the server is tried again; 0 unless it failed just now."""
        return self._thread.retry_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PacemakerClient of {self._address}>"

    def rest(self) -> None:
        """Close the connection if nothing is under way on it. The next verb makes another."""
        self._thread.rest()

    def close(self) -> None:
        """End the connection and the thread. Calls that wait end with `PacemakerClosedError`.

        Closing again does nothing.
        """
        self._thread.close()

    def submit(
        self,
        message: Message,
        *,
        deadline: float | None = None,
        started: float | None = None,
        tries: int = 1,
    ) -> Future[Message]:
        """Send a request once, without waiting for the answer.

        Parameters
        ----------
        message
            The request; its message id does not matter.
        deadline
            In place of the client's own.
        started, tries
            When it was tried first (monotonic seconds), and how many tries this makes: an error
            tells them.

        Returns
        -------
        Future of the answer, or of an error. It cannot be cancelled. Its callbacks run in the
        client's thread, where they must not block and may `submit`.

        Raises
        ------
        LocalProtocolError
            If this is no request or does not fit a frame.
        PacemakerClosedError
            If the client is closed.
        """
        kind = message.type
        if kind is None or not is_request(kind):
            raise LocalProtocolError(f"a message of {type_name(kind)} is not a request")
        frame = encode(dataclasses.replace(message, message_id=0), max_size=self._max_message_size)
        now = time.monotonic()
        call = ClientCall(
            kind=int(kind),
            path=subject(message),
            frame=frame,
            deadline=now + (self._deadline if deadline is None else deadline),
            started=now if started is None else started,
            tries=tries,
        )
        return self._thread.submit(call)

    def ask(self, message: Message) -> Message:
        """Send a request, again where that fails, and wait for its answer."""
        started = time.monotonic()
        end = started + self._deadline
        tries = 0
        while True:
            tries += 1
            left = end - time.monotonic()
            future = self.submit(message, deadline=left, started=started, tries=tries)
            try:
                return self.answer(future, left)
            except (PacemakerClosedError, WrongAnswerError):
                raise
            except (PacemakerUnavailableError, RemoteProtocolError):
                if tries > self._retries or time.monotonic() + self.retry_in() >= end:
                    raise

    def ask_ahead(
        self,
        messages: Iterable[Message],
        ahead: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Iterator[tuple[Message, float]]:
        """Do as `ask` for many, of which some are sent before the one before them is answered.

        Parameters
        ----------
        messages
            The requests.
        ahead
            How many are under way beside the one that is waited for; None: all.
        clock
            Gives the time.

        Yields
        ------
        The answer to each, in their order, and when it was here.
        """
        waiting = deque[tuple[Message, Future[Message], list[float]]]()
        for message in messages:
            future, at = self.submit(message), list[float]()
            future.add_done_callback(partial(_note, at, clock))
            waiting.append((message, future, at))
            if ahead is not None and len(waiting) > ahead:
                yield self._answer_at(*waiting.popleft(), clock)
        while waiting:
            yield self._answer_at(*waiting.popleft(), clock)

    def _answer_at(
        self, message: Message, future: Future[Message], at: list[float], clock: Callable[[], float]
    ) -> tuple[Message, float]:
        try:
            # Whoever waits may be told before the callback has been called.
            return self.answer(future), at[0] if at else clock()
        except (PacemakerClosedError, WrongAnswerError):
            raise
        except (PacemakerUnavailableError, RemoteProtocolError):
            return self.ask(message), clock()

    def answer(self, future: Future[Message], deadline: float | None = None) -> Message:
        """Wait for the answer to what was sent with `submit`, with the same deadline."""
        if self._thread.is_current:
            raise LocalProtocolError(
                f"the client of {self._address} cannot wait in a callback of its own futures;"
                " submit there, and wait elsewhere"
            )
        try:
            return future.result((self._deadline if deadline is None else deadline) + _GRACE)
        except TimeoutError:
            raise PacemakerUnavailableError(
                f"{self._address}: the client's thread has been blocked for {_GRACE:g} s, by a"
                " callback that waits or a defect"
            ) from None

    # --- the verbs -------------------------------------------------------------------------------

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store `details` as the newest pulse of `path`."""
        self.ask(Message(MessageType.SEND_PULSE, pulse=Pulse(path, details)))

    def get_pulse(self, path: str) -> bytes | None:
        """Return the newest pulse of `path`; None if it has none."""
        pulse = self.ask(Message(MessageType.GET_PULSE, path=path)).pulse
        return pulse.details if pulse else None

    def exists(self, path: str) -> bool:
        """Whether exactly `path` has a pulse."""
        return bool(self.ask(Message(MessageType.EXISTS, path=path)).boolval)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`, sorted; none if there is no such path."""
        return sorted(self.ask(Message(MessageType.GET_ALL_NODES_FOR_PATH, path=path)).nodes or [])

    def walk(self, path: str) -> Iterator[list[Pulse]]:
        """Yield the pulses at and below `path`, some at a time, in Storm's own verbs.

        It is for Java Pacemakers, which have none that gives many: one request per pulse, and what
        lies below a pulse is looked for only at `path` itself.
        """
        reader = JavaReader(path)
        while requests := reader.requests():
            pulses = reader.answered([answer for answer, _ in self.ask_ahead(requests)])
            if pulses:
                yield pulses

    def delete_path(self, path: str) -> None:
        """Delete every pulse at and below `path`."""
        self.ask(Message(MessageType.DELETE_PATH, path=path))

    def delete_pulse(self, path: str) -> None:
        """Delete the pulse of exactly `path`."""
        self.ask(Message(MessageType.DELETE_PULSE_ID, path=path))

    def server_info(self) -> "ServerInfo | None":
        """Ask the server who it is; None if it is not one of ours."""
        pulse = self.ask(Message(MessageType.GET_PULSE, path=RESERVED_PATH)).pulse
        return server_info_of(self._address, pulse)

    def changes(
        self,
        path: str,
        after: int = 0,
        limit: int = 0,
        instance: str | None = None,
        *,
        values: bool = True,
    ) -> Changes:
        """Return a page of what changed at and below `path`.

        Parameters
        ----------
        path
            Root of what is read.
        after
            Revision after which to begin: 0, or `Changes.next` of the page before.
        limit
            Changes at most; 0 leaves it to the server.
        instance
            The server instance that `after` came from.
        values
            Whether the changes are to have their values, or only their sizes. An older server
            sends the values in any case.

        Raises
        ------
        UnsupportedExtensionError
            If the server has not told that it can do this; a Java Pacemaker cannot.
        """
        request = ChangesRequest(path, after, limit, instance, values)
        changes = self.ask(Message(MessageType.CHANGES, changes_request=request)).changes
        assert changes is not None  # the protocol lets no other answer through
        return changes


def _note(at: list[float], clock: Callable[[], float], _: Future[Message]) -> None:
    at.append(clock())
