"""The client's half of the Pacemaker protocol: order, timeouts and back-off, without I/O.

`ClientProtocol` takes events (a call, a connection, answers, the time) and returns effects:
connect, send, drop, settle. The rules:

- There is one connection, made when a call needs one. All calls wait for it.
- Calls are sent in order, each once, at most `MAX_IN_FLIGHT` unanswered. A retry is another call.
- A connection is stuck if the server owes an answer and sends no byte for `try_timeout`. The
  connection is dropped and all calls on it fail. Connecting may take as long.
- A call ends at its deadline at the latest. Its slot stays taken until the answer comes or the
  connection ends.
- Between attempts to connect there is a back-off, which the first answer resets, not the first
  connection: a frozen server accepts connections. New calls wait for its end.
- Authentication comes first on a connection (`authentication`), after a separate connection that
  checks whether it would harm the server. If it fails, all waiting calls fail.
- A request of an extension is sent only to a server that has it (`calls.ServerExtensions`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
)
from stormkeeper.pacemaker.client.authentication import ClientAuthentication, Identity, Todo
from stormkeeper.pacemaker.client.calls import (
    MAX_IN_FLIGHT,
    MAX_MESSAGE_ID,
    ClientCall,
    Compute,
    Connect,
    Drop,
    Effect,
    InFlight,
    Reconnect,
    Send,
    ServerExtensions,
    Settle,
    Verdict,
    WrongAnswerError,
    describe_request,
    fault_of,
    make_question,
    refusal,
    type_name,
    unsupported,
    with_message_id,
)
from stormkeeper.pacemaker.wire import RESERVED_PATH, Message, MessageType

NEVER: Final = float("inf")


class LinkState(Enum):
    """States of the connection."""

    DOWN = "down"
    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    UP = "up"
    CLOSED = "closed"


class ClientProtocol:
    """State machine of a client of a server, named `peer` in errors."""

    def __init__(
        self,
        peer: str,
        backoff: FailureStreak,
        *,
        try_timeout: float,
        identity: Identity | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        last_message_id: int = MAX_MESSAGE_ID,
    ) -> None:
        self._peer = peer
        self._backoff = backoff
        self._try_timeout = try_timeout
        self._identity = identity
        self._authentication: ClientAuthentication | None = None
        self._max_in_flight = max_in_flight
        self._last_message_id = last_message_id
        self._state = LinkState.DOWN
        self._waiting: deque[ClientCall] = deque()
        self._in_flight = self._new_table()
        self._extensions = ServerExtensions()
        self.last_failure = ""
        self._retry_at = float("-inf")
        self._connect_by = NEVER
        #: When `passed` is due; possibly too early, never too late.
        self.alarm = NEVER
        #: Effects in order; the caller removes them.
        self.effects: deque[Effect] = deque()
        #: Unsettled calls in order, without the client's own `make_question`.
        self._open: dict[ClientCall, None] = {}

    @property
    def state(self) -> LinkState:
        """State of the connection."""
        return self._state

    @property
    def suspect(self) -> bool:
        """Whether the server failed since the last answer."""
        return self._backoff.count > 0

    def retry_in(self, now: float) -> float:
        """Return the seconds of back-off left."""
        return max(0.0, self._retry_at - now) if self._state is LinkState.DOWN else 0.0

    def submit(self, call: ClientCall, now: float) -> None:
        """Take a call, to be settled by the deadline; raises `PacemakerClosedError`."""
        if self._state is LinkState.CLOSED:
            raise PacemakerClosedError(f"the client of {self._peer} is closed")
        self._open[call] = None
        self._waiting.append(call)
        self._arm(call.deadline)
        self._advance(now)

    def connected(self, now: float) -> None:
        """Handle a new connection."""
        if self._state is not LinkState.CONNECTING:
            return
        if self._identity is None:
            self._begin(now)
            return
        self._state = LinkState.AUTHENTICATING
        if self._authentication is None:
            self._authentication = ClientAuthentication(self._peer, self._identity)
        self._go_on(self._authentication.connected(), now)

    def computed(self, step: Compute, outcome: bytes | StormkeeperError | None, now: float) -> None:
        """Handle the result or error of a `Compute`."""
        authentication = self._authentication
        if self._state is not LinkState.AUTHENTICATING or authentication is None:
            return
        if authentication.work is not step:
            return  # a step of an earlier connection
        if isinstance(outcome, StormkeeperError):
            self._lost(str(outcome), now, refusal=authentication.refusal(str(outcome)))
        else:
            self._authenticate(lambda: authentication.computed(outcome), now)

    def failed(self, reason: str, now: float, *, peer_at_fault: bool = False) -> None:
        """Handle a lost or refused connection."""
        authentication, refusal = self._authentication, None
        if self._state is LinkState.AUTHENTICATING and authentication and authentication.has_begun:
            refusal = None if peer_at_fault else authentication.ended(reason)
        self._lost(reason, now, peer_at_fault=peer_at_fault, refusal=refusal)

    def abandoned(self, reason: str, now: float) -> None:
        """Handle a connection that the client itself gave up."""
        self._lost(reason, now)

    def refused(self, refusal: StormkeeperError, now: float) -> None:
        """Handle a server and client that reject each other: all waiting calls fail."""
        self._lost(str(refusal), now, refusal=refusal)

    def _lost(
        self,
        reason: str,
        now: float,
        *,
        peer_at_fault: bool = False,
        refusal: StormkeeperError | None = None,
    ) -> None:
        if self._state in (LinkState.CONNECTING, LinkState.AUTHENTICATING):
            touched, was_used = list(self._waiting), True
            self._waiting.clear()
        elif self._state is LinkState.UP:
            was_used = len(self._in_flight) > 0
            touched = self._in_flight.drain() + self._extensions.release()
        else:
            return
        self.effects.append(Drop(reason))
        self._forget_connection()
        if was_used or peer_at_fault:
            # The end of an idle connection is no failure.
            self._retry_at = now + self._backoff.record()
            self.last_failure = reason
        for call in touched:
            if refusal is not None:
                self._settle(call, type(refusal)(str(refusal)))
            else:
                self._give_up(call, reason, now, peer_at_fault=peer_at_fault)
        self._advance(now)

    def received(self, answers: Iterable[Message], now: float) -> None:
        """Handle received answers; no answer means part of one."""
        if self._state is LinkState.AUTHENTICATING:
            for answer in answers:
                self._authenticate_with(answer, now)
            return
        if self._state is not LinkState.UP:
            return
        self._in_flight.alive(now)
        for answer in answers:
            try:
                if self._authentication is not None and self._authentication.is_repetition(answer):
                    continue
                call = self._in_flight.answer(answer.message_id, now)
            except RemoteProtocolError as error:
                self._lost(str(error), now, peer_at_fault=True)
                return
            fault = self._answered(call, answer)
            if fault is not None:
                self._lost(fault, now, peer_at_fault=True)
                return
        self._advance(now)

    def taken(self, now: float) -> None:
        """Handle that the server took bytes that were waiting."""
        if self._state is LinkState.UP:
            self._in_flight.alive(now)

    def passed(self, now: float) -> None:
        """Handle the passing of time: timeouts, deadlines, the end of a back-off."""
        if now < self.alarm:
            return
        if now >= self._connect_by:
            self._lost(self._unready(), now)
        elif self._state is LinkState.UP and now >= self._stuck_at():
            self._lost(f"no answer within {self._try_timeout:g} s", now)
        for call in [call for call in self._open if now >= call.deadline]:
            self._give_up(call, self.last_failure if self.suspect else "no answer yet", now)
        self._waiting = deque(call for call in self._waiting if not call.settled)
        self._extensions.forget_settled()
        self._advance(now)
        self.alarm = min(
            self._connect_by,
            self._stuck_at(),
            self._retry_at if self._state is LinkState.DOWN and self._waiting else NEVER,
            min((call.deadline for call in self._open), default=NEVER),
        )

    def close_idle(self) -> None:
        """Close an idle connection; the next call connects again."""
        if self._state is LinkState.UP and not self._in_flight and not self._open:
            self.effects.append(Drop("the connection is not needed at present"))
            self._forget_connection()

    def close(self) -> None:
        """Fail all open calls and accept no more."""
        if self._state is LinkState.CLOSED:
            return
        if self._state is not LinkState.DOWN:
            self.effects.append(Drop("the client was closed"))
        self._state = LinkState.CLOSED
        for call in list(self._open):
            error = PacemakerClosedError(
                f"the client of {self._peer} was closed before"
                f" {type_name(call.kind)} {call.path} was answered"
            )
            self._settle(call, error)
        self._waiting.clear()
        self._extensions.release()
        self._in_flight.drain()
        self.alarm = self._connect_by = NEVER

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
            f"{self._peer} did not answer {describe_request(call.kind, call.path)}"
            f" ({tries} in {now - call.started:.1f} s; {reason})"
        )
        self._settle(call, error)

    def _begin(self, now: float) -> None:
        self._state = LinkState.UP
        self._connect_by = NEVER
        self._in_flight = self._new_table()
        self._advance(now)

    def _authenticate_with(self, message: Message, now: float) -> None:
        authentication = self._authentication
        if self._state is LinkState.AUTHENTICATING and authentication is not None:
            self._authenticate(lambda: authentication.received(message), now)

    def _authenticate(self, take: Callable[[], Todo], now: float) -> None:
        try:
            todo = take()
        except NotAuthorizedError as error:
            self._lost(str(error), now, refusal=error)
        except RemoteProtocolError as error:
            self._lost(str(error), now, peer_at_fault=True)
        else:
            self._go_on(todo, now)

    def _go_on(self, todo: Todo, now: float) -> None:
        assert self._authentication is not None
        self.effects.extend(todo)
        if self._authentication.is_done:
            self._begin(now)
        else:
            if any(isinstance(effect, Reconnect) for effect in todo):
                self._state = LinkState.CONNECTING
            self._connect_by = now + self._authentication.patience(self._try_timeout)
            self._arm(self._connect_by)

    def _unready(self) -> str:
        if self._state is LinkState.CONNECTING or self._authentication is None:
            return f"no connection within {self._try_timeout:g} s"
        return self._authentication.overdue(self._try_timeout)

    def _new_table(self) -> InFlight:
        return InFlight(limit=self._max_in_flight, last_id=self._last_message_id)

    def _arm(self, time: float) -> None:
        self.alarm = min(self.alarm, time)

    def _stuck_at(self) -> float:
        if self._state is not LinkState.UP:
            return NEVER
        oldest = self._in_flight.oldest()
        if oldest is None:
            return NEVER
        since = (
            self._in_flight.unanswered_since() if oldest.settled else self._in_flight.quiet_since()
        )
        return NEVER if since is None else since + self._try_timeout

    def _advance(self, now: float) -> None:
        if self._state is LinkState.UP:
            self._dispatch(now)
        elif self._state is LinkState.DOWN and self._waiting:
            if now < self._retry_at:
                self._arm(self._retry_at)
                return
            self._state = LinkState.CONNECTING
            self._connect_by = now + self._try_timeout
            self._arm(self._connect_by)
            self.effects.append(Connect())

    def _dispatch(self, now: float) -> None:
        frames: list[bytes] = []
        while self._waiting and self._in_flight.has_room:
            call = self._waiting.popleft()
            if not call.settled and self._permitted(call, now):
                message_id = self._in_flight.add(call, now)
                frames.append(with_message_id(call.frame, message_id))
        if frames:
            self.effects.append(Send(b"".join(frames)))
            self._arm(self._stuck_at())
        if self._in_flight.is_exhausted and not self._in_flight:
            self.effects.append(Drop("every message id was used"))
            self._forget_connection()
            self._advance(now)

    def _permitted(self, call: ClientCall, now: float) -> bool:
        """Return whether `call` may be sent now; hold, ask or refuse otherwise."""
        verdict = self._extensions.judge(call)
        if verdict is Verdict.ASK:
            self._waiting.appendleft(make_question(now))
        elif verdict is Verdict.REFUSE:
            self._settle(call, unsupported(self._peer, call))
        return verdict is Verdict.SEND

    def _answered(self, call: ClientCall, answer: Message) -> str | None:
        """Settle `call` with the answer; return the fault of the answer, if any."""
        self._backoff.reset()
        fault = fault_of(call.kind, answer)
        if fault is None and call.kind == MessageType.GET_PULSE and call.path == RESERVED_PATH:
            fault = self._read_description(call, answer)
        if fault is not None:
            self._backoff.record()
            self._settle(call, WrongAnswerError(f"{self._peer} broke the protocol: {fault}"))
        elif answer.type == MessageType.NOT_AUTHORIZED:
            self._settle(call, self._refusal(call))
        else:
            self._settle(call, answer)
        return fault

    def _read_description(self, call: ClientCall, answer: Message) -> str | None:
        """Read the server's extensions; return the fault of the answer, if any."""
        if answer.type == MessageType.NOT_AUTHORIZED:
            if call not in self._open:
                self._extensions.take_refusal()
                for held in self._extensions.release():
                    self._settle(held, self._refusal(held))
            return None
        try:
            self._extensions.take_answer(answer)
        except RemoteProtocolError as error:
            return f"what the server tells of itself is not readable: {error}"
        self._waiting.extendleft(reversed(self._extensions.release()))
        return None

    def _refusal(self, call: ClientCall) -> NotAuthorizedError:
        method = self._identity.method if self._identity else None
        is_question = call.kind == MessageType.GET_PULSE and call.path == RESERVED_PATH
        reads = False if is_question else self._extensions.may_read
        return refusal(self._peer, call.kind, call.path, method, reads=reads)

    def _forget_connection(self) -> None:
        self._state = LinkState.DOWN
        self._authentication = None
        self._connect_by = NEVER
        self._in_flight.drain()
        self._extensions = ServerExtensions()
