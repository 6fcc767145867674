"""The pipeline's two streaming queries: liveness, from ages, often; and statistics, from pulses.

Statistics are cumulative: only a worker's newest pulse counts, and pulses are decoded seldom.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.heartbeats import coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.history.manifest import write_error
from stormkeeper.history.parquet import Retention, TableSpec
from stormkeeper.history.table_store import TableStore
from stormkeeper.pacemaker.client.client_settings import access_of
from stormkeeper.pipeline import rollups, tables, worker_liveness
from stormkeeper.pipeline.batch import AddNames, pack
from stormkeeper.pipeline.last_pulses import LastPulses
from stormkeeper.pipeline.nimbus_poller import TopologyTimeouts
from stormkeeper.pipeline.rollups import OPEN
from stormkeeper.pipeline.source import Options
from stormkeeper.pipeline.status import StatusTracker
from stormkeeper.pipeline.table_columns import (
    COMPONENT_STATS,
    EXECUTOR_STATS,
    REJECTED,
    ROLLUP,
    SERVERS,
    TOPOLOGY_STATS,
    WORKER_EVENTS,
    WORKER_LIVENESS,
    WORKER_REPORTS,
    WORKER_STATS,
)
from stormkeeper.pipeline.table_updates import (
    PARTS_KEY,
    WORKERS_OF_PART,
    OnPublished,
    TableUpdater,
    liveness_tables,
    statistics_tables,
)
from stormkeeper.pipeline.tables import LIVENESS, STATISTICS

log = logging.getLogger(__name__)

NAMES: Final = (LIVENESS, STATISTICS)

#: By query.
Stores = Mapping[str, TableStore]

#: The ``current`` tables; `table_specs` adds the logs.
_CURRENT: Final = {
    LIVENESS: (
        TableSpec(tables.WORKER_LIVENESS, WORKER_LIVENESS, "current"),
        TableSpec(tables.SERVERS, SERVERS, "current"),
    ),
    STATISTICS: (
        TableSpec(tables.WORKER_REPORTS, WORKER_REPORTS, "current"),
        TableSpec(tables.WORKER_STATS, WORKER_STATS, "current"),
        TableSpec(tables.EXECUTOR_COUNTERS, rollups.EXECUTOR_COUNTERS, "current"),
        TableSpec(tables.ROLLUP_OPEN, OPEN, "current"),
        TableSpec(tables.ROLLUP_PARTS, rollups.ROLLUP_PARTS, "current"),
    ),
}

_ROLLUPS: Final = {
    tables.ROLLUP_1M: "pipeline.retention.rollup.1m.hours",
    tables.ROLLUP_10M: "pipeline.retention.rollup.10m.hours",
    tables.ROLLUP_60M: "pipeline.retention.rollup.60m.hours",
}

#: The next query then starts anyway.
_SOURCE_SECS: Final = 60.0
_POLL_SECS: Final = 0.05


def table_specs(conf: Conf, query: str) -> Iterator[TableSpec]:
    def log(
        name: str, schema: pa.Schema, hours: str, *sort: str, time: str = "read_at", mb: str = ""
    ) -> TableSpec:
        kept = Retention(conf[hours], conf[mb] if mb else None)
        return TableSpec(name, schema, "log", time=time, sort=sort, retention=kept)

    yield from _CURRENT[query]
    if query == LIVENESS:
        hours = "pipeline.retention.events.hours"
        yield log(tables.WORKER_EVENTS, WORKER_EVENTS, hours, time="at")
        return
    hours, mb = "pipeline.retention.executor.stats.hours", "pipeline.retention.executor.stats.mb"
    yield log(tables.EXECUTOR_STATS, EXECUTOR_STATS, hours, mb=mb)
    # Readers ask for one topology, and similar neighbours compress better.
    hours, order = "pipeline.retention.stats.hours", ("window", "read_at")
    yield log(tables.COMPONENT_STATS, COMPONENT_STATS, hours, "topology", "component", *order)
    yield log(tables.TOPOLOGY_STATS, TOPOLOGY_STATS, hours, "topology", *order)
    yield log(tables.REJECTED, REJECTED, "pipeline.retention.rejected.hours")
    for name, hours in _ROLLUPS.items():
        yield log(name, ROLLUP, hours, "topology", "bucket", "component", time="bucket")


def table_store(conf: Conf, query: str) -> TableStore:
    place, _ = tables.query_folders(conf, query)
    return TableStore(place, table_specs(conf, query), interval_secs=interval_secs(conf, query))


def pacemaker_servers(conf: Conf, remedy: str) -> list[str]:
    """Raise `ConfigError` with the remedy if there is no Pacemaker."""
    servers = [str(address) for address in conf.pacemaker_servers()]
    if not servers:
        raise ConfigError(f"the pipeline has no Pacemaker to read: {remedy}")
    return servers


def interval_secs(conf: Conf, query: str) -> float:
    trigger: float = conf["pipeline.trigger.secs"]
    return trigger if query == LIVENESS else conf["pipeline.statistics.secs"] or trigger


def limits(conf: Conf) -> LivenessLimits:
    late = conf["pipeline.late.secs"] or 3 * conf["task.heartbeat.frequency.secs"]
    return LivenessLimits(float(late), float(conf["nimbus.task.timeout.secs"]))


def source_options(conf: Conf, servers: list[str]) -> dict[str, str]:
    return {"servers": ",".join(servers), **access_of(conf)}


def start(
    session: SparkSession,
    conf: Conf,
    servers: list[str],
    stores: Stores,
    status: StatusTracker | None = None,
    *,
    named: AddNames = lambda pulses: pulses,
    stopped: Callable[[], bool] = lambda: False,
    names: Collection[str] = NAMES,
) -> Iterator[StreamingQuery]:
    """Start the queries in `names` in order, until `stopped`; report batches to `status`."""
    for store in stores.values():
        store.check_place()  # before Spark creates the folder again for its checkpoint
    status = status or StatusTracker()
    conf = choose_parts(conf, servers, stores[STATISTICS])

    def begin(name: str) -> StreamingQuery:
        place, checkpoint = tables.query_folders(conf, name)
        options = {"packed": "true"}
        if (session.sparkContext.master or "").startswith("local"):
            options["aside"] = _emptied(place / ".aside")
        rows = read_stream(session, conf, servers, name, options)
        published = partial(status.record_batch, name)
        update = table_updater(conf, servers, name, stores, on_published=published, named=named)
        writer = write_stream(rows, conf, name, update).queryName(name)
        return writer.option("checkpointLocation", f"file://{checkpoint.absolute()}").start()

    for name in names:
        if stopped():
            return
        query = begin(name)
        yield query
        _wait_for_source(query, stopped)


def _wait_for_source(query: StreamingQuery, stopped: Callable[[], bool]) -> None:
    """Wait until a query has started the source, or until a stop.

    Two sources that start at once fail in every batch: all queries of Spark 4.3 add to one map of
    what the source's Python receives, without a lock.
    """
    deadline = time.monotonic() + _SOURCE_SECS
    while query.status["message"].startswith("Initializing") and query.isActive:
        if time.monotonic() >= deadline or stopped():
            return
        time.sleep(_POLL_SECS)


def _emptied(folder: Path) -> str:
    """Create an empty folder: a killed run may have left files."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder.parent, error) from error
    return str(folder.absolute())


def choose_parts(conf: Conf, servers: list[str], store: TableStore) -> Conf:
    """Fill in the number of parts for statistics.

    The number follows from the pulses that the Pacemakers hold, and never falls: a Pacemaker that
    has just started holds few.
    """
    if conf[PARTS_KEY] is not None:
        return conf
    options = Options.parse(source_options(conf, servers))
    health = coverage.ask(options.servers, options.timeout_secs, options.settings())
    held = sum(each.keys or 0 for each in health.values())
    count = max(math.ceil(held / WORKERS_OF_PART), len(store.read_parts(tables.WORKER_REPORTS)), 1)
    if count > 1:
        log.info("statistics have %d parts, as the Pacemakers hold %d pulses", count, held)
    return conf.with_values({PARTS_KEY: count})


def number_of_parts(conf: Conf, query: str) -> int:
    count: int | None = conf[PARTS_KEY] if query == STATISTICS else None
    return count or 1


def read_stream(
    session: SparkSession,
    conf: Conf,
    servers: list[str],
    query: str,
    more: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read ages or pulses; `more` options let the source decode, pack and spill rows."""
    options = source_options(conf, servers) | {
        "parts": str(number_of_parts(conf, query)),
        "values": str(query == STATISTICS).lower(),
        **(more or {}),
    }
    return session.readStream.format("pacemaker").options(**options).load()


def write_stream(
    rows: DataFrame, conf: Conf, query: str, keep: Callable[[DataFrame, int], None]
) -> DataStreamWriter:
    sent = pack(rows, number_of_parts(conf, query))
    millis = round(1000 * interval_secs(conf, query))
    trigger = f"{millis} milliseconds"
    return sent.writeStream.foreachBatch(keep).trigger(processingTime=trigger)


def table_updater(
    conf: Conf,
    servers: list[str],
    query: str,
    stores: Stores,
    *,
    on_published: OnPublished = lambda _: None,
    named: AddNames = lambda pulses: pulses,
) -> TableUpdater:
    if query == LIVENESS:
        compute = liveness_tables(
            limits(conf),
            LastPulses(Options.parse(source_options(conf, servers))),
            partial(stores[STATISTICS].read, tables.WORKER_REPORTS, schema=worker_liveness.STARTS),
            TopologyTimeouts(conf),
        )
    else:
        period_secs = float(conf["task.heartbeat.frequency.secs"])
        compute = statistics_tables(limits(conf), period_secs, named)
    return TableUpdater(stores[query], compute, on_published, number_of_parts(conf, query))
