"""One client's requests and their answers, without I/O: bytes in, bytes out.

::

    on bytes from the client:  requests.receive(data)
    while the client can take more:  send requests.next_answers(); stop when there are none
    then, if requests.ending:  close

Answers are made when they are asked for, a bounded number of bytes at a time: a client that sends
requests and does not read answers makes the server hold the requests, which are small and bounded
by what is read from its socket, and not the answers.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.connections.channels import (
    ANSWER_BYTES,
    AUTHENTICATION,
    PROTOCOL,
    SHORT,
    SHORT_BYTES,
    Session,
)
from stormkeeper.pacemaker.wire import FrameSplitter, MessageType

_SEND_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x04"
_GET_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x0a"
_WRITES: Final = tuple(
    b"\x08\x00\x01\x00\x00\x00" + bytes([kind])
    for kind in (MessageType.SEND_PULSE, MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID)
)


class RequestStream:
    """Turns a client's bytes into the bytes of the answers.

    Parameters
    ----------
    session
        Answers the requests.
    max_size
        The largest payload that is accepted, in bytes.
    """

    __slots__ = (
        "_payloads",
        "_session",
        "_splitter",
        "_whole_bytes",
        "ending",
        "gets",
        "has_long",
        "others",
        "sends",
    )

    def __init__(self, session: Session, max_size: int) -> None:
        #: Why the channel must end, as (cause, reason), once the turn of what is bad has come.
        self.ending: tuple[str, str] | None = None
        #: Whether the request that is next may be long, or has begun and needs another turn.
        self.has_long = False
        # Requests answered.
        self.sends = self.gets = self.others = 0
        self._session = session
        self._splitter = FrameSplitter(max_size)
        self._payloads: deque[bytes] = deque()
        #: The sum of their sizes.
        self._whole_bytes = 0

    @property
    def has_unanswered(self) -> bool:
        """Whether whole requests wait for `next_answers`."""
        return bool(self._payloads)

    @property
    def has_partial(self) -> bool:
        """Whether a request has begun and is not whole."""
        return self._splitter.has_partial

    @property
    def held_bytes(self) -> int:
        """How much is held of requests that are not answered, whole or not."""
        return self._whole_bytes + self._splitter.partial_bytes

    def receive(self, data: bytes) -> bool:
        """Take bytes that the client sent; after a bad frame they are ignored.

        Returns
        -------
        bool
            Whether they completed a request, so that a partial one is new.
        """
        whole: list[bytes] = []
        if self._splitter.fault is None and self.ending is None:
            # The splitter keeps the fault until the frames before it are answered.
            with suppress(RemoteProtocolError):
                whole = self._splitter.feed(data)
        self._payloads.extend(whole)
        self._whole_bytes += sum(map(len, whole))
        return bool(whole)

    def next_answers(
        self,
        max_bytes: int = ANSWER_BYTES,
        is_time_up: Callable[[], bool] = lambda: False,
        *,
        may_be_long: bool = True,
    ) -> bytes:
        """Carry out requests until their answers have `max_bytes` or the time is up.

        Parameters
        ----------
        max_bytes
            What the answers may have; one larger answer is made whole.
        is_time_up
            Asked after every request.
        may_be_long
            Whether to go on when a request comes that is not among `SHORT`. If not, or if a
            request needs another turn, `has_long` is set.

        Returns
        -------
        bytes
            Whole frames; none if no request waits, or none of those that did has an answer. If
            what comes next ends the channel, `ending` is set.
        """
        payloads, session = self._payloads, self._session
        answers: list[bytes] = []
        size = 0
        self.has_long = False
        while payloads and size < max_bytes:
            payload = payloads[0]
            if not may_be_long and payload[:SHORT_BYTES] not in SHORT:
                self.has_long = True
                break
            try:
                answer = session.answer(payload)
            except RemoteProtocolError as fault:
                self._count(payload)
                self._end(PROTOCOL, str(fault))
                break
            if answer is None:
                self.has_long = True
                break
            self._count(payload)
            del payloads[0]
            self._whole_bytes -= len(payload)
            size += len(answer)
            answers.append(answer)
            if session.fault is not None:
                self._end(AUTHENTICATION, session.fault)
                break
            if is_time_up():
                break
        if not payloads and self.ending is None and self._splitter.fault is not None:
            self._end(PROTOCOL, str(self._splitter.fault))
        return answers[0] if len(answers) == 1 else b"".join(answers)

    def take_last_writes(self) -> bool:
        """Carry out what waits and writes or deletes, as nobody is there to read answers.

        Returns
        -------
        bool
            Whether that is done; if not, this is to be called again.
        """
        payloads, session = self._payloads, self._session
        while payloads:
            payload = payloads[0]
            if payload.startswith(_WRITES):
                try:
                    if session.answer(payload) is None:
                        return False
                except RemoteProtocolError:
                    self._drop_all()
                    break
                self._count(payload)
            del payloads[0]
            self._whole_bytes -= len(payload)
        return True

    def _drop_all(self) -> None:
        self._payloads.clear()
        self._whole_bytes = 0

    def _count(self, payload: bytes) -> None:
        if payload.startswith(_SEND_PULSE):
            self.sends += 1
        elif payload.startswith(_GET_PULSE):
            self.gets += 1
        else:
            self.others += 1

    def _end(self, cause: str, reason: str) -> None:
        self.ending = cause, reason
        self._drop_all()
