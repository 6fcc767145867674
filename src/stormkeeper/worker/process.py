"""The worker's process: runs a script's streaming queries, counts them, and beats.

The script runs in the main thread, as it may set signal handlers and may block. After a signal,
another thread stops the queries. A script that waits for them then comes to its end. One that does
not is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.daemon.lifecycle import StopSignals, announce, die_with_parent
from stormkeeper.errors import (
    ClaimedError,
    ConfigError,
    StormkeeperError,
    TopologyError,
    WorkerError,
)
from stormkeeper.state import factory
from stormkeeper.state.storm.codec import Codec
from stormkeeper.topology import faults
from stormkeeper.topology.claims import Claim
from stormkeeper.topology.plan import plan
from stormkeeper.topology.topology import Topology
from stormkeeper.worker import batch_functions, settings
from stormkeeper.worker import script as scripts
from stormkeeper.worker.beater import Beater
from stormkeeper.worker.building import build
from stormkeeper.worker.claims import Checkpoint, Claims
from stormkeeper.worker.counting import TopologyCounts
from stormkeeper.worker.failure import log_failure, readable_text
from stormkeeper.worker.file_sinks import FileSinks
from stormkeeper.worker.heartbeat import heartbeat
from stormkeeper.worker.query_events import QueryEvents
from stormkeeper.worker.running import TopologyRun
from stormkeeper.worker.script_queries import ScriptQueries, writes_counted
from stormkeeper.worker.session import WorkerSession, check_jvm, is_running
from stormkeeper.worker.statistics import WorkerStatistics
from stormkeeper.worker.stopping import BatchGate, Countdown, stop_queries

log = logging.getLogger(__name__)

# The deadline of each step of a stop, in seconds since its beginning. Time that a step does not
# need goes to those after it. Whoever started the worker waits little longer than the last one.

#: The batches that run when the worker is asked to stop.
STOP_SECS = 15.0

#: What Spark tells of the last batches.
DRAIN_SECS = 18.0

#: The script, which goes on once its queries have been stopped.
SCRIPT_SECS = 21.0

#: The last heartbeat.
LAST_BEAT_SECS = 24.0

#: The JVM.
END_SECS = 27.0

#: How long a script may go on after its queries, however much of the time is left.
AFTER_SECS = 6.0

#: How long a heartbeat and the JVM may take at most, in the same way.
BEAT_SECS = 4.0
JVM_SECS = 12.0

#: Between the moment that calls to a dying JVM fail, and the end of its process.
_DYING_SECS = 2.0

_LOOK_SECS = 0.2

#: Exit code of a worker that has left a query to a later launch.
CLAIMED = 3


def serve(
    conf: Conf,
    *,
    script: Path,
    storm_id: str,
    node: str,
    port: int,
    arguments: Sequence[str] = (),
    py_files: Sequence[Path] = (),
    queries: Sequence[str] = (),
    claims: Mapping[str, Claim] | None = None,
    settle: Callable[[Topology | None], Conf] | None = None,
) -> int:
    """Run a worker until its queries have ended or it is told to stop; return its exit code.

    Parameters
    ----------
    conf
        The configuration to beat with, from the start on.
    script
        Defines a topology, or is any PySpark streaming script.
    arguments
        What the script finds in ``sys.argv``.
    py_files
        Modules and archives of modules that it can import.
    queries
        Ids of the topology's queries to run; all where none is named.
    claims
        By the query's id, the claim with which it is run.
    storm_id, node, port
        Whose heartbeats these are: the topology's id, the supervisor's, and the slot's port.
    settle
        Returns the configuration to run with, once the topology is known. Default: `conf` with
        the topology's own values.

    Raises
    ------
    ConfigError
        When the configuration to run with is wrong.
    """
    die_with_parent()
    settings.warn_of_silent_pacemakers(conf)
    with StopSignals() as signals:
        worker = Worker(
            conf,
            script=script,
            storm_id=storm_id,
            node=node,
            port=port,
            arguments=arguments,
            py_files=py_files,
            queries=queries,
            claims=claims or {},
            settle=settle or (lambda topology: settings.with_topology(conf, topology)),
            stopping=lambda: signals.stopped,
        )
        stopper = threading.Thread(
            target=worker.stop_when, args=(signals.wait,), name="worker-stop", daemon=True
        )
        stopper.start()
        try:
            return worker.run()
        finally:
            stopper.join()


class Worker:
    """One worker: `run` is for the main thread, `stop_when` for another one."""

    def __init__(
        self,
        conf: Conf,
        *,
        script: Path,
        storm_id: str,
        node: str,
        port: int,
        arguments: Sequence[str],
        py_files: Sequence[Path],
        queries: Sequence[str],
        claims: Mapping[str, Claim],
        settle: Callable[[Topology | None], Conf],
        stopping: Callable[[], bool],
    ) -> None:
        self._script = script
        self._arguments = arguments
        self._py_files = py_files
        self._queries = queries
        self._storm_id = storm_id
        self._settle = settle
        self._stopping = stopping
        self._began = time.monotonic()
        self._settled: Conf | None = None
        self._topologies: list[Topology] = []
        self._statistics = WorkerStatistics()
        self._script_queries = ScriptQueries(self._statistics)
        self._events = QueryEvents(self._script_queries)
        self._session = WorkerSession(self._run_conf, storm_id, py_files, cancelled=stopping)
        self._claimed = claims
        self._claims = Claims(claims, self._checkpoint)
        self._gate = BatchGate(self._admits)
        self._sinks = FileSinks()
        self._countdown = Countdown()
        self._queries_stopped = threading.Event()
        self._script_over = threading.Event()
        self._finishing = threading.Lock()
        self._finished = False
        self._completed = False
        self._codec = Codec.from_conf(conf)
        self._beater = Beater(
            lambda: factory.heartbeat_sender(conf),
            paths.workerbeat(storm_id, node, port),
            self._heartbeat,
            period_secs=conf["task.heartbeat.frequency.secs"],
            on_first=lambda: announce(f"worker beating {storm_id} {node} {port}"),
        )

    def run(self) -> int:
        """Run the script and its queries; return the exit code.

        Raises
        ------
        ConfigError
            When the configuration to run with is wrong.
        """
        try:
            scripts.prepare(self._script, self._arguments, self._py_files)
            self._beater.start()
            code = self._work()
        except ConfigError:
            raise
        except ClaimedError as error:
            log.warning("%s", error)
            return CLAIMED
        except (StormkeeperError, Py4JError, OSError) as error:
            if self._stopping():
                log.debug("while stopping: %s", error)
                return 0
            log_failure(log, self._jvm_failure(error) or error)
            return 1
        else:
            self._completed = not self._stopping()
            return code
        finally:
            self._script_over.set()
            if self._stopping():
                self._queries_stopped.wait(self._countdown.left(DRAIN_SECS))
            self._stop_queries(self._countdown)  # also what was just being started then
            self._finish()

    def stop_when(self, asked: Callable[[float], bool]) -> None:
        """Wait until `asked` says so, then stop everything; end when there is nothing to stop.

        Parameters
        ----------
        asked
            Waits for as many seconds; returns whether the worker is asked to stop.
        """
        while not asked(_LOOK_SECS):
            if self._finished:
                return
            if self._blocked_without_jvm():
                self._leave(1)
        log.info("stopping")
        self._stop_queries(self._countdown)
        self._queries_stopped.set()
        if not self._script_over.wait(min(AFTER_SECS, self._countdown.left(SCRIPT_SECS))):
            log.warning("%s is still not over; leaving it", self._script)
            self._leave(0)

    def _blocked_without_jvm(self) -> bool:
        """Return whether the JVM has ended and the script, in a wait of its own, goes on."""
        session = self._session.session
        if session is None or session.sparkContext._jsc is None:
            return False
        try:
            check_jvm([session])
        except WorkerError as error:
            if self._script_over.wait(AFTER_SECS):
                return False
            log_failure(log, error)
            return True
        return False

    def _leave(self, code: int) -> None:
        self._finish()
        # Whoever read what it says may be gone, or the script may have closed it.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)

    def _jvm_failure(self, error: BaseException) -> WorkerError | None:
        """Return what to say instead of `error` where the JVM's end is what brought it about."""
        session = self._session.session
        if session is None or not isinstance(error.__cause__ or error, (Py4JError, OSError)):
            return None
        try:
            check_jvm([session], _DYING_SECS)
        except WorkerError as failure:
            return failure
        return None

    def _work(self) -> int:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._gate.installed())
            stack.enter_context(self._sinks.installed())
            stack.enter_context(self._events.readings.installed())
            stack.enter_context(self._session.offered(self._before_session_stop))
            with writes_counted(self._events):
                names = self._run_script()
                topology = scripts.the_topology(names, self._topologies, self._script)
                if topology is None:
                    for named, option in ((self._queries, "--query"), (self._claimed, "--claim")):
                        if named:
                            raise TopologyError(
                                f"{self._script} defines no Topology, so there is no query "
                                f"{next(iter(named))!r}: leave out {option}"
                            )
                    self._stay()
                    return 0
            if self._script_queries.any:
                raise TopologyError(f"{self._script}: {faults.starts_beside(topology.name)}")
            self._run_topology(topology)
        return 0

    def _run_script(self) -> dict[str, Any]:
        with scripts.explained(self._script):
            return scripts.run(self._script, self._declared)

    def _declared(self, topology: Topology) -> None:
        self._topologies.append(topology)
        if len(self._topologies) == 1:
            self._settled = self._settle(topology)
            # Whatever stands below it in the script may need a session: a column does.
            if self._session.started is None:
                self._session.get()
            else:
                self._session.adapt()

    def _run_conf(self) -> Conf:
        if self._settled is None:
            self._settled = self._settle(None)
        return self._settled

    def _run_topology(self, topology: Topology) -> None:
        conf = self._run_conf() if topology is self._topologies[0] else self._settle(topology)
        the_plan = plan(topology)
        if self._queries:
            the_plan = the_plan.only(self._queries)
        the_plan.only([*self._claimed])  # refuses a claim to what does not run here
        session = self._session.get()
        self._events.counter = TopologyCounts(the_plan, self._statistics)
        self._events.attach(session)
        built = build(
            the_plan,
            topology.components,
            session,
            conf,
            lambda query: settings.checkpoint(conf, self._storm_id, query),
        )
        for query in built:  # before any of them runs
            self._sinks.check(query.writer)
        with self._claims.watched(self._leave_to_another):
            TopologyRun(built, self._events, self._stopping, self._claims).run()
        if self._claims.lost:
            left = ", ".join(f"{query} ({claim})" for query, claim in self._claims.lost.items())
            raise ClaimedError(f"later launches have claimed what this worker ran: {left}")

    def _checkpoint(self, query: str) -> Checkpoint:
        location = settings.checkpoint(self._run_conf(), self._storm_id, query)
        return Checkpoint(self._session.get(), location)

    def _admits(self, batch: Any) -> bool:
        """Return whether a batch may run: its query has not been claimed by another launch."""
        if not self._claimed:
            return True
        run = self._events.running_as(batch_functions.query_id(batch))
        return run is None or run.name is None or self._claims.look(run.name)

    def _leave_to_another(self, query: str) -> None:
        """End a query that another launch has claimed, and a batch that runs with it."""
        for active in [found for spark in self._events.sessions for found in _active(spark)]:
            if active.name == query:
                with contextlib.suppress(Py4JError, PySparkException):
                    active.stop()

    def _stay(self) -> None:
        """Wait for the queries that a plain script has left running."""
        if not self._script_queries.any:
            raise WorkerError(
                f"{self._script} defines no Topology and starts no streaming query: "
                "there is nothing to run"
            )
        left = self._events.running()
        while self._events.running() and not self._stopping():
            check_jvm(self._events.sessions)
            if not any(is_running(session) for session in self._events.sessions):
                return
            self._events.wait(lambda: not self._events.running(), _LOOK_SECS)
        for run in left:
            if run.error is not None:
                name = self._script_queries.component(run)
                raise WorkerError(f"the query {name!r} failed:\n{readable_text(run.error)}")

    def _before_session_stop(self) -> None:
        self._stop_queries(self._countdown if self._stopping() else Countdown())

    def _stop_queries(self, countdown: Countdown) -> None:
        self._gate.close()
        try:
            if not any(is_running(session) for session in self._events.sessions):
                return  # nobody is left to tell of an end
            if not countdown.left(STOP_SECS):
                return  # all that there was to wait for has been waited for
            active = [query for spark in self._events.sessions for query in _active(spark)]
            stop_queries(active, countdown.left(STOP_SECS))
            self._events.wait(lambda: not self._events.running(), countdown.left(DRAIN_SECS))
        finally:
            if not self._stopping():
                self._gate.open()

    def _heartbeat(self) -> bytes:
        now = time.monotonic()
        beat = heartbeat(
            self._storm_id,
            self._statistics.snapshot(now),
            time_secs=int(time.time()),
            uptime_secs=int(now - self._began),
            completed=self._completed,
        )
        return self._codec.write(beat)

    def _finish(self) -> None:
        with self._finishing:
            if not self._finished:
                self._finished = True
                self._beater.close(min(BEAT_SECS, self._countdown.left(LAST_BEAT_SECS)))
                self._session.end(min(JVM_SECS, self._countdown.left(END_SECS)))


def _active(session: SparkSession) -> list[StreamingQuery]:
    try:
        return session.streams.active if is_running(session) else []
    except (Py4JError, PySparkException):  # it is being stopped at this moment
        return []
