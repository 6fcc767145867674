"""The worker's process: runs a script's streaming queries, counts rows, and sends heartbeats.

The script runs in the main thread, as it may set signal handlers and may block. After a signal,
another thread stops the queries; then a script that waits for them ends, and any other is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.daemon import spark as engine
from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.lifecycle import StopSignals, announce
from stormkeeper.errors import (
    ClaimedError,
    ConfigError,
    StormkeeperError,
    TopologyError,
    WorkerError,
)
from stormkeeper.state import backends
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology import faults
from stormkeeper.topology.plan import Plan, plan
from stormkeeper.topology.topology import Topology, spread
from stormkeeper.worker import script as scripts
from stormkeeper.worker import shutdown
from stormkeeper.worker.checkpoint_claims import Checkpoint, JobClaims
from stormkeeper.worker.cluster_link import WorkerReports
from stormkeeper.worker.driver_log import LogLevels, LogRotation
from stormkeeper.worker.executor_counts import (
    ScriptCounts,
    TopologyCounts,
    WorkerStatistics,
    count_written_frames,
)
from stormkeeper.worker.failure import log_failure, readable_text, without_folder
from stormkeeper.worker.heartbeat import (
    AliveFile,
    Beater,
    HeartbeatBuilder,
    warn_of_silent_pacemakers,
    write_exit_code,
)
from stormkeeper.worker.job import Job, checkpoint_location, with_credentials
from stormkeeper.worker.query_events import QueryEvents, QueryRun
from stormkeeper.worker.shutdown import BatchGate, Countdown, LiveQueries, StopRequest
from stormkeeper.worker.spark_session import WorkerSession
from stormkeeper.worker.spark_watch import JvmWatch, check_jvm
from stormkeeper.worker.streaming_queries import (
    FileSinks,
    ScriptCheckpoints,
    Sink,
    TopologyRun,
    build,
    checkpoint_name,
)

log = logging.getLogger(__name__)

#: Longest time between the first failed call to a dying JVM and the end of its process.
_DYING_SECS = 2.0

_LOOK_SECS = 0.2

_STDERR = 2


def serve(conf: Conf, job: Job, resolve_conf: Callable[[Topology | None], Conf]) -> int:
    """Run a worker until all queries have ended, or until a signal; return the exit code.

    `conf` is for the heartbeats; `resolve_conf` returns that of the queries, once the topology is
    known. Raises `ConfigError`.
    """
    warn_of_silent_pacemakers(conf)
    with StopSignals() as signals:
        worker = TopologyWorker(
            conf,
            job,
            resolve_conf=resolve_conf,
            signalled=lambda: signals.stopped,
        )
        stopper = threading.Thread(
            target=worker.stop_when, args=(signals.wait,), name="worker-stop", daemon=True
        )
        stopper.start()
        try:
            return worker.run()
        finally:
            stopper.join()


class TopologyWorker:
    """A worker: the main thread calls `run`, another thread `stop_when`."""

    def __init__(
        self,
        conf: Conf,
        job: Job,
        *,
        resolve_conf: Callable[[Topology | None], Conf],
        signalled: Callable[[], bool],
    ) -> None:
        self._job = job
        self._resolve_conf = resolve_conf
        self._conf: Conf | None = None
        self._topologies: list[Topology] = []
        self._stop_request = StopRequest(
            *(signalled, shutdown.STOPPED if job.package is not None else 0),
            write_code=lambda code: write_exit_code(job.alive, code),
        )
        self._statistics = WorkerStatistics()
        self._script_counts = ScriptCounts(self._statistics, job.script_id)
        self._events = QueryEvents(self._script_counts)
        self._session = WorkerSession(
            self._run_conf,
            job.storm_id,
            job.all_py_files,
            package=job.package,
            cancelled=lambda: self._stop_request.is_asked,
        )
        self._silence_secs = conf["supervisor.worker.timeout.secs"]
        self._jvm = JvmWatch(self._events, self._silence_secs / 3)
        self._heartbeats = HeartbeatBuilder(
            *(job.storm_id, self._statistics, self._jvm, Codec.from_conf(conf)),
            name_of=self._name_of,
            waiting=lambda: (
                self._session.waiting
                or self._claims.waiting
                or self._unreported_end(self._silence_secs / 3)
            ),
        )
        self._log_levels = LogLevels(lambda: self._session.started)
        self._reports = WorkerReports(conf, job, self._heartbeats, self._log_levels)
        self._claims = JobClaims(
            *(job, self._checkpoint, self._events, self._stop_request),
            self._reports,
            begin=self._begin_claim,
        )
        self._gate = BatchGate(self._claims.admits)
        self._live = LiveQueries(self._events, self._gate, lambda: self._stop_request.is_asked)
        self._script_checkpoints = ScriptCheckpoints(
            lambda: checkpoint_location(self._run_conf(), job.storm_id, job.script_id or "")
        )
        self._sinks = (
            FileSinks(
                self._claims.take_for_script,
                self._script_checkpoint,
                self._script_checkpoints.started,
            )
            if job.script_claim
            else FileSinks()
        )
        self._countdown = Countdown()
        self._query_ids: frozenset[str] | None = None
        self._queries_stopped = threading.Event()
        self._script_began = False
        self._script_over = threading.Event()
        self._finishing = threading.Lock()
        self._has_finished = False
        self._beater = Beater(
            lambda: backends.heartbeat_sender(conf),
            paths.workerbeat(job.storm_id, job.node, job.port),
            self._heartbeats.encoded,
            period_secs=conf["task.heartbeat.frequency.secs"],
            on_first=lambda: announce(f"worker beating {job.storm_id} {job.node} {job.port}"),
        )
        self._log_rotation = LogRotation(_STDERR if job.package is not None else None)
        self._alive = AliveFile.from_conf(job.alive, conf, lambda: self._beater.beaten_at)

    def run(self) -> int:
        try:
            self._reports.start()
            self._log_levels.start()
            self._log_rotation.start()
            job = self._job
            scripts.prepare(job.script_file, job.all_arguments, job.all_py_files, job.root)
            self._beater.start()
            self._jvm.start()
            if self._alive is not None:
                self._alive.start()
            self._reports.wait_status(lambda: self._stop_request.is_asked)
            self._wait_until_active()
            if not self._stop_request.is_asked:
                try:
                    self._script_began = True
                    self._work()
                finally:
                    self._script_over.set()
        except ConfigError as error:
            self._reports.report_failure(str(error))
            raise
        except ClaimedError as error:
            log.warning("%s", error)
            return shutdown.CLAIMED
        except (StormkeeperError, Py4JError, OSError) as error:
            if self._stop_request.is_asked:
                log.debug("while stopping: %s", error)
                return self._stop_request.code
            self._report_failure(self._jvm_failure(error) or self._session.explained(error))
            return 1
        else:
            if self._stop_request.is_asked:
                return self._stop_request.code
            self._reports.report_completion()
            self._heartbeats.has_completed = True
            write_exit_code(self._job.alive, 0)
            return 0
        finally:
            self._script_over.set()
            if self._stop_request.is_asked:
                self._queries_stopped.wait(self._countdown.left(shutdown.DRAIN_SECS))
            self._live.stop(self._countdown)  # also queries that were just starting
            self._finish()

    def stop_when(self, asked: Callable[[float], bool]) -> None:
        """Stop everything when `asked`, when the JVM is lost, or when a script is deactivated.

        `asked` waits for so many seconds.
        """
        while not asked(_LOOK_SECS) and not self._stop_request.is_asked:
            if self._has_finished:
                return
            if self._job.script_id and self._script_began and not self._reports.is_active:
                self._stop_request.ask(shutdown.INACTIVE)
            silent_secs = self._jvm.look()
            lost = self._find_loss() if silent_secs < self._silence_secs else _silent(silent_secs)
            if lost is not None:
                self._stop_request.ask(1)  # no query counts as ended by itself
                if silent_secs >= self._silence_secs:
                    engine.kill_jvm()
                self._report_failure(lost)
                self._leave(1)
        log.info("stopping")
        self._live.stop(self._countdown)
        self._queries_stopped.set()
        if not self._script_over.wait(
            min(shutdown.AFTER_SECS, self._countdown.left(shutdown.SCRIPT_SECS))
        ):
            log.warning("the script %s has not ended; leaving it", self._job.script)
            self._leave(self._stop_request.code)

    def _report_failure(self, error: Exception) -> None:
        package = self._job.package
        text = without_folder(str(error), package.folder if package is not None else None)
        log_failure(log, text)
        self._reports.report_failure(
            text, error.component if isinstance(error, WorkerError) else None
        )

    def _find_loss(self) -> WorkerError | None:
        try:
            self._session.check_executors()
        except WorkerError as error:
            return error
        unreported = self._unreported_end(self._silence_secs)
        if unreported is not None:
            return WorkerError(unreported)
        session = self._session.session
        if session is None or session.sparkContext._jsc is None:
            return None
        try:
            check_jvm([session])
        except WorkerError as error:
            return None if self._script_over.wait(shutdown.AFTER_SECS) else error
        return None

    def _unreported_end(self, secs: float) -> str | None:
        run = self._jvm.find_unreported_end(secs)
        if run is None:
            return None
        return (
            f"Spark has ended the query {self._name_of(run)!r}, and has not said so for"
            f" {secs:.0f} s: a StreamingQueryListener of the topology holds up Spark's events"
        )

    def _leave(self, code: int) -> None:
        self._finish()
        # The reader of stdout may be gone, or the script may have closed stdout.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)

    def _jvm_failure(self, error: BaseException) -> WorkerError | None:
        session = self._session.session
        if session is None or not isinstance(error.__cause__ or error, (Py4JError, OSError)):
            return None
        try:
            check_jvm([session], _DYING_SECS)
        except WorkerError as failure:
            return failure
        return None

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(spark_callbacks.answered())
            stack.enter_context(self._gate.installed())
            stack.enter_context(self._sinks.installed())
            stack.enter_context(self._events.readings.installed())
            stack.enter_context(self._session.offered(self._before_session_stop))
            stack.enter_context(self._claims.watched(self._live))
            with count_written_frames(self._events):
                if self._job.has_session_first:
                    self._session.get()
                names = self._run_script()
                topology = scripts.the_topology(names, self._topologies, self._job.script)
                if topology is None:
                    self._check_is_script()
                    self._stay()
                    return
            if self._script_counts.any:
                raise TopologyError(f"{self._job.script}: {faults.starts_beside(topology.name)}")
            self._run_topology(topology)

    def _run_script(self) -> dict[str, Any]:
        script = self._job.script_file
        with scripts.explained(script):
            return scripts.run(script, self._declared, self._job.root)

    def _declared(self, topology: Topology) -> None:
        self._topologies.append(topology)
        if len(self._topologies) == 1:
            self._conf = self._conf_for(topology)
            # Later code of the script may need a session, as a column does.
            if self._session.started is None:
                self._session.get()
            else:
                self._session.adapt()

    def _conf_for(self, topology: Topology | None) -> Conf:
        return with_credentials(self._resolve_conf(topology), self._reports.credentials)

    def _run_conf(self) -> Conf:
        if self._conf is None:
            self._conf = self._conf_for(None)
        return self._conf

    # --- a topology ----------------------------------------------------------------------------

    def _run_topology(self, topology: Topology) -> None:
        conf = self._run_conf() if topology is self._topologies[0] else self._conf_for(topology)
        spread(topology, self._reports.hints)
        the_plan = plan(topology)
        if self._job.chosen:
            the_plan = the_plan.only(self._job.chosen)
        the_plan.only([*self._job.claims])  # raises for a claim of another query
        self._events.counter = TopologyCounts(the_plan, self._statistics)
        self._events.attach(self._session.get())
        left = [query.id for query in the_plan.queries]
        self._query_ids = frozenset(left)
        while left and not self._stop_request.is_asked:
            run = TopologyRun(
                self._built(the_plan.only(left), topology, conf),
                self._events,
                self._should_pause,
                self._claims.claims,
                self._reports.report_end,
            )
            left = run.run()
            if left and not self._stop_request.is_asked:
                self._live.stop(Countdown(), shutdown.PAUSE_SECS)
                self._wait_until_active()
        self._claims.check()

    def _built(self, the_plan: Plan, topology: Topology, conf: Conf) -> dict[str, DataStreamWriter]:
        built = build(
            the_plan,
            topology.components,
            self._session.get(),
            conf,
            lambda query: checkpoint_location(conf, self._job.storm_id, query),
        )
        for writer in built.values():  # before any query runs
            self._sinks.check(writer)
        return built

    def _should_pause(self) -> bool:
        return self._stop_request.is_asked or not self._reports.is_active

    def _wait_until_active(self) -> None:
        if self._reports.is_active:
            return
        log.info("waiting until the topology is activated")
        self._heartbeats.is_inactive = True
        while not self._reports.is_active and not self._stop_request.is_asked:
            check_jvm(self._events.sessions)
            time.sleep(_LOOK_SECS)
        self._heartbeats.is_inactive = False

    def _begin_claim(self, query: str) -> None:
        if not self._run_conf()["topology.checkpoint.shared"]:  # otherwise the query cannot move
            self._reports.begin_claim(query, lambda: self._stop_request.is_asked)

    def _checkpoint(self, query: str) -> Checkpoint:
        location = checkpoint_location(self._run_conf(), self._job.storm_id, query)
        return Checkpoint(self._session.get(), location)

    # --- a plain script ------------------------------------------------------------------------

    def _check_is_script(self) -> None:
        if self._job.script_id is None:
            job = self._job
            for named, option in ((job.queries, "--query"), (job.claims, "--claim")):
                if named:
                    raise TopologyError(
                        f"{job.script} defines no Topology, so there is no query "
                        f"{next(iter(named))!r}: leave out {option}"
                    )

    def _script_checkpoint(self, sink: Sink) -> str | None:
        if self._run_conf()["topology.checkpoint.scripts"]:
            return self._script_checkpoints.choose(sink)
        if sink.format != "memory":
            text = faults.without_checkpoint(checkpoint_name(sink))
            log.warning("%s", text)
            self._reports.report_problem(text)
        return None

    def _stay(self) -> None:
        if not self._script_counts.any:
            raise WorkerError(faults.starts_nothing(self._job.script))
        for run in self._live.wait():
            if run.error is not None:
                name = run.name or self._script_counts.component(run)
                raise WorkerError(f"the query {name!r} failed:\n{readable_text(run.error)}")

    # --- ends ----------------------------------------------------------------------------------

    def _before_session_stop(self) -> None:
        self._live.stop(self._countdown if self._stop_request.is_asked else Countdown())

    def _name_of(self, run: QueryRun) -> str | None:
        """Return a query's name in heartbeats; None for a query that a bolt starts."""
        if self._query_ids is not None:
            return run.name if run.name in self._query_ids else None
        return run.name or self._job.script_id or "query"

    def _finish(self) -> None:
        with self._finishing:
            if not self._has_finished:
                self._has_finished = True
                self._jvm.close(0.0)
                self._beater.close(
                    min(shutdown.BEAT_SECS, self._countdown.left(shutdown.LAST_BEAT_SECS))
                )
                self._reports.close()
                self._log_levels.close(0.0)
                self._session.end(min(shutdown.JVM_SECS, self._countdown.left(shutdown.END_SECS)))
                self._log_rotation.close()
                if self._alive is not None:
                    self._alive.close()


def _silent(secs: float) -> WorkerError:
    return WorkerError(
        f"Spark's JVM had not answered for {secs:.0f} s (supervisor.worker.timeout.secs), and was"
        " ended with all queries: if the JVM's garbage collection takes that long, give the JVM"
        " more memory (spark.driver.memory)"
    )
