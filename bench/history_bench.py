"""Measures how soon a week of a large cluster's tables answers.

    python bench/history_bench.py [--rounds 15] [--folder DIR] [--quick]

Makes the tables of 400 topologies with eight components each, as the pipeline's own writer would
have left them: each table sorted, merged and kept as it is by default, so that the readings of
executors go back half an hour, those of components a day, and everything else a week. Then it
starts commands, each as a process of its own, in turns. Writes bench/results/history.json: the
tables' sizes, and the seconds of each command, the median and the worst of the rounds, and those of
CPU. The files are in the memory of the system, as what a pipeline has just written mostly is. Exits
with 1 if a command takes longer than it may.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from stormkeeper.conf import defaults
from stormkeeper.history import compaction, manifest, parquet
from stormkeeper.history.manifest import DataFile, Entry, Manifest, Origin
from stormkeeper.history.parquet import TIME
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, tables
from stormkeeper.pipeline.analyses.alerts import alert_tables
from stormkeeper.pipeline.table_columns import ALERT_ROWS

RESULTS = Path(__file__).resolve().parent / "results" / "history.json"
STORM = Path(sys.executable).with_name("storm")

TOPOLOGIES, COMPONENTS, NODES, PORTS = 400, 8, 277, 24
WINDOWS = {"600": 600, "10800": 10_800, "86400": 86_400, ":all-time": 900_000}
#: Executors of a component, and streams of an executor.
EXECUTORS, STREAMS = 14, 3
STATISTICS_SECS = 15
WEEK = timedelta(days=7)
#: The bar: seconds that a command takes.
BAR = 0.5

COUNTS = ("emitted", "transferred", "emitted_all", "transferred_all", "executed", "acked")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where the tables are kept")
    parser.add_argument("--quick", action="store_true", help="a day instead of a week")
    options = parser.parse_args()
    length = timedelta(days=1) if options.quick else WEEK
    if options.folder:
        sizes, rows = run(options.folder, length, options.rounds)
    else:
        with tempfile.TemporaryDirectory() as folder:
            sizes, rows = run(Path(folder), length, options.rounds)
    # How many others wanted the cores meanwhile: with many, look at the CPU.
    load = round(os.getloadavg()[0], 1)
    RESULTS.write_text(
        json.dumps({"load": load, "tables": sizes, "commands": rows}, indent=1) + "\n"
    )
    for row in rows:
        print(json.dumps(row))
    slow = [row["command"] for row in rows if row["median_secs"] >= BAR]
    print(f"less than {BAR} s: {f'FAILED by {slow}' if slow else 'held'}")
    sys.exit(1 if slow else 0)


def run(folder, length, rounds):
    began = time.monotonic()
    sizes = make(folder, length)
    print(f"tables made in {time.monotonic() - began:.0f} s", flush=True)
    return sizes, measured(folder, rounds)


def measured(folder, rounds):
    """Run each command in turns; return its times."""
    commands = [
        ("stats", "topology-217"),
        ("stats", "topology-217", "--json"),
        ("stats", "topology-031", "--component", "component-3"),
        ("stats", "topology-031", "--since", "2h"),
        ("stats", "topology-031", "--component", "component-3", "--since", "24h"),
        ("stats", "topology-031", "--since", "7d"),
        ("stats", "topology-031", "--since", "7d", "--plot"),
        ("stats", "topology-2170"),
        ("history", "topology-217"),
        ("history", "node-100", "--since", "7d"),
        ("alerts",),
    ]
    times = {command: [] for command in commands}
    for _ in range(rounds):
        for command in commands:
            times[command].append(timed(folder, command))
    return [
        {
            "command": " ".join(("storm", *command)),
            "median_secs": round(statistics.median(secs for secs, _ in found), 3),
            "worst_secs": round(max(secs for secs, _ in found), 3),
            "cpu_secs": round(statistics.median(cpu for _, cpu in found), 3),
        }
        for command, found in times.items()
    ]


def timed(folder, command):
    """Run a command; return its seconds, and those of CPU."""
    argv = [STORM, *command, "-c", f"pipeline.tables.dir={folder}"]
    before, began = os.times(), time.monotonic()
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    secs, after = time.monotonic() - began, os.times()
    assert ran.returncode == ("topology-2170" in command), ran.stderr
    cpu = after.children_user - before.children_user + after.children_system
    return secs, cpu - before.children_system


def make(folder, length):
    """Write all tables; return their sizes by name."""
    conf, now = defaults(), datetime.now(UTC).replace(microsecond=0)
    sizes = {}
    for query in queries.NAMES:
        entries = {}
        place = folder / query
        for spec in queries.table_specs(conf, query):
            (place / spec.name).mkdir(parents=True, exist_ok=True)
            files = written(place, spec, now, length) if spec.name in LOGS else []
            entries[spec.name] = Entry(spec.kind, spec.time, 1, spec.columns, files)
            if files:
                sizes[spec.name] = {
                    "files": len(files),
                    "rows": sum(file.rows for file in files),
                    "mb": round(sum(file.bytes for file in files) / compaction.MB, 1),
                }
                print(spec.name, json.dumps(sizes[spec.name]), flush=True)
        at = Manifest(manifest.FORMAT, 1, Origin("q", 1), now, STATISTICS_SECS, entries)
        manifest.stage(place, at)
        manifest.publish(place)
    with TableStore(folder / tables.ALERTS, alert_tables(conf), interval_secs=60) as store:
        store.publish(Origin("q", 1), {tables.ALERTS: alerts(now)})
    return sizes


def written(place, spec, now, length):
    """Write a log's files as commits and merges leave them."""
    every, rows_of = LOGS[spec.name]
    hours = spec.retention.hours
    kept = min(length, timedelta(hours=hours)) if hours is not None else length
    count = kept // timedelta(seconds=every)
    times = [now - timedelta(seconds=every * back) for back in reversed(range(count))]
    found = []
    for group, level in groups(times, rows_of, spec):
        found.append(file_of(place, spec, rows_of, group, level, found))
    return compaction.files_to_keep(found, spec.retention, now)


def groups(times, rows_of, spec) -> Iterator[tuple[list[datetime], int]]:
    """Yield the times whose rows are in one file, and its level."""
    one = len(rows_of(0, np.random.default_rng(0))["topology"])
    hours = spec.retention.hours
    part = timedelta(hours=hours) / 8 if hours is not None else WEEK
    most = max(1, min(compaction.MAX_ROWS // one, part // (times[1] - times[0])))
    whole = min(most, compaction.FAN_IN**2)
    small = compaction.FAN_IN - 1  # the newest have not been merged yet
    merged = max(0, len(times) - small) // whole * whole
    for first in range(0, merged, whole):
        yield times[first : first + whole], 2 if whole > compaction.FAN_IN else 1
    rest = times[merged:]
    while len(rest) > small and whole > compaction.FAN_IN:
        yield rest[: compaction.FAN_IN], 1
        rest = rest[compaction.FAN_IN :]
    for at in rest:
        yield [at], 0


def file_of(place, spec, rows_of, times, level, before) -> DataFile:
    """Write the rows of some times to a file, of many alike the older ones under other names."""
    path = parquet.new_path(spec.name, len(before))
    alike = [file for file in before if file.level == level]
    if spec.name in LINKED and len(alike) > 2:
        (place / path).hardlink_to(place / alike[0].path)
        return DataFile(path, alike[0].rows, alike[0].bytes, times[0], times[-1], level)
    chance = np.random.default_rng(len(before))
    parts = []
    for number, at in enumerate(times):
        columns = rows_of(len(before) * len(times) + number, chance)
        rows = len(columns["topology"])
        micros = pa.array(np.full(rows, int(at.timestamp()) * 1_000_000))
        columns |= {name: micros.cast(TIME) for name in (spec.time, "received_at")}
        found = {
            field.name: columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(rows, field.type)
            for field in spec.schema
        }
        parts.append(pa.table(found, schema=spec.schema))
    file = parquet.NewFile(place, path, spec)
    file.add(spec.fitted(pa.concat_tables(parts)))
    return file.finish(level)


class Cluster:
    """Whose rows they are; what they count is drawn anew for each reading."""

    def __init__(self):
        components = TOPOLOGIES * COMPONENTS
        chance = np.random.default_rng(1)
        self.rate = chance.lognormal(4, 1.5, components)
        self.latency = chance.gamma(2, 0.5, components)
        self.topology = np.repeat(np.arange(TOPOLOGIES), COMPONENTS)
        self.component = np.tile(np.arange(COMPONENTS), TOPOLOGIES)
        self.is_bolt = self.component > 0

    def named(self, of):
        """Return the columns that say whose a row is, of components by their number."""
        topology, component = self.topology[of], self.component[of]
        ids = [f"topology-{each:03d}-{each}-1700000000" for each in range(TOPOLOGIES)]
        return {
            "topology": texts([each.rsplit("-", 2)[0] for each in ids], topology),
            "storm_id": texts(ids, topology),
            "component": texts([f"component-{each}" for each in range(COMPONENTS)], component),
            "kind": texts(["spout", "bolt"], self.is_bolt[of].astype(int)),
        }

    def counted(self, of, secs, chance):
        """Return what was counted in so many seconds, sampled as Storm's counts are."""
        spouts, bolts = ~self.is_bolt[of], self.is_bolt[of]
        found = {}
        for name in COUNTS:
            mean = self.rate[of] * secs * chance.uniform(0.9, 1.1, len(of)) / 20
            drawn = 20 * np.rint(mean).astype(np.int64)
            found[name] = pa.array(drawn, mask=spouts if name == "executed" else None)
        found["failed"] = pa.array(chance.poisson(0.1, len(of)))
        for name, whose in (("complete", bolts), ("execute", spouts), ("process", spouts)):
            drawn = self.latency[of] * chance.uniform(0.9, 1.1, len(of))
            found[f"{name}_ms_avg"] = found[f"{name}_ms_page"] = pa.array(drawn, mask=whose)
        found["capacity"] = pa.array(chance.uniform(0.1, 0.7, len(of)), mask=spouts)
        return found


def texts(values, indices):
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(values)).cast(pa.string())


def constant(rows, **values):
    return {name: pa.array(np.full(rows, value)) for name, value in values.items()}


def windows(each):
    """Return rows once per window: their number, the window's names, its seconds."""
    of = np.repeat(np.arange(each), len(WINDOWS))
    window = np.tile(np.arange(len(WINDOWS)), each)
    return of, texts([*WINDOWS], window), np.array([*WINDOWS.values()])[window]


def component_stats(number, chance):
    of, window, secs = windows(TOPOLOGIES * COMPONENTS)
    secs = secs + np.where(secs == WINDOWS[":all-time"], number * STATISTICS_SECS, 0)
    sizes = constant(len(of), workers=EXECUTORS, executors=EXECUTORS, tasks=EXECUTORS)
    partial = {"partial": pa.array(np.zeros(len(of), bool))}
    return (
        CLUSTER.named(of) | {"window": window} | sizes | partial | CLUSTER.counted(of, secs, chance)
    )


def topology_stats(_, chance):
    of, window, secs = windows(TOPOLOGIES)
    of = of * COMPONENTS
    sizes = constant(len(of), workers=EXECUTORS, executors=110, tasks=110)
    return CLUSTER.named(of) | {"window": window} | sizes | CLUSTER.counted(of, secs, chance)


def executor_stats(_, chance):
    executors = TOPOLOGIES * COMPONENTS * EXECUTORS
    each, window, secs = windows(executors)
    each, secs = np.repeat(each, STREAMS), np.repeat(secs, STREAMS)
    window = window.take(pa.array(np.repeat(np.arange(len(window)), STREAMS)))
    of, task = each // EXECUTORS, each % (COMPONENTS * EXECUTORS) + 1
    stream = np.tile(np.arange(STREAMS), len(each) // STREAMS)
    # In the order of workers, as they are read.
    worker = (each // (COMPONENTS * EXECUTORS) * EXECUTORS + task) % (NODES * PORTS)
    found = {
        **CLUSTER.named(of),
        **CLUSTER.counted(of, secs / 3, chance),
        "window": window,
        "node": texts([f"node-{node:03d}" for node in range(NODES)], worker // PORTS),
        "port": pa.array(6700 + worker % PORTS),
        "server": texts(["pacemaker-1:6699", "pacemaker-2:6699"], worker % 2),
        "instance": texts(["5f0c12ab90aa3be1", "1f0c12ab90aa3be2"], worker % 2),
        "revision": pa.array(chance.integers(1 << 30, size=NODES * PORTS)[worker]),
        **constant(len(each), time_secs=1_700_000_000, uptime_secs=900_000),
        "task_start": pa.array(task),
        "task_end": pa.array(task),
        "source": texts(["component-0"], np.zeros(len(each), int)),
        "stream": texts(["default", "errors", "__ack_ack"], stream),
        "partial": pa.array(np.zeros(len(each), bool)),
    }
    order = pa.array(np.argsort(worker, kind="stable"))
    return {name: column.take(order) for name, column in found.items()}


def rollup(secs):
    def rows_of(_, chance):
        of = np.arange(TOPOLOGIES * COMPONENTS)
        sizes = constant(len(of), workers=EXECUTORS, executors=EXECUTORS, tasks=EXECUTORS)
        more = constant(len(of), restarts=0, skipped=4 * EXECUTORS, readings=4 * EXECUTORS)
        numbers = ("capacity_mean", "heartbeat_bytes", "interval_secs", "largest_share")
        drawn = {
            each: pa.array(chance.uniform(0, 1, len(of))) for each in (*numbers, "executed_cv")
        }
        return CLUSTER.named(of) | CLUSTER.counted(of, secs, chance) | sizes | more | drawn

    return rows_of


def worker_events(_, chance):
    """Return what happens in ten minutes: some workers come and go."""
    count = 60
    of = chance.integers(TOPOLOGIES * COMPONENTS, size=count)
    return CLUSTER.named(of) | {
        "node": texts(
            [f"node-{node:03d}" for node in range(NODES)], chance.integers(NODES, size=count)
        ),
        "port": pa.array(6700 + chance.integers(PORTS, size=count)),
        "event": texts(["late", "back"], np.arange(count) % 2),
        "evidence": texts(["no pulse for 9.4 s, where 9.0 s are allowed"], np.zeros(count, int)),
    }


def alerts(now):
    """Return two hundred alerts, half of which have ended."""
    number = np.arange(200)
    columns = CLUSTER.named(number * COMPONENTS) | {
        "id": texts([f"saturation/{each}" for each in number], number),
        **{name: texts([name], np.zeros(200, int)) for name in ("rule", "subject_kind", "node")},
        "severity": texts(["warning", "critical"], number % 2),
        "subject": texts(["topology-001-1-1700000000/component-3"], np.zeros(200, int)),
        "evidence": texts(["capacity is 0.91, and rises by 0.05 an hour"], np.zeros(200, int)),
        **{name: pa.array(number / 200) for name in ("value", "threshold")},
        **{name: pa.array([now] * 200, TIME) for name in ("since", "seen_at")},
        "until": pa.array([now if each % 3 else None for each in number], TIME),
    }
    return pa.table({name: columns[name] for name in ALERT_ROWS.names})


CLUSTER = Cluster()

#: The logs: how often they get rows, in seconds, and what makes these.
LOGS = {
    "component_stats": (STATISTICS_SECS, component_stats),
    "topology_stats": (STATISTICS_SECS, topology_stats),
    "executor_stats": (STATISTICS_SECS, executor_stats),
    "rollup_1m": (60, rollup(60)),
    "rollup_10m": (600, rollup(600)),
    "rollup_60m": (3_600, rollup(3_600)),
    "worker_events": (600, worker_events),
}

#: Those with so many large files that one stands for all that are never read.
LINKED = {"component_stats", "executor_stats"}

if __name__ == "__main__":
    main()
