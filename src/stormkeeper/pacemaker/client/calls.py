"""Calls of a client: requests under way on a connection, their effects, and their answers.

A `ClientCall` enters a `ClientProtocol`, effects leave it in order. `InFlight` holds the unanswered
requests of one connection:

- Message ids count up from 0. Storm's client has a hundred slots and frees a slot before it reads
  the answer, so that under load one thread gets another's answer.
- A Pacemaker answers in order and copies the id, so the next answer must have the id of the oldest
  request. Any other id ends the connection.
- A slot is free when its answer has come or the connection has ended, even if the caller gave up.

The type of an answer is the request's plus one, or NOT_AUTHORIZED. `ServerExtensions` holds back
the first request that would end a Java Pacemaker until the server has described itself.
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
from stormkeeper.pacemaker.wire.decoder import (
    read_extensions,
)
from stormkeeper.pacemaker.wire.messages import (
    listing_ends_java,
)

#: Bytes at the end of a request's frame: the i32 message id and the stop of the struct.
_ID_AND_STOP: Final = 5

#: Requests under way on one connection, as in Storm's client.
MAX_IN_FLIGHT: Final = 100

MAX_MESSAGE_ID: Final = 0x7FFFFFFF

_NEVER: Final = float("inf")


class WrongAnswerError(RemoteProtocolError):
    """The server sent no valid answer to the request; a retry would not help."""


@dataclass(eq=False, slots=True)
class ClientCall:
    """A try of a request.

    The message id in `frame` is replaced when the request is sent. `deadline` and `started` (of the
    first try) are times of the client's clock. `path`, `started` and `tries` appear in errors.
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
    """Connect, then call `ClientProtocol.connected` or `ClientProtocol.failed`."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the connection and connect to the same address; then as `Connect`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send `data` after all unsent bytes."""

    data: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """Do `work`, which may block, then call `ClientProtocol.computed` with the result."""

    work: Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection, or stop connecting."""

    reason: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Complete the future of `call`."""

    call: ClientCall
    outcome: Message | StormkeeperError


Effect = Connect | Reconnect | Send | Compute | Drop | Settle


class InFlight:
    """Unanswered requests of a connection, which can use message ids up to `last_id`."""

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
        return len(self._entries) < self._limit and not self.is_exhausted

    @property
    def is_exhausted(self) -> bool:
        """Whether all message ids of the connection are used."""
        return self._next_id > self._last_id

    def add(self, call: ClientCall, now: float) -> int:
        """Add a call sent at `now`; return the message id."""
        if not self.has_room:
            raise AssertionError("a request was sent without asking has_room")
        message_id = self._next_id
        self._next_id += 1
        self._entries.append((message_id, call, now))
        return message_id

    def answer(self, message_id: int | None, now: float) -> ClientCall:
        """Remove and return the call of an answer.

        Raises `RemoteProtocolError` if the answer is not for the oldest request.
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
        """Record that the server took or sent bytes at `now`."""
        self._last_life = now

    def oldest(self) -> ClientCall | None:
        """Return the oldest call, or None."""
        return self._entries[0][1] if self._entries else None

    def quiet_since(self) -> float | None:
        """Return since when the server owes an answer without sending bytes, or None.

        Each piece of a large answer counts, as 10 MB may take longer than a try.
        """
        return max(self._entries[0][2], self._last_life) if self._entries else None

    def unanswered_since(self) -> float | None:
        """Return since when the oldest request is the next to be answered, or None.

        Pieces of an answer do not count, which bounds an answer without end.
        """
        return max(self._entries[0][2], self._last_answer) if self._entries else None

    def drain(self) -> list[ClientCall]:
        """Remove and return all calls, oldest first."""
        calls = [call for _, call, _ in self._entries]
        self._entries.clear()
        return calls


class Verdict(Enum):
    """Decision on a call that may need an extension."""

    SEND = "send"
    #: Keep the call until the server has described itself.
    HOLD = "hold"
    #: Keep the call, and send `make_question`.
    ASK = "ask"
    REFUSE = "refuse"


class ServerExtensions:
    """Extensions of a connection's server, and the calls held until the server answers."""

    __slots__ = ("_extensions", "_held", "_is_asking", "may_read")

    def __init__(self) -> None:
        self._held: list[ClientCall] = []
        #: None until the server has described itself.
        self._extensions: frozenset[str] | None = None
        self._is_asking = False
        #: Whether the server describes itself to this client; None before the question.
        self.may_read: bool | None = None

    def judge(self, call: ClientCall) -> Verdict:
        """Decide on a call, and hold the call for HOLD and ASK."""
        extension = VERBS[call.kind].extension
        if extension is None and not _ends_java(call):
            return Verdict.SEND
        if self._extensions is not None:
            # Every Stormkeeper server has some extension.
            has_it = bool(self._extensions) if extension is None else extension in self._extensions
            return Verdict.SEND if has_it else Verdict.REFUSE
        self._held.append(call)
        if self._is_asking:
            return Verdict.HOLD
        self._is_asking = True
        return Verdict.ASK

    def take_answer(self, answer: Message) -> None:
        """Read the server's description of itself; raises `RemoteProtocolError`."""
        self._extensions = read_extensions(answer.pulse.details if answer.pulse else None)
        self.may_read = True

    def take_refusal(self) -> None:
        """Record that the server refused the question; the next call asks again."""
        self._is_asking = False
        self.may_read = False

    def release(self) -> list[ClientCall]:
        """Return and release the held calls, oldest first."""
        held, self._held = self._held, []
        return held

    def forget_settled(self) -> None:
        """Drop settled calls."""
        self._held = [call for call in self._held if not call.settled]


def with_message_id(frame: bytes, message_id: int) -> bytes:
    """Replace the message id of a request's frame, which ends with the id and a stop byte."""
    return b"".join((frame[:-_ID_AND_STOP], message_id.to_bytes(4, "big"), b"\x00"))


def make_question(now: float) -> ClientCall:
    """Make the client's own call for the server's description; the connection bounds its time."""
    frame = encode(Message(MessageType.GET_PULSE, 0, path=RESERVED_PATH))
    return ClientCall(MessageType.GET_PULSE, RESERVED_PATH, frame, _NEVER, now)


def is_request(kind: int | None) -> bool:
    """Return whether messages of type `kind` are requests."""
    return kind in VERBS


def type_name(kind: int | None) -> str:
    """Name a message type for people: ``GET_PULSE``, or the number of an unknown type."""
    try:
        return MessageType(-1 if kind is None else kind).name
    except ValueError:
        return f"type {kind}"


def describe_request(kind: int, path: str) -> str:
    """Describe a request for people: ``a request to read /a``."""
    return f"a request to {VERBS[kind].deed} {path}"


def path_of(message: Message) -> str:
    """Return the path of a request."""
    if message.pulse is not None:
        return message.pulse.id
    if message.changes_request is not None:
        return message.changes_request.path
    return message.path or ""


def fault_of(kind: int, answer: Message) -> str | None:
    """Return the fault of an answer to a request of type `kind`, or None."""
    if answer.type == MessageType.NOT_AUTHORIZED:
        return None
    if answer.type != kind + 1:
        return f"{type_name(answer.type)} came as the answer to {type_name(kind)}"
    member = VERBS[kind].answered_with
    if member is not None and getattr(answer, member) is None:
        return f"{type_name(answer.type)} came without its {member}"
    return None


def unsupported(peer: str, call: ClientCall) -> UnsupportedExtensionError:
    """Make the error of a call that would end the server `peer`."""
    if _ends_java(call):
        return UnsupportedExtensionError(
            f"{peer} is a Java Pacemaker, and what lies below {call.path} was not asked for: it"
            " takes a path for a regular expression, and ends at one that is none"
        )
    return UnsupportedExtensionError(
        f"{peer} does not list the extension {VERBS[call.kind].extension!r}, so"
        f" {type_name(call.kind)} {call.path} was not sent (it would end a Java Pacemaker)"
    )


def refusal(
    peer: str, kind: int, path: str, method: str | None, *, reads: bool | None = None
) -> NotAuthorizedError:
    """Make the error for a NOT_AUTHORIZED answer, with advice.

    `method` is the client's method if it has authenticated. `reads` says whether the server let
    this client read on the connection; None if unknown.
    """
    what = f"{peer} refused {describe_request(kind, path)}"
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
            f"{what}: {limit}, or it accepts writes from authenticated clients only ({remedy},"
            f" and pacemaker.auth.writes to true); {log}"
        )
    if reads is None:
        return NotAuthorizedError(
            f"{what}: it wants readers to authenticate ({remedy}), or {limit}; {log}"
        )
    if reads:
        return NotAuthorizedError(f"{what}: {limit}; {log}")
    return NotAuthorizedError(f"{what}: it wants readers to authenticate: {remedy}")


def _ends_java(call: ClientCall) -> bool:
    return call.kind == MessageType.GET_ALL_NODES_FOR_PATH and listing_ends_java(call.path)
