"""Small statistics tables, with the columns that `storm stats` reads."""

import time

import pyarrow as pa

from stormkeeper.history.parquet import TIME, TableSpec
from support.tables import origin, store

TEXT, COUNT, NUMBER, SMALL = pa.string(), pa.int64(), pa.float64(), pa.int32()

_WHOSE = {"storm_id": TEXT, "topology": TEXT}
_COMPONENT = {"component": TEXT, "kind": TEXT}
_SIZES = dict.fromkeys(("workers", "executors", "tasks"), COUNT)
_SENT = dict.fromkeys(("emitted", "transferred", "emitted_all", "transferred_all"), COUNT)
_COUNTS = dict.fromkeys(("emitted", "transferred", "executed", "acked", "failed"), COUNT)
_LATENCIES = dict.fromkeys(("complete_ms_avg", "execute_ms_avg", "process_ms_avg"), NUMBER)
_ROLLUP = {
    "bucket": TIME,
    **_WHOSE,
    **_COMPONENT,
    **_COUNTS,
    **_LATENCIES,
    "capacity": NUMBER,
    "restarts": COUNT,
    "skipped": COUNT,
    "interval_secs": NUMBER,
}

COLUMNS = {
    "component_stats": {
        "read_at": TIME,
        **_WHOSE,
        **_COMPONENT,
        "window": TEXT,
        **_SIZES,
        **_SENT,
        **_COUNTS,
        **_LATENCIES,
        "capacity": NUMBER,
        "partial": pa.bool_(),
    },
    "topology_stats": {
        "read_at": TIME,
        **_WHOSE,
        "window": TEXT,
        **_SIZES,
        **_SENT,
        "acked": COUNT,
        "failed": COUNT,
        "complete_ms_avg": NUMBER,
    },
    "executor_stats": {
        "read_at": TIME,
        **_WHOSE,
        "node": TEXT,
        "port": SMALL,
        "uptime_secs": SMALL,
        "task_start": SMALL,
        "task_end": SMALL,
        **_COMPONENT,
        "window": TEXT,
        "source": TEXT,
        "stream": TEXT,
        **_COUNTS,
        **_LATENCIES,
    },
    "rollup_1m": _ROLLUP,
    "rollup_10m": _ROLLUP,
    "rollup_60m": _ROLLUP,
}


def _time(name):
    return "bucket" if name.startswith("rollup") else "read_at"


SPECS = [
    TableSpec(name, pa.schema(columns), "log", time=_time(name))
    for name, columns in COLUMNS.items()
]


def write(folder, number=0, clock=time.time, **rows):
    """Commit rows of the tables; columns that they do not name are null."""
    with store(folder / "statistics", *SPECS, clock=clock) as tables:
        tables.publish(
            origin(number),
            {
                name: pa.Table.from_pylist(
                    [{**dict.fromkeys(COLUMNS[name]), **row} for row in given],
                    schema=pa.schema(COLUMNS[name]),
                )
                for name, given in rows.items()
            },
        )
