"""The tables of a small cluster that has one of each trouble, at a fixed time.

Eight nodes have six workers each, of three topologies. All workers of node-3 are dead, one of
clicks flaps, and clicks has stopped counting. In word-count, one executor of count has most of the
work, and count will soon have no time left.
"""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from stormkeeper.conf import defaults
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, tables

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)

IDS = {name: f"{name}-{n}-1700000000" for n, name in enumerate(("word-count", "clicks", "billing"))}

#: The components of a topology: kind, executors, tuples a second, milliseconds each, capacity.
COMPONENTS = {
    "words": ("spout", 2, 100, None, None),
    "split": ("bolt", 4, 100, 0.2, 0.02),
    "count": ("bolt", 8, 800, 0.5, 0.9),
}
WINDOWS = {"600": 600, "10800": 10_800, "86400": 86_400, ":all-time": 864_000}

#: What the executors of count have of its work.
SHARES = (0.65, *[0.05] * 7)


def write(folder):
    """Write the tables of both queries."""
    found = {
        tables.LIVENESS: {
            "worker_liveness": [*_liveness()],
            "servers": [*_servers()],
            "worker_events": [*_events()],
        },
        tables.STATISTICS: {
            "component_stats": [*_component_stats()],
            "executor_stats": [*_executor_stats()],
            "rollup_1m": [*_rollup(1, hours=1)],
            "rollup_10m": [*_rollup(10, hours=6)],
        },
    }
    for query, rows_of in found.items():
        specs = [*queries.table_specs(defaults(), query)]
        schemas = {spec.name: spec.schema for spec in specs}
        written = {
            name: pa.Table.from_pylist(
                [{**dict.fromkeys(schemas[name].names), **row} for row in rows],
                schema=schemas[name],
            )
            for name, rows in rows_of.items()
        }
        with TableStore(folder / query, specs, interval_secs=15, clock=NOW.timestamp) as store:
            store.publish(Origin("q", 0), written)


def _ago(secs):
    return NOW - timedelta(seconds=secs)


def _workers():
    for number in range(48):
        topology = [*IDS][number % 3]
        yield {
            "storm_id": IDS[topology],
            "topology": topology,
            "node": f"node-{number // 6 + 1}",
            "port": 6700 + number % 6,
            "server": f"pacemaker-{number % 2 + 1}:6699",
        }


def _liveness():
    for worker in _workers():
        is_dead = worker["node"] == "node-3"
        age = 44.0 if is_dead else 1.5
        yield {
            **worker,
            "status": "dead" if is_dead else "alive",
            "stale": False,
            "age_secs": age,
            "last_seen": _ago(age),
            "updated_at": NOW,
        }


def _servers():
    for number in (1, 2):
        yield {
            "server": f"pacemaker-{number}:6699",
            "reachable": True,
            "since": _ago(86_400),
            "read_at": NOW,
            "horizon_secs": 86_400.0,
            "keys": 24,
            "reset": False,
        }


def _events():
    for worker in _workers():
        steps = []
        if worker["node"] == "node-3":
            steps = [(35, "late", 9), (14, "dead", 30)]
        elif (worker["node"], worker["port"]) == ("node-5", 6701):
            # What ends and comes back within half an hour.
            for end in (1500, 900, 300):
                steps += [(end, "late", 9), (end - 21, "dead", 30), (end - 31, "restarted", 0)]
        for secs, event, age in steps:
            yield {**worker, "at": _ago(secs), "event": event, "age_secs": float(age)}


def _counted(topology, component, secs, share=1.0):
    kind, _, rate, millis, _ = COMPONENTS[component]
    count = round(rate * secs * share)
    return {
        "storm_id": IDS[topology],
        "topology": topology,
        "component": component,
        "kind": kind,
        "emitted": 0 if component == "count" else count,
        "transferred": 0 if component == "count" else count,
        "executed": count if kind == "bolt" else 0,
        "acked": count,
        "failed": 0,
        "complete_ms_avg": 12.5 if kind == "spout" else None,
        "execute_ms_avg": millis,
        "process_ms_avg": millis,
    }


_IDLE = ("billing", "count")


def _component_stats():
    for topology in ("word-count", "billing"):
        for component, (_, executors, *_, capacity) in COMPONENTS.items():
            for window, secs in WINDOWS.items():
                for ago in (15, 0):
                    yield {
                        **_counted(topology, component, secs - ago),
                        "read_at": _ago(ago),
                        "window": window,
                        "workers": executors,
                        "executors": executors,
                        "tasks": executors,
                        "capacity": 0.3 if (topology, component) == _IDLE else capacity,
                    }


def _executor_stats():
    for place, (share, worker) in enumerate(zip(SHARES, _workers(), strict=False)):
        for window, secs in WINDOWS.items():
            yield {
                **_counted("word-count", "count", secs, share),
                "node": worker["node"],
                "port": worker["port"],
                "read_at": NOW,
                "uptime_secs": 864_000,
                "task_start": 7 + place,
                "task_end": 7 + place,
                "window": window,
                "source": "split",
                "stream": "default",
            }


def _rollup(minutes, hours):
    draw = random.Random(minutes)
    for topology in IDS:
        for back in range(hours * 60 // minutes, 0, -1):
            bucket = _ago(60 * minutes * back)
            has_stopped = topology == "clicks" and back * minutes <= 40
            for component, (_, executors, *_, capacity) in COMPONENTS.items():
                load = 0.0 if has_stopped else draw.uniform(0.97, 1.03)
                busy = capacity
                if (topology, component) == ("word-count", "count"):
                    # It rises by a tenth an hour.
                    busy = capacity - 0.1 * back * minutes / 60
                elif component == "count":
                    busy = 0.3
                is_skewed = (topology, component) == ("word-count", "count")
                yield {
                    **_counted(topology, component, 60 * minutes, load),
                    "bucket": bucket,
                    "workers": executors,
                    "executors": executors,
                    "tasks": executors,
                    "capacity": busy,
                    "capacity_mean": busy,
                    "restarts": 0,
                    "heartbeat_bytes": 2_000.0,
                    "readings": 4 * minutes,
                    "skipped": 16 * minutes,
                    "interval_secs": 15.0,
                    "largest_share": SHARES[0] if is_skewed else 1 / executors,
                    "executed_cv": 1.6 if is_skewed else 0.02,
                }
