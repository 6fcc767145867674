"""A Pacemaker's Prometheus metrics and health checks as HTTP pages.

The metrics are made from a snapshot at scrape time, so the hot path does not pay for them. The
module is imported only if the daemon has an endpoint: `prometheus_client` takes 0.3 s and 5 MB.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page, health_page, metrics_page
from stormkeeper.pacemaker.server.server_status import (
    CLOSED,
    OUTCOMES,
    REFUSED,
    TURNED_AWAY,
    ServerSnapshot,
)

PREFIX: Final = "stormkeeper_pacemaker_"

#: Seconds without a sweep, which is due every second, after which the event loop counts as stuck.
MAX_SILENCE: Final = 5.0

_QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)


def pages(snapshot: Callable[[], ServerSnapshot]) -> dict[str, Callable[[str], Page]]:
    """Return the pages of a Pacemaker by path.

    ``/healthz`` checks that the event loop works, ``/readyz`` that the server accepts clients.
    """

    def find_silence() -> str | None:
        ago = snapshot().swept_ago
        return None if ago <= MAX_SILENCE else f"the last sweep was {ago:.1f} s ago"

    return {
        "/metrics": metrics_page(_PacemakerMetrics(snapshot)),
        "/healthz": health_page(find_silence),
        "/readyz": health_page(lambda: None if snapshot().is_serving else "draining", "ready"),
    }


class _PacemakerMetrics(Collector):
    def __init__(self, snapshot: Callable[[], ServerSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield from _server(snapshot)
        yield from _store(snapshot)
        yield from _requests(snapshot)
        yield from _connections(snapshot)


def _server(snapshot: ServerSnapshot) -> Iterator[Metric]:
    yield InfoMetricFamily(
        PREFIX.removesuffix("_"),
        "Who this Pacemaker is, and what it runs.",
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
        "How far back it can vouch: a path without a pulse has been silent for at least that long.",
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


def _store(snapshot: ServerSnapshot) -> Iterator[Metric]:
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
    if snapshot.oldest_pulse is not None:
        yield _gauge("oldest_pulse_age_seconds", "Age of the oldest pulse.", snapshot.oldest_pulse)
    sizes = Metric(
        f"{PREFIX}recent_pulse_size_bytes", "Sizes of the pulses received last.", "summary"
    )
    ordered = sorted(snapshot.recent_sizes)
    for quantile in _QUANTILES if ordered else ():
        place = min(int(quantile * len(ordered)), len(ordered) - 1)
        sizes.add_sample(sizes.name, {"quantile": str(quantile)}, ordered[place])
    yield sizes
    yield _counter("pulses_received", "Pulses stored.", snapshot.pulses_received)
    yield _counter(
        "pulses_expired", "Pulses dropped because of their age.", snapshot.pulses_expired
    )


def _requests(snapshot: ServerSnapshot) -> Iterator[Metric]:
    yield _counters("requests", "Requests, by verb.", "verb", snapshot.requests)
    refused = CounterMetricFamily(
        f"{PREFIX}requests_refused",
        "Requests answered with NOT_AUTHORIZED, by cause and kind (read, or write).",
        labels=["cause", "kind"],
    )
    for labels, count in sorted({**dict.fromkeys(REFUSED, 0), **snapshot.events.refusals}.items()):
        refused.add_metric(labels, count)
    yield refused
    yield _counter("received_bytes", "Bytes of requests.", snapshot.bytes_in)
    yield _counter("sent_bytes", "Bytes of answers.", snapshot.bytes_out)
    bounds = [*(str(float(bound)) for bound in snapshot.latency_bounds), "+Inf"]
    yield HistogramMetricFamily(
        f"{PREFIX}request_duration_seconds",
        "Time from when requests were seen to when their answers were sent.",
        buckets=list(zip(bounds, accumulate(map(float, snapshot.latency_counts)), strict=True)),
        sum_value=snapshot.latency_sum,
    )


def _connections(snapshot: ServerSnapshot) -> Iterator[Metric]:
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
        "cause",
        _with(TURNED_AWAY, events.turned_away),
    )
    yield _counters(
        "connections_ended",
        "Connections ended by this server, by cause.",
        "cause",
        _with(CLOSED, events.closed),
    )
    authentications = CounterMetricFamily(
        f"{PREFIX}authentications",
        f"Attempts to authenticate, by method and outcome ({', '.join(OUTCOMES)}).",
        labels=["method", "outcome"],
    )
    known = {} if snapshot.auth_method == "NONE" else _none_yet(snapshot.auth_method)
    for (method, outcome), count in sorted((known | events.authentications).items()):
        authentications.add_metric([method, outcome], count)
    yield authentications


def _none_yet(method: str) -> dict[tuple[str, str], int]:
    return {(method, outcome): 0 for outcome in OUTCOMES}


def _with(causes: Sequence[str], counts: Mapping[str, int]) -> dict[str, int]:
    """Add known causes with 0, so that the first event shows as an increase."""
    return {**dict.fromkeys(causes, 0), **counts}


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_text, value)


def _counters(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, help_text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
