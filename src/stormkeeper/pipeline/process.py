"""The heartbeat pipeline as a process, ``storm pipeline``, or within a Spark application."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.daemon import spark as engine
from stormkeeper.daemon import spark_callbacks, spark_environment
from stormkeeper.daemon.http import HttpThread
from stormkeeper.daemon.lifecycle import StopSignals, announce
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.periodic import in_thread
from stormkeeper.daemon.sockets import address_of, listen
from stormkeeper.errors import EngineError, ListenError, TableError
from stormkeeper.heartbeats import coverage
from stormkeeper.history.manifest import sole_writer
from stormkeeper.pipeline import python_workers, queries, tables
from stormkeeper.pipeline.analyses.alerts import alert_store
from stormkeeper.pipeline.analyses.runner import AnalysisRunner
from stormkeeper.pipeline.decoded_rows import warn_if_interpreted
from stormkeeper.pipeline.nimbus_poller import run_nimbus_poller
from stormkeeper.pipeline.python_workers import register
from stormkeeper.pipeline.queries import Stores
from stormkeeper.pipeline.source import Options
from stormkeeper.pipeline.status import StatusTracker, pages

log = logging.getLogger(__name__)

#: Starts queries by name in a session, in order, until the process has to stop.
Start = Callable[[SparkSession, Callable[[], bool], Collection[str]], Iterable[StreamingQuery]]

_POLL_SECS: Final = 0.2

#: Starts of a query with slow Python workers.
_STARTS: Final = 12

#: Seconds for running batches after a stop. With ``stopTimeout`` below and Spark's end, less than
#: `storm local` allows.
_STOP_SECS: Final = 15.0

_END_SECS: Final = 12.0

#: Defaults. Garbage collection before the heap grows saves 200 MB for 72,000 workers.
_SPARK_DEFAULTS: Final = {
    "spark.cleaner.periodicGC.interval": "1min",
    **engine.LOCAL_CHECKPOINTS,
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "5s",
}

#: A query with too large a batch would wait for ever; the next start reads in more parts. Java's
#: default heap begins with a sixty-fourth of the machine's memory.
_JAVA_OPTIONS: Final = ("-XX:+ExitOnOutOfMemoryError", "-Xms128m")


def serve(conf: Conf, stop: StopSignals) -> int:
    """Run both queries until a signal; return 0 after a signal, 1 if Spark or a batch failed.

    Prints ``pipeline writing to DIR`` once the first batch of each query is in the tables. Raises
    `ConfigError` without a Pacemaker, for an unreadable file of access, or a folder that is a URL.
    """
    configure_logging()
    # `StatusTracker` logs unreadable Pacemakers, once.
    logging.getLogger("stormkeeper.pacemaker.client").setLevel(logging.WARNING)
    warn_if_interpreted()
    servers = _servers(conf)
    tables.tables_folder(conf)
    tables.checkpoints_folder(conf)
    if stop.stopped:
        _log_stop(stop, "nothing was begun")
        return 0
    try:
        spark_environment.prepare(home=folder("storm.local.dir", conf["storm.local.dir"]) / "home")
        status = StatusTracker()
        with _prepared(conf, servers, status) as (start, runner):
            options = Options.parse(queries.source_options(conf, servers))
            settings = options.settings()
            status.record_coverage(coverage.ask(options.servers, options.timeout_secs, settings))
            _run_session(conf, servers, start, runner, stop=stop, status=status)
    except (EngineError, ListenError, TableError) as error:
        log.error("%s", error)  # noqa: TRY400 - a trace of Spark's failure does not help
        return 1
    log.info("stopped")
    return 0


def keep(spark: SparkSession, conf: Conf) -> None:
    """Keep the tables in a running session, until SIGTERM, SIGINT or a failure.

    Call in the main thread; ``spark.*`` keys of `conf` do not count. Raises `ConfigError` as
    `serve` does; `EngineError`, `ListenError` or `TableError` if Spark, a batch, a port or a folder
    failed.
    """
    servers, status = _servers(conf), StatusTracker()
    with StopSignals() as stop, _prepared(conf, servers, status) as (start, runner):
        _register(spark, stop)
        if not stop.stopped:
            _run(spark, conf, start, runner, stop=stop, status=status)


def _servers(conf: Conf) -> list[str]:
    remedy = "set pacemaker.servers, as in -c 'pacemaker.servers=[host-a, host-b]'"
    return queries.pacemaker_servers(conf, remedy)


@contextlib.contextmanager
def _prepared(
    conf: Conf, servers: list[str], status: StatusTracker
) -> Iterator[tuple[Start, AnalysisRunner]]:
    with (
        _metrics_served(conf, status),  # first, as the port may be taken
        _places(conf) as places,
        alert_store(conf) as alerts,
        run_nimbus_poller(conf, status) as poller,
    ):

        def start(
            session: SparkSession, stopped: Callable[[], bool], wanted: Collection[str]
        ) -> Iterator[StreamingQuery]:
            return queries.start(
                *(session, conf, servers, places, status),
                named=poller.named,
                stopped=stopped,
                names=wanted,
            )

        yield start, AnalysisRunner(conf, alerts, status)


def _log_stop(stop: StopSignals, how: str) -> None:
    log.info("stopping: %s; asked by %s", how, stop.asked_by)


@contextlib.contextmanager
def _places(conf: Conf) -> Iterator[Stores]:
    """Lock tables and checkpoints; from then on, a store notices a move of the folder."""
    directory, given = tables.tables_folder(conf), tables.checkpoints_folder(conf)
    of_queries = {name: tables.query_folders(conf, name) for name in queries.NAMES}
    if not directory.exists():
        for place, checkpoint_place in of_queries.values():
            tables.prepare_checkpoint(checkpoint_place, place)  # refuse before a folder is created
    with contextlib.ExitStack() as held:
        held.enter_context(sole_writer(directory))
        if given is not None and given.resolve() != directory.resolve():
            held.enter_context(sole_writer(given, "pipeline.checkpoint.dir"))
        for place, checkpoint_place in of_queries.values():
            held.enter_context(sole_writer(place))  # as a topology does for each query
            tables.prepare_checkpoint(checkpoint_place, place)
        stores = {
            name: held.enter_context(queries.table_store(conf, name)) for name in queries.NAMES
        }
        for store in stores.values():
            store.check_place()
        yield stores


@contextlib.contextmanager
def _metrics_served(conf: Conf, status: StatusTracker) -> Iterator[None]:
    port = conf["pipeline.metrics.port"]
    if port is None:
        yield
        return
    listener = listen(
        conf["pipeline.metrics.bind.host"] or "127.0.0.1",
        port,
        keys="pipeline.metrics.bind.host, pipeline.metrics.port",
        backlog=16,
        if_taken="set pipeline.metrics.port to another port, or to 0 for any free one",
        if_elsewhere="set pipeline.metrics.bind.host to an address of this machine",
        if_forbidden="set pipeline.metrics.port to 1024 or more",
    )
    intervals = {name: queries.interval_secs(conf, name) for name in queries.NAMES}
    served = pages(lambda: status.current, intervals, time.monotonic)
    log.info("metrics on http://%s/metrics", address_of(listener))
    with HttpThread(listener, served):
        yield


def _run_session(
    conf: Conf,
    servers: list[str],
    start: Start,
    runner: AnalysisRunner,
    *,
    stop: StopSignals,
    status: StatusTracker,
) -> None:
    settings = {**_SPARK_DEFAULTS, **conf}
    if settings.get("spark.master") in (None, "local[*]"):
        # A slot for each Pacemaker beside the cores: liveness does not wait for decoding.
        settings["spark.master"] = f"local[{(os.cpu_count() or 1) + len(servers)}]"
    ours = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
    if ours and str(settings["spark.master"]).startswith("local"):
        # Elsewhere the workers' Python may lack this module.
        settings.setdefault("spark.python.daemon.module", python_workers.__name__)
    # glibc may keep memory for each of a hundred threads, in the JVM and the Python workers.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    try:
        session = engine.session(
            settings,
            "storm-pipeline",
            cancelled=lambda: stop.stopped,
            java_options=_JAVA_OPTIONS,
        )
    except EngineError as error:
        if not stop.stopped:
            raise
        log.debug("stopped while Spark started: %s", error)
        _log_stop(stop, "Spark had not started")
        return
    try:
        if os.environ["PYSPARK_PYTHON"] != sys.executable:
            _register(session, stop)
        if stop.stopped:
            _log_stop(stop, "no batch was begun")
        else:
            _run(session, conf, start, runner, stop=stop, status=status)
    finally:
        engine.end(session, _END_SECS)


def _register(session: SparkSession, stop: StopSignals) -> None:
    """Register the source in a thread, as the check waits for an executor; return at a stop."""
    done = in_thread(partial(register, session), "pipeline-register")
    while not (done.done() or stop.stopped):
        wait([done], _POLL_SECS)
    if done.done():
        done.result()


@spark_callbacks.answered()
def _run(
    session: SparkSession,
    conf: Conf,
    start: Start,
    runner: AnalysisRunner,
    *,
    stop: StopSignals,
    status: StatusTracker,
) -> None:
    announced = False
    running: list[StreamingQuery] = []
    starts = {name: engine.Starts(_STARTS) for name in queries.NAMES}
    try:
        try:
            for query in start(session, lambda: stop.stopped, queries.NAMES):
                running.append(query)  # so that all are stopped if the next one does not start
            runner.start(session)
            while not stop.wait(_POLL_SECS):
                failed = [query for query in running if not query.isActive]
                if not all(_waits_for_next(query, starts, stop) for query in failed):
                    break
                for query in failed:
                    again = start(session, lambda: stop.stopped, [query.name or ""])
                    running.remove(query)
                    running.extend(again)
                status.record_alive()
                if not announced and all(query.lastProgress is not None for query in running):
                    announce(f"pipeline writing to {tables.tables_folder(conf)}")
                    announced = True
            if stop.stopped:
                _log_stop(stop, "batches that run are done first")
        finally:
            runner.ask_to_stop()
            _stop_between_batches(running)
    except (PySparkException, Py4JError) as error:
        raise EngineError(f"the pipeline's query failed: {engine.reason(error)}") from error
    except ConnectionError as error:  # py4j's
        raise EngineError(
            "Spark's JVM has ended: see its output above. If its memory was too small, set "
            "spark.driver.memory, as in -c spark.driver.memory=4g"
        ) from error
    finally:
        runner.stop()


def _waits_for_next(
    query: StreamingQuery, starts: Mapping[str, engine.Starts], stop: StopSignals
) -> bool:
    """Wait until a failed query may start again; return False if the end is final."""
    error, name = query.exception(), query.name or ""
    if error is None:
        return False
    pause = starts[name].next_pause(str(error), has_batch=query.lastProgress is not None)
    if pause is None:
        return False
    log.warning("the query %s lost a Python worker that was slow to start; starting it again", name)
    stop.wait(pause)
    return True


def _stop_between_batches(running: Iterable[StreamingQuery]) -> None:
    """Stop each query after the running batch; raise the error of a query that had ended.

    A new query finishes its first batch: Spark's errors of a start that is cut off confuse.
    """
    deadline = time.monotonic() + _STOP_SECS
    failure, left = None, list(running)
    while left:
        for query in list(left):
            # Read before `isActive`: a failing query has ended when its batch is over.
            between = not query.status["isTriggerActive"] and query.lastProgress is not None
            if not query.isActive:
                failure = failure or query.exception()
                left.remove(query)
            elif between or time.monotonic() >= deadline:
                left.remove(query)
                try:
                    query.stop()
                except (PySparkException, Py4JError) as error:  # Spark's stopTimeout
                    reason = engine.reason(error)
                    log.warning("the running batch did not end when cut off: %s", reason)
        time.sleep(0.02)
    if failure is not None:
        raise failure
