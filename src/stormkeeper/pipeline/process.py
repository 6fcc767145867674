"""The heartbeat pipeline as a process, ``storm pipeline``, or in a Spark application's."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
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
from stormkeeper.daemon.lifecycle import StopSignals, announce, die_with_parent
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.sockets import address_of, listen
from stormkeeper.errors import ConfigError, EngineError, ListenError, TableError
from stormkeeper.heartbeats import coverage
from stormkeeper.history.folder import sole_writer
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import python_workers, queries, tables
from stormkeeper.pipeline.analyses.alerts import alert_tables
from stormkeeper.pipeline.analyses.runner import AnalysisRunner
from stormkeeper.pipeline.decoding.decoder import warn_if_interpreted
from stormkeeper.pipeline.nimbus_poller import TopologyTimeouts, naming
from stormkeeper.pipeline.python_workers import register
from stormkeeper.pipeline.queries import Places
from stormkeeper.pipeline.source import Options
from stormkeeper.pipeline.status import StatusTracker
from stormkeeper.pipeline.tables import ALERTS

log = logging.getLogger(__name__)

#: Starts queries by their names in a session, one after another, until the process has to stop.
Start = Callable[[SparkSession, Callable[[], bool], Collection[str]], Iterable[StreamingQuery]]

#: How often the queries are looked at, in seconds.
_POLL_SECS: Final = 0.2

#: Starts of a query whose Python workers are slow to start. They are more than a worker has, which
#: its supervisor starts again.
_STARTS: Final = 12

#: How long running batches may go on after a stop is asked for, in seconds. One that is cut off is
#: repeated at the next start. With what cutting both off may take (``stopTimeout`` below, for each)
#: and Spark's end, it is less than what `storm local` gives the pipeline to end.
_STOP_SECS: Final = 15.0

#: How long stopping Spark's session and ending its JVM may take together, in seconds.
_END_SECS: Final = 12.0

#: What this process wants of Spark where the configuration says nothing: few checkpoint files,
#: times that mean the same wherever it runs, an end of waiting for a batch that is cut off, and a
#: heap that is cleaned before it has grown: Java lets it grow first, which for 72,000 workers takes
#: 200 MB more after ten minutes.
_SPARK_DEFAULTS: Final = {
    "spark.cleaner.periodicGC.interval": "1min",
    **engine.LOCAL_CHECKPOINTS,
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "5s",
}

#: Left alone, a query whose batch was too large waits for ever, as the thread of Spark's that takes
#: its results has ended. A pipeline that ends says why, and reads in more parts at its next start.
#: Its heap begins small and grows when it must: of its own accord, Java begins with a sixty-fourth
#: of the machine's memory and keeps that.
_JAVA_OPTIONS: Final = ("-XX:+ExitOnOutOfMemoryError", "-Xms128m")


def serve(conf: Conf, stop: StopSignals) -> int:
    """Keep the tables of both queries, liveness and statistics, until told to stop.

    Logs which Pacemakers cannot be read, before Spark is started and whenever that changes.
    Prints ``pipeline writing to DIR`` once the first batch of each query is in the tables. Returns
    0 after SIGTERM or SIGINT (running batches are finished first, Spark's start is given up), 1
    when Spark or a batch failed.

    Parameters
    ----------
    conf
        The configuration.
    stop
        Says that it is to stop. It was entered by the caller, before this module was imported,
        which takes a while.

    Raises
    ------
    ConfigError
        When no Pacemaker is configured, a file that says how to come to one is missing or wrong,
        or a folder is given as a URL.
    """
    die_with_parent()
    configure_logging()
    # What a Pacemaker does not answer is said once, by `StatusTracker`.
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
        with _held(conf, servers, status) as (start, watch):
            options = Options.parse(queries.source_options(conf, servers))
            settings = options.settings()
            status.record_coverage(coverage.ask(options.servers, options.timeout_secs, settings))
            _run_session(conf, servers, start, watch, stop=stop, status=status)
    except (EngineError, ListenError, TableError) as error:
        log.error("%s", error)  # noqa: TRY400 - of a failure of Spark the trace says nothing
        return 1
    log.info("stopped")
    return 0


def keep(spark: SparkSession, conf: Conf) -> None:
    """Keep the same tables in a session that runs already, until SIGTERM, SIGINT or a failure.

    For a Spark application, in its main thread. Checkpoints are where `serve` has them.

    Parameters
    ----------
    spark
        The session, on any ``spark.master``. It is left running.
    conf
        The configuration; its ``spark.*`` keys do not count.

    Raises
    ------
    ConfigError
        As of `serve`.
    EngineError, ListenError, TableError
        Spark, a batch, a port or a folder failed. Called again, it goes on from its checkpoints.
    """
    servers, status = _servers(conf), StatusTracker()
    with StopSignals() as stop, _held(conf, servers, status) as (start, watch):
        _register(spark, stop)
        if not stop.stopped:
            _run(spark, conf, start, watch, stop=stop, status=status)


def _servers(conf: Conf) -> list[str]:
    servers = [str(address) for address in conf.pacemaker_servers()]
    if not servers:
        raise ConfigError(
            "the pipeline has no Pacemaker to read: set pacemaker.servers, as in "
            "-c 'pacemaker.servers=[host-a, host-b]'"
        )
    return servers


@contextlib.contextmanager
def _held(
    conf: Conf, servers: list[str], status: StatusTracker
) -> Iterator[tuple[Start, AnalysisRunner]]:
    """Hold what the pipeline writes and serves; yield what starts its queries and its analyses."""
    with (
        _observed(conf, status),  # before folders are made: its port may be taken
        _places(conf) as places,
        _watch(conf, status) as watch,
        naming(conf, status) as names,
    ):
        timeouts = TopologyTimeouts(conf)

        def start(
            session: SparkSession, stopped: Callable[[], bool], wanted: Collection[str]
        ) -> Iterator[StreamingQuery]:
            return queries.start(
                *(session, conf, servers, places, status),
                named=names.named,
                timeouts=timeouts,
                stopped=stopped,
                names=wanted,
            )

        yield start, watch


def _log_stop(stop: StopSignals, how: str) -> None:
    log.info("stopping: %s; asked by %s", how, stop.asked_by)


@contextlib.contextmanager
def _places(conf: Conf) -> Iterator[Places]:
    """Hold the tables and their checkpoints for this process alone; they belong together.

    The tables that are yielded, by query, know their folder from here on. So if it is moved while
    Spark starts, no other one is begun in its place, which nobody would hold.
    """
    directory, given = tables.tables_folder(conf), tables.checkpoints_folder(conf)
    of_queries = {name: tables.query_folders(conf, name) for name in queries.NAMES}
    if not directory.exists():
        for place, checkpoint_place in of_queries.values():
            tables.prepare_checkpoint(
                checkpoint_place, place
            )  # what it refuses is to leave no folder
    with contextlib.ExitStack() as held:
        held.enter_context(sole_writer(directory))
        if given is not None and given.resolve() != directory.resolve():
            held.enter_context(sole_writer(given, "pipeline.checkpoint.dir"))
        _tell_of_old_tables(directory)
        for place, checkpoint_place in of_queries.values():
            held.enter_context(sole_writer(place))  # as whoever runs one of the queries elsewhere
            tables.prepare_checkpoint(checkpoint_place, place)
        yield {
            name: held.enter_context(_store(conf, name, place))
            for name, (place, _) in of_queries.items()
        }


def _store(conf: Conf, query: str, place: Path) -> TableStore:
    store = TableStore(
        place, queries.specs(conf, query), interval_secs=queries.interval_secs(conf, query)
    )
    store.check_place()
    return store


@contextlib.contextmanager
def _watch(conf: Conf, status: StatusTracker) -> Iterator[AnalysisRunner]:
    """Have the analyses write to a folder of their own."""
    place = tables.tables_folder(conf) / ALERTS
    with TableStore(
        place, alert_tables(conf), interval_secs=conf["pipeline.analyses.secs"]
    ) as store:
        yield AnalysisRunner(conf, store, status)


def _tell_of_old_tables(directory: Path) -> None:
    """Say what may be done with tables from before each query had a folder of its own."""
    if any(directory.glob("batch=*")):
        log.warning(
            "the tables %s/batch=* are of an older version and stay as they are: new ones are in"
            " %s, from the Pacemakers' beginning; remove the old ones with"
            " rm -r %s/batch=* %s/.checkpoint",
            directory,
            " and ".join(str(directory / name) for name in queries.NAMES),
            directory,
            directory,
        )


@contextlib.contextmanager
def _observed(conf: Conf, status: StatusTracker) -> Iterator[None]:
    """Serve metrics and health meanwhile, if ``pipeline.metrics.port`` says where."""
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
    from stormkeeper.pipeline.metrics import pages  # noqa: PLC0415 - 5 MB, for who asks for them

    intervals = {name: queries.interval_secs(conf, name) for name in queries.NAMES}
    served = pages(lambda: status.current, intervals, time.monotonic)
    log.info("metrics on http://%s/metrics", address_of(listener))
    with HttpThread(listener, served):
        yield


def _run_session(
    conf: Conf,
    servers: list[str],
    start: Start,
    watch: AnalysisRunner,
    *,
    stop: StopSignals,
    status: StatusTracker,
) -> None:
    settings = {**_SPARK_DEFAULTS, **conf}
    if settings.get("spark.master") in (None, "local[*]"):
        # A slot for each Pacemaker beside the cores: liveness does not wait while they all decode.
        settings["spark.master"] = f"local[{(os.cpu_count() or 1) + len(servers)}]"
    ours = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
    if ours and str(settings["spark.master"]).startswith("local"):
        # Elsewhere Spark's workers may run a Python that has no such module.
        settings.setdefault("spark.python.daemon.module", python_workers.__name__)
    # Of the JVM and of Spark's Python workers: C's allocator may keep memory for each of a hundred
    # threads otherwise.
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
            _run(session, conf, start, watch, stop=stop, status=status)
    finally:
        engine.end(session, _END_SECS)


def _register(session: SparkSession, stop: StopSignals) -> None:
    """Have it said that Spark's workers cannot read Pacemakers, if so; no longer than to a stop.

    That takes a Spark job, which waits for an executor and its Python for as long as it takes.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            register(session)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="pipeline-register", daemon=True).start()
    while not (done.done() or stop.stopped):
        wait([done], _POLL_SECS)
    if done.done():
        done.result()


@spark_callbacks.answered()
def _run(
    session: SparkSession,
    conf: Conf,
    start: Start,
    watch: AnalysisRunner,
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
                running.append(query)  # so that those before one that does not start are stopped
            watch.start(session)
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
            watch.ask_to_stop()
            _stop_between_batches(running)
    except (PySparkException, Py4JError) as error:
        raise EngineError(f"the pipeline's query failed: {engine.reason(error)}") from error
    except ConnectionError as error:  # by py4j, which asks it in vain
        raise EngineError(
            "Spark's JVM has ended: what it printed before says why. If its memory was too small, "
            "set spark.driver.memory, as in -c spark.driver.memory=4g"
        ) from error
    finally:
        watch.stop()


def _waits_for_next(
    query: StreamingQuery, starts: Mapping[str, engine.Starts], stop: StopSignals
) -> bool:
    """Wait until a query that failed may start again; return False if its end is final."""
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
    """Stop each query once its running batch is done; raise why one has ended by itself.

    A query that has only begun does its first batch: Spark would complain of whatever it is about.
    """
    deadline = time.monotonic() + _STOP_SECS
    failure, left = None, list(running)
    while left:
        for query in list(left):
            # Asked for first: a query that fails has ended by the time that its batch is over.
            between = not query.status["isTriggerActive"] and query.lastProgress is not None
            if not query.isActive:
                failure = failure or query.exception()
                left.remove(query)
            elif between or time.monotonic() >= deadline:
                left.remove(query)
                try:
                    query.stop()
                except (PySparkException, Py4JError) as error:  # Spark waits no longer
                    reason = engine.reason(error)
                    log.warning("The running batch did not end when cut off: %s", reason)
        time.sleep(0.02)
    if failure is not None:
        raise failure
