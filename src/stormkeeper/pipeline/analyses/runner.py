"""A thread that runs the analyses beside the queries, and publishes the alerts."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.conf import Conf
from stormkeeper.daemon import spark as engine
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import StormkeeperError
from stormkeeper.history import manifest
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses.alerts import alert_changes, clear_times
from stormkeeper.pipeline.analyses.questions import Rounds, chosen_questions
from stormkeeper.pipeline.nimbus_poller import leader_client
from stormkeeper.pipeline.status import ROUND, StatusTracker
from stormkeeper.pipeline.table_columns import ALERT_ROWS, KILLED_TOPOLOGIES, SUPERVISORS
from stormkeeper.thrift.nimbus import AuthorizationException

log = logging.getLogger(__name__)

#: Seconds after which a round's Spark jobs are cancelled, again and again.
_JOB_SECS: Final = 60.0

_END_SECS: Final = 2.0
_POLL_SECS: Final = 0.1

_LIST_SECS: Final = 5.0

#: For few rows: no adaptive plans, one task, and Arrow batches of any size.
_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 30),
    "spark.sql.session.timeZone": "UTC",
    # Avoids Spark's warning about plans with many columns.
    "spark.sql.debug.maxToStringFields": "200",
}

_JOBS: Final = "storm-pipeline-analyses"


class AnalysisRunner:
    """Runs the analyses in a thread, so that failures and slowness do not reach the queries."""

    def __init__(
        self,
        conf: Conf,
        store: TableStore,
        status: StatusTracker,
        listed: Callable[[], Listed] | None = None,
    ) -> None:
        self._listed = partial(listed_by_nimbus, conf) if listed is None else listed
        self._conf = conf
        self._store = store
        self._status = status
        self._secs: float = conf["pipeline.analyses.secs"]
        self._failing: dict[str, str] = {}
        self._session: SparkSession | None = None
        self._rounds: Rounds | None = None
        self._thread = PeriodicThread("analyses", self._step)

    def start(self, session: SparkSession) -> None:
        """Start the thread, if configured; the first round begins an interval later."""
        if self._secs:
            self._session = session
            self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin no further round, and cancel a running round, which the next start repeats."""
        self._thread.close(0.0)
        self._give_up()

    def stop(self) -> None:
        self.ask_to_stop()
        ends_at = time.monotonic() + _END_SECS
        while not self._thread.close(_POLL_SECS) and time.monotonic() < ends_at:
            self._give_up()  # the round goes on to the next analysis

    def _step(self) -> float:
        began = time.monotonic()
        failures: Mapping[str, Exception] = {}
        try:
            if self._rounds is None:
                self._rounds = self._begin()
            else:
                with self._in_time():
                    self._round(self._rounds)
                failures = self._rounds.failures
        except Exception as error:
            failures = {ROUND: error}
        if not self._thread.is_closing:
            self._tell(failures)
        return max(0.0, began + self._secs - time.monotonic())

    def _begin(self) -> Rounds:
        assert self._session is not None
        session = self._session.newSession()
        for key, value in _SETTINGS.items():
            session.conf.set(key, value)
        session.sparkContext.setJobGroup(_JOBS, "analyses")  # this thread's jobs
        questions = chosen_questions(self._conf)
        self._status.record_rules([question.rule for question in questions])
        self._status.record_alerts(self._previous(), None)
        return Rounds(session, questions, clear_times(self._conf), self._look)

    def _round(self, asking: Rounds) -> None:
        previous = self._previous()
        now = datetime.now(UTC)
        known, supervisors = self._known(now)
        killed = {
            row["storm_id"]: row["killed_at"]
            for row in known.to_pylist()
            if row["killed_at"] is not None
        }
        found = asking.next(previous, now, killed)
        if self._thread.is_closing:  # a cancelled round has no result
            return
        news = alert_changes(previous, found, now)
        number = round(now.timestamp() * 1000)
        published = {
            tables.ALERTS: found,
            tables.ALERT_HISTORY: news,
            tables.KILLED_TOPOLOGIES: known,
            tables.SUPERVISORS: supervisors,
        }
        self._store.publish(Origin(_JOBS, number), published)
        self._status.record_alerts(found, now.timestamp())

    def _known(self, now: datetime) -> tuple[pa.Table, pa.Table]:
        killed = self._read(tables.KILLED_TOPOLOGIES, KILLED_TOPOLOGIES)
        supervisors = self._read(tables.SUPERVISORS, SUPERVISORS)
        liveness = self._look(tables.LIVENESS)
        if liveness is None:
            return killed, supervisors
        columns = ["storm_id", "node", "status", "last_seen"]
        silence = Silence.of(liveness.arrow(tables.WORKER_LIVENESS, columns=columns))
        if not has_to_ask(killed, supervisors, silence):
            return killed, supervisors
        try:
            listed = self._listed()
        except (StormkeeperError, AuthorizationException) as error:
            log.debug("Nimbus did not list its topologies: %s", error)
            return killed, supervisors
        kept_secs = 3600 * float(self._conf["pipeline.retention.events.hours"])
        return (
            next_killed(killed, silence, listed.topologies, now, kept_secs),
            next_supervisors(supervisors, listed.hosts, now, kept_secs),
        )

    def _read(self, name: str, schema: pa.Schema) -> pa.Table:
        found = self._store.read(name)
        return schema.empty_table() if found is None else found.select(schema.names)

    def _previous(self) -> pa.Table:
        return self._read(tables.ALERTS, ALERT_ROWS)

    def _look(self, query: str) -> Tables | None:
        folder, _ = tables.query_folders(self._conf, query)
        return None if manifest.load(folder) is None else Tables(folder)

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        deadline = PeriodicThread(
            "analyses-deadline", self._give_up, first_secs=_JOB_SECS, period_secs=_JOB_SECS
        )
        deadline.start()
        try:
            yield
        finally:
            deadline.close(_END_SECS)

    def _give_up(self) -> None:
        if self._session is None:
            return
        # The JVM may be gone, or the session stopped.
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            self._session.sparkContext.cancelJobGroup(_JOBS)

    def _tell(self, failures: Mapping[str, Exception]) -> None:
        reasons = {rule: engine.reason(error) for rule, error in failures.items()}
        for rule, reason in reasons.items():
            if self._failing.get(rule) != reason:
                what = "a round of the analyses" if rule == ROUND else f"the analysis {rule}"
                log.warning("%s failed and is repeated in the next round: %s", what, reason)
        for rule in self._failing.keys() - reasons.keys():
            log.info("%s works again", rule)
        self._failing = reasons
        self._status.record_failures(list(reasons))


def listed_by_nimbus(conf: Conf) -> Listed:
    """Ask the leading Nimbus; raise `StormkeeperError` or `AuthorizationException` on failure."""
    with leader_client(conf, _LIST_SECS) as client:
        cluster = client.nimbus.getClusterInfo()
    return Listed(
        {each.id for each in cluster.topologies},
        {each.supervisor_id: each.host for each in cluster.supervisors},
    )


class Listed(NamedTuple):
    """Nimbus's lists: topology ids, and hosts by supervisor id."""

    topologies: Collection[str]
    hosts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Silence:
    """Topologies' last pulses, the topologies with a worker alive, and the workers' nodes."""

    last_seen: Mapping[str, datetime]
    beating: Collection[str]
    nodes: Collection[str] = ()

    @classmethod
    def of(cls, liveness: pa.Table) -> Silence:
        latest = liveness.group_by("storm_id").aggregate([("last_seen", "max")])
        beating = liveness.filter(pc.equal(liveness["status"], "alive"))["storm_id"]
        last_seen = zip(
            latest["storm_id"].to_pylist(), latest["last_seen_max"].to_pylist(), strict=True
        )
        nodes = frozenset(liveness["node"].unique().to_pylist())
        return cls(dict(last_seen), frozenset(beating.unique().to_pylist()), nodes)


def has_to_ask(known: pa.Table, supervisors: pa.Table, silence: Silence) -> bool:
    """Return whether Nimbus must be asked: about a new topology or supervisor, or a silence."""
    if set(silence.nodes) - set(supervisors["node"].to_pylist()):
        return True
    rows = known.to_pylist()
    ids = {row["storm_id"] for row in rows}
    left = {row["storm_id"] for row in rows if row["killed_at"] is None}
    return bool(silence.last_seen.keys() - ids) or bool(left - set(silence.beating))


def next_killed(
    known: pa.Table, silence: Silence, listed: Collection[str], now: datetime, kept_secs: float
) -> pa.Table:
    """Return the next table of killed topologies, kept for `kept_secs`, given Nimbus's list.

    A Nimbus that has listed no known topology may be another cluster's, and proves nothing.
    """
    before = {row["storm_id"]: row for row in known.to_pylist()}
    ids = {*before, *silence.last_seen}
    is_ours = bool(before) or not ids.isdisjoint(listed)
    rows = []
    for storm_id in sorted(ids if is_ours else ()):
        row = before.get(storm_id, {"storm_id": storm_id, "listed_at": None, "killed_at": None})
        if storm_id in listed:
            row = {**row, "listed_at": now, "killed_at": None}
        elif row["killed_at"] is None and storm_id not in silence.beating:
            row = {**row, "killed_at": silence.last_seen.get(storm_id) or row["listed_at"] or now}
        killed_at = row["killed_at"]
        if killed_at is None or (now - killed_at).total_seconds() < kept_secs:
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=KILLED_TOPOLOGIES)


def next_supervisors(
    known: pa.Table, listed: Mapping[str, str], now: datetime, kept_secs: float
) -> pa.Table:
    rows = {row["node"]: row for row in known.to_pylist()}
    for node, host in listed.items():
        rows[node] = {"node": node, "host": host, "listed_at": now}
    left = [row for row in rows.values() if (now - row["listed_at"]).total_seconds() < kept_secs]
    return pa.Table.from_pylist(left, schema=SUPERVISORS)
