"""The pipeline's Prometheus metrics and health pages."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page
from stormkeeper.daemon.metrics import health_page, metrics_page
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.pipeline.status import PipelineStatus
from stormkeeper.pipeline.tables import LIVENESS

#: The prefix of all metric names.
PREFIX: Final = "stormkeeper_pipeline_"

#: Seconds without a look at the queries after which the process is unhealthy.
MAX_SILENCE: Final = 5.0

#: Seconds within which the queries must start. Spark takes most of a minute on a busy machine, and
#: longer where a cluster makes it wait.
MAX_START: Final = 300.0

#: The newest batch is too old after this many triggers, and at least this many seconds.
_TRIGGERS: Final = 5
_LEAST_SECS: Final = 60.0


def pages(
    seen: Callable[[], PipelineStatus], intervals: Mapping[str, float], clock: Callable[[], float]
) -> dict[str, Callable[[str], Page]]:
    """Return the pages of a pipeline, by path: ``/metrics``, ``/healthz`` and ``/readyz``.

    ``/readyz`` says whether the tables are current and a Pacemaker can be read, and the state of
    each. `intervals` are the seconds between batches by query.
    """

    def readyz(_: str) -> Page:
        now = seen()
        why = unready(now, intervals, clock())
        lines = [why or "ready"]
        lines += [
            # Most reasons begin with the server's name.
            f"{name} {(one.reason or 'is read').removeprefix(f'{name} ')}"
            for name, one in now.servers.items()
        ]
        return Page(503 if why else 200, "".join(f"{line}\n" for line in lines).encode())

    return {
        "/metrics": metrics_page(
            _PipelineMetrics(seen, lambda now: unready(now, intervals, clock()))
        ),
        "/healthz": health_page(lambda: _unhealthy(seen(), clock())),
        "/readyz": readyz,
    }


def unready(seen: PipelineStatus, intervals: Mapping[str, float], now: float) -> str | None:
    """Return the reason why the tables are not current, or None."""
    if seen.servers and seen.sees_nothing:
        return "no Pacemaker can be read"
    for query, secs in intervals.items():
        if query not in seen.published_at:
            return f"no batch of {query} has been published yet"
        age = now - seen.published_at[query][0]
        if age > max(_LEAST_SECS, _TRIGGERS * secs):
            return f"the newest batch of {query} was published {age:.0f} s ago"
    return None


def _unhealthy(seen: PipelineStatus, now: float) -> str | None:
    if seen.looked_at is not None:
        ago = now - seen.looked_at
        return f"the queries were last looked at {ago:.1f} s ago" if ago > MAX_SILENCE else None
    ago = now - seen.started_at
    return f"Spark has been starting for {ago:.0f} s" if ago > MAX_START else None


class _PipelineMetrics(Collector):
    def __init__(
        self, seen: Callable[[], PipelineStatus], unready: Callable[[PipelineStatus], str | None]
    ) -> None:
        self._seen = seen
        self._unready = unready

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seen = self._seen()  # once, so that all figures are of one moment
        ready = GaugeMetricFamily(
            f"{PREFIX}ready",
            "Whether the tables are of the present, and of at least one Pacemaker.",
            float(self._unready(seen) is None),
        )
        yield ready
        batches = CounterMetricFamily(f"{PREFIX}batches", "Batches published.", labels=["query"])
        newest = GaugeMetricFamily(
            f"{PREFIX}last_batch_timestamp_seconds",
            "When the newest batch was published, since the epoch.",
            labels=["query"],
        )
        for query, (_, at) in seen.published_at.items():
            batches.add_metric([query], seen.batches[query])
            newest.add_metric([query], at)
        yield from (batches, newest)
        if LIVENESS in seen.published_at:
            workers = GaugeMetricFamily(
                f"{PREFIX}workers", "Workers in the newest batch.", labels=["status"]
            )
            for status in Status:
                if status is Status.UNPROVEN:  # late and stale in the table
                    continue
                workers.add_metric([status], seen.workers.get(status, 0))
            yield workers
            yield GaugeMetricFamily(
                f"{PREFIX}workers_stale",
                "Workers silent for longer than the timeout, without proof that they are dead.",
                seen.stale,
            )
        yield GaugeMetricFamily(
            f"{PREFIX}unnamed_topologies",
            "Topologies of which neither workers nor Nimbus have named all components.",
            seen.unnamed,
        )
        yield CounterMetricFamily(
            f"{PREFIX}nimbus_failures", "Questions to Nimbus that failed.", seen.unanswered
        )
        if seen.alerts:
            yield from _alerts(seen)
        yield from _servers(seen)


def _alerts(seen: PipelineStatus) -> Iterator[Metric]:
    alerts = GaugeMetricFamily(
        f"{PREFIX}alerts", "Alerts that are open.", labels=["rule", "severity"]
    )
    for kind, count in seen.alerts.items():
        alerts.add_metric(kind, count)
    failures = CounterMetricFamily(
        f"{PREFIX}analysis_failures", "Times that an analysis failed.", labels=["rule"]
    )
    for rule, count in seen.failures.items():
        failures.add_metric([rule], count)
    yield from (alerts, failures)
    if seen.alerted_at is not None:
        yield GaugeMetricFamily(
            f"{PREFIX}last_analyses_timestamp_seconds",
            "When the newest round of analyses was published, since the epoch.",
            seen.alerted_at,
        )


def _servers(seen: PipelineStatus) -> Iterator[Metric]:
    reachable = GaugeMetricFamily(
        f"{PREFIX}server_reachable", "Whether a Pacemaker could be read.", labels=["server"]
    )
    horizon = GaugeMetricFamily(
        f"{PREFIX}server_horizon_seconds",
        "Time for which a Pacemaker could receive and keep pulses without a break.",
        labels=["server"],
    )
    pulses = GaugeMetricFamily(
        f"{PREFIX}server_pulses", "Pulses that a Pacemaker holds.", labels=["server"]
    )
    for name, server in seen.servers.items():
        reachable.add_metric([name], server.reason is None)
        if server.horizon_secs is not None:
            horizon.add_metric([name], server.horizon_secs)
        if server.keys is not None:
            pulses.add_metric([name], server.keys)
    yield from (reachable, horizon, pulses)
