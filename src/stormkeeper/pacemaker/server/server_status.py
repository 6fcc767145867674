"""What can be seen of a Pacemaker: the events that it counts, and everything at one moment.

Events are what happened to connections and requests since the start; they are counted where they
happen. Only what is rare is among them: requests that succeed are counted by whoever moves their
bytes. A cause is one of a few fixed words in lower case, joined by dashes. It never has anything in
it that a client sent: every word becomes a label of a metric, and these must stay few.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.wire import VERBS, MessageType

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
#: Requests that the channels count themselves.
_COUNTED_BY_CHANNELS: Final = (MessageType.SEND_PULSE, MessageType.GET_PULSE)
#: Entries of the index that one snapshot looks at: a tenth of a millisecond.
_LOOKED_AT: Final = 1_000


class EventCounts:
    """Counts since the start of one Pacemaker; add to them directly.

    Examples
    --------
    >>> events = EventCounts()
    >>> events.refusals["store-full", WRITE] += 1
    >>> events.authentications["DIGEST", "ok"] += 1
    """

    __slots__ = (
        "accepted",
        "authentications",
        "closed",
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

    def lost_pulses(self) -> int:
        """Return how often a pulse may have been lost for want of room, or by an error of ours."""
        return (
            sum(self.turned_away.values())
            + self.closed["memory"]
            + self.closed["error"]
            + self.refusals["store-full", WRITE]
        )


@dataclass(frozen=True, kw_only=True)
class ServerSnapshot:
    """What a Pacemaker is and holds at one moment.

    Times are in seconds, sizes in bytes; counts begin with its start.

    Parameters
    ----------
    instance, version, engine, auth_method
        Who it is and what it runs.
    is_serving
        Whether it takes new clients: false while it drains.
    swept_ago
        Time since the event loop last came to its regular work.
    uptime, horizon
        As in ``ServerInfo``: since its start, and for how long a path without a pulse has been
        silent at least.
    heartbeat_period
        ``task.heartbeat.frequency.secs``: how often a worker beats.
    pulse_ttl
        Age at which a pulse is dropped; 0: never.
    revision, keys, tombstones, pulses_received, bytes_held, max_bytes
        Of the pulse index; `max_bytes` 0 means no limit.
    pulses_expired
        Pulses dropped because of their age.
    oldest_pulse
        Age of the pulse that was received longest ago; None where there is none.
    recent_sizes
        Sizes of the pulses that were received last.
    requests
        By verb.
    bytes_in, bytes_out
        Of the protocol, frames' lengths included.
    latency_bounds, latency_counts, latency_sum
        Requests by the time that their answers took: upper bounds of the buckets, the requests in
        each (one more than bounds: those above them all), and the sum of the times.
    connections, max_connections
        Open, and allowed (0: no limit).
    certificate_ends
        When the certificate that clients are shown ends, in seconds since 1970; None without TLS.
    events
        What is counted by cause.
    """

    instance: str
    version: str
    engine: str
    auth_method: str
    is_serving: bool
    swept_ago: float
    uptime: float
    horizon: float
    heartbeat_period: float
    pulse_ttl: float
    revision: int
    keys: int
    tombstones: int
    pulses_received: int
    pulses_expired: int
    bytes_held: int
    max_bytes: int
    oldest_pulse: float | None
    recent_sizes: Sequence[int]
    requests: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    latency_bounds: Sequence[float]
    latency_counts: Sequence[int]
    latency_sum: float
    connections: int
    max_connections: int
    certificate_ends: float | None = None
    events: EventCounts = field(default_factory=EventCounts)

    @property
    def has_seen_a_period(self) -> bool:
        """Whether every worker that is alive has had the time to beat here.

        Until then an absent pulse says nothing: it is not yet reported. Afterwards a worker that
        has none beats elsewhere, or not at all.
        """
        return self.horizon >= self.heartbeat_period


def requests_by_verb(counts: Mapping[str, int], asked: Mapping[MessageType, int]) -> dict[str, int]:
    """Return the requests by type: those that channels count, and those that come to be looked at.

    The others are refused before, or belong to an authentication.
    """
    others = [verb for verb in map(MessageType, VERBS) if verb not in _COUNTED_BY_CHANNELS]
    by_verb = {verb.name.lower(): asked.get(verb, 0) for verb in others}
    other = max(0, counts["others"] - sum(by_verb.values()))
    return {"send_pulse": counts["sends"], "get_pulse": counts["gets"], **by_verb, "other": other}


def oldest_pulse(index: PulseIndex, now: float) -> float | None:
    """Return the age of the pulse that was stored longest ago; None where that is not to be seen.

    Tombstones may stand before it; some are passed over, but not all that there can be.
    """
    entry = index.oldest()
    for _ in range(_LOOKED_AT):
        if entry is None or entry.details is not None:
            break
        entry = index.after(entry)
    return None if entry is None or entry.details is None else max(0.0, now - entry.changed)


def recent_sizes(index: PulseIndex) -> list[int]:
    """Return the sizes of the pulses that were received last, some hundreds of them."""
    newest = index.since(max(0, index.revision - _LOOKED_AT), _LOOKED_AT)
    return [len(entry.details) for entry in newest if entry.details is not None]


#: Monotonic seconds, which go on while the machine sleeps where the system can tell (Linux): by
#: them pulses have their ages.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)

#: A server that has not looked at the clock for this long (s) was stopped or suspended: it looks
#: every second, and what is sent meanwhile waits in the sockets only for so long.
MAX_SILENCE: Final = 3.0


class Horizon:
    """Measures an unbroken stretch of service on a monotonic clock.

    `observe` must be called about every second; whenever `MAX_SILENCE` passes without a call, the
    process did not run, pulses may have been lost, and the stretch begins anew.

    Parameters
    ----------
    clock
        Returns seconds; monotonic, and best one that goes on while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._observed = self._took_all = clock()

    def observe(self) -> float | None:
        """Note that the process runs; return the seconds for which it did not, if it did not."""
        now = self._clock()
        silence = now - self._observed
        self._observed = now
        if silence <= MAX_SILENCE:
            return None
        self._began = now
        return silence

    def restart(self) -> None:
        """Begin anew, because pulses could not be received until now."""
        self._began = self._observed = self._clock()

    def lost(self) -> None:
        """Note that a pulse may have been lost: what is missing now may have been that one."""
        self._took_all = self._clock()

    def dropped(self, kept: float) -> None:
        """Note that until now pulses older than `kept` seconds were dropped, and no longer are."""
        self._took_all = max(self._took_all, self._clock() - kept)

    def seconds(self) -> float:
        """Return the length of the stretch until now; the caller observes first."""
        return self._clock() - self._began

    def vouched(self, kept: float) -> float:
        """Return for how long a path without a pulse has been silent at least.

        Parameters
        ----------
        kept
            Seconds after which pulses are dropped; 0: never.
        """
        span = self._clock() - max(self._began, self._took_all)
        return min(span, kept) if kept else span
