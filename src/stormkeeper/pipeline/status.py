"""The pipeline's present status, for log, metrics and health; and the table ``servers``.

An unreadable server is logged once per reason, and again when readable.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page, figure, health_page, metrics_page
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.table_columns import SERVERS
from stormkeeper.pipeline.tables import LIVENESS

log = logging.getLogger(__name__)

SEVERITIES: Final = ("warning", "critical")

#: The key of failures of whole rounds of analyses.
ROUND: Final = "round"


#: The tries in a client's error; the cause comes last.
_TRIES: Final = re.compile(r"\(\d+ (?:try|tries) in [\d.]+ s(?:; (?P<cause>.*))?\)")


class ServerStatus(NamedTuple):
    """A server's newest status; `reason` is None if the server answered."""

    reason: str | None
    horizon_secs: float | None = None
    keys: int | None = None


@dataclass(frozen=True)
class PipelineStatus:
    """The status at a moment; replaced as a whole, never changed.

    `published_at` is by query, on the monotonic clock and in seconds since the epoch; `looked_at`,
    when the queries were last found alive, is monotonic. `unnamed` counts topologies with
    components that neither workers nor Nimbus have named.
    """

    servers: Mapping[str, ServerStatus] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    published_at: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    stale: int = 0
    alerts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    alerted_at: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    looked_at: float | None = None
    started_at: float = 0.0
    unnamed: int = 0
    unanswered: int = 0
    why_unanswered: str | None = None

    @property
    def sees_nothing(self) -> bool:
        return not _any_is_read(self.servers)


class StatusTracker:
    """Records the pipeline's status and logs changes; any thread may read `current`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.current = PipelineStatus(started_at=clock())
        self._clock = clock
        self._lock = threading.Lock()

    def record_coverage(self, health: Mapping[str, Coverage]) -> None:
        found = {
            name: ServerStatus(one.error, one.horizon_secs, one.keys)
            for name, one in health.items()
        }
        _log_changes(self._replace(servers=found).servers, found)

    def record_batch(self, query: str, found: Mapping[str, pa.Table]) -> None:
        with self._lock:
            batches = {**self.current.batches, query: self.current.batches.get(query, 0) + 1}
            published = {**self.current.published_at, query: (self._clock(), time.time())}
            self.current = replace(self.current, batches=batches, published_at=published)
        if tables.SERVERS in found:
            self._judged(found[tables.SERVERS], found[tables.WORKER_LIVENESS])

    def _judged(self, servers: pa.Table, liveness: pa.Table) -> None:
        found = {
            row["server"]: ServerStatus(row["reason"], row["horizon_secs"], row["keys"])
            for row in servers.to_pylist()
        }
        status = liveness["status"].value_counts().to_pylist()
        before = self._replace(
            servers=found,
            workers={row["values"]: row["counts"] for row in status},
            stale=liveness["stale"].to_pylist().count(True),
        )
        _log_changes(before.servers, found)

    def record_rules(self, rules: Iterable[str]) -> None:
        rules = list(rules)
        self._replace(
            alerts={(rule, severity): 0 for rule in rules for severity in SEVERITIES},
            failures=dict.fromkeys([*rules, ROUND], 0),
        )

    def record_alerts(self, alerts: pa.Table, at: float | None) -> None:
        """`at` is None for an earlier process's round."""
        counts = dict.fromkeys(self.current.alerts, 0)
        for row in alerts.select(["rule", "severity", "until"]).to_pylist():
            if row["until"] is None:
                kind = (row["rule"], row["severity"])
                counts[kind] = counts.get(kind, 0) + 1
        self._replace(alerts=counts, alerted_at=at)

    def record_failures(self, rules: Iterable[str]) -> None:
        counts = dict(self.current.failures)
        for rule in rules:
            counts[rule] = counts.get(rule, 0) + 1
        self._replace(failures=counts)

    def record_alive(self) -> None:
        self._replace(looked_at=self._clock())

    def record_nimbus_answer(self, reason: str | None) -> None:
        """`reason` says why Nimbus did not answer; None for an answer."""
        before = self.current.why_unanswered
        failed = self.current.unanswered + (reason is not None)
        self._replace(unanswered=failed, why_unanswered=reason)
        if reason is None:
            if before is not None:
                log.info("Nimbus names the components of executors again")
        elif before is None or cause(before) != cause(reason):
            log.warning(
                "Nimbus does not name the components of executors; until then statistics name them"
                " by their tasks: %s",
                reason,
            )

    def record_unnamed(self, topologies: int) -> None:
        if topologies != self.current.unnamed:
            self._replace(unnamed=topologies)

    def _replace(self, **changes: Any) -> PipelineStatus:
        with self._lock:
            before, self.current = self.current, replace(self.current, **changes)
        return before


def _log_changes(before: Mapping[str, ServerStatus], now: Mapping[str, ServerStatus]) -> None:
    for name, server in now.items():
        _log_change(name, before.get(name), server)
    if not _any_is_read(now) and (not before or _any_is_read(before)):
        log.warning(
            "no Pacemaker can be read: until one is, the tables say nothing of workers that are"
            " alive",
            extra={"servers": len(now)},
        )


def _any_is_read(servers: Mapping[str, ServerStatus]) -> bool:
    return any(server.reason is None for server in servers.values())


def _log_change(name: str, before: ServerStatus | None, now: ServerStatus) -> None:
    fields = {"server": name}
    if now.reason is not None:
        if before is None or before.reason is None or cause(before.reason) != cause(now.reason):
            log.warning("the Pacemaker %s cannot be read: %s", name, now.reason, extra=fields)
    elif before is not None and before.reason is not None:
        log.info("the Pacemaker %s is read again", name, extra=fields)


def next_servers(previous: pa.Table | None, batch: pa.Table) -> pa.Table:
    """Return the table of servers after a batch, sorted by server."""
    found = batch.filter(pc.equal(batch["kind"], rows.SERVER)).sort_by("server")
    health = pa.Table.from_struct_array(rows.one_array(found["health"]))
    columns = {name: found[name] for name in ("server", "read_at", "instance", "revision")}
    columns |= {name: health[name] for name in health.column_names if name != "error"}
    columns["reason"] = health["error"]
    before = _since(previous)
    now = rows.columns_of(pa.table(columns), "server", "reachable", "read_at")
    columns["since"] = rows.timestamps(
        before.get((server, reachable), read_at) for server, reachable, read_at in now
    )
    return pa.table(columns, schema=SERVERS)


def cause(reason: str) -> str:
    """Return the constant part of the reason of a repeated failure.

    >>> cause("a:1 did not answer a request to read /p (2 tries in 0.5 s; connection refused)")
    'connection refused'
    """
    tries = _TRIES.search(reason)
    if tries is not None:
        return tries["cause"] or ""
    return re.sub(r"\d+", "", reason)


def _since(previous: pa.Table | None) -> dict[tuple[str, bool], float | None]:
    if previous is None:
        return {}
    before = rows.columns_of(previous, "server", "reachable", "since")
    return {(server, reachable): since for server, reachable, since in before}


PREFIX: Final = "stormkeeper_pipeline_"

#: Seconds without a look at the queries after which the process is unhealthy.
MAX_SILENCE: Final = 5.0

#: Seconds within which the queries must start: Spark takes long on a busy machine or a cluster.
MAX_START: Final = 300.0

#: The newest batch is too old after this many triggers, and at least these seconds.
_TRIGGERS: Final = 5
_LEAST_SECS: Final = 60.0


def pages(
    seen: Callable[[], PipelineStatus], intervals: Mapping[str, float], clock: Callable[[], float]
) -> dict[str, Callable[[str], Page]]:
    """Return the pages ``/metrics``, ``/healthz`` and ``/readyz``, by path.

    ``/readyz`` says whether the tables are current, and which Pacemakers can be read. `intervals`
    are the seconds between batches by query.
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
    """Return why the tables are not current, or None."""
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


_gauge: Final = partial(figure, GaugeMetricFamily, PREFIX)
_counter: Final = partial(figure, CounterMetricFamily, PREFIX)


@dataclass(eq=False)
class _PipelineMetrics(Collector):
    seen: Callable[[], PipelineStatus]
    unready: Callable[[PipelineStatus], str | None]

    def collect(self) -> Iterator[Metric]:
        seen = self.seen()  # once, so that all figures are of one moment
        yield _gauge(
            "ready",
            "Whether the tables are of the present, and of at least one Pacemaker.",
            self.unready(seen) is None,
        )
        batches = {query: seen.batches[query] for query in seen.published_at}
        yield _counter("batches", "Batches published.", batches, "query")
        yield _gauge(
            "last_batch_timestamp_seconds",
            "When the newest batch was published, since the epoch.",
            {query: at for query, (_, at) in seen.published_at.items()},
            "query",
        )
        if LIVENESS in seen.published_at:
            workers = {status: seen.workers.get(status, 0) for status in Status}
            del workers[Status.UNPROVEN]  # late and stale in the table
            yield _gauge("workers", "Workers in the newest batch.", workers, "status")
            yield _gauge(
                "workers_stale",
                "Workers silent for longer than the timeout, without proof that they are dead.",
                seen.stale,
            )
        yield _gauge(
            "unnamed_topologies",
            "Topologies of which neither workers nor Nimbus have named all components.",
            seen.unnamed,
        )
        yield _counter("nimbus_failures", "Questions to Nimbus that failed.", seen.unanswered)
        if seen.alerts:
            yield _gauge("alerts", "Alerts that are open.", seen.alerts, "rule", "severity")
            failures = seen.failures
            yield _counter("analysis_failures", "Times that an analysis failed.", failures, "rule")
            if seen.alerted_at is not None:
                text = "When the newest round of analyses was published, since the epoch."
                yield _gauge("last_analyses_timestamp_seconds", text, seen.alerted_at)
        servers = seen.servers.items()
        reached = {name: one.reason is None for name, one in servers}
        yield _gauge("server_reachable", "Whether a Pacemaker could be read.", reached, "server")
        horizons = {name: one.horizon_secs for name, one in servers}
        text = "Time for which a Pacemaker could receive and keep pulses without a break."
        yield _gauge("server_horizon_seconds", text, horizons, "server")
        pulses = {name: one.keys for name, one in servers}
        yield _gauge("server_pulses", "Pulses that a Pacemaker holds.", pulses, "server")
