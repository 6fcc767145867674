"""The same heartbeats through ZooKeeper and through a Pacemaker: CPU, memory, disk, latency.

    python bench/zookeeper_bench.py [--rounds 3] [--seconds 60] [--quick]

6,648 workers, each with a connection (of ZooKeeper: a session) and a node of its own, beat with 3
KiB every 3 s: 2,216 writes a second, each at its time; latency counts from then. ZooKeeper is one
real server out of PySpark's jars with its own defaults (each write is forced to disk before it is
answered, in groups), a heap of at most 1 GiB, and its data on the disk of this checkout. Every
server may use all cores; the generator has one of them. A second ZooKeeper does not wait for the
disk (forceSync=no).

The nodes are made, and written a first time, before the measurement. The disk's figure is what the
kernel counts for the process (write_bytes of /proc/PID/io). One server runs at a time; every round
runs each of them. Writes bench/results/zookeeper.json.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from pacemaker.compiling import BUILD, compiled
from pacemaker.servers import HOST, Server, Stormkeeper, StormkeeperInterpreted, UnavailableError

from pacemaker import cells, report, running
from stormkeeper.daemon.spark_environment import find_java
from stormkeeper.errors import LocalClusterError
from stormkeeper.local.dev_zookeeper import (
    MAIN_CLASS,
    four_letter_word,
    logging_settings,
    zookeeper_classpath,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "zookeeper.json"
RATE = cells.RATES[0]
BYTES = 3_072
WARMUP_SECS = 10
#: Start, sessions and nodes, stop.
AROUND_SECS = 20
FIGURES = ("cpu_percent", "rss_mib", "written_mib_per_s", "p50_ms", "p99_ms", "max_ms")


class ZooKeeper(Server):
    """One server with the defaults of ZooKeeper's own distribution."""

    name = protocol = "zookeeper"
    pinned = False
    options = ()

    def command(self, folder):
        # Not in the system's temporary folder, which may be memory.
        self._data = BUILD / f"zookeeper-{os.getpid()}"
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(parents=True)
        settings, logging = folder / "zoo.cfg", folder / "log4j2.properties"
        settings.write_text(
            f"dataDir={self._data}\nclientPortAddress={HOST}\nclientPort={self.port}\n"
            "tickTime=2000\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n"
        )
        logging.write_text(logging_settings(folder / "zookeeper.log"))
        try:
            java, jars = find_java(os.environ), zookeeper_classpath()
        except LocalClusterError as error:
            raise UnavailableError(str(error)) from None
        return [
            *(java, "-Xmx1g", "-Dzookeeper.admin.enableServer=false", *self.options),
            *(f"-Dlog4j2.configurationFile={logging.as_uri()}", "-cp", jars),
            *(MAIN_CLASS, settings),
        ]

    def is_ready(self):
        try:
            return "Mode:" in four_letter_word(HOST, self.port, "srvr")
        except OSError:
            return False

    def stop(self):
        super().stop()
        shutil.rmtree(self._data, ignore_errors=True)


class ZooKeeperWithoutSync(ZooKeeper):
    """Answers before the disk has it, as `storm dev-zookeeper` does."""

    name = "zookeeper-forcesync-no"
    options = ("-Dzookeeper.forceSync=no",)


SERVERS = (ZooKeeper, ZooKeeperWithoutSync, Stormkeeper, StormkeeperInterpreted)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="one round of 10 s; nothing is kept")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 10
    compiled("load")
    secs = len(SERVERS) * options.rounds * (options.seconds + WARMUP_SECS + AROUND_SECS)
    say(f"{len(SERVERS)} servers, {options.rounds} rounds: about {secs / 60:.0f} min")
    rows = []
    for number in range(1, options.rounds + 1):
        for kind in SERVERS:
            try:
                row = {"server": kind().name, "round": number} | measure(kind, options.seconds)
            except (UnavailableError, running.MeasurementError) as error:
                say(f"without {kind().name}: {error}")
                continue
            rows.append(row)
            say(f"round {number} of {options.rounds}: {json.dumps(row)}")
    if not options.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text("[\n" + ",\n".join("  " + json.dumps(r) for r in rows) + "\n]\n")
    print(table(rows))


def measure(kind, secs):
    server = kind()
    server.pinned = False
    with server:
        found = running.load(
            server,
            operation="send",
            rate=RATE,
            bytes=BYTES,
            connections=cells.WORKERS,
            keys_per_connection=1,
            warmup=WARMUP_SECS,
            seconds=secs,
        )
    figures = found | {
        "cpu_percent": 100 * found["server_cores"],
        "written_mib_per_s": found["written_bytes"] / 2**20 / found["seconds"],
    }
    return {name: round(figures[name], 3) for name in FIGURES} | {"unanswered": found["unanswered"]}


def table(rows):
    """Return the medians of the rounds."""
    names = list(dict.fromkeys(row["server"] for row in rows))
    lines = []
    for name in names:
        mine = [row for row in rows if row["server"] == name]
        lines.append([name, *(f"{statistics.median(r[f] for r in mine):,.2f}" for f in FIGURES)])
    return report.table(["", "CPU, %", "MiB", "MiB/s to disk", "p50, ms", "p99, ms", "max"], lines)


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
