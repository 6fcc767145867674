"""One client's connection as the server sees it, without I/O: bytes in, bytes out.

The rules that hold here:

- Requests are answered in their order, each once.
- A bad frame ends the connection. The requests before it are answered first.
- Answers are made when they are asked for, a bounded number of bytes at a time: a client that
  sends requests and does not read answers makes the server hold the requests, which are small and
  bounded by what is read from its socket, and not the answers.

::

    on bytes from the client:  connection.receive(data)
    while the client can take more:  send connection.next_answers(); stop when there are none
    then, if connection.fault:  close
"""

import logging
from collections import deque
from contextlib import suppress
from typing import Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.answering import Answerer, RequestRefusedError
from stormkeeper.pacemaker.wire import DEFAULT_MAX_SIZE, FrameSplitter

_log = logging.getLogger(__name__)

#: Answers made at a time, in bytes; a single larger answer is made whole.
ANSWER_BYTES: Final = 262_144


class ServerConnection:
    """Turns a client's bytes into the bytes of the answers.

    Parameters
    ----------
    answerer
        Carries out the requests of all connections.
    peer
        The client's name in the log.
    max_size
        The largest payload that is accepted, in bytes.
    """

    __slots__ = ("_answerer", "_has_refused", "_payloads", "_splitter", "fault", "peer")

    def __init__(self, answerer: Answerer, peer: str, *, max_size: int = DEFAULT_MAX_SIZE) -> None:
        self.peer = peer
        #: Why the connection must be closed, once a bad frame's turn has come.
        self.fault: RemoteProtocolError | None = None
        self._answerer = answerer
        self._splitter = FrameSplitter(max_size)
        self._payloads: deque[bytes] = deque()
        self._has_refused = False

    @property
    def has_unanswered(self) -> bool:
        """Whether requests wait for `next_answers`."""
        return bool(self._payloads)

    def receive(self, data: bytes) -> None:
        """Take bytes that the client sent; after a bad frame they are ignored."""
        if self._splitter.fault is None and self.fault is None:
            # The splitter keeps the fault until the frames before it are answered.
            with suppress(RemoteProtocolError):
                self._payloads.extend(self._splitter.feed(data))

    def next_answers(self, max_bytes: int = ANSWER_BYTES) -> bytes:
        """Carry out requests until their answers have `max_bytes`, and return these.

        Returns
        -------
        bytes
            Whole frames; none if no request waits. If the next frame is a bad one, `fault` is set.
        """
        payloads = self._payloads
        answers: list[bytes] = []
        size = 0
        while payloads and size < max_bytes:
            try:
                answer = self._answerer.answer(payloads.popleft())
            except RequestRefusedError as refusal:
                answer = refusal.answer
                self._report(refusal)
            except RemoteProtocolError as fault:
                self.fault = fault
                payloads.clear()
                break
            size += len(answer)
            answers.append(answer)
        if not payloads and self.fault is None:
            self.fault = self._splitter.fault
        return answers[0] if len(answers) == 1 else b"".join(answers)

    def _report(self, refusal: RequestRefusedError) -> None:
        """Log the first refusal only: a client that repeats its request would fill the log."""
        if not self._has_refused:
            self._has_refused = True
            _log.warning("refused %s: %s (later refusals are not logged)", self.peer, refusal)
