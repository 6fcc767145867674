"""Measures one, two and four Pacemakers on this machine, all loaded at once.

    python bench/scaling_bench.py [--rounds 3] [--engine compiled|interpreted]

All servers share one core and the generator has another, so that four servers can do no more in
all than one: what is seen is whether several cost more for each pulse than one does. They share
nothing, so on cores of their own they add up.

- closed: 48 connections in all with one request outstanding each, 3 KiB: pulses/s, CPU for one
- paced: 24,000 pulses a second of 6,648 connections in all: CPU for one, p99
- memory: all of them empty, and with 72,000 x 3 KiB between them

Writes bench/results/scaling.json.
"""

import argparse
import contextlib
import json
import statistics
import sys
from pathlib import Path

from pacemaker.compiling import compiled
from pacemaker.servers import Stormkeeper, StormkeeperInterpreted

from pacemaker import cells, report, running

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "scaling.json"
COUNTS = (1, 2, 4)
CONNECTIONS = 48
BYTES = 3_072
ENGINES = {"compiled": Stormkeeper, "interpreted": StormkeeperInterpreted}
FIGURES = {
    "pulses/s": "closed_pulses_per_s",
    "CPU µs": "closed_cpu_us",
    "CPU µs at 24,000/s": "paced_cpu_us",
    "p99 ms at 24,000/s": "paced_p99_ms",
    "MiB, empty": "empty_rss_mib",
    "MiB, 72,000 x 3 KiB": "full_rss_mib",
}


class Several:
    """Some servers that look like one to the generator, which takes them in turn."""

    protocol = "pacemaker"

    def __init__(self, servers):
        self._servers = servers

    @property
    def port(self):
        return ",".join(str(server.port) for server in self._servers)

    @property
    def pids(self):
        return ",".join(server.pids for server in self._servers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, default="compiled")
    options = parser.parse_args()
    compiled("load")
    say(f"{options.rounds} rounds: about {options.rounds * len(COUNTS) * 18 / 60:.0f} min")
    rows = []
    for number in range(1, options.rounds + 1):
        for count in COUNTS:
            row = {"pacemakers": count, "round": number} | measure(count, ENGINES[options.engine])
            say(json.dumps(row))
            rows.append(row)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")
    print(table(rows))


def measure(count, kind):
    with contextlib.ExitStack() as stack:
        servers = Several([stack.enter_context(kind()) for _ in range(count)])
        small = {"operation": "send", "bytes": 64, "connections": count}
        empty = running.load(servers, **small, warmup=0, seconds=0.2)
        closed = running.load(
            *(servers,), operation="send", bytes=BYTES, connections=CONNECTIONS, seconds=2
        )
        paced = running.load(
            servers,
            operation="send",
            rate=cells.RATES[-1],
            bytes=BYTES,
            connections=cells.WORKERS,
            keys_per_connection=1,
            warmup=1,
            seconds=4,
        )
    with contextlib.ExitStack() as stack:
        servers = Several([stack.enter_context(kind()) for _ in range(count)])
        full = running.load(
            *(servers, "--no-fill"),
            operation="send",
            bytes=BYTES,
            connections=CONNECTIONS,
            outstanding=16,
            keys_per_connection=cells.MEMORY_KEYS // CONNECTIONS,
            requests=cells.MEMORY_KEYS // CONNECTIONS,
        )
    return {
        "closed_pulses_per_s": round(closed["requests_per_s"]),
        "closed_cpu_us": closed["cpu_us"],
        "paced_cpu_us": paced["cpu_us"],
        "paced_p99_ms": paced["p99_ms"],
        "empty_rss_mib": round(empty["rss_mib"], 1),
        "full_rss_mib": round(full["rss_mib"], 1),
    }


def table(rows):
    lines = []
    for count in COUNTS:
        mine = [row for row in rows if row["pacemakers"] == count]
        medians = [statistics.median(row[key] for row in mine) for key in FIGURES.values()]
        lines.append([count, *(f"{m:,.0f}" if m >= 1000 else f"{m:,.1f}" for m in medians)])
    return report.table(["Pacemakers", *FIGURES], lines)


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
