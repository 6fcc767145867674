"""Asks the analyses again and again beside the queries, and publishes their alerts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.conf import Conf
from stormkeeper.daemon import spark as engine
from stormkeeper.errors import StormkeeperError
from stormkeeper.history import manifest
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses.questions import chosen
from stormkeeper.pipeline.analyses.rounds import (
    ALERTS,
    KILLED_TOPOLOGIES,
    SUPERVISORS,
    Listed,
    Rounds,
    Silence,
    changes,
    clear_secs,
    has_to_ask,
    next_killed,
    next_supervisors,
)
from stormkeeper.pipeline.status import ROUND, Sight
from stormkeeper.rpc.leader import LeaderClient
from stormkeeper.thrift.nimbus import AuthorizationException

log = logging.getLogger(__name__)

#: After this time, and each time that it has gone by again, Spark is told to give up what a round
#: waits for, in seconds.
_JOB_SECS: Final = 60.0

#: How long the end waits for a round that was told to give up, in seconds.
_END_SECS: Final = 2.0

#: How long Nimbus may take to list its topologies, in seconds, and the longest list, in bytes.
_LIST_SECS: Final = 5.0
_LONGEST_LIST: Final = 64 * 1024 * 1024

#: Few rows, which are not worth more tasks or plans that adapt, in pieces as large as they come.
_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 30),
    "spark.sql.session.timeZone": "UTC",
    # Their plans have more columns than Spark likes to print, which it warns of in the log.
    "spark.sql.debug.maxToStringFields": "200",
}

_JOBS: Final = "storm-pipeline-analyses"


class Watch:
    """A thread that asks the analyses; neither its failures nor its slowness reach the queries.

    Parameters
    ----------
    conf
        The configuration.
    store
        Where alerts are published.
    sight
        Is told of the alerts, and of failures.
    listed
        Returns what Nimbus lists; it is asked if this is left out.
    """

    def __init__(
        self,
        conf: Conf,
        store: TableStore,
        sight: Sight,
        listed: Callable[[], Listed] | None = None,
    ) -> None:
        self._listed = partial(listed_by_nimbus, conf) if listed is None else listed
        self._conf = conf
        self._store = store
        self._sight = sight
        self._secs: float = conf["pipeline.analyses.secs"]
        self._stopping = threading.Event()
        self._failing: dict[str, str] = {}
        self._session: SparkSession | None = None
        self._thread: threading.Thread | None = None

    def start(self, session: SparkSession) -> None:
        """Begin, unless ``pipeline.analyses.secs`` is 0.

        The first round is due after one interval: the queries come first. Of `session`, which is
        that of the queries, another one is made, with settings of its own.
        """
        if self._secs:
            self._session = session
            self._thread = threading.Thread(
                target=self._run, args=(session,), name="analyses", daemon=True
            )
            self._thread.start()

    def ask_to_stop(self) -> None:
        """Have no further round begun, and one that runs given up: the next start makes it anew."""
        self._stopping.set()
        self._give_up()

    def stop(self) -> None:
        """Stop, and wait for the end for a short time."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(_END_SECS)

    def _run(self, session: SparkSession) -> None:
        asking = None
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._secs
            failures: Mapping[str, Exception] = {}
            try:
                if asking is None:
                    asking = self._begin(session)
                else:
                    with self._in_time():
                        self._round(asking)
                    failures = asking.failures
            except Exception as error:
                failures = {ROUND: error}
            if not self._stopping.is_set():
                self._tell(failures)

    def _begin(self, session: SparkSession) -> Rounds:
        session = session.newSession()
        for key, value in _SETTINGS.items():
            session.conf.set(key, value)
        session.sparkContext.setJobGroup(_JOBS, "analyses")  # those of this thread
        questions = chosen(self._conf)
        self._sight.watches([question.rule for question in questions])
        self._sight.alerted(self._previous(), None)
        return Rounds(session, questions, clear_secs(self._conf), self._look)

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
        if self._stopping.is_set():  # what was given up has found nothing
            return
        news = changes(previous, found, now)
        number = round(now.timestamp() * 1000)
        published = {
            tables.ALERTS: found,
            tables.ALERT_HISTORY: news,
            tables.KILLED_TOPOLOGIES: known,
            tables.SUPERVISORS: supervisors,
        }
        self._store.publish(Origin(_JOBS, number), published)
        self._sight.alerted(found, now.timestamp())

    def _known(self, now: datetime) -> tuple[pa.Table, pa.Table]:
        """Return which topologies were killed, and the supervisors; both stay without Nimbus."""
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
            log.debug("which topologies were killed is not known: %s", error)
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
        return self._read(tables.ALERTS, ALERTS)

    def _look(self, query: str) -> Tables | None:
        folder, _ = tables.query_folders(self._conf, query)
        return None if manifest.load(folder) is None else Tables(folder)

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """Have Spark give up what takes too long, again and again until the round has ended."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_JOB_SECS):
                self._give_up()

        threading.Thread(target=watch, name="analyses-deadline", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _give_up(self) -> None:
        if self._session is None:
            return
        # Of a JVM that is gone; or of a session that was stopped, whose context has lost it.
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            self._session.sparkContext.cancelJobGroup(_JOBS)

    def _tell(self, failures: Mapping[str, Exception]) -> None:
        """Log each failure once, as long as its reason is the same, and count it each time."""
        reasons = {rule: engine.reason(error) for rule, error in failures.items()}
        for rule, reason in reasons.items():
            if self._failing.get(rule) != reason:
                what = "a round of the analyses" if rule == ROUND else f"the analysis {rule}"
                log.warning("%s failed, and is tried again each time: %s", what, reason)
        for rule in self._failing.keys() - reasons.keys():
            log.info("%s has not failed again", rule)
        self._failing = reasons
        self._sight.failed(list(reasons))


def listed_by_nimbus(conf: Conf) -> Listed:
    """Return the topologies and supervisors that the leading Nimbus lists.

    Raises
    ------
    StormkeeperError, AuthorizationException
        It is not reached, or refuses.
    """
    with LeaderClient(
        conf["nimbus.seeds"],
        conf["nimbus.thrift.port"],
        max_frame=max(conf["nimbus.thrift.max_buffer_size"], _LONGEST_LIST),
        timeout=_LIST_SECS,
        rounds=0,
    ) as client:
        cluster = client.nimbus.getClusterInfo()
    return Listed(
        {each.id for each in cluster.topologies},
        {each.supervisor_id: each.host for each in cluster.supervisors},
    )
