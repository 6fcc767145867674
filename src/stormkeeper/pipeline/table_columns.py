"""The columns of the pipeline's tables: name, type, and meaning.

``scripts/write-pipeline-tables`` writes docs/pipeline-tables.md. A new column needs a line here,
and values where the table's rows are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from stormkeeper.history.parquet import TIME
from stormkeeper.pipeline import tables

_TEXT: Final = pa.string()
_INT: Final = pa.int32()
_LONG: Final = pa.int64()
_DOUBLE: Final = pa.float64()
_BOOL: Final = pa.bool_()


class Column(NamedTuple):
    """A column; without a meaning, the meaning in `SHARED` counts."""

    name: str
    type: pa.DataType
    meaning: str = ""


def _alike(type_: pa.DataType, meaning: str, *names: str) -> Iterable[Column]:
    return [Column(name, type_, meaning) for name in names]


#: Columns that mean the same in all tables, unless a table gives its own meaning.
SHARED: Final = {
    column.name: column
    for column in (
        Column("storm_id", _TEXT, "the topology's id"),
        Column("topology", _TEXT, "the topology's name"),
        Column("node", _TEXT, "the id of the worker's supervisor"),
        Column("port", _INT, "the worker's port"),
        Column("server", _TEXT, "`host:port` of the Pacemaker that has the pulse"),
        Column("instance", _TEXT, "that Pacemaker's id, new at each start; null of a Java one"),
        Column("revision", _LONG, "the pulse's number there; null of a Java one"),
        Column("received_at", TIME, "receipt of the pulse; null of a Java one"),
        Column("read_at", TIME, "reading of the pulse"),
        Column("time_secs", _LONG, "the worker's clock in the pulse"),
        Column("uptime_secs", _INT, "the worker's uptime in the pulse"),
        Column("component", _TEXT, "the component's id; `tasks 1-3` if the worker does not say"),
        Column("kind", _TEXT, "`spout` or `bolt`; null if the worker does not say"),
        Column("window", _TEXT, "`600`, `10800`, `86400` (seconds) or `:all-time`"),
        Column("partial", _BOOL, "more rows existed than were counted"),
        *_alike(_LONG, "of the component, that have reported", "executors", "tasks"),
        *_alike(_LONG, "without Storm's own streams (`__…`)", "emitted", "transferred"),
        *_alike(_LONG, "with Storm's own streams", "emitted_all", "transferred_all"),
        *_alike(_LONG, "on all streams", "executed", "acked", "failed"),
        *_alike(
            _DOUBLE,
            "mean in ms of a spout's acked, or a bolt's executed tuples; null without any",
            *("complete_ms_avg", "execute_ms_avg", "process_ms_avg"),
        ),
    )
}

COLUMNS: Final[dict[str, list[Column]]] = {}


def _table(name: str, *columns: str | Column | tuple[str, pa.DataType, str]) -> pa.Schema:
    """Return the schema of a table; names alone are `SHARED` columns."""
    found = [
        SHARED[column]._replace(meaning="") if isinstance(column, str) else Column(*column)
        for column in columns
    ]
    COLUMNS[name] = found
    return pa.schema([(column.name, column.type) for column in found])


_SENT: Final = ("emitted", "transferred")
_TAKEN: Final = ("executed", "acked", "failed")
_COUNTS: Final = ("executors", "tasks", *_SENT, "emitted_all", "transferred_all", *_TAKEN)
_LATENCIES: Final = ("complete_ms_avg", "execute_ms_avg", "process_ms_avg")

WORKER_LIVENESS: Final = _table(
    tables.WORKER_LIVENESS,
    *("storm_id", "topology", "node", "port"),
    ("status", _TEXT, "`alive`, `late`, `dead` or `completed`"),
    ("stale", _BOOL, "silent for longer than the timeout, without proof of death"),
    ("age_secs", _DOUBLE, "time since `last_seen`"),
    ("last_seen", TIME, "receipt of the newest pulse"),
    ("updated_at", TIME, "reading of the batch"),
    *("server", "instance", "revision"),
    ("time_secs", _LONG, "the worker's clock; null unless a Java Pacemaker is read"),
    ("started_at", TIME, "the worker's start; null before statistics of it"),
    ("moved_from", _TEXT, "the server before; null if the worker never moved"),
    ("moved_at", TIME, "first receipt by the present server; null likewise"),
)

WORKER_EVENTS: Final = _table(
    tables.WORKER_EVENTS,
    ("at", TIME, "time of the event by the receipt of pulses, not by its discovery"),
    *("storm_id", "topology", "node", "port"),
    ("event", _TEXT, "see below"),
    "server",
    ("from_server", _TEXT, "the server before, if `moved`, else null"),
    ("age_secs", _DOUBLE, "age of the newest pulse when the event was noticed"),
    ("timeout_secs", _DOUBLE, "the silence after which the worker may be dead"),
    ("evidence", _TEXT, "why, in a sentence"),
)

SERVERS: Final = _table(
    tables.SERVERS,
    ("server", _TEXT, "`host:port`"),
    ("reachable", _BOOL, "the server was read for this batch"),
    ("reason", _TEXT, "why it is unreachable, else null"),
    ("since", TIME, "when `reachable` last changed"),
    ("read_at", TIME, "reading of the server"),
    ("instance", _TEXT, "its id, new at each start; null, as the next four, if down or Java"),
    ("revision", _LONG, "number of its newest change"),
    ("uptime_secs", _DOUBLE, "time since its start"),
    ("horizon_secs", _DOUBLE, "how long it has received and kept every pulse"),
    ("keys", _LONG, "number of its pulses"),
    ("reset", _BOOL, "it restarted or forgot tombstones since the batch before"),
)

WORKER_REPORTS: Final = _table(
    tables.WORKER_REPORTS,
    *("storm_id", "node", "port", "server", "instance", "revision"),
    ("received_at", TIME, "receipt of the pulse"),
    ("time_secs", _LONG, "the worker's clock; null if not decoded"),
    ("uptime_secs", _INT, "the worker's uptime; null if not decoded"),
    ("started_at", TIME, "receipt less uptime of the first report; null if none was decoded"),
    ("completed", _BOOL, "all queries of the worker have ended; null if not decoded"),
    ("bytes", _LONG, "size of the pulse as sent"),
    ("error", _TEXT, "why the pulse was not decoded, else null"),
    ("skipped", _LONG, "estimate of the pulses since the last one that was read"),
)

REJECTED: Final = _table(
    tables.REJECTED,
    "read_at",
    *_alike(_TEXT, "the worker; null, as `port`, if the path is no worker's", "storm_id", "node"),
    "port",
    ("path", _TEXT, "the pulse's path"),
    *("server", "revision"),
    ("bytes", _LONG, "size of the pulse as sent"),
    ("reason", _TEXT, "why it is not counted"),
)

EXECUTOR_STATS: Final = _table(
    tables.EXECUTOR_STATS,
    *("read_at", "received_at", "storm_id", "topology", "node", "port"),
    *("server", "instance", "revision", "time_secs", "uptime_secs"),
    *_alike(
        _INT,
        "first and last task; -1 of the executor that each Storm worker has for itself",
        *("task_start", "task_end"),
    ),
    *("component", "kind", "window"),
    ("source", _TEXT, "the component that sent an incoming stream; null of an outgoing stream"),
    ("stream", _TEXT, "null if nothing was counted in the window"),
    (
        "emitted",
        _LONG,
        "tuples or rows; null if not reported, as are `transferred` to `process_ms_avg`",
    ),
    ("transferred", _LONG, "emitted, times the receiving bolts"),
    *_alike(_LONG, "tuples or rows", "executed", "acked", "failed"),
    ("complete_ms_avg", _DOUBLE, "from a spout's tuple to its ack, in milliseconds"),
    ("execute_ms_avg", _DOUBLE, "a bolt's execution"),
    ("process_ms_avg", _DOUBLE, "from a bolt's receipt to its ack"),
    "partial",
)

WORKER_STATS: Final = _table(
    tables.WORKER_STATS,
    *("read_at", "storm_id", "topology", "node", "port", "component", "kind", "window"),
    *_COUNTS,
    *_alike(
        _DOUBLE,
        "sum of latency times count, in ms; null if not reported",
        *("complete_ms", "execute_ms", "process_ms"),
    ),
    *_alike(
        _DOUBLE,
        "likewise, each executor's time cut to whole ms",
        *("complete_page_ms", "execute_page_ms", "process_page_ms"),
    ),
    ("capacity", _DOUBLE, "of the busiest executor; null but in the window `600`"),
    "partial",
)

COMPONENT_STATS: Final = _table(
    tables.COMPONENT_STATS,
    ("read_at", TIME, "reading of the newest of the topology's pulses"),
    *("storm_id", "topology", "component", "kind", "window"),
    ("workers", _LONG, "with executors of the component"),
    *(*_COUNTS, *_LATENCIES),
    *_alike(
        _DOUBLE,
        "the same means, as Storm's topology page cuts them to whole ms",
        *("complete_ms_page", "execute_ms_page", "process_ms_page"),
    ),
    ("capacity", _DOUBLE, "busy share of the busiest executor, last ten minutes; null of spouts"),
    "partial",
)

TOPOLOGY_STATS: Final = _table(
    tables.TOPOLOGY_STATS,
    ("read_at", TIME, "reading of the newest of the topology's pulses"),
    *("storm_id", "topology", "window"),
    ("workers", _LONG, "that run more than Storm's own components"),
    *_alike(_LONG, "that have reported, with Storm's own", "executors", "tasks"),
    *_alike(_LONG, "without Storm's own components and streams", "emitted", "transferred"),
    *_alike(_LONG, "with all components and streams", "emitted_all", "transferred_all"),
    *_alike(_LONG, "of spouts", "acked", "failed"),
    ("complete_ms_avg", _DOUBLE, "of spouts, in milliseconds; null if nothing was acked"),
)

ROLLUP: Final = _table(
    tables.ROLLUP_1M,
    ("bucket", TIME, "start of the bucket"),
    *("storm_id", "topology", "component", "kind"),
    *_alike(_LONG, "the most that were read", "workers", "executors", "tasks"),
    *(*_SENT, *_TAKEN, *_LATENCIES),
    ("capacity", _DOUBLE, "largest that was read; null of spouts"),
    ("capacity_mean", _DOUBLE, "mean over executors and readings; null of spouts"),
    ("restarts", _LONG, "of workers, between two readings"),
    ("heartbeat_bytes", _DOUBLE, "mean size of the workers' heartbeats"),
    ("readings", _LONG, "heartbeats that were read"),
    ("skipped", _LONG, "estimate of the heartbeats between, which were not read"),
    ("interval_secs", _DOUBLE, "longest time since the reading before, or the worker's start"),
    ("largest_share", _DOUBLE, "the largest executor's part of the work, 0 to 1; null if none"),
    ("executed_cv", _DOUBLE, "deviation between executors, divided by the mean; null of spouts"),
)
COLUMNS[tables.ROLLUP_10M] = COLUMNS[tables.ROLLUP_60M] = COLUMNS[tables.ROLLUP_1M]

COMPONENTS: Final = _table(
    tables.COMPONENTS,
    "storm_id",
    ("component", _TEXT, "the component's id"),
    *_alike(_INT, "first and last", "task_start", "task_end"),
)

TOPOLOGIES: Final = _table(
    tables.TOPOLOGIES,
    "storm_id",
    ("timeout_secs", _DOUBLE, "its own `topology.worker.timeout.secs`, if any"),
    ("asked_at", TIME, "when Nimbus was asked"),
    ("seen_at", TIME, "when unnamed components were last read, up to a day early"),
)

ALERT_ROWS: Final = _table(
    tables.ALERTS,
    ("id", _TEXT, "rule and subject"),
    ("rule", _TEXT, "the [analysis](analytics.md)"),
    ("severity", _TEXT, "`warning` or `critical`"),
    ("subject_kind", _TEXT, "`component`, `topology`, `worker`, `node` or `pacemaker`"),
    ("subject", _TEXT, "its name"),
    *_alike(_TEXT, "of the subject, or null", "storm_id", "topology", "component", "node"),
    *_alike(_DOUBLE, "what was measured, and its limit", "value", "threshold"),
    ("evidence", _TEXT, "why, in a sentence"),
    ("since", TIME, "beginning"),
    ("until", TIME, "when it was last found before its end; null while it is open"),
    ("seen_at", TIME, "when it was last found"),
)

_HISTORY: Final = _table(
    tables.ALERT_HISTORY,
    ("at", TIME, "when the change was noticed"),
    ("change", _TEXT, "`began`, `severity` (a new severity) or `ended`"),
)
ALERT_HISTORY: Final = pa.schema([*_HISTORY, *ALERT_ROWS])

KILLED_TOPOLOGIES: Final = _table(
    tables.KILLED_TOPOLOGIES,
    "storm_id",
    ("listed_at", TIME, "when Nimbus last listed the topology; null if never"),
    ("killed_at", TIME, "the last pulse of its workers; null unless killed"),
)

SUPERVISORS: Final = _table(
    tables.SUPERVISORS,
    ("node", _TEXT, "the supervisor's id"),
    ("host", _TEXT, "its host"),
    ("listed_at", TIME, "when Nimbus last listed it"),
)
