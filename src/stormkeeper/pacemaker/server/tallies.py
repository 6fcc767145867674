"""What happened to connections and requests since a Pacemaker started, counted where it happens.

Only what is rare is counted here; requests that succeed are counted by whoever moves their bytes.
A cause is one of a few fixed words in lower case, joined by dashes. It never has anything in it
that a client sent: every word becomes a label of a metric, and these must stay few.
"""

from collections import Counter
from typing import Final

#: Why a connection is closed before it is served.
TURNED_AWAY: Final = ("address", "connections")
#: Why one that was served is ended by this server.
CLOSED: Final = (
    *("authentication", "drain", "error", "frame-timeout", "handshake-timeout"),
    *("memory", "output-timeout", "protocol", "revoked", "tls"),
)
#: Why a request is answered with NOT_AUTHORIZED.
REFUSALS: Final = ("path", "reserved", "store-full", "too-large", "unauthenticated")
#: How an attempt to authenticate ends.
OUTCOMES: Final = ("failed", "ok", "timeout")


class Tallies:
    """Counts since the start of one Pacemaker; add to them directly.

    Examples
    --------
    >>> tallies = Tallies()
    >>> tallies.refusals["store-full"] += 1
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
        #: Connections that were closed before they were served, by cause.
        self.turned_away: Counter[str] = Counter()
        #: Connections that were served and then ended by this server, by cause.
        self.closed: Counter[str] = Counter()
        #: Requests that were answered with NOT_AUTHORIZED, by cause.
        self.refusals: Counter[str] = Counter()
        #: Attempts to authenticate, by method and outcome: ``ok``, or the cause of the failure.
        self.authentications: Counter[tuple[str, str]] = Counter()
        #: Pulses dropped because of their age.
        self.expired = 0
