"""What the pipeline sees at the moment, for its log, its metrics and its health.

Each server that cannot be read is a warning at once, with the reason, and again whenever the reason
is another one; when it is read again that is said too. A pipeline that sees nothing at all says so.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pipeline import rows, tables

log = logging.getLogger(__name__)

#: How severe an alert may be.
SEVERITIES: Final = ("warning", "critical")

#: Where failures are counted that are of no analysis alone, as if alerts cannot be published.
ROUND: Final = "round"


#: One row per server of ``pacemaker.servers``.
SERVERS: Final = pa.schema(
    [
        ("server", pa.string()),
        ("reachable", pa.bool_()),
        ("reason", pa.string()),
        ("since", rows.TIMESTAMP),
        ("read_at", rows.TIMESTAMP),
        ("instance", pa.string()),
        ("revision", pa.int64()),
        ("uptime_secs", pa.float64()),
        ("horizon_secs", pa.float64()),
        ("keys", pa.int64()),
        ("reset", pa.bool_()),
    ]
)

#: What a client's error says of its tries; why they failed comes last.
_TRIES: Final = re.compile(r"\(\d+ (?:try|tries) in [\d.]+ s(?:; (?P<cause>.*))?\)")


class ServerStatus(NamedTuple):
    """A server as it was last seen; `reason` is None when it answered."""

    reason: str | None
    horizon_secs: float | None = None
    keys: int | None = None


@dataclass(frozen=True)
class PipelineStatus:
    """Everything at one moment; never changed, only replaced.

    Parameters
    ----------
    servers
        By name; empty before the first look.
    batches
        How many this process has published of each query.
    published_at
        When the newest one was, by query: on the monotonic clock, and as seconds since the epoch.
    workers
        How many workers of each status there are; those that are stale are late ones too.
    alerts
        How many alerts are open, by rule and severity; empty if no analysis is asked.
    alerted_at
        When the newest round of analyses was published, as seconds since the epoch.
    failures
        How often each analysis failed; and, as `round`, all of them together.
    looked_at
        When the process last found its queries alive, on the monotonic clock; None before they run.
    started_at
        When the process began, on the monotonic clock.
    unnamed
        How many topologies there are whose components nobody has said yet.
    unanswered
        How many questions to Nimbus have failed, and why the newest one did; None if it did not.
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
        """Whether no server could be read."""
        return not _any_is_read(self.servers)


class StatusTracker:
    """Takes in what is seen, and logs the changes; `seen` may be read by any thread.

    Five threads tell it: those of the queries' batches, that of the analyses, the one that looks
    after the queries, and the one that asks Nimbus.

    Parameters
    ----------
    clock
        Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.current = PipelineStatus(started_at=clock())
        self._clock = clock
        self._lock = threading.Lock()

    def record_coverage(self, health: Mapping[str, Coverage]) -> None:
        """Take in how the servers were before there was a batch."""
        found = {
            name: ServerStatus(one.error, one.horizon_secs, one.keys)
            for name, one in health.items()
        }
        _log_changes(self._replace(servers=found).servers, found)

    def record_batch(self, query: str, found: Mapping[str, pa.Table]) -> None:
        """Take in a batch of a query, whose tables were published."""
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
        """Take in which analyses will be asked."""
        rules = list(rules)
        self._replace(
            alerts={(rule, severity): 0 for rule in rules for severity in SEVERITIES},
            failures=dict.fromkeys([*rules, ROUND], 0),
        )

    def record_alerts(self, alerts: pa.Table, at: float | None) -> None:
        """Take in the alerts of a round, published at a time; None: of an earlier process."""
        counts = dict.fromkeys(self.current.alerts, 0)
        for row in alerts.select(["rule", "severity", "until"]).to_pylist():
            if row["until"] is None:
                kind = (row["rule"], row["severity"])
                counts[kind] = counts.get(kind, 0) + 1
        self._replace(alerts=counts, alerted_at=at)

    def record_failures(self, rules: Iterable[str]) -> None:
        """Take in that these analyses have failed."""
        counts = dict(self.current.failures)
        for rule in rules:
            counts[rule] = counts.get(rule, 0) + 1
        self._replace(failures=counts)

    def record_alive(self) -> None:
        """Take in that the queries run, and can be asked."""
        self._replace(looked_at=self._clock())

    def record_nimbus_answer(self, reason: str | None) -> None:
        """Take in why Nimbus did not say of which components executors are; None if it did."""
        before = self.current.why_unanswered
        failed = self.current.unanswered + (reason is not None)
        self._replace(unanswered=failed, why_unanswered=reason)
        if reason is None:
            if before is not None:
                log.info("Nimbus says the components of executors again")
        elif before is None or cause(before) != cause(reason):
            log.warning(
                "Nimbus does not say the components of executors, which statistics call by their"
                " tasks until it does: %s",
                reason,
            )

    def record_unnamed(self, topologies: int) -> None:
        """Take in of how many topologies components are not known."""
        if topologies != self.current.unnamed:
            self._replace(unnamed=topologies)

    def _replace(self, **changes: Any) -> PipelineStatus:
        """Change what is seen, and return what was seen before."""
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
    """Return the table of servers after a batch, sorted by server.

    Parameters
    ----------
    previous
        The table so far, for since when a server has been as it is; None at the beginning.
    batch
        Rows as `decode.typed` gives them; those of other kinds are passed over.
    """
    found = batch.filter(pc.equal(batch["kind"], rows.SERVER)).sort_by("server")
    health = pa.Table.from_struct_array(rows.one_array(found["health"]))
    columns = {name: found[name] for name in ("server", "read_at", "instance", "revision")}
    columns |= {name: health[name] for name in health.column_names if name != "error"}
    columns["reason"] = health["error"]
    before = _since(previous)
    states = zip(found["server"].to_pylist(), health["reachable"].to_pylist(), strict=True)
    read_at = rows.seconds(found["read_at"])
    columns["since"] = rows.timestamps(
        before.get(state, now) for state, now in zip(states, read_at, strict=True)
    )
    return pa.table({name: columns[name] for name in SERVERS.names}).cast(SERVERS)


def cause(reason: str) -> str:
    """Return what stays the same in the reasons of one failure that is met again and again.

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
    columns = (previous[name].to_pylist() for name in ("server", "reachable"))
    return dict(zip(zip(*columns, strict=True), rows.seconds(previous["since"]), strict=True))
