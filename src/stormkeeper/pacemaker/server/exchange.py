"""One client's requests and their answers, without I/O: bytes in, bytes out.

::

    on bytes from the client:  exchange.receive(data)
    while the client can take more:  send exchange.next_answers(); stop when there are none
    then, if exchange.ending:  close

Answers are made when they are asked for, a bounded number of bytes at a time: a client that sends
requests and does not read answers makes the server hold the requests, which are small and bounded
by what is read from its socket, and not the answers.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.channels import (
    ANSWER_BYTES,
    AUTHENTICATION,
    PROTOCOL,
    Session,
)
from stormkeeper.pacemaker.wire import FrameSplitter

_SEND_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x04"
_GET_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x0a"


class Exchange:
    """Turns a client's bytes into the bytes of the answers.

    Parameters
    ----------
    session
        Answers the requests.
    max_size
        The largest payload that is accepted, in bytes.
    """

    __slots__ = ("_payloads", "_session", "_splitter", "ending", "gets", "others", "sends")

    def __init__(self, session: Session, max_size: int) -> None:
        #: Why the channel must end, as (cause, reason), once the turn of what is bad has come.
        self.ending: tuple[str, str] | None = None
        # Requests answered.
        self.sends = self.gets = self.others = 0
        self._session = session
        self._splitter = FrameSplitter(max_size)
        self._payloads: deque[bytes] = deque()

    @property
    def has_unanswered(self) -> bool:
        """Whether whole requests wait for `next_answers`."""
        return bool(self._payloads)

    @property
    def has_partial(self) -> bool:
        """Whether a request has begun and is not whole."""
        return self._splitter.has_partial

    @property
    def partial_bytes(self) -> int:
        """How much has come of a request that is not whole."""
        return self._splitter.partial_bytes

    def receive(self, data: bytes) -> bool:
        """Take bytes that the client sent; after a bad frame they are ignored.

        Returns
        -------
        bool
            Whether they completed a request, so that a partial one is new.
        """
        before = len(self._payloads)
        if self._splitter.fault is None and self.ending is None:
            # The splitter keeps the fault until the frames before it are answered.
            with suppress(RemoteProtocolError):
                self._payloads.extend(self._splitter.feed(data))
        return len(self._payloads) > before

    def next_answers(
        self, max_bytes: int = ANSWER_BYTES, is_time_up: Callable[[], bool] = lambda: False
    ) -> bytes:
        """Carry out requests until their answers have `max_bytes` or the time is up.

        Returns
        -------
        bytes
            Whole frames; none if no request waits, or none of those that did has an answer. If
            what comes next ends the channel, `ending` is set.
        """
        payloads, session = self._payloads, self._session
        answers: list[bytes] = []
        size = 0
        while payloads and size < max_bytes:
            payload = payloads.popleft()
            if payload.startswith(_SEND_PULSE):
                self.sends += 1
            elif payload.startswith(_GET_PULSE):
                self.gets += 1
            else:
                self.others += 1
            try:
                answer = session.answer(payload)
            except RemoteProtocolError as fault:
                self._end(PROTOCOL, str(fault))
                break
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

    def _end(self, cause: str, reason: str) -> None:
        self.ending = cause, reason
        self._payloads.clear()
