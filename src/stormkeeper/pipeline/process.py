"""The heartbeat pipeline as a process: ``storm pipeline``."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stormkeeper.conf import Conf
from stormkeeper.daemon import spark as engine
from stormkeeper.daemon.http_thread import HttpThread
from stormkeeper.daemon.lifecycle import StopSignals, announce, die_with_parent
from stormkeeper.daemon.listening import address_of, listen
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.errors import ConfigError, EngineError, ListenError, TableError
from stormkeeper.heartbeats import coverage
from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.pacemaker.client.settings import access_of
from stormkeeper.pipeline import checkpoint, current, decode, folders, tables, totals
from stormkeeper.pipeline.options import Options
from stormkeeper.pipeline.registering import register
from stormkeeper.pipeline.servers import next_servers
from stormkeeper.pipeline.sight import Sight
from stormkeeper.pipeline.tables import Origin, SnapshotTables

log = logging.getLogger(__name__)

_QUERY: Final = "heartbeats"

#: How often the query is looked at, in seconds.
_POLL_SECS: Final = 0.2

#: How long a running batch may go on after a stop is asked for, in seconds. One that is cut off is
#: repeated at the next start. With what cutting it off may take (``stopTimeout`` below) and Spark's
#: end, it is less than what `storm local` gives the pipeline to end.
_STOP_SECS: Final = 15.0

#: How long stopping Spark's session and ending its JVM may take together, in seconds.
_END_SECS: Final = 12.0

#: What this process wants of Spark where the configuration says nothing: few checkpoint files,
#: times that mean the same wherever it runs, and an end of waiting for a batch that is cut off.
_SPARK_DEFAULTS: Final = {
    **engine.LOCAL_CHECKPOINTS,
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "10s",
}


def serve(conf: Conf, stop: StopSignals) -> int:
    """Keep the tables of liveness, component statistics and servers until told to stop.

    Logs which Pacemakers cannot be read, before Spark is started and whenever that changes.
    Prints ``pipeline writing to DIR`` once the first batch is in the tables. Returns 0 after
    SIGTERM or SIGINT (the running batch is finished first, Spark's start is given up), 1 when Spark
    or a batch failed.

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
    # What a Pacemaker does not answer is said once, by `Sight`.
    logging.getLogger("stormkeeper.pacemaker.client").setLevel(logging.WARNING)
    servers = [str(address) for address in conf.pacemaker_servers()]
    if not servers:
        raise ConfigError(
            "the pipeline has no Pacemaker to read: set pacemaker.servers, as in "
            "-c 'pacemaker.servers=[host-a, host-b]'"
        )
    folders.of_tables(conf)
    folders.of_checkpoint(conf)
    if stop.stopped:
        _log_stop(stop, "nothing was begun")
        return 0
    try:
        sight = Sight()
        with _places(conf) as snapshots, _observed(conf, sight):
            options = Options.parse(_source_options(conf, servers))
            settings = options.settings()
            sight.looked(coverage.ask(options.servers, options.timeout_secs, settings))
            _run_session(conf, servers, snapshots, stop, sight)
    except (EngineError, ListenError, TableError) as error:
        log.error("%s", error)  # noqa: TRY400 - of a failure of Spark the trace says nothing
        return 1
    log.info("stopped")
    return 0


def _log_stop(stop: StopSignals, how: str) -> None:
    log.info("stopping: %s; asked by %s", how, stop.asked_by)


@contextlib.contextmanager
def _places(conf: Conf) -> Iterator[SnapshotTables]:
    """Hold the tables and their checkpoint for this process alone; they belong together.

    The tables that are yielded know their folder from here on. So if it is moved while Spark
    starts, no other one is begun in its place, which nobody would hold.
    """
    directory, place = folders.of_tables(conf), folders.of_checkpoint(conf)
    if not directory.exists():
        checkpoint.begin(place, directory)  # what it refuses is to leave no folder
    with contextlib.ExitStack() as held:
        held.enter_context(tables.sole_writer(directory))
        if place.resolve() not in (checkpoint.default(directory).resolve(), directory.resolve()):
            held.enter_context(tables.sole_writer(place, "pipeline.checkpoint.dir"))
        checkpoint.begin(place, directory)
        yield SnapshotTables(directory)


@contextlib.contextmanager
def _observed(conf: Conf, sight: Sight) -> Iterator[None]:
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

    served = pages(lambda: sight.seen, conf["pipeline.trigger.secs"], time.monotonic)
    log.info("metrics on http://%s/metrics", address_of(listener))
    with HttpThread(listener, served):
        yield


def _source_options(conf: Conf, servers: list[str]) -> dict[str, str]:
    return {"servers": ",".join(servers), **access_of(conf)}


def _run_session(
    conf: Conf, servers: list[str], snapshots: SnapshotTables, stop: StopSignals, sight: Sight
) -> None:
    try:
        session = engine.session(
            {**_SPARK_DEFAULTS, **conf}, "storm-pipeline", cancelled=lambda: stop.stopped
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
            _run(session, conf, servers, snapshots, stop=stop, sight=sight)
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


def limits(conf: Conf) -> Limits:
    """Return from which age on a worker is late, and dead."""
    late = conf["pipeline.late.secs"] or 3 * conf["task.heartbeat.frequency.secs"]
    return Limits(float(late), float(conf["nimbus.task.timeout.secs"]))


def start(
    session: SparkSession,
    conf: Conf,
    servers: list[str],
    snapshots: SnapshotTables,
    sight: Sight | None = None,
) -> StreamingQuery:
    """Start the streaming query that keeps the tables, and tells `sight` of them.

    Raises
    ------
    TableError
        Their folder was moved or removed.
    """
    snapshots.check_place()  # before Spark makes it anew, for its checkpoint
    options = _source_options(conf, servers)
    raw = session.readStream.format("pacemaker").options(**options).load()
    keeper = Keeper(snapshots, limits(conf), sight)
    return (
        decode.typed(raw)
        .writeStream.queryName(_QUERY)
        .foreachBatch(keeper)
        .option("checkpointLocation", f"file://{folders.of_checkpoint(conf).absolute()}")
        .trigger(processingTime=f"{round(1000 * conf['pipeline.trigger.secs'])} milliseconds")
        .start()
    )


class Keeper:
    """Brings the tables up to date with each micro-batch; the same batch twice changes nothing.

    A micro-batch that is repeated after a crash is read anew, and what is read then is not what
    was read before. So all tables are published together, by one step: either that of the first
    reading was done, and the batch is not repeated, or nothing of the first reading is left.
    """

    def __init__(
        self, snapshots: SnapshotTables, limits: Limits, sight: Sight | None = None
    ) -> None:
        self._tables = snapshots
        self._limits = limits
        self._sight = sight or Sight()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Read the batch (rows as `decode.typed` gives them) and publish the next tables."""
        origin = Origin(_query_id(batch), number)
        if self._tables.has(origin):
            return
        began = time.time()
        rows = batch.toArrow()
        between = (began, time.time())
        before = self._tables.read
        liveness, newest = current.next_liveness(
            before(tables.LIVENESS), rows, self._limits, between
        )
        statistics = totals.next_statistics(before(tables.COMPONENT_STATISTICS), newest, liveness)
        servers = next_servers(before(tables.SERVERS), rows)
        self._tables.publish(
            {
                tables.LIVENESS: liveness,
                tables.COMPONENT_STATISTICS: statistics,
                tables.SERVERS: servers,
            },
            origin,
        )
        self._sight.published(servers, liveness)


def _query_id(batch: DataFrame) -> str:
    return str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _run(
    session: SparkSession,
    conf: Conf,
    servers: list[str],
    snapshots: SnapshotTables,
    *,
    stop: StopSignals,
    sight: Sight,
) -> None:
    announced = False
    try:
        query = start(session, conf, servers, snapshots, sight)
        while query.isActive and not stop.wait(_POLL_SECS):
            sight.alive()
            if not announced and query.lastProgress is not None:
                announce(f"pipeline writing to {folders.of_tables(conf)}")
                announced = True
        if stop.stopped:
            _log_stop(stop, "a batch that runs is done first")
        _stop_between_batches(query)
    except (PySparkException, Py4JError) as error:
        raise EngineError(f"the pipeline's query failed: {engine.reason(error)}") from error


def _stop_between_batches(query: StreamingQuery) -> None:
    """Stop a query once its running batch is done; raise why it has ended by itself, if it has."""
    deadline = time.monotonic() + _STOP_SECS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.02)
    if not query.isActive:
        failure = query.exception()
        if failure is not None:
            raise failure
    try:
        query.stop()
    except (PySparkException, Py4JError) as error:  # Spark waits no longer
        log.warning("The running batch did not end when cut off: %s", engine.reason(error))
