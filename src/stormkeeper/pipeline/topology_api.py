"""The pipeline as a topology: functions for the spouts and sinks.

A worker calls these again when its topology is activated again: stores and threads belong to the
process.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.conf import Conf
from stormkeeper.errors import TableError
from stormkeeper.history.manifest import sole_writer
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, table_updates, tables
from stormkeeper.pipeline.analyses.alerts import alert_store
from stormkeeper.pipeline.analyses.runner import AnalysisRunner
from stormkeeper.pipeline.nimbus_poller import NimbusPoller, run_nimbus_poller
from stormkeeper.pipeline.status import StatusTracker
from stormkeeper.pipeline.table_updates import TableUpdater
from stormkeeper.pipeline.tables import ALERTS, LIVENESS, NAMING, STATISTICS

_process: Final = contextlib.ExitStack()
atexit.register(_process.close)

#: By folder.
_stores: Final[dict[Path, TableStore]] = {}
_pollers: Final[dict[Path, NimbusPoller]] = {}

#: Alert folders that this process analyses.
_analysed: Final[set[Path]] = set()


def ages(spark: SparkSession, conf: Conf) -> DataFrame:
    """Return the stream of workers' ages: a spout for `liveness`; may raise `ConfigError`."""
    return queries.read_stream(spark, conf, _servers(conf), LIVENESS)


def pulses(spark: SparkSession, conf: Conf) -> DataFrame:
    """Return the stream of heartbeats: a spout for `statistics`."""
    return queries.read_stream(spark, _choose_parts(conf), _servers(conf), STATISTICS)


def liveness(ages: DataFrame, conf: Conf) -> DataStreamWriter:
    """Return a sink that keeps the liveness tables of the stream `ages`.

    Raises `TableError` if another process writes these tables.
    """
    return _sink(ages, conf, LIVENESS)


def statistics(pulses: DataFrame, conf: Conf) -> DataStreamWriter:
    """Return a sink that keeps the statistics tables of the stream `pulses`, as `liveness` does."""
    return _sink(pulses, conf, STATISTICS)


def _choose_parts(conf: Conf) -> Conf:
    return queries.choose_parts(conf, _servers(conf), queries.table_store(conf, STATISTICS))


def _sink(rows: DataFrame, conf: Conf, query: str) -> DataStreamWriter:
    status = StatusTracker()
    conf = _choose_parts(conf) if query == STATISTICS else conf
    stores = {name: queries.table_store(conf, name) for name in queries.NAMES if name != query}
    stores[query] = _own_store(conf, query)
    updater = partial(queries.table_updater, on_published=partial(status.record_batch, query))
    if query == STATISTICS:
        updater = partial(updater, named=_poller(conf, status).named)
    update = updater(conf, _servers(conf), query, stores)
    _run_analyses(conf, rows.sparkSession, status)
    place, _ = tables.query_folders(conf, query)
    return queries.write_stream(rows, conf, query, _checked(update, place))


def _checked(update: TableUpdater, place: Path) -> Callable[[DataFrame, int], None]:
    """Check before the first batch that the tables match the checkpoint."""
    checked = False

    def update_checked(batch: DataFrame, number: int) -> None:
        nonlocal checked
        if not checked:
            tables.check_first_batch(table_updates.batch_origin(batch, number), place)
            checked = True
        update(batch, number)

    return update_checked


def _servers(conf: Conf) -> list[str]:
    remedy = (
        "set pacemaker.servers in the topology's conf, "
        "or in the storm.yaml of the machines that run it"
    )
    return queries.pacemaker_servers(conf, remedy)


def _own_store(conf: Conf, query: str) -> TableStore:
    place, _ = tables.query_folders(conf, query)
    if place not in _stores:
        _process.enter_context(sole_writer(place))
        store = _process.enter_context(queries.table_store(conf, query))
        store.check_place()
        _stores[place] = store
    return _stores[place]


def _poller(conf: Conf, status: StatusTracker) -> NimbusPoller:
    place = tables.tables_folder(conf) / NAMING
    if place not in _pollers:
        _process.enter_context(sole_writer(place))
        _pollers[place] = _process.enter_context(run_nimbus_poller(conf, status))
    return _pollers[place]


def _run_analyses(conf: Conf, session: SparkSession, status: StatusTracker) -> None:
    """Run the analyses, unless this process or another worker of the topology does."""
    place = tables.tables_folder(conf) / ALERTS
    if not conf["pipeline.analyses.secs"] or place in _analysed:
        return
    try:
        _process.enter_context(sole_writer(place))
    except TableError:
        return
    runner = AnalysisRunner(conf, _process.enter_context(alert_store(conf)), status)
    runner.start(session)
    _process.callback(runner.stop)
    _analysed.add(place)
