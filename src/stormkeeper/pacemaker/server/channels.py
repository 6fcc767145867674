"""Channels: connections that move bytes between clients and sessions.

`asyncio_channels` runs on asyncio, `_compiled` on epoll. Both keep these rules, to the byte:

- Requests are answered in order, each once. A request may take several turns: the session returns
  None until the answer is complete.
- A bad frame ends the channel: earlier requests are answered, the socket is half-closed, and input
  is dropped for `LINGER` seconds. Closing at once would reset the connection and lose the answers.
- A client that does not read is not read from; at most `ANSWER_BYTES` and one answer wait.
- Unanswered requests and unread answers of all channels are bounded (`max_buffered`): beyond it, a
  channel that holds more than `READ_BYTES` ends at its next turn.
- A turn ends after `TURN_SECONDS` or `TURN_ROUNDS` times `ANSWER_BYTES` of answers.
- A request outside of `SHORT` (a list, a page, the deletion of a subtree) may be long. Long
  requests wait for all short requests, then share `TURN_SECONDS` in order of arrival, at least one
  per round: a pulse waits for one long answer, not for all.
- After a batch that left requests unanswered, the server yields the processor: clients on the same
  machine would otherwise wait for the kernel's time slice, 4 ms in many kernels.
- A channel whose client does not read, or that is open when the server stops, is reset; the kernel
  would otherwise hold megabytes of answers.
- An error of the server ends only the channel, with a traceback in the log.
"""

import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.client_session import ClientSession
from stormkeeper.pacemaker.wire.decoder import bad_length
from stormkeeper.pacemaker.wire.messages import AUTHENTICATING, VERBS, MessageType
from stormkeeper.thrift.framing import FrameQueue

_log = logging.getLogger(__name__)

READ_BYTES: Final = 262_144
#: Made before sending; a single answer may be larger.
ANSWER_BYTES: Final = 262_144
#: Rounds per turn, if the client reads.
TURN_ROUNDS: Final = 4
#: Checked after each request that Python answers.
TURN_SECONDS: Final = 0.00025
#: Seconds of turns before the event loop runs timers and accepts connections.
BATCH_SECONDS: Final = 0.02
#: First bytes of requests with little work, whatever is stored.
SHORT: Final = frozenset(
    b"\x08\x00\x01\x00\x00\x00" + bytes([kind])
    for kind in (*(kind for kind, verb in VERBS.items() if verb.is_short), *AUTHENTICATING)
)
SHORT_BYTES: Final = 7
#: Seconds to read answers after a bad frame; on epoll one more.
LINGER: Final = 1.0
#: Upper bounds, in seconds, of the latency's buckets; a last bucket has none.
LATENCY_BOUNDS: Final = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)

BY_CLIENT: Final = ""
PROTOCOL: Final = "protocol"
AUTHENTICATION: Final = "authentication"
FRAME_TIMEOUT: Final = "frame-timeout"
HANDSHAKE_TIMEOUT: Final = "handshake-timeout"
OUTPUT_TIMEOUT: Final = "output-timeout"
MEMORY: Final = "memory"
TLS: Final = "tls"
ERROR: Final = "error"
DRAIN: Final = "drain"

CLOSED_BY_CLIENT: Final = "closed by the client"
CLOSED_WITHIN_A_MESSAGE: Final = "closed by the client within a message"
RESET_BY_CLIENT: Final = "reset by the client"
AN_ERROR_OF_OURS: Final = "an error of this server"
STOPPING: Final = "this server stops"
#: At the end of a session: (session, cause, reason).
OnClosed = Callable[[Any, str, str], None]
OnFreed = Callable[[Any], None]

_SEND_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x04"
_GET_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x0a"
_WRITES: Final = tuple(
    b"\x08\x00\x01\x00\x00\x00" + bytes([kind])
    for kind in (MessageType.SEND_PULSE, MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID)
)


def prepare(connection: socket.socket) -> None:
    """Set socket options; close the socket and raise `OSError` on failure."""
    try:
        connection.setblocking(False)
        # Finds clients whose machine is gone.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise


def log_error_of_ours(session: ClientSession, error: BaseException | None = None) -> None:
    """Log an error, the current by default, that ended a channel."""
    _log.error("closing %s: %s", session.peer, AN_ERROR_OF_OURS, exc_info=error or True)


def too_much_held(size: int) -> str:
    """Return the reason for ending a channel beyond `max_buffered`."""
    return (
        f"it held {size} bytes of unanswered requests or unread answers, and all connections"
        " together hold as much as they may"
    )


def unfinished_frame(seconds: float) -> str:
    return (
        f"a message was not complete {seconds:.0f} s after it began (pacemaker.frame.timeout.secs)"
    )


def unread_answers(seconds: float) -> str:
    return f"nothing of its answers was read for {seconds:.0f} s (pacemaker.output.timeout.secs)"


class RequestStream(FrameQueue):
    """Turns received bytes into answers, without I/O."""

    __slots__ = (
        "_session",
        "ending",
        "gets",
        "has_long",
        "others",
        "sends",
    )

    def __init__(self, session: ClientSession, max_size: int) -> None:
        super().__init__(max_size, bad_length)
        #: (cause, reason) of the channel's end, after the requests before.
        self.ending: tuple[str, str] | None = None
        #: Whether the next request may be long, or needs another turn.
        self.has_long = False
        self.sends = self.gets = self.others = 0
        self._session = session

    def next_answers(
        self,
        max_bytes: int = ANSWER_BYTES,
        is_time_up: Callable[[], bool] = lambda: False,
        *,
        may_be_long: bool = True,
    ) -> bytes:
        """Carry out requests until the answers have `max_bytes` or the time is up.

        Sets `has_long` if the next request waits for a turn of its own, and `ending` if the channel
        must end.
        """
        payloads, session = self._waiting, self._session
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
            self._waiting_bytes -= len(payload)
            size += len(answer)
            answers.append(answer)
            if session.fault is not None:
                self._end(AUTHENTICATION, session.fault)
                break
            if is_time_up():
                break
        if not payloads and self.ending is None and self.fault is not None:
            self._end(PROTOCOL, str(self.fault))
        return answers[0] if len(answers) == 1 else b"".join(answers)

    def take_last_writes(self) -> bool:
        """Carry out a gone client's waiting writes; return False if some are left."""
        payloads, session = self._waiting, self._session
        while payloads:
            payload = payloads[0]
            if payload.startswith(_WRITES):
                try:
                    if session.answer(payload) is None:
                        return False
                except RemoteProtocolError as fault:
                    self.end(fault)
                    break
                self._count(payload)
            del payloads[0]
            self._waiting_bytes -= len(payload)
        return True

    def _count(self, payload: bytes) -> None:
        if payload.startswith(_SEND_PULSE):
            self.sends += 1
        elif payload.startswith(_GET_PULSE):
            self.gets += 1
        else:
            self.others += 1

    def _end(self, cause: str, reason: str) -> None:
        self.ending = cause, reason
        self.end(RemoteProtocolError(reason))
