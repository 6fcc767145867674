"""What moves bytes between clients and their sessions: the interface, and the rules it keeps.

There are two kinds of channels, on asyncio (`asyncio_channels`) and on an epoll of their own
(`_compiled`).
The rules that hold for both, to the byte:

- Requests are answered in their order, each once.
- A bad frame ends the channel: the requests before it are answered, the session is told, the
  socket is half-closed, and what the client still sends is read and dropped for `LINGER` seconds.
  Closing at once would reset the connection, and the system would drop the answers.
- A client that does not read is not read from: at most `ANSWER_BYTES` of answers, and one answer
  more, wait for it.
- Memory is taken for bytes that came, never for those that a length announces. What all channels
  together hold, of requests that are not answered, whole or not, and of answers that are not read,
  is bounded by `Channels.max_buffered`: beyond it, a channel that holds more than `READ_BYTES` of
  that ends at its next turn.
- A turn ends after `TURN_SECONDS` of work or `TURN_ROUNDS` times `ANSWER_BYTES` of answers, so that
  a client with much to ask costs the others little.
- A request that is not known to be short (`SHORT`) may be long: a list, a page, the deletion of a
  subtree. It waits until whatever else came with it has been served. Then the channels that wait
  so share `TURN_SECONDS`, in the order of their coming, and at least one of them has its turn:
  however many clients ask for much, a beat waits for one such answer and not for all.
- After each batch that left requests unanswered, the server gives up the processor to whoever waits
  for it. Otherwise it would keep clients on the same machine waiting until the system steps in:
  every 4 ms in many kernels.
- A request may take several turns: its session returns no answer until it is done.
- A channel whose client does not read, or that is open when the server ends, is reset. Otherwise
  the system would hold megabytes of its answers until they are read.
- An error of ours ends the channel in which it happened, with a traceback in the log.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from stormkeeper.pacemaker.server.client_session import ClientSession
from stormkeeper.pacemaker.wire import AUTHENTICATING, VERBS

_log = logging.getLogger(__name__)

#: struct linger: do not wait, and send a reset.
_AT_ONCE: Final = struct.pack("ii", 1, 0)

#: Bytes read from a client at a time.
READ_BYTES: Final = 262_144
#: Answers made before they are sent, in bytes; a single larger answer is made whole.
ANSWER_BYTES: Final = 262_144
#: How often a turn may make that many, if the client takes them at once.
TURN_ROUNDS: Final = 4
#: Seconds after which a turn ends, at the next request that Python code answered.
TURN_SECONDS: Final = 0.00025
#: Seconds of turns after which the event loop looks at its timers and at new connections, however
#: many channels have something to do: dear requests of many clients may take long.
BATCH_SECONDS: Final = 0.02
#: How the payloads of requests begin whose work is small whatever is stored.
SHORT: Final = frozenset(
    b"\x08\x00\x01\x00\x00\x00" + bytes([kind])
    for kind in (*(kind for kind, verb in VERBS.items() if verb.is_short), *AUTHENTICATING)
)
#: So many bytes of a payload tell.
SHORT_BYTES: Final = 7
#: Seconds that a client with a bad frame has to read the answers to its earlier ones. (Channels
#: that look at their clocks once a second may give it up to a second more.)
LINGER: Final = 1.0
#: Upper bounds (s) of the buckets of `Channels.latency`; one bucket more is above them all.
LATENCY_BOUNDS: Final = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)

# Why a channel was ended, for counters; "" where the client ended it.
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


#: Called once for every channel, when its session is over: (session, cause, reason).
OnClosed = Callable[[Any, str, str], None]
#: Called once for every channel, when its descriptor is closed: then, or some time later.
OnFreed = Callable[[Any], None]


class Channels(Protocol):
    """The open connections of a server, and how bytes come and go over them.

    Parameters of every kind's constructor: ``(index, *, max_size, clock, frame_timeout,
    output_timeout, on_closed, on_freed)``: the `PulseIndex` that the sessions' answers come from;
    the largest payload of a request, in bytes; a clock (s) whose readings the other methods are
    given as ``now``; seconds to complete a frame, and for a client to read something; an `OnClosed`
    and an `OnFreed`.
    """

    # Limits, which may be set at any time.
    max_size: int
    frame_timeout: float
    output_timeout: float
    #: Bytes of unanswered requests and unread answers; 0 for no limit.
    max_buffered: int

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move bytes from now on, in this loop."""

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move none from now on."""

    def adopt(self, connection: socket.socket, session: ClientSession, now: float) -> None:
        """Serve a connection from now on; its socket is no longer the caller's.

        Raises
        ------
        OSError
            If the system does not take it; it is closed, and its session ends untold.
        """

    def __len__(self) -> int:
        """Count the open descriptors, those included whose session is over."""

    def sweep(self, now: float) -> None:
        """End the channels that exceed a time limit; to be called about once a second."""

    def drain(self) -> None:
        """Answer what has come, read no more, and half-close every channel when that is sent."""

    def abort(self) -> None:
        """End all channels at once."""

    def counters(self) -> dict[str, int]:
        """Return the requests by verb (sends, gets, others), bytes_in and bytes_out."""

    def latency(self) -> tuple[tuple[float, ...], list[int], float]:
        """Return `LATENCY_BOUNDS`, the requests in each bucket, and the sum of their times (s).

        A request's time is that from when its batch was found readable until all answers of the
        batch were given to the system or laid by for a client that does not read; that of a request
        which waited for another turn, from when its connection's first turn began.
        """


def prepare(connection: socket.socket) -> None:
    """Set the options of a client's socket; close it if that cannot be done.

    Raises
    ------
    OSError
        If it is no longer connected.
    """
    try:
        connection.setblocking(False)
        # So that a client whose machine is gone does not stay for ever.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise


def reset_on_close(connection: socket.socket) -> None:
    """Have the system drop what it holds of a client's answers when its socket is closed."""
    with contextlib.suppress(OSError):  # reset by the client meanwhile
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def let_others_run() -> None:
    """Give up the processor, if anybody waits for it."""
    os.sched_yield()


def log_error_of_ours(session: ClientSession, error: BaseException | None = None) -> None:
    """Log an exception, or the one at hand, as what ended a channel."""
    _log.error("closing %s: %s", session.peer, AN_ERROR_OF_OURS, exc_info=error or True)


def too_much_held(size: int) -> str:
    """Say why a channel ends that holds much while all hold too much."""
    return (
        f"it held {size} bytes of unanswered requests or unread answers, and all connections"
        " together hold as much as they may"
    )


def unfinished_frame(seconds: float) -> str:
    """Say why a channel ends whose frame does not become whole."""
    return (
        f"a message was not complete {seconds:.0f} s after it began (pacemaker.frame.timeout.secs)"
    )


def unread_answers(seconds: float) -> str:
    """Say why a channel ends whose client does not read."""
    return f"nothing of its answers was read for {seconds:.0f} s (pacemaker.output.timeout.secs)"
