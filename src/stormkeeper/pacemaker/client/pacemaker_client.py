"""Blocking, thread-safe client of a Pacemaker: requests and retries.

Requests go through `ServerLink` (sockets) and `ClientProtocol` (order, timeouts, back-off).
"""

import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from stormkeeper.conf import Address
from stormkeeper.daemon.lifecycle import Closing
from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.errors import (
    LocalProtocolError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
)
from stormkeeper.pacemaker.client.connection_opener import ConnectionOpener, Identity
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.protocol import (
    ClientCall,
    ClientProtocol,
    WrongAnswerError,
    path_of,
    type_name,
)
from stormkeeper.pacemaker.client.server_link import ServerLink
from stormkeeper.pacemaker.client.server_reads import java_pulses, server_info_of
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    DEFAULT_MAX_SIZE,
    RESERVED_PATH,
    VERBS,
    Changes,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.tls_files import Contexts

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

DEFAULT_PORT: Final = 6699

#: As in Storm's client.
TRY_TIMEOUT: Final = 1.0

#: As in Storm's client.
RETRIES: Final = 10

#: Eleven tries at a frozen server take 11 s, the back-off between the tries 3.3 s on average and
#: 6.6 s at most.
DEADLINE: Final = 15.0

#: Seconds beyond a deadline, in case a callback blocks the loop's thread.
_GRACE: Final = 5.0

#: Seconds of back-off: a cut connection is back at once, and a worker finds a revived server with
#: the next pulse.
FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 1.0


def make_backoff(random: Random) -> FailureStreak:
    """Make a back-off with full jitter, which spreads the clients of a revived server."""
    return FailureStreak(FIRST_DELAY, LONGEST_DELAY, jitter=1.0, source=random)


class PacemakerClient(Closing):
    """Client of a Pacemaker, Stormkeeper's or Storm's.

    Any number of threads may make requests; at most 100 are under way. The first request connects.
    Requests raise

    - `PacemakerUnavailableError` without an answer (`PacemakerClosedError` if the client was
      closed),
    - `NotAuthorizedError` if the server refused the request or the authentication,
    - `RemoteProtocolError` if the server broke the protocol in the last try,
    - `LocalProtocolError` if the request exceeds a frame.

    A failed write may have been carried out, and a retried write may be carried out twice or after
    another thread's later write. Each thread's own writes keep their order.

    Parameters
    ----------
    try_timeout
        Seconds without a byte from the server after which a try fails.
    retries
        Tries after the first.
    deadline
        Seconds after which a request fails, whatever tries are left.
    loop
        The event loop of a pool, which closes the loop; None for a loop of this client.
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
        loop: ClientEventLoop | None = None,
    ) -> None:
        if isinstance(address, str):
            address = Address.parse(address, DEFAULT_PORT)
        name = f"{name} {address}"
        self.address = address
        self._retries = retries
        self._deadline = deadline
        self._max_message_size = max_message_size
        self._owns_loop = loop is None
        self._loop = loop or ClientEventLoop(name)
        self._protocol = ClientProtocol(
            str(address),
            make_backoff(random or Random()),
            try_timeout=try_timeout,
            method=identity.method if identity else None,
        )
        opener = ConnectionOpener(
            address.host,
            address.port,
            name=name,
            try_timeout=try_timeout,
            max_message_size=max_message_size,
            tls=tls,
            identity=identity,
        )
        self._link = ServerLink(self._protocol, opener.open, self._loop, name=name)

    @property
    def suspect(self) -> bool:
        """Whether the server failed since the last answer."""
        return self._protocol.suspect

    @property
    def last_failure(self) -> str:
        """Reason of the last failure; empty before the first."""
        return self._protocol.last_failure

    def retry_in(self) -> float:
        """Return the seconds of back-off left."""
        return self._link.retry_in()

    def __repr__(self) -> str:
        return f"<PacemakerClient of {self.address}>"

    def close_idle(self) -> None:
        """Close an idle connection until the next request."""
        self._link.close_idle()

    def close(self) -> None:
        """Fail open calls with `PacemakerClosedError`. Idempotent."""
        self._link.close()
        if self._owns_loop:
            self._loop.close()

    def send_pulse(self, path: str, details: bytes) -> None:
        self.ask(Message(MessageType.SEND_PULSE, pulse=Pulse(path, details)))

    def submit(
        self,
        message: Message,
        *,
        deadline: float | None = None,
        started: float | None = None,
        tries: int = 1,
    ) -> Future[Message]:
        """Send a request once and return the future of the answer, which cannot be cancelled.

        `deadline` is in seconds; `started` (monotonic) and `tries` appear in errors. Callbacks run
        in the loop's thread and must not block. Raises `LocalProtocolError` for an invalid request,
        and `PacemakerClosedError`.
        """
        kind = message.type
        if kind is None or kind not in VERBS:
            raise LocalProtocolError(f"a message of {type_name(kind)} is not a request")
        frame = encode(dataclasses.replace(message, message_id=0), max_size=self._max_message_size)
        now = time.monotonic()
        call = ClientCall(
            kind=int(kind),
            path=path_of(message),
            frame=frame,
            deadline=now + (self._deadline if deadline is None else deadline),
            started=now if started is None else started,
            tries=tries,
        )
        return self._link.submit(call)

    def ask(self, message: Message) -> Message:
        """Send a request, with retries, and return the answer."""
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
        self, messages: Iterable[Message], ahead: int | None = None
    ) -> Iterator[tuple[Message, float]]:
        """Send many requests and yield each answer, in order, with the time of arrival.

        Times are in seconds since the epoch. `ahead` requests (None: all) are under way beside the
        awaited request. Failed requests are retried.
        """
        waiting = deque[tuple[Message, Future[Message], list[float]]]()
        for message in messages:
            future, at = self.submit(message), list[float]()
            future.add_done_callback(partial(_note, at))
            waiting.append((message, future, at))
            if ahead is not None and len(waiting) > ahead:
                yield self._answer_at(*waiting.popleft())
        while waiting:
            yield self._answer_at(*waiting.popleft())

    def _answer_at(
        self, message: Message, future: Future[Message], at: list[float]
    ) -> tuple[Message, float]:
        try:
            # The future may wake this thread before the callbacks run.
            return self.answer(future), at[0] if at else time.time()
        except (PacemakerClosedError, WrongAnswerError):
            raise
        except (PacemakerUnavailableError, RemoteProtocolError):
            return self.ask(message), time.time()

    def answer(self, future: Future[Message], deadline: float | None = None) -> Message:
        """Wait for a future of `submit`, with the same deadline."""
        if self._loop.is_current:
            raise LocalProtocolError(
                f"the client of {self.address} cannot wait in a callback of its own futures;"
                " submit there, and wait elsewhere"
            )
        try:
            return future.result((self._deadline if deadline is None else deadline) + _GRACE)
        except TimeoutError:
            raise PacemakerUnavailableError(
                f"{self.address}: the client's thread has been blocked for {_GRACE:g} s, by a"
                " callback that waits or an internal error"
            ) from None

    def get_pulse(self, path: str) -> bytes | None:
        pulse = self.ask(Message(MessageType.GET_PULSE, path=path)).pulse
        return pulse.details if pulse else None

    def exists(self, path: str) -> bool:
        """Return whether exactly `path` has a pulse."""
        return bool(self.ask(Message(MessageType.EXISTS, path=path)).boolval)

    def children(self, path: str) -> list[str]:
        return sorted(self.ask(Message(MessageType.GET_ALL_NODES_FOR_PATH, path=path)).nodes or [])

    def walk(self, path: str) -> Iterator[list[Pulse]]:
        """Yield batches of the pulses at and below `path`, by one request of Storm's per pulse.

        Pulses below a pulse other than `path` are not found.
        """
        found: dict[str, bytes] = {}
        reading = java_pulses(path, found)
        requests, _ = next(reading)
        while requests:
            answers = [answer for answer, _ in self.ask_ahead(requests)]
            try:
                requests, _ = reading.send(answers)
            except StopIteration:
                requests = ()
            if found:
                yield [Pulse(*pulse) for pulse in found.items()]
                found.clear()

    def delete_path(self, path: str) -> None:
        """Delete every pulse at and below `path`."""
        self.ask(Message(MessageType.DELETE_PATH, path=path))

    def delete_pulse(self, path: str) -> None:
        self.ask(Message(MessageType.DELETE_PULSE_ID, path=path))

    def server_info(self) -> "ServerInfo | None":
        """Return the server's description; None from a Java Pacemaker."""
        pulse = self.ask(Message(MessageType.GET_PULSE, path=RESERVED_PATH)).pulse
        return server_info_of(self.address, pulse)

    def changes(
        self,
        path: str,
        after: int = 0,
        limit: int = 0,
        instance: str | None = None,
        *,
        values: bool = True,
    ) -> Changes[str]:
        """Return a page of the changes at and below `path`.

        `after` is 0, or `Changes.next` of the last page, which `instance` sent; the rest as in
        `ChangesRequest`. Raises `UnsupportedExtensionError` for a Java Pacemaker.
        """
        request = ChangesRequest(path, after, limit, instance, values)
        changes = self.ask(Message(MessageType.CHANGES, changes_request=request)).changes
        assert changes is not None  # guaranteed by `fault_of`
        return changes


def _note(at: list[float], _: Future[Message]) -> None:
    at.append(time.time())
