"""A request that somebody waits for, and what the state machine of a client says to do.

`Call` is what goes into an `Exchange`; the effects are what comes out, to be carried out in order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stormkeeper.errors import StormkeeperError
from stormkeeper.pacemaker.wire import Message

#: Bytes at the end of a request's frame: the i32 message id and the stop of the struct.
_ID_AND_STOP: Final = 5


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was done for a question before the call that asks it once more.

    Parameters
    ----------
    tries
        Tries that failed.
    started
        The time at which the first was made.
    """

    tries: int
    started: float


@dataclass(eq=False, slots=True)
class Call:
    """A request that somebody waits for.

    Parameters
    ----------
    kind
        Its message type.
    path
        What it is about; names it in messages and decides what supersedes it.
    frame
        The whole frame, with any message id: each try puts in its own.
    deadline
        The time by which it is settled at the latest.
    retries
        Tries after the first.
    started
        The time at which it was made, or the first that asked the same.
    earlier_tries
        Tries of those that asked the same before it, for messages.
    """

    kind: int
    path: str
    frame: bytes
    deadline: float
    retries: int
    started: float
    earlier_tries: int = 0
    #: Place in the order in which calls were made, from 1; 0 for the exchange's own question.
    sequence: int = 0
    #: Times that it was sent, or would have been had there been a connection.
    tries: int = 0
    #: Whether a connection may have carried it to the peer, with an unknown outcome.
    was_sent: bool = False
    settled: bool = False
    #: Why its last try failed.
    reason: str = ""
    #: Whether that was because the peer broke the protocol.
    peer_at_fault: bool = False
    #: Older writes that this one undoes and that end as it ends.
    followers: list["Call"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Connect:
    """Make a connection, then tell `Exchange.connected` or `Exchange.failed`."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the connection and make another to the same address; otherwise as `Connect`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send `data` on the connection, after whatever is not sent yet."""

    data: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """Do `work`, where it may block, then tell `Exchange.computed` what it returned or raised."""

    work: Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection, or give up making it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell whoever made `call` how it ended."""

    call: Call
    outcome: Message | StormkeeperError


Effect = Connect | Reconnect | Send | Compute | Drop | Settle


def with_message_id(frame: bytes, message_id: int) -> bytes:
    """Put another message id into a request's frame, which ends with it and a stop byte."""
    return b"".join((frame[:-_ID_AND_STOP], message_id.to_bytes(4, "big"), b"\x00"))
