"""The state of a Pacemaker for metrics and clients: event counts, horizon, and a snapshot of all.

Rare events are counted where they happen; the channels count the requests that were answered, also
with a refusal. Causes are a few fixed words, never text of a client, as each becomes a label of a
metric.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.wire import VERBS, MessageType

#: Causes of connections closed before service; with "descriptors", accepting paused for a moment.
TURNED_AWAY: Final = ("address", "connections", "descriptors")
#: Causes of connections that the server ended.
CLOSED: Final = (
    *("authentication", "drain", "error", "frame-timeout", "handshake-timeout"),
    *("memory", "output-timeout", "protocol", "revoked", "tls"),
)
# The permission that a refused request needed.
READ: Final = "read"
WRITE: Final = "write"
#: Causes of NOT_AUTHORIZED, with the permission.
REFUSED: Final = (
    *(("path", READ), ("path", WRITE), ("reserved", WRITE), ("store-full", WRITE)),
    *(("too-large", READ), ("unauthenticated", READ), ("unauthenticated", WRITE)),
)
OUTCOMES: Final = ("failed", "ok", "timeout")
_COUNTED_BY_CHANNELS: Final = (MessageType.SEND_PULSE, MessageType.GET_PULSE)
#: Entries of the index checked by a snapshot: a tenth of a millisecond.
_LOOKED_AT: Final = 1_000


class EventCounts:
    """Counts of events since the start of a Pacemaker; callers increment them directly."""

    __slots__ = (
        "accepted",
        "authentications",
        "closed",
        "refusals",
        "turned_away",
    )

    def __init__(self) -> None:
        self.accepted = 0
        #: Connections closed before service, by cause; "descriptors" counts pauses of accepting.
        self.turned_away: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        #: Requests answered with NOT_AUTHORIZED, by cause and by `READ` or `WRITE`.
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.authentications: Counter[tuple[str, str]] = Counter()

    def lost_pulses(self) -> int:
        """Count the events that may have lost a pulse.

        Clients turned away, connections ended for memory or an error of ours, a full store.
        """
        return (
            sum(self.turned_away.values())
            + self.closed["memory"]
            + self.closed["error"]
            + self.refusals["store-full", WRITE]
        )


@dataclass(frozen=True, kw_only=True)
class ServerSnapshot:
    """A Pacemaker at one moment: seconds, bytes, and counts since the start.

    `swept_ago` is the time since the event loop did its regular work. `horizon` is how long a path
    without a pulse has been silent at least. `pulse_ttl`, `max_bytes` and `max_connections` are 0
    without a limit. `latency_counts` has one bucket more than `latency_bounds`, for the requests
    above all bounds. `certificate_ends` counts from 1970 and is None without TLS.
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
        """Whether every living worker has had the time to beat here.

        Until then the absence of a pulse proves nothing.
        """
        return self.horizon >= self.heartbeat_period


def requests_by_verb(counts: Mapping[str, int], asked: Mapping[MessageType, int]) -> dict[str, int]:
    """Return the number of requests by type; "other" are of authentications, or refused unseen."""
    others = [verb for verb in map(MessageType, VERBS) if verb not in _COUNTED_BY_CHANNELS]
    by_verb = {verb.name.lower(): asked.get(verb, 0) for verb in others}
    other = max(0, counts["others"] - sum(by_verb.values()))
    return {"send_pulse": counts["sends"], "get_pulse": counts["gets"], **by_verb, "other": other}


def oldest_pulse(index: PulseIndex, now: float) -> float | None:
    """Return the age of the oldest pulse; None if too many tombstones precede the pulse."""
    entry = index.oldest()
    for _ in range(_LOOKED_AT):
        if entry is None or entry.details is not None:
            break
        entry = index.after(entry)
    return None if entry is None or entry.details is None else max(0.0, now - entry.changed)


def recent_sizes(index: PulseIndex) -> list[int]:
    """Return the sizes of some hundreds of the newest pulses."""
    newest = index.since(max(0, index.revision - _LOOKED_AT), _LOOKED_AT)
    return [len(entry.details) for entry in newest if entry.details is not None]


#: Monotonic seconds for the ages of pulses; on Linux including the time of a suspension.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)

#: Seconds without `Horizon.observe`, called every second, that count as a stop of the process:
#: pulses wait in the sockets only for so long.
MAX_SILENCE: Final = 3.0


class Horizon:
    """How long the server has received and kept every pulse.

    Three events limit the time: the process was stopped, a pulse may have been lost, or old pulses
    were dropped. Only the first also delays expiry.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._observed = self._complete_since = clock()

    def observe(self) -> float | None:
        """Record that the process runs; return the seconds of a stop, if any."""
        now = self._clock()
        silence = now - self._observed
        self._observed = now
        if silence <= MAX_SILENCE:
            return None
        self._began = now
        return silence

    def restart(self) -> None:
        """Begin anew after a time without service."""
        self._began = self._observed = self._clock()

    def record_loss(self) -> None:
        """Record that a pulse may have been lost."""
        self._complete_since = self._clock()

    def record_dropped(self, kept: float) -> None:
        """Record that pulses older than `kept` seconds were dropped until now."""
        self._complete_since = max(self._complete_since, self._clock() - kept)

    def seconds(self) -> float:
        """Return the seconds without a stop; call `observe` before."""
        return self._clock() - self._began

    def vouched(self, kept: float) -> float:
        """Return the seconds for which a path without a pulse has been silent at least.

        `kept` is the age at which pulses are dropped; 0: never.
        """
        span = self._clock() - max(self._began, self._complete_since)
        return min(span, kept) if kept else span
