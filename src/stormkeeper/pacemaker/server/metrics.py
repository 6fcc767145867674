"""A Pacemaker's figures as Prometheus reads them, and its health, as pages.

Nothing is counted for the metrics' sake: they are made out of the server's own figures when they
are asked for. Names follow Prometheus's conventions: base units, ``_total`` for what only grows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page
from stormkeeper.daemon.process_metrics import ProcessMetrics
from stormkeeper.pacemaker.server.figures import MAX_SILENCE, Figures
from stormkeeper.pacemaker.server.tallies import CLOSED, OUTCOMES, REFUSED, TURNED_AWAY

#: What all names begin with.
PREFIX: Final = "stormkeeper_pacemaker_"

#: Quantiles of the sizes of the newest pulses.
_QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)


def pages(figures: Callable[[], Figures]) -> dict[str, Callable[[str], Page]]:
    """Return the pages of a Pacemaker, by path.

    ``/metrics`` are the figures, in the text format that the client accepts; ``/healthz`` says
    whether the event loop does its regular work; ``/readyz`` whether new clients are taken.

    Parameters
    ----------
    figures
        Returns the figures now.
    """
    # No exemplars, no creation times: a registry of our own has nothing but what is put in it.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PacemakerMetrics(figures))
    registry.register(ProcessMetrics())

    def metrics(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(200, encode(registry), content_type)

    def healthz(_: str) -> Page:
        ago = figures().swept_ago
        if ago <= MAX_SILENCE:
            return Page(200, b"ok\n")
        return Page(503, f"the last sweep was {ago:.1f} s ago\n".encode())

    def readyz(_: str) -> Page:
        return Page(200, b"ready\n") if figures().is_serving else Page(503, b"draining\n")

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


class _PacemakerMetrics(Collector):
    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        yield from _server(figures)
        yield from _store(figures)
        yield from _requests(figures)
        yield from _connections(figures)


def _server(figures: Figures) -> Iterator[Metric]:
    yield InfoMetricFamily(
        PREFIX.removesuffix("_"),
        "Who this Pacemaker is, and what it runs.",
        {
            "instance_id": figures.instance,
            "version": figures.version,
            "engine": figures.engine,
            "auth_method": figures.auth_method,
        },
    )
    yield _gauge("ready", "Whether new clients are taken.", figures.is_serving)
    yield _gauge("uptime_seconds", "Time since the start.", figures.uptime)
    yield _gauge(
        "horizon_seconds",
        "How far back it can vouch: a path without a pulse has been silent for at least that long.",
        figures.horizon,
    )
    yield _gauge(
        "heartbeat_period_seconds",
        "Time between two pulses of a worker (task.heartbeat.frequency.secs).",
        figures.heartbeat_period,
    )
    yield _gauge(
        "heartbeat_period_seen",
        "Whether every living worker has had the time to beat: until then an absent pulse is not"
        " yet reported, rather than gone.",
        figures.has_seen_a_period,
    )


def _store(figures: Figures) -> Iterator[Metric]:
    yield _gauge("pulses", "Pulses held.", figures.keys)
    yield _gauge("tombstones", "Deleted pulses that are remembered.", figures.tombstones)
    yield _gauge("store_bytes", "Bytes of all pulses and their paths.", figures.bytes_held)
    yield _gauge(
        "store_limit_bytes",
        "Bytes of pulses and paths that may be held (pacemaker.store.max.bytes).",
        figures.max_bytes or float("inf"),
    )
    yield _gauge("revision", "Newest revision of this instance.", figures.revision)
    yield _gauge(
        "pulse_ttl_seconds",
        "Age at which a pulse is dropped (pacemaker.pulse.ttl.secs).",
        figures.pulse_ttl or float("inf"),
    )
    if figures.oldest_pulse is not None:
        yield _gauge("oldest_pulse_age_seconds", "Age of the oldest pulse.", figures.oldest_pulse)
    sizes = Metric(
        f"{PREFIX}recent_pulse_size_bytes", "Sizes of the pulses received last.", "summary"
    )
    ordered = sorted(figures.recent_sizes)
    for quantile in _QUANTILES if ordered else ():
        place = min(int(quantile * len(ordered)), len(ordered) - 1)
        sizes.add_sample(sizes.name, {"quantile": str(quantile)}, ordered[place])
    yield sizes
    yield _counter("pulses_received", "Pulses stored.", figures.pulses_received)
    yield _counter(
        "pulses_expired", "Pulses dropped because of their age.", figures.tallies.expired
    )


def _requests(figures: Figures) -> Iterator[Metric]:
    yield _counters("requests", "Requests, by verb.", "verb", figures.requests)
    refused = CounterMetricFamily(
        f"{PREFIX}requests_refused",
        "Requests answered with NOT_AUTHORIZED, by cause and kind (read, or write).",
        labels=["cause", "kind"],
    )
    for labels, count in sorted({**dict.fromkeys(REFUSED, 0), **figures.tallies.refusals}.items()):
        refused.add_metric(labels, count)
    yield refused
    yield _counter("received_bytes", "Bytes of requests.", figures.bytes_in)
    yield _counter("sent_bytes", "Bytes of answers.", figures.bytes_out)
    bounds = [*(str(float(bound)) for bound in figures.latency_bounds), "+Inf"]
    yield HistogramMetricFamily(
        f"{PREFIX}request_duration_seconds",
        "Time from when requests were seen to when their answers were sent.",
        buckets=list(zip(bounds, accumulate(map(float, figures.latency_counts)), strict=True)),
        sum_value=figures.latency_sum,
    )


def _connections(figures: Figures) -> Iterator[Metric]:
    tallies = figures.tallies
    yield _gauge("connections", "Open connections.", figures.connections)
    yield _gauge(
        "connections_limit",
        "Connections that may be open (pacemaker.max.connections).",
        figures.max_connections or float("inf"),
    )
    if figures.certificate_ends is not None:
        yield _gauge(
            "certificate_expiry_timestamp_seconds",
            "Time since 1970 at which the certificate of pacemaker.tls.certificate.file ends.",
            figures.certificate_ends,
        )
    yield _counter("connections_accepted", "Connections that were served.", tallies.accepted)
    yield _counters(
        "connections_refused",
        "Connections closed before they were served, by cause; descriptors: rests of a second.",
        "cause",
        _with(TURNED_AWAY, tallies.turned_away),
    )
    yield _counters(
        "connections_ended",
        "Connections ended by this server, by cause.",
        "cause",
        _with(CLOSED, tallies.closed),
    )
    authentications = CounterMetricFamily(
        f"{PREFIX}authentications",
        f"Attempts to authenticate, by method and outcome ({', '.join(OUTCOMES)}).",
        labels=["method", "outcome"],
    )
    known = {} if figures.auth_method == "NONE" else _none_yet(figures.auth_method)
    for (method, outcome), count in sorted((known | tallies.authentications).items()):
        authentications.add_metric([method, outcome], count)
    yield authentications


def _none_yet(method: str) -> dict[tuple[str, str], int]:
    return {(method, outcome): 0 for outcome in OUTCOMES}


def _with(causes: Sequence[str], counts: Mapping[str, int]) -> dict[str, int]:
    """Put the known causes in, with 0, so that the first of a kind is seen as an increase."""
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
