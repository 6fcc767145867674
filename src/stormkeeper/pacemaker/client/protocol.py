"""The client's half of the Pacemaker protocol: order, timeouts and back-off, without I/O.

`ClientProtocol` takes events (a call, a connection, answers, the time) and returns effects:
connect, send, drop, settle. The rules:

- All calls share one connection, which the first call opens.
- Calls are sent in order, each once, at most `MAX_IN_FLIGHT` unanswered. A retry is another call.
- A Pacemaker answers in order and copies the message id; any other id ends the connection. No id is
  reused on a connection: an old or repeated answer could pass as the answer to a later call, as in
  Storm's client, where a thread may get another thread's answer.
- A connection is stuck if the server owes an answer and takes or sends no byte for `try_timeout`:
  the connection is dropped, and all calls on it fail.
- A call ends at its deadline at the latest. Its slot stays taken until the answer comes or the
  connection ends.
- Calls wait during the back-off between attempts to connect. The first answer resets the back-off,
  not the first connection: a frozen server accepts connections.
- The first request of an extension waits for the server's description, as an extension would end a
  Java Pacemaker.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Final

from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.wire.decoder import read_extensions
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    VERBS,
    Message,
    MessageType,
    listing_ends_java,
)

NEVER: Final = float("inf")

#: Requests under way, as in Storm's client.
MAX_IN_FLIGHT: Final = 100

#: The i32 message id and the stop of the struct.
_ID_AND_STOP: Final = 5

#: The client's own question for the server's description, limited in time by the connection.
_QUESTION: Final = encode(Message(MessageType.GET_PULSE, 0, path=RESERVED_PATH))


class WrongAnswerError(RemoteProtocolError):
    """The server sent no valid answer to the request; a retry would not help."""


class LinkState(Enum):
    """States of the connection."""

    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"
    CLOSED = "closed"


@dataclass(eq=False, slots=True)
class ClientCall:
    """A try of a request; `frame` gets the message id when sent.

    `deadline` and `started` (of the first try) are times of the client's clock.
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
    """Connect, then call `ClientProtocol.connected` or `ClientProtocol.lost`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send `data` after all unsent bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection, or stop connecting."""

    reason: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Complete the future of `call`."""

    call: ClientCall
    outcome: Message | StormkeeperError


Effect = Connect | Send | Drop | Settle


def with_message_id(frame: bytes, message_id: int) -> bytes:
    return b"".join((frame[:-_ID_AND_STOP], message_id.to_bytes(4, "big"), b"\x00"))


class InFlight:
    """Unanswered requests of a connection."""

    def __init__(self) -> None:
        #: (id, call, time of sending), oldest first.
        self._entries: deque[tuple[int, ClientCall, float]] = deque()
        self._next_id = 0
        self._last_life = self._last_answer = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_room(self) -> bool:
        return len(self._entries) < MAX_IN_FLIGHT

    def add(self, call: ClientCall, now: float) -> int:
        """Add a call; return the message id."""
        message_id = self._next_id
        self._next_id += 1
        self._entries.append((message_id, call, now))
        return message_id

    def answer(self, message_id: int | None, now: float) -> ClientCall:
        """Pop the oldest call; raise `RemoteProtocolError` for another id."""
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
        """Record that the server took or sent bytes."""
        self._last_life = now

    def silent_since(self) -> float | None:
        """Return since when the server owes an answer without sending bytes.

        After the call's deadline, pieces of an answer do not count: an answer may have no end.
        """
        if not self._entries:
            return None
        _, oldest, sent = self._entries[0]
        return max(sent, self._last_answer if oldest.settled else self._last_life)

    def drain(self) -> list[ClientCall]:
        """Remove and return all calls, oldest first."""
        calls = [call for _, call, _ in self._entries]
        self._entries.clear()
        return calls


@dataclass(eq=False)
class ClientProtocol:
    """State machine of a client of `peer`; connections authenticate with `method`, if any."""

    peer: str
    backoff: FailureStreak
    _: KW_ONLY
    try_timeout: float
    method: str | None = None
    _waiting: deque[ClientCall] = field(default_factory=deque, init=False)
    #: Unsettled calls, without the client's own question.
    _open: dict[ClientCall, None] = field(default_factory=dict, init=False)
    #: Empty before the first failure.
    last_failure: str = field(default="", init=False)
    #: The caller removes the effects.
    effects: deque[Effect] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.state = LinkState.DOWN
        self._retry_at = float("-inf")
        #: When `passed` is due; possibly too early, never too late.
        self.alarm = NEVER
        self._forget_connection()

    def _forget_connection(self) -> None:
        self.state = LinkState.DOWN
        self._in_flight = InFlight()
        #: None until the server has described itself.
        self._extensions: frozenset[str] | None = None
        #: Calls that wait for the description.
        self._held: list[ClientCall] = []
        self._is_asking = False
        #: Whether the server describes itself to this client; None before the question.
        self._may_read: bool | None = None

    @property
    def suspect(self) -> bool:
        return self.backoff.count > 0

    def retry_in(self, now: float) -> float:
        return max(0.0, self._retry_at - now) if self.state is LinkState.DOWN else 0.0

    # --- events

    def submit(self, call: ClientCall, now: float) -> None:
        """Take a call, to be settled by the deadline; raises `PacemakerClosedError`."""
        if self.state is LinkState.CLOSED:
            raise PacemakerClosedError(f"the client of {self.peer} is closed")
        self._open[call] = None
        self._waiting.append(call)
        self._arm(call.deadline)
        self._advance(now)

    def connected(self, now: float) -> None:
        if self.state is LinkState.CONNECTING:
            self.state = LinkState.UP
            self._advance(now)

    def lost(
        self,
        reason: str,
        now: float,
        *,
        peer_at_fault: bool = False,
        refusal: StormkeeperError | None = None,
    ) -> None:
        """Handle the end of a connection or attempt; `refusal` fails waiting calls."""
        if self.state is LinkState.CONNECTING:
            touched, was_used = list(self._waiting), True
            self._waiting.clear()
        elif self.state is LinkState.UP:
            was_used = len(self._in_flight) > 0
            touched = self._in_flight.drain() + self._held
        else:
            return
        self.effects.append(Drop(reason))
        self._forget_connection()
        if was_used or peer_at_fault:
            # The end of an idle connection is no failure.
            self._retry_at = now + self.backoff.record()
            self.last_failure = reason
        for call in touched:
            if refusal is not None:
                self._settle(call, type(refusal)(str(refusal)))
            else:
                self._give_up(call, reason, now, peer_at_fault=peer_at_fault)
        self._advance(now)

    def received(self, answers: Iterable[Message], now: float) -> None:
        """Handle answers; an empty list means that bytes came, but no whole answer."""
        if self.state is not LinkState.UP:
            return
        self._in_flight.alive(now)
        for answer in answers:
            try:
                call = self._in_flight.answer(answer.message_id, now)
            except RemoteProtocolError as error:
                self.lost(str(error), now, peer_at_fault=True)
                return
            fault = self._answered(call, answer)
            if fault is not None:
                self.lost(fault, now, peer_at_fault=True)
                return
        self._advance(now)

    def taken(self, now: float) -> None:
        """Handle that the server took waiting bytes."""
        if self.state is LinkState.UP:
            self._in_flight.alive(now)

    def passed(self, now: float) -> None:
        """Handle timeouts, deadlines and the end of a back-off."""
        if now < self.alarm:
            return
        if now >= self._stuck_at():
            self.lost(f"no answer within {self.try_timeout:g} s", now)
        for call in [call for call in self._open if now >= call.deadline]:
            self._give_up(call, self.last_failure if self.suspect else "no answer yet", now)
        self._waiting = deque(call for call in self._waiting if not call.settled)
        self._held = [call for call in self._held if not call.settled]
        self._advance(now)
        self.alarm = min(
            self._stuck_at(),
            self._retry_at if self.state is LinkState.DOWN and self._waiting else NEVER,
            min((call.deadline for call in self._open), default=NEVER),
        )

    def close_idle(self) -> None:
        if self.state is LinkState.UP and not self._in_flight and not self._open:
            self.effects.append(Drop("the connection is not needed at present"))
            self._forget_connection()

    def close(self) -> None:
        """Fail all open calls and accept no more."""
        if self.state is LinkState.CLOSED:
            return
        if self.state is not LinkState.DOWN:
            self.effects.append(Drop("the client was closed"))
        for call in list(self._open):
            error = PacemakerClosedError(
                f"the client of {self.peer} was closed before"
                f" {type_name(call.kind)} {call.path} was answered"
            )
            self._settle(call, error)
        self._waiting.clear()
        self._forget_connection()
        self.state = LinkState.CLOSED
        self.alarm = NEVER

    # --- what follows

    def _settle(self, call: ClientCall, outcome: Message | StormkeeperError) -> None:
        if call.settled:
            return
        call.settled = True
        if call in self._open:
            del self._open[call]
            self.effects.append(Settle(call, outcome))

    def _give_up(
        self, call: ClientCall, reason: str, now: float, *, peer_at_fault: bool = False
    ) -> None:
        tries = "1 try" if call.tries == 1 else f"{call.tries} tries"
        kind = RemoteProtocolError if peer_at_fault else PacemakerUnavailableError
        error = kind(
            f"{self.peer} did not answer {describe_request(call.kind, call.path)}"
            f" ({tries} in {now - call.started:.1f} s; {reason})"
        )
        self._settle(call, error)

    def _arm(self, time: float) -> None:
        self.alarm = min(self.alarm, time)

    def _stuck_at(self) -> float:
        since = self._in_flight.silent_since()
        return NEVER if since is None else since + self.try_timeout

    def _advance(self, now: float) -> None:
        if self.state is LinkState.UP:
            self._send_waiting(now)
        elif self.state is LinkState.DOWN and self._waiting:
            if now < self._retry_at:
                self._arm(self._retry_at)
            else:
                self.state = LinkState.CONNECTING
                self.effects.append(Connect())

    def _send_waiting(self, now: float) -> None:
        frames: list[bytes] = []
        while self._waiting and self._in_flight.has_room:
            call = self._waiting.popleft()
            if not call.settled and self._may_send(call, now):
                message_id = self._in_flight.add(call, now)
                frames.append(with_message_id(call.frame, message_id))
        if frames:
            self.effects.append(Send(b"".join(frames)))
            self._arm(self._stuck_at())

    def _may_send(self, call: ClientCall, now: float) -> bool:
        """Return whether to send `call` now; else hold or refuse the call."""
        extension = VERBS[call.kind].extension
        if extension is None and not ends_java(call.kind, call.path):
            return True
        known = self._extensions
        if known is None:
            self._held.append(call)
            if not self._is_asking:
                self._is_asking = True
                question = ClientCall(MessageType.GET_PULSE, RESERVED_PATH, _QUESTION, NEVER, now)
                self._waiting.appendleft(question)
            return False
        # Every Stormkeeper server has some extension.
        if bool(known) if extension is None else extension in known:
            return True
        self._settle(call, unsupported(self.peer, call.kind, call.path))
        return False

    def _answered(self, call: ClientCall, answer: Message) -> str | None:
        self.backoff.reset()
        fault = fault_of(call.kind, answer)
        if fault is None and call.kind == MessageType.GET_PULSE and call.path == RESERVED_PATH:
            fault = self._read_description(call, answer)
        if fault is not None:
            self.backoff.record()
            self._settle(call, WrongAnswerError(f"{self.peer} broke the protocol: {fault}"))
        elif answer.type == MessageType.NOT_AUTHORIZED:
            self._settle(call, self._refusal(call))
        else:
            self._settle(call, answer)
        return fault

    def _read_description(self, call: ClientCall, answer: Message) -> str | None:
        if answer.type == MessageType.NOT_AUTHORIZED:
            if call not in self._open:
                # The next call asks again.
                self._is_asking = self._may_read = False
                held, self._held = self._held, []
                for waiting in held:
                    self._settle(waiting, self._refusal(waiting))
            return None
        try:
            self._extensions = read_extensions(answer.pulse.details if answer.pulse else None)
        except RemoteProtocolError as error:
            return f"what the server tells of itself is not readable: {error}"
        self._may_read = True
        self._waiting.extendleft(reversed(self._held))
        self._held = []
        return None

    def _refusal(self, call: ClientCall) -> NotAuthorizedError:
        is_question = call.kind == MessageType.GET_PULSE and call.path == RESERVED_PATH
        reads = False if is_question else self._may_read
        return refusal(self.peer, call.kind, call.path, self.method, reads=reads)


def ends_java(kind: int, path: str) -> bool:
    """Return whether a request of Storm's would end a Java Pacemaker."""
    return kind == MessageType.GET_ALL_NODES_FOR_PATH and listing_ends_java(path)


def type_name(kind: int | None) -> str:
    """Name a message type, known or not."""
    try:
        return MessageType(-1 if kind is None else kind).name
    except ValueError:
        return f"type {kind}"


def describe_request(kind: int, path: str) -> str:
    """Describe a request: ``a request to read /a``."""
    return f"a request to {VERBS[kind].deed} {path}"


def path_of(message: Message) -> str:
    if message.pulse is not None:
        return message.pulse.id
    if message.changes_request is not None:
        return message.changes_request.path
    return message.path or ""


def fault_of(kind: int, answer: Message) -> str | None:
    """Return the fault of an answer, or None; the right type is the request's plus one."""
    if answer.type == MessageType.NOT_AUTHORIZED:
        return None
    if answer.type != kind + 1:
        return f"{type_name(answer.type)} came as the answer to {type_name(kind)}"
    member = VERBS[kind].answered_with
    if member is not None and getattr(answer, member) is None:
        return f"{type_name(answer.type)} came without its {member}"
    return None


def unsupported(peer: str, kind: int, path: str) -> UnsupportedExtensionError:
    """Make the error for a request that would end the server."""
    if ends_java(kind, path):
        return UnsupportedExtensionError(
            f"{peer} is a Java Pacemaker, and what lies below {path} was not asked for: it"
            " takes a path for a regular expression, and ends at one that is none"
        )
    return UnsupportedExtensionError(
        f"{peer} does not list the extension {VERBS[kind].extension!r}, so"
        f" {type_name(kind)} {path} was not sent (it would end a Java Pacemaker)"
    )


def refusal(
    peer: str, kind: int, path: str, method: str | None, *, reads: bool | None = None
) -> NotAuthorizedError:
    """Make the error for a NOT_AUTHORIZED answer, with advice.

    `method` is the method with which the client has authenticated. `reads` says whether the server
    let this client read on the connection; None if unknown.
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
