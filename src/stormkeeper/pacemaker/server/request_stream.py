"""Requests and answers of a client, without I/O: bytes in, bytes out.

Answers are made on demand and in bounded portions. If a client does not read, the server
holds the requests of the client, and makes no more answers.
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
    SHORT,
    SHORT_BYTES,
)
from stormkeeper.pacemaker.server.client_session import ClientSession
from stormkeeper.pacemaker.wire import MessageType, PacemakerFrameSplitter

_SEND_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x04"
_GET_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x0a"
_WRITES: Final = tuple(
    b"\x08\x00\x01\x00\x00\x00" + bytes([kind])
    for kind in (MessageType.SEND_PULSE, MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID)
)


class RequestStream:
    """Turns received bytes into the bytes of answers; payloads have at most `max_size` bytes."""

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

    def __init__(self, session: ClientSession, max_size: int) -> None:
        #: (cause, reason) of the channel's end, set when the requests before it are answered.
        self.ending: tuple[str, str] | None = None
        #: Whether the next request may be long, or needs another turn.
        self.has_long = False
        self.sends = self.gets = self.others = 0
        self._session = session
        self._splitter = PacemakerFrameSplitter(max_size)
        self._payloads: deque[bytes] = deque()
        self._whole_bytes = 0

    @property
    def has_unanswered(self) -> bool:
        """Whether whole requests wait for `next_answers`."""
        return bool(self._payloads)

    @property
    def has_partial(self) -> bool:
        """Whether a request is incomplete."""
        return self._splitter.has_partial

    @property
    def held_bytes(self) -> int:
        """Bytes of unanswered requests."""
        return self._whole_bytes + self._splitter.partial_bytes

    def receive(self, data: bytes) -> bool:
        """Take received bytes; return whether a request is complete.

        Bytes after a bad frame are ignored.
        """
        whole: list[bytes] = []
        if self._splitter.fault is None and self.ending is None:
            # The splitter keeps the fault until the earlier frames are answered.
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
        """Carry out requests until the answers have `max_bytes` or the time is up.

        Without `may_be_long`, requests outside of `SHORT` wait. Sets `has_long` if the next request
        waits or needs another turn, and `ending` if the channel must end.
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
        """Carry out the waiting writes and deletions of a client that is gone.

        Returns False if the caller must call again.
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
