"""A thread that asks Nimbus for the components and timeouts of topologies of Storm's own workers.

Queries do not wait: rows get the names known now, and readers join the others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple, Self

import pyarrow as pa

from stormkeeper.conf import Conf
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import (
    RpcOutcomeUnknownError,
    RpcUnavailableError,
    StormkeeperError,
    TableError,
)
from stormkeeper.history.manifest import Origin
from stormkeeper.history.parquet import TableSpec
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.components import Names, Questions, Tasks, unnamed
from stormkeeper.pipeline.status import StatusTracker
from stormkeeper.pipeline.table_columns import COMPONENTS, TOPOLOGIES
from stormkeeper.rpc.leader_client import LeaderClient
from stormkeeper.thrift.nimbus import (
    AuthorizationException,
    GetInfoOptions,
    NotAliveException,
    NumErrorsChoice,
)

log = logging.getLogger(__name__)

_TIMEOUT: Final = "topology.worker.timeout.secs"

#: The retention of tables with components: names are kept as long.
_RETENTION: Final = (
    "pipeline.retention.stats.hours",
    "pipeline.retention.rollup.1m.hours",
    "pipeline.retention.rollup.10m.hours",
    "pipeline.retention.rollup.60m.hours",
)

_ANSWER_SECS: Final = 10.0

#: In bytes: an answer has the statistics of all executors, kilobytes each.
_LONGEST_ANSWER: Final = 64 * 1024 * 1024

#: First and longest pause between questions about a topology, perhaps not assigned yet.
_PAUSES_SECS: Final = (30.0, 3600.0)

#: First and longest pause after Nimbus was not reached, or the disk failed.
_OUTAGE_SECS: Final = (5.0, 300.0)

_PUBLISH_SECS: Final = 5.0

_END_SECS: Final = 1.0


class TopologyAnswer(NamedTuple):
    """A topology's executors, and the topology's own timeout, if any."""

    executors: list[Tasks]
    timeout_secs: float | None


Ask = Callable[[str], TopologyAnswer]


class NimbusPoller:
    """Keeps the tables of Nimbus's answers, in a thread that runs while entered."""

    def __init__(
        self,
        store: TableStore,
        ask: Ask,
        status: StatusTracker,
        *,
        kept_hours: float = inf,
        outage_secs: tuple[float, float] = _OUTAGE_SECS,
    ) -> None:
        self.store = store
        self.ask = ask
        self._status = status
        self._names = self._known(3600 * kept_hours)
        self._lookup = self._names.lookup(time.time())
        self._questions = Questions(_PAUSES_SECS)
        self._outage = FailureStreak(*outage_secs)
        #: The end of the pause after a failure.
        self._resting_until = 0.0
        self._published_at = 0.0
        self._run_id = str(uuid.uuid4())
        self._commits = 0
        self._guard = threading.Lock()
        #: Unnamed tasks read since the thread's last step, by topology.
        self._seen: dict[str, tuple[int, int]] = {}
        self._thread = PeriodicThread("pipeline-names", self._step, first_secs=inf)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close(_END_SECS)

    def named(self, pulses: pa.Table) -> pa.Table:
        """Add the component names known now, and note the unnamed tasks; never waits."""
        found = unnamed(pulses)
        if not found:
            return pulses
        self._saw(found)
        return self._lookup.named(pulses)

    def _saw(self, found: Mapping[str, tuple[int, int]]) -> None:
        with self._guard:
            for storm_id, (start, end) in found.items():
                first, last = self._seen.get(storm_id, (start, end))
                self._seen[storm_id] = (min(first, start), max(last, end))
        self._thread.wake()

    def _known(self, kept_secs: float) -> Names:
        components = topologies = None
        try:
            components = self.store.read(tables.COMPONENTS)
            topologies = self.store.read(tables.TOPOLOGIES)
        except (TableError, OSError, pa.ArrowException) as error:
            log.warning("names are unreadable, so Nimbus is asked again: %s", error)
        return Names(components, topologies, kept_secs)

    def _step(self) -> float:
        """Return the seconds until the next question."""
        with self._guard:
            seen, self._seen = self._seen, {}
        try:
            self._take(seen)
        except (TableError, OSError) as error:
            self._rest(f"the table of components cannot be kept: {error}")
        except Exception as error:
            log.exception("asking Nimbus for components failed, and is tried again")
            self._rest(f"{type(error).__name__}: {error}")
        return max(0.0, max(self._questions.next_at, self._resting_until) - time.monotonic())

    def _take(self, seen: Mapping[str, tuple[int, int]]) -> None:
        now = time.monotonic()
        self._names.saw(seen, time.time())
        self._questions.saw(seen, self._is_known, now)
        if now >= self._resting_until:
            storm_id = self._questions.next(now)
            if storm_id is not None:
                self._learn(storm_id)
            done = storm_id is None or self._questions.next(now) is None
            if self._names.is_new and (done or now >= self._published_at + _PUBLISH_SECS):
                self._publish()
        lacking = [one for one in self._questions.tasks.items() if not self._names.has(*one)]
        self._status.record_unnamed(len(lacking))

    def _is_known(self, storm_id: str, tasks: tuple[int, int]) -> bool:
        return self._names.has(storm_id, tasks) and self._names.is_fresh(storm_id, time.time())

    def _learn(self, storm_id: str) -> None:
        try:
            answer = self.ask(storm_id)
        except NotAliveException:
            log.debug("Nimbus does not know %s, whose workers still beat", storm_id)
        except AuthorizationException as error:
            self._status.record_nimbus_answer(f"Nimbus refuses: {error}")
        except RpcOutcomeUnknownError as error:  # perhaps only this topology is too large
            self._status.record_nimbus_answer(str(error))
        except RpcUnavailableError as error:
            self._rest(str(error))
            return
        except StormkeeperError as error:
            self._status.record_nimbus_answer(str(error))
        except Exception as error:  # only this topology's answer may be unreadable
            self._status.record_nimbus_answer(
                f"its answer about {storm_id} cannot be read: {error!r}"
            )
        else:
            self._names.learn(storm_id, *answer, time.time())
            self._status.record_nimbus_answer(None)
            self._outage.reset()
        self._questions.asked(storm_id, self._is_known, time.monotonic())

    def _publish(self) -> None:
        now = time.time()
        components, topologies = self._names.written(now)
        self._lookup = self._names.lookup(now)
        self._names.is_new = True  # until they are there
        self._commits += 1
        found = {tables.COMPONENTS: components, tables.TOPOLOGIES: topologies}
        self.store.publish(Origin(self._run_id, self._commits), found)
        self._names.is_new = False
        self._published_at = time.monotonic()

    def _rest(self, reason: str) -> None:
        self._status.record_nimbus_answer(reason)
        self._resting_until = time.monotonic() + self._outage.record()


def leader_client(conf: Conf, timeout_secs: float) -> LeaderClient:
    """Return a client for long answers, which asks the seeds once."""
    return LeaderClient(
        conf["nimbus.seeds"],
        conf["nimbus.thrift.port"],
        max_frame=max(conf["nimbus.thrift.max_buffer_size"], _LONGEST_ANSWER),
        timeout=timeout_secs,
        rounds=0,
    )


@contextlib.contextmanager
def run_nimbus_poller(conf: Conf, status: StatusTracker) -> Iterator[NimbusPoller]:
    specs = [
        TableSpec(tables.COMPONENTS, COMPONENTS, "current"),
        TableSpec(tables.TOPOLOGIES, TOPOLOGIES, "current"),
    ]
    store = TableStore(tables.tables_folder(conf) / tables.NAMING, specs, interval_secs=0.0)
    kept = max(float(conf[key]) for key in _RETENTION)
    client = leader_client(conf, _ANSWER_SECS)

    def ask(storm_id: str) -> TopologyAnswer:
        wanted = GetInfoOptions(NumErrorsChoice.NONE)
        info = client.nimbus.getTopologyInfoWithOpts(storm_id, wanted)
        executors = [
            Tasks(one.component_id, one.executor_info.task_start, one.executor_info.task_end)
            for one in info.executors or ()
            if one.executor_info.task_start > 0
        ]
        return TopologyAnswer(executors, timeout_in(client.nimbus.getTopologyConf(storm_id)))

    with client, store, NimbusPoller(store, ask, status, kept_hours=kept) as result:
        yield result


class TopologyTimeouts:
    """Reads the topologies' own timeouts, also in a process without the poller."""

    def __init__(self, conf: Conf) -> None:
        self._place = tables.tables_folder(conf) / tables.NAMING
        self._version = 0
        self._known: Mapping[str, float] = {}

    def __call__(self) -> Mapping[str, float]:
        """Return timeouts by topology id; the last known if the table is unreadable."""
        try:
            found = Tables(self._place)
            if found.manifest.version != self._version:
                self._known = self._read(found)
                self._version = found.manifest.version
        except TableError as error:  # there is no table yet, for one
            log.debug("topologies' own timeouts are not known: %s", error)
        return self._known

    @staticmethod
    def _read(found: Tables) -> dict[str, float]:
        names = ["storm_id", "timeout_secs"]
        read = rows.columns_of(found.arrow(tables.TOPOLOGIES, columns=names), *names)
        return {storm_id: secs for storm_id, secs in read if secs is not None}


def timeout_in(topology_conf: str | None) -> float | None:
    """Return the valid ``topology.worker.timeout.secs`` in a topology's configuration (JSON)."""
    try:
        found = json.loads(topology_conf or "{}")[_TIMEOUT]
        secs = float(found)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return secs if 0 < secs < inf else None
