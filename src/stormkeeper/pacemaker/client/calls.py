"""Calls of a client, the effects that follow from them, and the requests under way.

A `ClientCall` goes into a `ClientProtocol`, effects come out, in order. `InFlight` has
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
from enum import Enum
from typing import Final

from stormkeeper.errors import (
    NotAuthorizedError,
    RemoteProtocolError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.wire import RESERVED_PATH, VERBS, Message, MessageType, encode
from stormkeeper.pacemaker.wire.messages import extensions_told, listing_ends_java

#: Bytes at the end of a request's frame: the i32 message id and the stop of the struct.
_ID_AND_STOP: Final = 5

#: Requests under way on one connection at most, as in Storm's own client.
MAX_IN_FLIGHT: Final = 100

#: The largest id that fits the i32 of ``HBMessage.message_id``.
MAX_MESSAGE_ID: Final = 0x7FFFFFFF


@dataclass(eq=False, slots=True)
class ClientCall:
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

    call: ClientCall
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
        self._entries: deque[tuple[int, ClientCall, float]] = deque()
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

    def add(self, call: ClientCall, now: float) -> int:
        """Take a slot for `call`, whose request leaves at time `now`; return its message id."""
        if not self.has_room:
            raise AssertionError("a request was sent without asking has_room")
        message_id = self._next_id
        self._next_id += 1
        self._entries.append((message_id, call, now))
        return message_id

    def answer(self, message_id: int | None, now: float) -> ClientCall:
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

    def oldest(self) -> ClientCall | None:
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

    def drain(self) -> list[ClientCall]:
        """Empty the table of a connection that is gone; return its calls, oldest first."""
        calls = [call for _, call, _ in self._entries]
        self._entries.clear()
        return calls


_NEVER: Final = float("inf")


class Verdict(Enum):
    """What becomes of a call."""

    SEND = "send"
    #: Keep it: the server is being asked.
    HOLD = "hold"
    #: Keep it, and send `question`.
    ASK = "ask"
    #: The server does not have it.
    REFUSE = "refuse"


class ServerExtensions:
    """What one connection's server has, and the calls that wait to hear of it."""

    __slots__ = ("_asking", "_held", "_told", "may_read")

    def __init__(self) -> None:
        self._held: list[ClientCall] = []
        #: Extensions that the server told of; None before it was asked.
        self._told: frozenset[str] | None = None
        self._asking = False
        #: Whether the server answers this client when it is asked who it is; None before.
        self.may_read: bool | None = None

    def verdict(self, call: ClientCall) -> Verdict:
        """Decide on a call; one that is to wait is held from now on."""
        extension = VERBS[call.kind].extension
        if extension is None and not _lists_what_ends_java(call):
            return Verdict.SEND
        if self._told is not None:
            # Every server of ours has some extension.
            is_there = bool(self._told) if extension is None else extension in self._told
            return Verdict.SEND if is_there else Verdict.REFUSE
        self._held.append(call)
        if self._asking:
            return Verdict.HOLD
        self._asking = True
        return Verdict.ASK

    def told(self, answer: Message) -> None:
        """Take the server's answer about itself.

        Raises
        ------
        RemoteProtocolError
            If it is not readable.
        """
        self._told = extensions_told(answer.pulse.details if answer.pulse else None)
        self.may_read = True

    def refused(self) -> None:
        """Note that the server does not say what it is. The next call asks again."""
        self._asking = False
        self.may_read = False

    def release(self) -> list[ClientCall]:
        """Return the calls that wait, oldest first, and hold them no longer."""
        held, self._held = self._held, []
        return held

    def forget_settled(self) -> None:
        """Hold no calls that have ended meanwhile."""
        self._held = [call for call in self._held if not call.settled]


def question(now: float) -> ClientCall:
    """Make the client's own call that asks a server what it is.

    It has no deadline: it lives as long as the connection, whose patience bounds it.
    """
    frame = encode(Message(MessageType.GET_PULSE, 0, path=RESERVED_PATH))
    return ClientCall(MessageType.GET_PULSE, RESERVED_PATH, frame, _NEVER, now)


def unsupported(peer: str, call: ClientCall) -> UnsupportedExtensionError:
    """Make the error of a call that may not be sent to the server `peer`."""
    if _lists_what_ends_java(call):
        return UnsupportedExtensionError(
            f"{peer} is a Java Pacemaker, and what lies below {call.path} was not asked for: it"
            " takes a path for a regular expression, and ends at one that is none"
        )
    return UnsupportedExtensionError(
        f"{peer} has not told that it has the extension {VERBS[call.kind].extension!r}, so"
        f" {type_name(call.kind)} {call.path} was not sent (it would end a Java Pacemaker)"
    )


def _lists_what_ends_java(call: ClientCall) -> bool:
    return call.kind == MessageType.GET_ALL_NODES_FOR_PATH and listing_ends_java(call.path)


class WrongAnswerError(RemoteProtocolError):
    """A server answered a request with what is no answer to it; another try would not help."""


def is_request(kind: int | None) -> bool:
    """Whether a message of type `kind` is a question with exactly one answer."""
    return kind in VERBS


def type_name(kind: int | None) -> str:
    """Name a message type for people: ``GET_PULSE``, or its number if it is unknown."""
    try:
        return MessageType(-1 if kind is None else kind).name
    except ValueError:
        return f"type {kind}"


def asked(kind: int, path: str) -> str:
    """Return what a request of a type asks for, as in ``a request to read /a``."""
    return f"a request to {VERBS[kind].deed} {path}"


def subject(message: Message) -> str:
    """Return the path that a request is about."""
    if message.pulse is not None:
        return message.pulse.id
    if message.changes_request is not None:
        return message.changes_request.path
    return message.path or ""


def fault_of(kind: int, answer: Message) -> str | None:
    """Say what is wrong with `answer` to a request of type `kind`; None if nothing is."""
    if answer.type == MessageType.NOT_AUTHORIZED:
        return None
    if answer.type != kind + 1:
        return f"{type_name(answer.type)} came as the answer to {type_name(kind)}"
    member = VERBS[kind].answered_with
    if member is not None and getattr(answer, member) is None:
        return f"{type_name(answer.type)} came without its {member}"
    return None


def refusal(
    peer: str, kind: int, path: str, method: str | None, *, reads: bool | None = None
) -> NotAuthorizedError:
    """Make the error for a NOT_AUTHORIZED answer of the server `peer`.

    Parameters
    ----------
    method
        By which this client has authenticated; None if it has not.
    reads
        Whether the server has let this client read on the same connection, or refused to say even
        who it is, which is no question of paths and sizes; None if it was not asked.
    """
    what = f"{peer} refused {asked(kind, path)}"
    is_written = VERBS[kind].writes
    limit = (
        "the path is reserved or a limit of the server is reached"
        if is_written
        else "the path or the answer exceeds a limit of the server"
    )
    log = "the server's log has the reason"
    if method is not None:
        return NotAuthorizedError(
            f"{what}, though this client has authenticated ({method}): {limit}; {log}"
        )
    remedy = (
        "set pacemaker.auth.method to the server's own (DIGEST, KERBEROS or SCRAM) and"
        " java.security.auth.login.config to the file that says who this client is"
    )
    if is_written:
        return NotAuthorizedError(
            f"{what}: {limit}, or it takes writes only from who has authenticated ({remedy},"
            f" and pacemaker.auth.writes to true); {log}"
        )
    if reads is None:
        return NotAuthorizedError(
            f"{what}: it wants readers to authenticate ({remedy}), or {limit}; {log}"
        )
    if reads:
        return NotAuthorizedError(f"{what}: {limit}; {log}")
    return NotAuthorizedError(f"{what}: it wants readers to authenticate: {remedy}")
