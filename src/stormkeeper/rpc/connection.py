"""One client's connection: bytes in, calls out, one at a time and in their order; without I/O.

The rules that hold here:

- A client authenticates before its first call, where it must. What it sends is not looked at as a
  call before that.
- There is at most one call under way. The next one is given when `answered` was called.
- A frame too long and a message that cannot be read end the connection, when the calls before it
  are answered: nobody can say where the next one begins, or what it would answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, Protocol

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.rpc.messages import (
    SASL,
    Kind,
    Message,
    bad_length,
    read_message,
    sasl_refusal,
)
from stormkeeper.thrift.framing import FrameSplitter
from stormkeeper.thrift.idl import Method


class State(Enum):
    """Where a connection is."""

    AUTHENTICATING = "authenticating"
    #: The next call may come.
    READY = "ready"
    #: A call is being answered.
    CALLED = "called"
    #: Nothing comes any more.
    OVER = "over"


class Step(NamedTuple):
    """What an authentication makes of the bytes that came."""

    #: To be sent.
    send: bytes = b""
    #: What came behind its end; None while it goes on.
    rest: bytes | None = None
    #: Who the client is, at its end.
    user: str | None = None
    #: Why it failed, if it did; safe to log.
    fault: str | None = None


class Authentication(Protocol):
    """A conversation by which a client says who it is; without I/O."""

    def receive(self, data: bytes) -> Step:
        """Take the next bytes of the client's."""


class Connection:
    """The server's half of a connection.

    Parameters
    ----------
    methods
        Those of the service, by name.
    max_frame
        The longest message that is taken, in bytes.
    authentication
        What comes before the first call; None: nothing.
    """

    __slots__ = (
        "_authentication",
        "_methods",
        "_splitter",
        "_waiting",
        "_whole",
        "fault",
        "frames",
        "state",
    )

    def __init__(
        self,
        methods: Mapping[str, Method],
        max_frame: int,
        authentication: Authentication | None = None,
    ) -> None:
        self._methods = methods
        self._authentication = authentication
        self._splitter = FrameSplitter(max_frame, bad_length)
        #: Whole frames that wait for `next_call`.
        self._waiting: deque[bytes] = deque()
        #: Their bytes.
        self._whole = 0
        #: Whole frames that came so far.
        self.frames = 0
        self.state = State.READY if authentication is None else State.AUTHENTICATING
        #: Why no call comes any more, once none does.
        self.fault: str | None = None

    @property
    def has_partial(self) -> bool:
        """Whether a message has begun and is not whole."""
        return self._splitter.has_partial

    @property
    def has_whole(self) -> bool:
        """Whether messages wait for `next_call`."""
        return bool(self._waiting)

    @property
    def held_bytes(self) -> int:
        """How much is held of what came and was not given yet."""
        return self._whole + self._splitter.partial_bytes

    def receive(self, data: bytes) -> tuple[bytes, str | None]:
        """Take bytes that the client sent.

        Returns
        -------
        tuple of (bytes, str or None)
            What is to be sent at once; and who the client is, if that became known.
        """
        send, user = b"", None
        if self.state is State.AUTHENTICATING:
            assert self._authentication is not None
            send, rest, user, fault = self._authentication.receive(data)
            if fault is not None:
                self._end(fault)
                return send, None
            if rest is None:
                return send, None
            self.state, self._authentication, data = State.READY, None, rest
        if self.state is not State.OVER and self._splitter.fault is None:
            is_sasl = self.frames == 0 and not self.has_partial and data.startswith(SASL)
            send = sasl_refusal() if is_sasl else send
            # The fault is kept until the frames before it are answered.
            with suppress(RemoteProtocolError):
                frames = self._splitter.feed(data)
                self._waiting.extend(frames)
                self._whole += sum(map(len, frames))
                self.frames += len(frames)
        return send, user

    def next_call(self) -> Message | None:
        """Give the next call, if one is whole and none is under way.

        None, too, when no call comes any more: `fault` says why.
        """
        if self.state is not State.READY:
            return None
        if not self._waiting:
            if self._splitter.fault is not None:
                self._end(str(self._splitter.fault))
            return None
        payload = self._waiting.popleft()
        self._whole -= len(payload)
        try:
            message = read_message(payload)
            self._check(message)
        except RemoteProtocolError as error:
            self._end(str(error))
            return None
        self.state = State.CALLED
        return message

    def answered(self) -> None:
        """Take note that the call under way has its answer, or needs none."""
        if self.state is State.CALLED:
            self.state = State.READY

    def _check(self, message: Message) -> None:
        if message.kind not in (Kind.CALL, Kind.ONEWAY):
            raise RemoteProtocolError(f"a message of type {message.kind.name} from a client")
        method = self._methods.get(message.name)
        if message.kind is Kind.ONEWAY and method is not None and method.answer is not None:
            # Its answer would be taken for that of the next call.
            raise RemoteProtocolError(f"{message.name} called as if nobody would answer it")

    def _end(self, fault: str) -> None:
        self.state, self.fault = State.OVER, fault
        self._waiting.clear()
        self._whole = 0
