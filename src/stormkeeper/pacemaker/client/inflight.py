"""The requests that one connection has sent and not seen answered: ids, order, patience.

The rules that hold here, none of which needs a socket or a clock:

- A message id is given once in the life of a connection, counting up from 0. Storm's own client
  has a hundred slots and frees one before its answer was read, so that under load a thread gets
  another's answer.
- A Pacemaker answers in the order in which it was asked, and copies the id. So the only id that
  may come next is that of the oldest request; any other is a fault that ends the connection.
- A slot is free again only when its answer came or the connection is gone, even where nobody waits
  for the answer any longer.
"""

from collections import deque
from typing import Final, Generic, TypeVar

from stormkeeper.errors import RemoteProtocolError

#: Requests under way on one connection at most, as in Storm's own client.
MAX_IN_FLIGHT: Final = 100

#: The largest id that fits the i32 of ``HBMessage.message_id``.
MAX_MESSAGE_ID: Final = 0x7FFFFFFF

T = TypeVar("T")


class InFlight(Generic[T]):
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
        #: (id, sender, time of sending), oldest first.
        self._entries: deque[tuple[int, T, float]] = deque()
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

    def add(self, sender: T, now: float) -> int:
        """Take a slot for `sender`, whose request leaves at time `now`; return its message id."""
        if not self.has_room:
            raise AssertionError("a request was sent without asking has_room")
        message_id = self._next_id
        self._next_id += 1
        self._entries.append((message_id, sender, now))
        return message_id

    def answer(self, message_id: int | None, now: float) -> T:
        """Free the slot that an answer is for and return whose it is.

        Raises
        ------
        RemoteProtocolError
            If the answer is not for the oldest request.
        """
        if not self._entries:
            raise RemoteProtocolError(
                f"an answer with message id {message_id} came, though nothing was asked"
            )
        expected, sender, _ = self._entries[0]
        if message_id != expected:
            raise RemoteProtocolError(
                f"an answer with message id {message_id} came, where {expected} was due"
                f" (answers come in the order of the requests, {len(self._entries)} are open)"
            )
        self._entries.popleft()
        self._last_life = self._last_answer = now
        return sender

    def alive(self, now: float) -> None:
        """Note that the peer took or sent some bytes at time `now`."""
        self._last_life = now

    def oldest(self) -> T | None:
        """Return whose request has waited longest, or None if nothing is open."""
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

    def drain(self) -> list[T]:
        """Empty the table of a connection that is gone; return the senders, oldest first."""
        senders = [sender for _, sender, _ in self._entries]
        self._entries.clear()
        return senders
