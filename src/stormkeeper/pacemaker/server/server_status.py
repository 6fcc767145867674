"""The status of a Pacemaker: event counts, horizon, a snapshot, and HTTP pages.

Causes are a few fixed words, as each becomes a label of a metric. Metrics are made at scrape time.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.wire.messages import VERBS, MessageType

# prometheus-client takes 0.3 s and 5 MB, saved without an HTTP endpoint.
if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from stormkeeper.daemon.http import Page

_K = TypeVar("_K")

#: Causes of connections closed before service; "descriptors" are pauses of accepting.
TURNED_AWAY: Final = ("address", "connections", "descriptors")
CLOSED: Final = (
    *("authentication", "drain", "error", "frame-timeout", "handshake-timeout"),
    *("memory", "output-timeout", "protocol", "revoked", "tls"),
)
READ: Final = "read"
WRITE: Final = "write"
#: Causes of NOT_AUTHORIZED, with the needed permission.
REFUSED: Final = (
    *(("path", READ), ("path", WRITE), ("reserved", WRITE), ("store-full", WRITE)),
    *(("too-large", READ), ("unauthenticated", READ), ("unauthenticated", WRITE)),
)
OUTCOMES: Final = ("failed", "ok", "timeout")
_COUNTED_BY_CHANNELS: Final = (MessageType.SEND_PULSE, MessageType.GET_PULSE)
#: Entries per snapshot: a tenth of a millisecond.
_LOOKED_AT: Final = 1_000


@dataclass(slots=True)
class EventCounts:
    """Counts since the start of a Pacemaker; callers increment directly."""

    accepted: int = 0
    turned_away: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    authentications: Counter[tuple[str, str]] = field(default_factory=Counter)

    def lost_pulses(self) -> int:
        return (
            sum(self.turned_away.values())
            + self.closed["memory"]
            + self.closed["error"]
            + self.refusals["store-full", WRITE]
        )


@dataclass(frozen=True, kw_only=True)
class ServerSnapshot:
    """A Pacemaker at one moment: seconds, bytes, and counts since the start.

    `pulse_ttl`, `max_bytes` and `max_connections` are 0 without a limit. `latency_counts` has one
    bucket more than `latency_bounds`. `certificate_ends` counts from 1970.
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
        """Whether every living worker had time to beat, so that a missing pulse counts."""
        return self.horizon >= self.heartbeat_period


def requests_by_verb(counts: Mapping[str, int], asked: Mapping[MessageType, int]) -> dict[str, int]:
    """Count requests by type; "other" are of authentications, or refused unseen."""
    others = [verb for verb in map(MessageType, VERBS) if verb not in _COUNTED_BY_CHANNELS]
    by_verb = {verb.name.lower(): asked.get(verb, 0) for verb in others}
    other = max(0, counts["others"] - sum(by_verb.values()))
    return {"send_pulse": counts["sends"], "get_pulse": counts["gets"], **by_verb, "other": other}


def recent_sizes(index: PulseIndex) -> list[int]:
    """Return the sizes of some hundreds of the newest pulses."""
    newest = index.since(max(0, index.revision - _LOOKED_AT), _LOOKED_AT)
    return [len(entry.details) for entry in newest if entry.details is not None]


#: Monotonic seconds; on Linux with the time of a suspension.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)

#: Seconds without `Horizon.observe` that count as a stop of the process: pulses wait in the sockets
#: only for so long.
MAX_SILENCE: Final = 3.0


class Horizon:
    """How long the server has received and kept every pulse.

    A stop of the process and a time without service also delay expiry.
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
        self._complete_since = self._clock()

    def record_dropped(self, kept: float) -> None:
        """Record that pulses older than `kept` seconds were dropped."""
        self._complete_since = max(self._complete_since, self._clock() - kept)

    def seconds(self) -> float:
        """Return the seconds without a stop; call `observe` before."""
        return self._clock() - self._began

    def vouched(self, kept: float) -> float:
        """Return how long a path without a pulse has been silent at least, in seconds.

        Pulses are dropped at the age `kept`; 0: never.
        """
        span = self._clock() - max(self._began, self._complete_since)
        return min(span, kept) if kept else span


PREFIX: Final = "stormkeeper_pacemaker_"

#: Seconds without a sweep after which the event loop counts as stuck.
MAX_SWEEP_SILENCE: Final = 5.0

_QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)


def pages(snapshot: Callable[[], ServerSnapshot]) -> "dict[str, Callable[[str], Page]]":
    from prometheus_client.registry import Collector  # noqa: PLC0415

    from stormkeeper.daemon.http import health_page, metrics_page  # noqa: PLC0415

    class PacemakerMetrics(Collector):
        def collect(self) -> "Iterator[Metric]":
            return metrics(snapshot())

    def find_silence() -> str | None:
        ago = snapshot().swept_ago
        return None if ago <= MAX_SWEEP_SILENCE else f"the last sweep was {ago:.1f} s ago"

    return {
        "/metrics": metrics_page(PacemakerMetrics()),
        "/healthz": health_page(find_silence),
        "/readyz": health_page(lambda: None if snapshot().is_serving else "draining", "ready"),
    }


def metrics(snapshot: ServerSnapshot) -> "Iterator[Metric]":
    yield from _server(snapshot)
    yield from _store(snapshot)
    yield from _requests(snapshot)
    yield from _connections(snapshot)


def _server(snapshot: ServerSnapshot) -> "Iterator[Metric]":
    yield _family(
        "Info",
        "",
        "Instance, version, engine and method of authentication of this Pacemaker.",
        {
            "instance_id": snapshot.instance,
            "version": snapshot.version,
            "engine": snapshot.engine,
            "auth_method": snapshot.auth_method,
        },
    )
    yield _gauge("ready", "Whether new clients are taken.", snapshot.is_serving)
    yield _gauge("uptime_seconds", "Time since the start.", snapshot.uptime)
    yield _gauge(
        "horizon_seconds",
        "Time for which all pulses were kept: a path without a pulse was silent at least as long.",
        snapshot.horizon,
    )
    yield _gauge(
        "heartbeat_period_seconds",
        "Time between two pulses of a worker (task.heartbeat.frequency.secs).",
        snapshot.heartbeat_period,
    )
    yield _gauge(
        "heartbeat_period_seen",
        "Whether every living worker has had the time to beat: until then an absent pulse is not"
        " yet reported, rather than gone.",
        snapshot.has_seen_a_period,
    )


def _store(snapshot: ServerSnapshot) -> "Iterator[Metric]":
    yield _gauge("pulses", "Pulses held.", snapshot.keys)
    yield _gauge("tombstones", "Deleted pulses that are remembered.", snapshot.tombstones)
    yield _gauge("store_bytes", "Bytes of all pulses and their paths.", snapshot.bytes_held)
    yield _gauge(
        "store_limit_bytes",
        "Bytes of pulses and paths that may be held (pacemaker.store.max.bytes).",
        snapshot.max_bytes or float("inf"),
    )
    yield _gauge("revision", "Newest revision of this instance.", snapshot.revision)
    yield _gauge(
        "pulse_ttl_seconds",
        "Age at which a pulse is dropped (pacemaker.pulse.ttl.secs).",
        snapshot.pulse_ttl or float("inf"),
    )
    sizes = _family("Summary", "recent_pulse_size_bytes", "Sizes of the pulses received last.")
    ordered = sorted(snapshot.recent_sizes)
    for quantile in _QUANTILES if ordered else ():
        place = min(int(quantile * len(ordered)), len(ordered) - 1)
        sizes.add_sample(sizes.name, {"quantile": str(quantile)}, ordered[place])
    yield sizes
    yield _counter("pulses_received", "Pulses stored.", snapshot.pulses_received)
    yield _counter(
        "pulses_expired", "Pulses dropped because of their age.", snapshot.pulses_expired
    )


def _requests(snapshot: ServerSnapshot) -> "Iterator[Metric]":
    yield _counters("requests", "Requests, by verb.", ["verb"], snapshot.requests)
    yield _counters(
        "requests_refused",
        "Requests answered with NOT_AUTHORIZED, by cause and kind (read, or write).",
        ["cause", "kind"],
        _with(REFUSED, snapshot.events.refusals),
    )
    yield _counter("received_bytes", "Bytes of requests.", snapshot.bytes_in)
    yield _counter("sent_bytes", "Bytes of answers.", snapshot.bytes_out)
    bounds = [*(str(float(bound)) for bound in snapshot.latency_bounds), "+Inf"]
    yield _family(
        "Histogram",
        "request_duration_seconds",
        "Time from when requests were seen to when their answers were sent.",
        buckets=list(zip(bounds, accumulate(map(float, snapshot.latency_counts)), strict=True)),
        sum_value=snapshot.latency_sum,
    )


def _connections(snapshot: ServerSnapshot) -> "Iterator[Metric]":
    events = snapshot.events
    yield _gauge("connections", "Open connections.", snapshot.connections)
    yield _gauge(
        "connections_limit",
        "Connections that may be open (pacemaker.max.connections).",
        snapshot.max_connections or float("inf"),
    )
    if snapshot.certificate_ends is not None:
        yield _gauge(
            "certificate_expiry_timestamp_seconds",
            "Time since 1970 at which the certificate of pacemaker.tls.certificate.file ends.",
            snapshot.certificate_ends,
        )
    yield _counter("connections_accepted", "Connections that were served.", events.accepted)
    yield _counters(
        "connections_refused",
        "Connections closed before they were served, by cause; descriptors: rests of a second.",
        ["cause"],
        _with(TURNED_AWAY, events.turned_away),
    )
    yield _counters(
        "connections_ended",
        "Connections ended by this server, by cause.",
        ["cause"],
        _with(CLOSED, events.closed),
    )
    method = snapshot.auth_method
    yield _counters(
        "authentications",
        f"Attempts to authenticate, by method and outcome ({', '.join(OUTCOMES)}).",
        ["method", "outcome"],
        _with([(method, o) for o in OUTCOMES if method != "NONE"], events.authentications),
    )


def _with(known: Sequence[_K], counts: Mapping[_K, int]) -> dict[_K, int]:
    """Add known labels with 0, so that the first event shows as an increase."""
    return {**dict.fromkeys(known, 0), **counts}


def _family(kind: str, name: str, help_text: str, *values: Any, **others: Any) -> Any:
    """Make a family of prometheus-client, such as ``GaugeMetricFamily``."""
    from prometheus_client import core  # noqa: PLC0415

    full_name = (PREFIX + name).removesuffix("_")
    return getattr(core, f"{kind}MetricFamily")(full_name, help_text, *values, **others)


def _gauge(name: str, help_text: str, value: float) -> Any:
    return _family("Gauge", name, help_text, value)


def _counter(name: str, help_text: str, value: float) -> Any:
    return _family("Counter", name, help_text, value)


def _counters(name: str, help_text: str, labels: list[str], counts: Mapping[Any, int]) -> Any:
    family = _family("Counter", name, help_text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric([values] if isinstance(values, str) else values, count)
    return family
