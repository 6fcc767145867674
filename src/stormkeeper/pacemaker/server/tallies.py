"""What happened to connections and requests since a Pacemaker started, counted where it happens.

Only what is rare is counted here; requests that succeed are counted by whoever moves their bytes.
A cause is one of a few fixed words in lower case, joined by dashes. It never has anything in it
that a client sent: every word becomes a label of a metric, and these must stay few.
"""

from collections import Counter
from typing import Final

#: Why a connection is closed before it is served; "descriptors": why none is accepted for a moment.
TURNED_AWAY: Final = ("address", "connections", "descriptors")
#: Why one that was served is ended by this server.
CLOSED: Final = (
    *("authentication", "drain", "error", "frame-timeout", "handshake-timeout"),
    *("memory", "output-timeout", "protocol", "revoked", "tls"),
)
#: What a refused request asked for: to write or delete, or only to read.
READ: Final = "read"
WRITE: Final = "write"
#: Why a request is answered with NOT_AUTHORIZED, and what can be refused for that.
REFUSED: Final = (
    *(("path", READ), ("path", WRITE), ("reserved", WRITE), ("store-full", WRITE)),
    *(("too-large", READ), ("unauthenticated", READ), ("unauthenticated", WRITE)),
)
#: How an attempt to authenticate ends.
OUTCOMES: Final = ("failed", "ok", "timeout")


class Tallies:
    """Counts since the start of one Pacemaker; add to them directly.

    Examples
    --------
    >>> tallies = Tallies()
    >>> tallies.refusals["store-full", WRITE] += 1
    >>> tallies.authentications["DIGEST", "ok"] += 1
    """

    __slots__ = (
        "accepted",
        "authentications",
        "closed",
        "expired",
        "refusals",
        "turned_away",
    )

    def __init__(self) -> None:
        #: Connections that were served.
        self.accepted = 0
        #: Connections that were closed before they were served, by cause; of "descriptors" the
        #: times that accepting rested, as nobody counts who waits then.
        self.turned_away: Counter[str] = Counter()
        #: Connections that were served and then ended by this server, by cause.
        self.closed: Counter[str] = Counter()
        #: Requests that were answered with NOT_AUTHORIZED, by cause and by `READ` or `WRITE`.
        self.refusals: Counter[tuple[str, str]] = Counter()
        #: Attempts to authenticate, by method and outcome.
        self.authentications: Counter[tuple[str, str]] = Counter()
        #: Pulses dropped because of their age.
        self.expired = 0

    def no_room(self) -> int:
        """Return how often a client that may beat was refused, or ended, for want of room."""
        return (
            sum(self.turned_away.values())
            + self.closed["memory"]
            + self.refusals["store-full", WRITE]
        )
