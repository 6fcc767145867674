"""Calls of a client, the effects that follow from them, and the requests under way.

A `Call` goes into a `ClientProtocol`. Effects come out, to be carried out in order. `InFlight` has
the requests that were sent on one connection and are not answered yet. Its rules:

- Each request on a connection has its own message id, counting up from 0. Storm's client has a
  hundred slots and frees a slot before it has read the answer, so that under load one thread gets
  the answer of another.
- A Pacemaker answers in the order of the requests, and copies the id. The next answer must
  therefore have the id of the oldest request. Any other id is a fault that ends the connection.
- A slot is free again when its answer has come or the connection has ended, even if nobody waits
  for the answer any longer.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import RemoteProtocolError, StormkeeperError
from stormkeeper.pacemaker.wire import Message

#: Bytes at the end of a request's frame: the i32 message id and the stop of the struct.
_ID_AND_STOP: Final = 5

#: Requests under way on one connection at most, as in Storm's own client.
MAX_IN_FLIGHT: Final = 100

#: The largest id that fits the i32 of ``HBMessage.message_id``.
MAX_MESSAGE_ID: Final = 0x7FFFFFFF


@dataclass(eq=False, slots=True)
class Call:
    """One try of a request that somebody waits for.

    Parameters
    ----------
    kind
        Its message type.
    path
        What it is about; names it in messages.
    frame
        The whole frame, with any message id.
    deadline
        The time by which it is settled at the latest.
    started
        The time of the first try; for messages.
    tries
        How many tries this makes; for messages.
    """

    kind: int
    path: str
    frame: bytes
    deadline: float
    started: float
    tries: int = 1
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Connect:
    """Make a connection, then tell `ClientProtocol.connected` or `ClientProtocol.failed`."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the connection and make another to the same address; otherwise as `Connect`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send `data` on the connection, after whatever is not sent yet."""

    data: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """Do `work`, where it may block, then tell `ClientProtocol.computed` what came of it."""

    work: Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection, or give up making it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell who made `call` how it ended."""

    call: Call
    outcome: Message | StormkeeperError


Effect = Connect | Reconnect | Send | Compute | Drop | Settle


def with_message_id(frame: bytes, message_id: int) -> bytes:
    """Put another message id into a request's frame, which ends with it and a stop byte."""
    return b"".join((frame[:-_ID_AND_STOP], message_id.to_bytes(4, "big"), b"\x00"))


class InFlight:
    """The in-flight table of one connection.

    Parameters
    ----------
    limit
        Requests under way at most.
    last_id
        The last id that is given; after it the connection has to be replaced.
    """

    __slots__ = ("_entries", "_last_answer", "_last_id", "_last_life", "_limit", "_next_id")

    def __init__(self, *, limit: int = MAX_IN_FLIGHT, last_id: int = MAX_MESSAGE_ID) -> None:
        #: (id, call, time of sending), oldest first.
        self._entries: deque[tuple[int, Call, float]] = deque()
        self._limit = limit
        self._last_id = last_id
        self._next_id = 0
        self._last_life = self._last_answer = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent now."""
        return len(self._entries) < self._limit and not self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether every id was given: this connection can send no more."""
        return self._next_id > self._last_id

    def add(self, call: Call, now: float) -> int:
        """Take a slot for `call`, whose request leaves at time `now`; return its message id."""
        if not self.has_room:
            raise AssertionError("a request was sent without asking has_room")
        message_id = self._next_id
        self._next_id += 1
        self._entries.append((message_id, call, now))
        return message_id

    def answer(self, message_id: int | None, now: float) -> Call:
        """Free the slot that an answer is for and return the call.

        Raises
        ------
        RemoteProtocolError
            If the answer is not for the oldest request.
        """
        if not self._entries:
            raise RemoteProtocolError(
                f"an answer with message id {message_id} came, though nothing was asked"
            )
        expected, call, _ = self._entries[0]
        if message_id != expected:
            raise RemoteProtocolError(
                f"an answer with message id {message_id} came, where {expected} was due"
                f" (answers come in the order of the requests, {len(self._entries)} are open)"
            )
        self._entries.popleft()
        self._last_life = self._last_answer = now
        return call

    def alive(self, now: float) -> None:
        """Note that the peer took or sent some bytes at time `now`."""
        self._last_life = now

    def oldest(self) -> Call | None:
        """Return the call that has waited longest; None if nothing is open."""
        return self._entries[0][1] if self._entries else None

    def quiet_since(self) -> float | None:
        """Return since when the peer owes an answer and shows no life; None if it owes nothing.

        An answer of 10 MB takes longer than a try on a slow line, so each piece of it counts.
        """
        return max(self._entries[0][2], self._last_life) if self._entries else None

    def unanswered_since(self) -> float | None:
        """Return since when the oldest request is the next to be answered; None if there is none.

        Unlike `quiet_since` this does not move with every byte: it bounds what a peer can gain by
        sending an answer that never ends.
        """
        return max(self._entries[0][2], self._last_answer) if self._entries else None

    def drain(self) -> list[Call]:
        """Empty the table of a connection that is gone; return its calls, oldest first."""
        calls = [call for _, call, _ in self._entries]
        self._entries.clear()
        return calls
